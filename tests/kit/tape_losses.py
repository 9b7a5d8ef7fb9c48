"""Losses and objectives that change late, remember, or read of a batch what a later one has otherwise."""

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr

from .tape_cheats import LATE, Cheat, Table, late_loss, plain


class Own(hr.Objective):
    """An objective of a user's, with whatever it holds."""

    held: Any = 1.0

    def factor(self, batch: hr.Batch) -> Any:
        return 1.0

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"own": hr.Term(loss * self.factor(batch), batch.rows)}


def others(model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
    """Terms that take the place of an objective's."""
    return {"own": hr.Term(model(batch["x"]).square().sum(), batch.rows)}


def made(held: Any = 1.0, base: type = Own, **members: Any) -> Any:
    """An objective of a class of its own that holds this."""
    objective: Any = type("Made", (base,), members)()
    objective.held = held
    return objective


def reads(factor: Callable[[Any, hr.Batch], Any]) -> Callable[[], Cheat]:
    """Nothing of this objective is changed, but a batch is not like another."""
    return lambda: Cheat(plain(), made(factor=factor))


def holds(held: Callable[[], Any], change: Callable[[Any], Any], read: Callable[[Any], Any]) -> Callable[[], Cheat]:
    """An objective that holds something; late, that is changed."""
    return late_loss(lambda: made(held(), factor=lambda self, batch: read(self.held)), lambda it: change(it.held))


def setting(loss: Callable[[], Any], name: str, value: Any) -> Callable[[], Cheat]:
    """Late, a setting of a loss has another value."""
    return late_loss(loss, lambda made: setattr(made, name, value))


def _weighed() -> nn.Module:
    return nn.CrossEntropyLoss(weight=torch.ones(3))


class Margin(hr.Loss):
    """A loss of a user's own class."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.margin, self.past = 1.0, [0.0]

    def weight(self, batch: hr.Batch) -> float:
        return float(batch.rows)

    def sum(self, outputs: Tensor, batch: hr.Batch) -> Tensor:
        loss = F.multi_margin_loss(outputs, batch["y"], margin=self.margin, reduction="sum")
        return loss * (1 + self.past[0]) * self.factor


class Module(nn.Module):
    """A loss that is a module, with a list and a part."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.part = [1.0], nn.Dropout(0.5)

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.part(outputs), y) * self.factors[0]


class Weighs(Own):
    """The weight and the coefficient of its term, and whether there is another one, are what it holds."""

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        outputs, (weight, coefficient, more) = model(batch["x"]), self.held
        loss = F.cross_entropy(outputs, batch["y"], reduction="sum")
        terms = {"own": hr.Term(loss, batch.rows * weight, coefficient=coefficient)}
        return terms | {"more": hr.Term(outputs.square().sum(), batch.rows)} if more else terms


def weighs(*held: float) -> Callable[[], Cheat]:
    return late_loss(lambda: made((1.0, 1.0, 0.0), Weighs), lambda it: setattr(it, "held", held))


def _prior(change: Callable[[Any], Any]) -> Cheat:
    prior = hr.L2Prior(0.01)
    return Cheat(plain(), hr.CrossEntropy() + prior, lambda: change(prior))


class Holds(Own):
    """An objective whose attribute has the name of one of ours."""

    def __init__(self) -> None:
        self.loss: Any = F.relu

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        outputs = self.loss(model(batch["x"]))
        return {"own": hr.Term(F.cross_entropy(outputs, batch["y"], reduction="sum"), batch.rows)}


def method_of_the_model_as_loss() -> Cheat:
    class Learns(nn.Sequential):
        factor = 1.0

        def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(outputs, y) * self.factor

    model = Learns(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return Cheat(model, model.loss, lambda: setattr(model, "factor", 3.0))


def loss_that_reads_the_model() -> Cheat:
    model: Any = plain()
    model.factor = 1.0
    loss: Any = lambda outputs, y: F.cross_entropy(outputs, y) * model.factor  # noqa: E731
    return Cheat(model, loss, lambda: setattr(model, "factor", 3.0))


def mean_of_rows_with_a_state() -> Cheat:
    box = [1.0]
    loss = hr.RowMean(lambda outputs, y: F.cross_entropy(outputs, y) * box[0])
    return Cheat(plain(), loss, lambda: box.__setitem__(0, 3.0))


def code_of_a_loss_replaced() -> Cheat:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)

    def other(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) * 3

    return Cheat(plain(), loss, lambda: setattr(loss, "__code__", other.__code__))


