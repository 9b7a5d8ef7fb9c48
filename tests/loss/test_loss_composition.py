"""Terms add up, pick their outputs, stand beside priors, and refuse what cannot work."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.stand_ins import Through, through
from torch import Tensor, nn

import headrace as hr

N, K = 23, 5
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(N, K, dtype=torch.float64, generator=GENERATOR)
Y = torch.randint(K, (N,), generator=GENERATOR)
PRICES, PAID = torch.randn(2, N, 2, dtype=torch.float64, generator=GENERATOR)
ANSWERS, PLACES = (PAID > 0).long(), torch.arange(2 * N).view(N, 2)
TEXTS, WORDS = X.view(N, 1, K).expand(N, 4, K), Y.view(N, 1).expand(N, 4)
MSE, L1 = F.mse_loss(PRICES, PAID).item(), F.l1_loss(PRICES, PAID).item()
trainer = partial(through, inputs="x")


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


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("microbatch", [None, 5])
def test_an_l2_prior_is_weight_decay_once_per_update(biases: bool, microbatch: int | None) -> None:
    decay, model = 0.3, nn.Linear(K, K, dtype=torch.float64)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    plain: Any = copy.deepcopy(model)
    F.cross_entropy(plain(X), Y).backward()
    training = trainer(hr.CrossEntropy() + hr.L2Prior(decay, biases=biases), model, microbatch=microbatch)
    losses = training.step((X, Y))
    training.release()
    torch.testing.assert_close(model.weight, weight - 0.1 * (plain.weight.grad + decay * weight))
    torch.testing.assert_close(model.bias, bias - 0.1 * (plain.bias.grad + (decay * bias if biases else 0)))
    penalty = 0.5 * ((weight**2).sum() + ((bias**2).sum() if biases else 0)).item()
    assert losses["l2_prior"] == pytest.approx(decay * penalty)
    assert losses["total_loss"] == pytest.approx(losses["cross_entropy"] + losses["l2_prior"])


def test_a_prior_takes_in_gains_and_biases_by_argument_and_no_frozen_weights() -> None:
    model: Any = nn.Sequential(nn.Linear(K, K), nn.LayerNorm(K), nn.Linear(K, K)).double()
    weights = 0.5 * sum((model[k].weight ** 2).sum().item() for k in (0, 2))
    biases = 0.5 * sum((model[k].bias ** 2).sum().item() for k in range(3))
    for gains, biased, expected in (
        (True, False, weights + K / 2),
        (False, False, weights),
        (True, True, weights + K / 2 + biases),
    ):
        prior = hr.L2Prior(1.0, gains=gains, biases=biased)
        assert prior.penalty(model).item() == pytest.approx(expected)
        (gradient,) = torch.autograd.grad(prior.penalty(model), model[0].weight)
        torch.testing.assert_close(gradient, model[0].weight.detach())
    model.requires_grad_(False)[0].bias.requires_grad_(True)
    losses = trainer(hr.CrossEntropy() + hr.L2Prior(0.5), model).step((X, Y))
    assert losses["l2_prior"] == 0.0
    assert losses["total_loss"] == losses["cross_entropy"]


BAD: list[tuple[Callable[[], Any], str]] = [
    (lambda: hr.CrossEntropy(normalize="mean"), "normalize=.*'mean'"),  # type: ignore[arg-type]
    (lambda: hr.MSE(reduce="none"), "reduce=.*'none'"),  # type: ignore[arg-type]
    (lambda: hr.CrossEntropy(label_smoothing=1.5), "label_smoothing=.*1.5"),
    (lambda: hr.CrossEntropy(class_weights=[1.0, -1.0]), "class_weights=.*-1"),
    (lambda: hr.Focal(class_weights=torch.tensor([1.0, -2.0])), "class_weights=.*-2"),
    (lambda: hr.Focal(alpha=1.5), "alpha=.*from 0 to 1.*1.5"),
    (lambda: hr.Focal(alpha=[0.5, float("nan")]), "alpha=.*from 0 to 1.*nan"),
    (lambda: hr.Focal(-0.5), "gamma=.*-0.5"),
    (lambda: hr.Huber(0), "delta=.* 0"),
    (lambda: hr.Huber(-1, form="classic"), "delta=.*-1"),
    (lambda: hr.Huber(form="rough"), "form=.*'rough'"),  # type: ignore[arg-type]
    (lambda: hr.BinaryCrossEntropy(inputs="probs", positive_weight=[2.0]), "positive_weight="),
    (lambda: hr.BinaryCrossEntropy(inputs="log_probs"), "'logits' or 'probs', got 'log_probs'"),  # type: ignore[arg-type]
    (lambda: hr.RowMean(F.mse_loss, reduce="sum"), "neither weight= nor reduce="),
    (lambda: trainer(hr.L2Prior(1.0)), "priors only"),
    (lambda: setattr(hr.MSE(), "coefficient", float("nan")), "coefficient= is a number, got nan"),
    (lambda: torch.zeros((), requires_grad=True).exp() * hr.MSE(), "got a tensor that is learnt"),  # type: ignore[operator]
    (lambda: setattr(hr.CrossEntropy(), "ignore_index", 1.5), r"ignore_index= is a whole number or None, got 1\.5"),
    (lambda: setattr(hr.CrossEntropy(), "class_weights", [0.0] * K), "class_weights= are all 0"),
    (lambda: setattr(hr.Focal(), "class_weights", [float("nan"), 1.0]), "class_weights= are non-negative"),
    (lambda: setattr(hr.BinaryCrossEntropy(), "positive_weight", [-2.0]), "positive_weight= are non-negative numbers"),
    (lambda: setattr(hr.RowMean(F.mse_loss), "row_weight", "r"), "neither weight= nor reduce="),
    (lambda: setattr(hr.L2Prior(0.1), "weight", 0.2), r"L2Prior\.weight cannot be set: .*coefficient"),
    (lambda: setattr(hr.MSE(), "target", "z"), r"MSE\.target cannot be set"),
]
"""Of arguments, and of attributes that are set later."""


@pytest.mark.parametrize(("make", "message"), BAD)
def test_settings_that_cannot_work_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(hr.ConfigError, match=message):
        make()


NO_LABEL = Y.where(torch.arange(N) != 9, 7)
NO_ANSWER = ANSWERS.where(PLACES != 9, 2)
OF_SETTINGS: list[tuple[Any, Any, Any, str]] = [
    (hr.Focal(class_weights=[1.0, 2.0]), X, Y, "class_weights= has 2 numbers, the model 5 outputs"),
    (hr.Focal(alpha=0.25), X, Y, "alpha= weighs yes against no, and stream 'y' has class indices"),
    (hr.Focal(alpha=[0.5] * 3), PRICES, ANSWERS, r"alpha= has the shape \[3\], a row .* \[2\]"),
    (hr.Focal(class_weights=[1.0] * 3), PRICES, ANSWERS, r"class_weights= has the shape \[3\], a row .* \[2\]"),
    (hr.BinaryCrossEntropy(positive_weight=[1.0] * 3), PRICES, ANSWERS, r"positive_weight= has the shape \[3\]"),
]
OF_DATA: list[tuple[Any, Any, Any, str]] = [
    (hr.CrossEntropy(), X, NO_LABEL, "row 9: label 7 is out of range"),
    (hr.CrossEntropy(), X, Y.double(), r"shape \[\], float64.*class indices.*convert the stream.*y.long\(\)"),
    (hr.CrossEntropy(), X, Y[:, None], r"rows of shape \[1\], int64.*one too many: y.squeeze\(-1\)"),
    (hr.CrossEntropy(), X[:, 0], Y, "BinaryCrossEntropy"),
    (hr.CrossEntropy(), X, F.one_hot(Y, K), r"rows of shape \[5\], int64.*one-hot rows.*argmax.*BinaryCross"),
    (hr.CrossEntropy(), TEXTS, WORDS, r"rows of shape \[4\], int64, .* are \[4, 5\].* dimension 1.*movedim"),
    (hr.CrossEntropy(), TEXTS.mT, WORDS[:, :3], r"rows of shape \[3\], .* outputs are \[5, 4\].*\[5, 3\]"),
    (hr.MSE(), PRICES, PAID[:, 0], "must be equal"),
    (hr.MSE(), PRICES, PAID.float(), "Convert the stream to float64"),
    (hr.Focal(), X, NO_LABEL, "row 9: label 7 is out of range"),
    (hr.Focal(), PRICES, NO_ANSWER, "row 4: 2 is no answer"),
    (hr.BinaryCrossEntropy(), PRICES, NO_ANSWER, r"row 4: 2 is no answer.* \(1 such targets\)"),
    (hr.BinaryCrossEntropy(), PRICES, ANSWERS.where(PLACES != 9, -1).double(), "row 4: -1 is no answer"),
    (hr.BinaryCrossEntropy(inputs="probs"), PRICES, (ANSWERS + 1).to(torch.uint16), "is no answer"),
]
TAKEN: list[tuple[Any, Any, Any, str]] = [
    *((hr.BinaryCrossEntropy(), PRICES, y, "") for y in (ANSWERS.bool(), ANSWERS.byte(), ANSWERS.double() * 0.5)),
    (hr.Focal(), PRICES, ANSWERS, ""),
    (hr.CrossEntropy(), TEXTS.mT, WORDS, ""),
]


@pytest.mark.parametrize(("loss", "outputs", "targets", "message"), [*OF_SETTINGS, *OF_DATA, *TAKEN])
def test_targets_that_can_never_match_are_refused(
    loss: hr.Loss, outputs: Tensor, targets: Tensor, message: str
) -> None:
    if not message:
        assert trainer(loss).step((outputs, targets))["total_loss"] > 0
        return
    of_settings = any(loss is other[0] for other in OF_SETTINGS)
    with pytest.raises(hr.ConfigError if of_settings else hr.DataError, match=message):
        trainer(loss).fit((outputs, targets), steps=1, progress=False)


SHARES = X.softmax(dim=1)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ("probs", X, r"inputs='probs' expects probabilities.*row 0 .* add up to .*23 such rows.*'log_probs' of what"),
        ("probs", SHARES.log(), r"inputs='probs'.* .23 such rows"),
        ("log_probs", X, r"inputs='log_probs' expects numbers whose exp are probabilities.* .23 such rows"),
        ("log_probs", SHARES, r"inputs='log_probs'.* .23 such rows"),
        ("probs", SHARES.where(torch.arange(N)[:, None] != 7, SHARES * 2), r"add up to 2 .1 such rows"),
        ("probs", torch.tensor([[1.5, -0.5, 0.0, 0.0, 0.0]]).double().expand(N, K), "row 0"),
    ],
)
def test_outputs_that_are_not_what_inputs_says_are_refused_at_the_first_batch(
    inputs: Any, outputs: Tensor, message: str
) -> None:
    model = Through()
    made = trainer(hr.CrossEntropy(inputs=inputs), model)
    for call in (lambda data: made.fit(data, steps=1, progress=False), made.step, made.validate):
        with pytest.raises(hr.ConfigError, match=message):
            call((outputs, Y))
    assert model.scale.item() == 1
    with pytest.raises(hr.ConfigError, match=r"inputs='probs' expects probabilities, from 0 to 1, .* -.*sigmoid"):
        trainer(hr.BinaryCrossEntropy(inputs="probs")).validate((PRICES, ANSWERS))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("inputs", ["probs", "log_probs"])
def test_probabilities_of_any_precision_add_up_to_one(kind: torch.dtype, inputs: Any) -> None:
    outputs = torch.randn(64, 50_000, generator=torch.Generator().manual_seed(0)) / 100  # all of about one size
    shares = outputs.softmax(dim=1) if inputs == "probs" else outputs.log_softmax(dim=1)
    model = Through().to(kind)
    found = trainer(hr.CrossEntropy(inputs=inputs), model).validate(
        (shares.to(kind), torch.zeros(64, dtype=torch.long))
    )
    assert found["val/loss"] > 0


@pytest.mark.parametrize("inputs", ["probs", "log_probs"])
@pytest.mark.parametrize("how", ["weight", "ignore_index"])
def test_what_does_not_count_need_not_be_probabilities(inputs: Any, how: str) -> None:
    padded = torch.arange(N) % 3 == 0
    shares = SHARES if inputs == "probs" else SHARES.log()
    data = {"x": shares.masked_fill(padded[:, None], 0), "y": Y.masked_fill(padded, -1), "counts": ~padded}
    if how == "weight":
        data["y"] = Y
    loss = hr.CrossEntropy(inputs=inputs, **{how: "counts" if how == "weight" else -1})  # type: ignore[arg-type]
    found = trainer(loss, Through(), inputs="x").validate(data)
    assert found["val/loss"] == pytest.approx(nn.functional.nll_loss(SHARES.log()[~padded], Y[~padded]).item())


def test_as_many_classes_as_places_are_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"outputs \[4, 4\] have as many classes as places.* It is dimension 1"):
        trainer(hr.CrossEntropy()).step((TEXTS[:, :, :4], WORDS.clamp(max=3)))


@pytest.mark.parametrize(
    ("kind", "outputs", "targets"),
    [
        (hr.CrossEntropy, TEXTS.mT, WORDS),
        (hr.BinaryCrossEntropy, PRICES, ANSWERS),
        (hr.Focal, PRICES, ANSWERS),
        (hr.MSE, PRICES, PAID),
    ],
)
@pytest.mark.parametrize("microbatch", [None, 7])
def test_weights_that_fit_neither_rows_nor_places_are_refused(
    kind: Any, outputs: Tensor, targets: Tensor, microbatch: int | None
) -> None:
    made = trainer(kind(weight="w"), model := Through(), inputs="x", microbatch=microbatch)
    with pytest.raises(hr.DataError, match=r"weight='w' has rows of shape \[\d\]\. Expected one number for each row"):
        made.step({"x": outputs, "y": targets, "w": TEXTS[:, 0]})
    assert model.scale.item() == 1


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
