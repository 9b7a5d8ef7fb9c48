"""Losses and objectives that change late, remember, or read of a batch what a later one has otherwise."""

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr

from .tape_cheats import LATE, Cheat, Table, into, plain

LOSSES: Table = {}
add = into(LOSSES)


class Own(hr.Objective):
    """An objective of a user's, with whatever it holds."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)

    def factor(self, batch: hr.Batch) -> Any:
        return 1.0

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"own": hr.Term(loss * self.factor(batch), batch.rows)}


def own(factor: Callable[[Any, hr.Batch], Any], change: Callable[[Any], Any] | None = None, **held: Any) -> Cheat:
    """An objective of a class of its own, with this factor, which is changed so."""
    objective = type("Factor", (Own,), {"factor": factor})(**held)
    return Cheat(plain(), objective, None if change is None else lambda: change(objective))


def setting(loss: Callable[[], Any], name: str, value: Any) -> Callable[[], Cheat]:
    """Late, a setting of a loss has another value."""

    def cheat() -> Cheat:
        made = loss()
        return Cheat(plain(), made, lambda: setattr(made, name, value))

    return cheat


def _weighed() -> nn.Module:
    return nn.CrossEntropyLoss(weight=torch.ones(3))


class Margin(hr.Loss):
    """A loss of a user's own class."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin, self.past = margin, [0.0]

    def weight(self, batch: hr.Batch) -> float:
        return float(batch.rows)

    def sum(self, outputs: Tensor, batch: hr.Batch) -> Tensor:
        return F.multi_margin_loss(outputs, batch["y"], margin=self.margin, reduction="sum") * (1 + self.past[0])


class WithClassSetting(Margin):
    factor = 1.0

    def sum(self, outputs: Tensor, batch: hr.Batch) -> Tensor:
        return super().sum(outputs, batch) * self.factor


