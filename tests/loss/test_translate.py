"""What torch and users call a loss becomes its exact term, or says that it cannot be cut."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from kit.stand_ins import Through
from kit.stand_ins import through as trainer
from torch import Tensor, nn

import headrace as hr

N, K = 23, 5
GENERATOR = torch.Generator().manual_seed(2)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


X, PRICES, PAID = normal(N, K), normal(N, 3), normal(N, 3)
Y = torch.randint(K, (N,), generator=GENERATOR)
HOLES = Y.where(torch.arange(N) % 4 > 0, -100)
ANSWERS = (normal(N, 3) > 0).double()
W, COLUMNS = normal(K).exp(), normal(3).exp()


class Case(NamedTuple):
    loss: Callable[..., nn.Module]
    outputs: Tensor
    targets: Tensor


MODULES = {
    "cross-entropy": Case(nn.CrossEntropyLoss, X, Y),
    "cross-entropy-holes": Case(nn.CrossEntropyLoss, X, HOLES),
    "cross-entropy-all": Case(
        functools.partial(nn.CrossEntropyLoss, weight=W, ignore_index=2, label_smoothing=0.1), X, Y
    ),
    "cross-entropy-rows": Case(functools.partial(nn.CrossEntropyLoss, weight=W), X, normal(N, K).softmax(1)),
    "nll": Case(functools.partial(nn.NLLLoss, weight=W), X.log_softmax(1), HOLES),
    "bce": Case(functools.partial(nn.BCELoss, weight=COLUMNS), PRICES.sigmoid(), ANSWERS),
    "bce-logits": Case(functools.partial(nn.BCEWithLogitsLoss, weight=COLUMNS), PRICES, ANSWERS),
    "bce-logits-positive": Case(functools.partial(nn.BCEWithLogitsLoss, pos_weight=COLUMNS), PRICES, ANSWERS),
    "mse": Case(nn.MSELoss, PRICES, PAID),
    "l1": Case(nn.L1Loss, PRICES, PAID),
    "smooth-l1": Case(nn.SmoothL1Loss, PRICES, PAID),
    "smooth-l1-narrow": Case(functools.partial(nn.SmoothL1Loss, beta=0.3), PRICES, PAID),
    "smooth-l1-0": Case(functools.partial(nn.SmoothL1Loss, beta=0.0), PRICES, PAID),
    "huber": Case(functools.partial(nn.HuberLoss, delta=0.7), PRICES, PAID),
}
FUNCTIONS = [
    (F.cross_entropy, X, HOLES),
    (F.nll_loss, X.log_softmax(1), HOLES),
    (F.binary_cross_entropy, PRICES.sigmoid(), ANSWERS),
    (F.binary_cross_entropy_with_logits, PRICES, ANSWERS),
    (F.mse_loss, PRICES, PAID),
    (F.l1_loss, PRICES, PAID),
    (F.smooth_l1_loss, PRICES, PAID),
    (F.huber_loss, PRICES, PAID),
]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", MODULES)
def test_a_standard_module_gives_its_own_value_however_it_is_cut(name: str, reduction: str) -> None:
    loss, outputs, targets = MODULES[name].loss(reduction=reduction), *MODULES[name][1:]
    mean = MODULES[name].loss(reduction="mean")(outputs, targets).item()
    expected, model, plain = pytest.approx(mean, rel=1e-12), Through(), Through()
    loss(plain(outputs), targets).backward()
    assert plain.scale.grad is not None
    assert trainer(loss, model, microbatch=7).step((outputs, targets))["total_loss"] == expected
    assert model.scale.item() == pytest.approx(1 - 0.1 * plain.scale.grad.item(), rel=1e-12)
    assert trainer(loss).step((outputs, targets))["total_loss"] == expected
    assert trainer(loss).validate((outputs, targets), batch_size=7)["val/loss"] == expected


@pytest.mark.parametrize(("loss", "outputs", "targets"), FUNCTIONS)
def test_a_standard_function_gives_its_own_value_however_it_is_cut(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> None:
    losses = trainer(loss, microbatch=7).step((outputs, targets))
    assert losses["total_loss"] == pytest.approx(loss(outputs, targets).item(), rel=1e-12)


REFUSED: list[tuple[Any, str]] = [
    *((case.loss(reduction="none"), r"reduction='none'.*Use 'mean' or 'sum'") for case in MODULES.values()),
    (nn.KLDivLoss(reduction="none"), r"reduction='none'.*Use 'mean' or 'sum'"),
    *(
        (loss, rf"Pass an instance: {loss.__name__}\(\)")
        for loss in (nn.MSELoss, nn.CrossEntropyLoss, hr.MSE, nn.KLDivLoss)
    ),
]


@pytest.mark.parametrize(("loss", "message"), REFUSED)
def test_a_loss_without_a_reduction_and_a_class_are_refused(loss: Any, message: str) -> None:
    with pytest.raises(hr.ConfigError, match=message):
        trainer(loss)


def furthest(outputs: Tensor, target: Tensor) -> Tensor:
    return (outputs - target).abs().max()


class TwiceMSE(nn.MSELoss):
    """A standard module made to mean something else."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return 2 * super().forward(input, target)


