"""Terms add up, pick their outputs, stand beside priors, and refuse what cannot work."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stand_ins import Through
from torch import Tensor, nn

import headrace as hr

N, K = 23, 5
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, K, dtype=torch.float64, generator=GENERATOR)
Y = torch.randint(K, (N,), generator=GENERATOR)
PRICES, PAID = torch.randn(2, N, 2, dtype=torch.float64, generator=GENERATOR)
MSE, L1 = F.mse_loss(PRICES, PAID).item(), F.l1_loss(PRICES, PAID).item()


def trainer(loss: Any, model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    options = {"device": "cpu", "inputs": "x"} | options
    return hr.Trainer(model or Through(), copy.deepcopy(loss), lambda params: torch.optim.SGD(params, 0.1), **options)


def test_a_sum_of_terms_is_logged_by_name_and_adds_up_with_its_coefficients() -> None:
    loss = 2 * (hr.MSE() + 0.5 * hr.L1(name="far") + 0 * hr.Huber()) + hr.MSE(coefficient=3) + hr.MSE() * 0.25
    losses = trainer(loss).step({"x": PRICES, "y": PAID})
    expected = {
        "mse": MSE,
        "far": L1,
        "huber": F.smooth_l1_loss(PRICES, PAID, beta=0.11).item(),
        "mse_2": MSE,
        "mse_3": MSE,
    }
    assert losses == pytest.approx(expected | {"total_loss": 5.25 * MSE + L1}, rel=1e-12)
    assert list(losses) == ["total_loss", *expected]


def test_a_coefficient_of_0_moves_nothing() -> None:
    after = []
    for loss in (hr.MSE(), hr.MSE() + 0 * hr.L1(), hr.MSE() + hr.L1()):
        model = Through()
        trainer(loss, model).step({"x": PRICES, "y": PAID})
        after.append(model.scale.item())
    assert after[0] == after[1] != after[2]


def test_output_and_target_pick_from_several() -> None:
    class Two(Through):
        def forward(self, x: Tensor) -> Any:
            return {"near": x * self.scale, "far": 2 * x * self.scale}

    streams = {"x": PRICES, "y": PAID, "z": -PAID}
    loss = hr.MSE(output="near") + hr.MSE(output="far", target="z")
    scores = trainer(loss, Two()).validate(streams)
    assert scores["val/loss/mse"] == pytest.approx(MSE)
    assert scores["val/loss/mse_2"] == pytest.approx(F.mse_loss(2 * PRICES, -PAID).item())
    with pytest.raises(hr.ConfigError, match=r"'middle' is not among .*near"):
        trainer(hr.MSE(output="middle"), Two()).validate(streams)
    with pytest.raises(hr.ConfigError, match="output="):
        trainer(hr.MSE(), Two()).validate(streams)


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("microbatch", [None, 5])
def test_an_l2_prior_is_weight_decay_once_per_update(biases: bool, microbatch: int | None) -> None:
    decay, model = 0.3, nn.Linear(K, K, dtype=torch.float64)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    plain = copy.deepcopy(model)
    F.cross_entropy(plain(X), Y).backward()
    training = trainer(hr.CrossEntropy() + hr.L2Prior(decay, biases=biases), model, microbatch=microbatch)
    losses = training.step((X, Y))
    training.release()
    torch.testing.assert_close(model.weight, weight - 0.1 * (plain.weight.grad + decay * weight))
    torch.testing.assert_close(model.bias, bias - 0.1 * (plain.bias.grad + (decay * bias if biases else 0)))
    penalty = 0.5 * ((weight**2).sum() + ((bias**2).sum() if biases else 0)).item()
    assert losses["l2_prior"] == pytest.approx(penalty)
    assert losses["total_loss"] == pytest.approx(losses["cross_entropy"] + decay * penalty)


def test_a_prior_is_not_part_of_a_validation() -> None:
    model = nn.Linear(K, K, dtype=torch.float64)
    scores = trainer(hr.CrossEntropy() + hr.L2Prior(100.0), model).validate((X, Y))
    assert scores.keys() == {"val/loss", "val/loss/cross_entropy"}
    assert scores["val/loss"] == pytest.approx(F.cross_entropy(model(X), Y).item())


BAD_ARGUMENTS = {
    "normalize=.*'mean'": lambda: hr.CrossEntropy(normalize="mean"),  # type: ignore[arg-type]
    "reduce=.*'none'": lambda: hr.MSE(reduce="none"),
    "label_smoothing=.*1.5": lambda: hr.CrossEntropy(label_smoothing=1.5),
    "class_weights=.*-1": lambda: hr.CrossEntropy(class_weights=[1.0, -1.0]),
    "class_weights=.*-2": lambda: hr.Focal(class_weights=torch.tensor([1.0, -2.0])),
    "gamma=.*-0.5": lambda: hr.Focal(-0.5),
    "delta=.* 0": lambda: hr.Huber(0),
    "delta=.*-1": lambda: hr.Huber(-1, form="classic"),
    "form=.*'rough'": lambda: hr.Huber(form="rough"),  # type: ignore[arg-type]
    "positive_weight=": lambda: hr.BinaryCrossEntropy(logits=False, positive_weight=[2.0]),
    "neither weight= nor reduce=": lambda: hr.RowMean(F.mse_loss, reduce="sum"),
    "priors only": lambda: trainer(hr.L2Prior(1.0)),
}


@pytest.mark.parametrize("message", BAD_ARGUMENTS)
def test_arguments_that_cannot_work_are_refused(message: str) -> None:
    with pytest.raises(hr.ConfigError, match=message):
        BAD_ARGUMENTS[message]()


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "message"),
    [
        (hr.CrossEntropy(), X, Y.where(torch.arange(N) != 9, 7), "row 9: label 7 is out of range"),
        (hr.CrossEntropy(), X, Y.double(), "class indices"),
        (hr.CrossEntropy(), X[:, 0], Y, "BinaryCrossEntropy"),
        (hr.MSE(), PRICES, PAID[:, 0], "must be equal"),
        (hr.MSE(), PRICES, PAID.float(), "Convert the stream to float64"),
        (hr.Focal(), X, Y.where(torch.arange(N) != 9, 7), "row 9: label 7 is out of range"),
    ],
)
def test_targets_that_can_never_match_are_refused(
    loss: hr.Loss, outputs: Tensor, targets: Tensor, message: str
) -> None:
    with pytest.raises(hr.DataError, match=message):
        trainer(loss).fit((outputs, targets), steps=1, progress=False)


def test_a_term_called_loss_is_the_loss() -> None:
    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(outputs, target)

    training = trainer(hr.RowMean(loss))
    stopping = hr.EarlyStopping("train/loss")
    last = training.fit({"x": PRICES, "y": PAID}, epochs=1, progress=False, callbacks=[stopping]).last
    assert [key for key in last if "loss" in key] == ["train/loss"]
    with pytest.raises(hr.ConfigError, match="'train/loss/loss', which is not measured"):
        training.fit({"x": PRICES, "y": PAID}, progress=False, callbacks=[hr.EarlyStopping("train/loss/loss")])
    scores = trainer(0.5 * hr.RowMean(loss)).validate({"x": PRICES, "y": PAID})
    assert scores == pytest.approx({"val/loss": MSE / 2, "val/loss/loss": MSE})