LOSSES: Table = {
    each.__name__: each
    for each in [
        *(method_of_the_model_as_loss, loss_that_reads_the_model, mean_of_rows_with_a_state, code_of_a_loss_replaced),
    ]
} | {
    "coefficient_of_a_loss": setting(hr.CrossEntropy, "coefficient", 0.5),
    "smoothing_of_a_loss": setting(hr.CrossEntropy, "label_smoothing", 0.3),
    "sum_instead_of_a_mean": setting(hr.CrossEntropy, "reduce", "sum"),
    "margin_of_a_loss": setting(Margin, "margin", 3.0),
    "setting_of_a_class_of_loss": setting(Margin, "factor", 3.0),
    "list_of_a_loss": late_loss(Margin, lambda loss: loss.past.__setitem__(0, 3.0)),
    "smoothing_of_torchs_loss": setting(nn.CrossEntropyLoss, "label_smoothing", 0.3),
    "ignored_by_torchs_loss": setting(nn.CrossEntropyLoss, "ignore_index", 1),
    "weights_of_torchs_loss": setting(_weighed, "weight", torch.tensor([0.1, 1.0, 2.0])),
    "weights_of_torchs_loss_written": late_loss(_weighed, lambda loss: loss.weight.copy_(torch.tensor([0.1, 1, 2]))),
    "list_of_a_module": late_loss(Module, lambda loss: loss.factors.__setitem__(0, 3.0)),
    "part_of_a_module": late_loss(Module, lambda loss: setattr(loss.part, "p", 0.1)),
    "mode_of_a_module": late_loss(Module, lambda loss: loss.eval()),
    "forward_of_a_module": setting(Module, "forward", F.cross_entropy),
    "weight_of_a_prior": lambda: _prior(lambda prior: setattr(prior, "coefficient", 0.1)),
    "biases_of_a_prior": lambda: _prior(lambda prior: setattr(prior, "biases", True)),
    "position_in_the_epoch": reads(lambda self, batch: 1 + batch.cursor["position"] / 100),
    "text_of_a_batch": reads(lambda self, batch: len(repr(batch)) / 50),
    "end_of_the_epoch": reads(lambda self, batch: 3.0 if batch.ends_epoch else 1.0),
    "list_of_an_objective": holds(lambda: [1.0], lambda it: it.__setitem__(0, 3.0), lambda it: it[0]),
    "tensor_of_an_objective": holds(lambda: torch.ones(()), lambda it: it.fill_(3.0), lambda it: it),
    "object_of_an_objective": holds(
        lambda: types.SimpleNamespace(factor=1.0), lambda it: setattr(it, "factor", 3.0), lambda it: it.factor
    ),
    "module_of_an_objective": holds(
        lambda: nn.Dropout(0.5), lambda it: it.eval(), lambda it: it(torch.ones(4, 8)).sum() / 32
    ),
    "schedule_of_an_objective": lambda: Cheat(
        plain(), made(iter([1.0] * LATE + [3.0] * 40), factor=lambda self, batch: next(self.held))
    ),
    "terms_replaced": late_loss(made, lambda it: setattr(type(it), "terms", lambda self, *given: others(*given))),
    "terms_of_the_instance_replaced": setting(made, "terms", others),
    "class_of_an_objective_replaced": setting(
        made, "__class__", type("Other", (Own,), {"factor": lambda self, batch: 3.0})
    ),
    "weight_of_a_term": weighs(0.5, 1.0, 0.0),
    "coefficient_of_a_term": weighs(1.0, 3.0, 0.0),
    "term_that_appears": weighs(1.0, 1.0, 1.0),
    "attribute_of_an_objective_named_loss": setting(Holds, "loss", torch.tanh),
    "place_of_a_batch_named_as_the_objectives": lambda: Cheat(
        plain(), made(factor=lambda self, batch: 3.0 if batch.cursor["epoch"] else 1.0, cursor=None)
    ),
}