class Module(nn.Module):
    """A loss that is a module, with a list and a part."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.part = [1.0], nn.Dropout(0.5)

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.part(outputs), y) * self.factors[0]


LOSSES.update(
    {
        "coefficient_of_a_loss": setting(hr.CrossEntropy, "coefficient", 0.5),
        "smoothing_of_a_loss": setting(hr.CrossEntropy, "label_smoothing", 0.3),
        "sum_instead_of_a_mean": setting(hr.CrossEntropy, "reduce", "sum"),
        "coefficient_of_a_margin": setting(lambda: Margin(1.0), "coefficient", 0.5),
        "margin_of_a_loss": setting(lambda: Margin(1.0), "margin", 3.0),
        "setting_of_a_class_of_loss": setting(lambda: WithClassSetting(1.0), "factor", 3.0),
        "smoothing_of_torchs_loss": setting(nn.CrossEntropyLoss, "label_smoothing", 0.3),
        "ignored_by_torchs_loss": setting(nn.CrossEntropyLoss, "ignore_index", 1),
        "weights_of_torchs_loss": setting(_weighed, "weight", torch.tensor([0.1, 1.0, 2.0])),
        "position_in_the_epoch": lambda: own(lambda self, batch: 1 + batch.cursor["position"] / 100),
        "text_of_a_batch": lambda: own(lambda self, batch: len(repr(batch)) / 50),
        "end_of_the_epoch": lambda: own(lambda self, batch: 3.0 if batch.ends_epoch else 1.0),
        "list_of_an_objective": lambda: own(
            lambda self, batch: self.held[0], lambda it: it.held.__setitem__(0, 3.0), held=[1.0]
        ),
        "dictionary_of_an_objective": lambda: own(
            lambda self, batch: self.held["a"], lambda it: it.held.update(a=3.0), held={"a": 1.0}
        ),
        "tensor_of_an_objective": lambda: own(
            lambda self, batch: self.held, lambda it: it.held.fill_(3.0), held=torch.ones(())
        ),
        "object_of_an_objective": lambda: own(
            lambda self, batch: self.held.factor,
            lambda it: setattr(it.held, "factor", 3.0),
            held=types.SimpleNamespace(factor=1.0),
        ),
        "module_of_an_objective": lambda: own(
            lambda self, batch: self.held(torch.ones(4, 8)).sum() / 32,
            lambda it: it.held.eval(),
            held=nn.Dropout(0.5),
        ),
        "schedule_of_an_objective": lambda: own(
            lambda self, batch: next(self.held), held=iter([1.0] * LATE + [3.0] * 40)
        ),
    }
)


def late_in(objective: Callable[[], Any], change: Callable[[Any], Any]) -> Callable[[], Cheat]:
    def cheat() -> Cheat:
        made = objective()
        return Cheat(plain(), made, lambda: change(made))

    return cheat


LOSSES.update(
    {
        "weights_of_torchs_loss_written": late_in(_weighed, lambda loss: loss.weight.copy_(torch.tensor([0.1, 1, 2]))),
        "list_of_a_loss": late_in(lambda: Margin(1.0), lambda loss: loss.past.__setitem__(0, 3.0)),
        "list_of_a_module": late_in(Module, lambda loss: loss.factors.__setitem__(0, 3.0)),
        "part_of_a_module": late_in(Module, lambda loss: setattr(loss.part, "p", 0.1)),
        "mode_of_a_module": late_in(Module, lambda loss: loss.eval()),
        "forward_of_a_module": late_in(Module, lambda loss: setattr(loss, "forward", F.cross_entropy)),
        "weight_of_a_prior": lambda: _prior(lambda prior: setattr(prior, "coefficient", 0.1)),
        "biases_of_a_prior": lambda: _prior(lambda prior: setattr(prior, "biases", True)),
    }
)


def _prior(change: Callable[[Any], Any]) -> Cheat:
    prior = hr.L2Prior(0.01)
    return Cheat(plain(), hr.CrossEntropy() + prior, lambda: change(prior))


@add
def terms_replaced() -> Cheat:
    cheat = own(lambda self, batch: 1.0)
    kind = type(cheat.loss)

    def terms(self: Any, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        return {"own": hr.Term(model(batch["x"]).square().sum(), batch.rows)}

    return cheat._replace(change=lambda: setattr(kind, "terms", terms))


@add
def terms_of_the_instance_replaced() -> Cheat:
    cheat = own(lambda self, batch: 1.0)

    def terms(model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        return {"own": hr.Term(model(batch["x"]).square().sum(), batch.rows)}

    return cheat._replace(change=lambda: setattr(cheat.loss, "terms", terms))


@add
def method_of_an_objective_replaced() -> Cheat:
    cheat = own(lambda self, batch: 1.0)
    return cheat._replace(change=lambda: setattr(type(cheat.loss), "factor", lambda self, batch: 3.0))


@add
def class_of_an_objective_replaced() -> Cheat:
    cheat = own(lambda self, batch: 1.0)
    other = type("Other", (Own,), {"factor": lambda self, batch: 3.0})
    return cheat._replace(change=lambda: setattr(cheat.loss, "__class__", other))


@add
def coefficient_of_a_term() -> Cheat:
    class Weighs(Own):
        def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
            loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
            return {"own": hr.Term(loss, batch.rows, coefficient=self.held[0])}

    objective = Weighs(held=[1.0])
    return Cheat(plain(), objective, lambda: objective.held.__setitem__(0, 3.0))  # type: ignore[attr-defined]


@add
def weight_of_a_term() -> Cheat:
    class Weighs(Own):
        def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
            loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
            return {"own": hr.Term(loss, batch.rows * self.held)}

    objective = Weighs(held=1.0)
    return Cheat(plain(), objective, lambda: setattr(objective, "held", 0.5))


@add
def term_that_appears() -> Cheat:
    class Grows(Own):
        def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
            outputs = model(batch["x"])
            terms = {"own": hr.Term(F.cross_entropy(outputs, batch["y"], reduction="sum"), batch.rows)}
            if self.held:
                terms["more"] = hr.Term(outputs.square().sum(), batch.rows)
            return terms

    objective = Grows(held=[])
    return Cheat(plain(), objective, lambda: objective.held.append(1))  # type: ignore[attr-defined]


@add
def method_of_the_model_as_loss() -> Cheat:
    class Learns(nn.Sequential):
        factor = 1.0

        def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(outputs, y) * self.factor

    model = Learns(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return Cheat(model, model.loss, lambda: setattr(model, "factor", 3.0))


@add
def code_of_a_loss_replaced() -> Cheat:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)

    def other(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y) * 3

    return Cheat(plain(), loss, lambda: setattr(loss, "__code__", other.__code__))


@add
def default_of_a_loss_replaced() -> Cheat:
    def loss(outputs: Tensor, y: Tensor, factor: float = 1.0) -> Tensor:
        return F.cross_entropy(outputs, y) * factor

    return Cheat(plain(), loss, lambda: setattr(loss, "__defaults__", (3.0,)))


@add
def loss_that_reads_the_model() -> Cheat:
    model = plain()
    model.factor = 1.0  # type: ignore[assignment]
    return Cheat(
        model,
        lambda outputs, y: F.cross_entropy(outputs, y) * model.factor,
        lambda: setattr(model, "factor", 3.0),
    )


@add
def mean_of_rows_with_a_state() -> Cheat:
    box = [1.0]
    return Cheat(
        plain(),
        hr.RowMean(lambda outputs, y: F.cross_entropy(outputs, y) * box[0]),
        lambda: box.__setitem__(0, 3.0),
    )


class Holds(hr.Objective):
    """An objective whose attribute has the name of one of ours."""

    def __init__(self) -> None:
        self.loss: Any = F.relu

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        outputs = self.loss(model(batch["x"]))
        return {"own": hr.Term(F.cross_entropy(outputs, batch["y"], reduction="sum"), batch.rows)}


@add
def attribute_of_an_objective_named_loss() -> Cheat:
    objective = Holds()
    return Cheat(plain(), objective, lambda: setattr(objective, "loss", torch.tanh))


class Epochs(Holds):
    cursor: Any = None

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"own": hr.Term(loss * (3.0 if batch.cursor["epoch"] else 1.0), batch.rows)}


@add
def place_of_a_batch_named_as_the_objectives() -> Cheat:
    return Cheat(plain(), Epochs())