@dataclass
class Scaled:
    """Has no hash, as any dataclass that can be compared."""

    factor: float

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        return self.factor * F.mse_loss(outputs, target)


UNKNOWN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "function": furthest,
    "lambda": lambda outputs, target: (outputs - target).mean().square(),
    "partial": functools.partial(F.mse_loss, reduction="mean"),
    "module": nn.HingeEmbeddingLoss(),
    "subclass": TwiceMSE(),
    "unhashable": Scaled(3.0),
}


def test_a_sum_of_torch_that_has_no_term_is_minimised_and_reported_as_a_mean() -> None:
    loss, model, plain = nn.PoissonNLLLoss(reduction="sum"), Through(), Through()
    value = loss(plain(PRICES), PAID.abs())
    value.backward()
    assert plain.scale.grad is not None
    mean = pytest.approx(value.item() / len(PRICES), rel=1e-12)
    assert trainer(loss, model).step((PRICES, PAID.abs()))["total_loss"] == mean
    assert model.scale.item() == pytest.approx(1 - 0.1 * plain.scale.grad.item(), rel=1e-12)
    assert trainer(loss).validate((PRICES, PAID.abs()), batch_size=7)["val/loss"] == mean


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_function_gets_the_batch_whole_and_is_not_cut_into_microbatches(name: str) -> None:
    loss = UNKNOWN[name]
    losses = trainer(loss).step((PRICES, PAID))
    assert losses["total_loss"] == pytest.approx(loss(PRICES, PAID).item(), rel=1e-12)
    with pytest.raises(hr.ConfigError, match=r"microbatch=.*hr\.RowMean\(fn\)"):
        trainer(UNKNOWN[name], microbatch=7)


def trained(loss: Any, microbatch: int | None) -> Tensor:
    """The loss of one update and the weights after it."""
    torch.manual_seed(0)
    model = nn.Linear(K, 3)
    training = trainer(loss, model, microbatch=microbatch)
    total = training.step((X.float(), PAID.float()))["total_loss"]
    training.release()
    return torch.cat([torch.as_tensor([float(total)]), *(p.detach().flatten() for p in model.parameters())])


@pytest.mark.parametrize("microbatch", [1, 7, 22, 23])
def test_a_declared_row_mean_gives_the_update_of_the_whole_batch(microbatch: int) -> None:
    """A function that is none shows the difference."""
    whole, parts = trained(Scaled(3.0).__call__, None), trained(hr.RowMean(Scaled(3.0)), microbatch)
    torch.testing.assert_close(parts, whole, rtol=1e-6, atol=1e-6)
    whole, parts = trained(furthest, None), trained(hr.RowMean(furthest), microbatch)
    assert torch.allclose(parts, whole, rtol=1e-3) == (microbatch == N)
