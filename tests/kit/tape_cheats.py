"""Models and losses that cheat: a pass of theirs is not what the pass before it was."""

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import headrace as hr

LATE = 12
"""The step after which those that change late are changed."""
Change = Callable[[], Any]


class Cheat(NamedTuple):
    """A model, its loss, and what is changed late in the training."""

    model: nn.Module
    loss: Any = F.cross_entropy
    change: Change | None = None
    undo: Change | None = None
    """Makes the process what it was, if the change is one of torch or of Python."""
    data: dict[str, Tensor] | None = None
    """What it is trained with, if that is not the data of all."""
    beside: Sequence[Tensor] = ()
    """Tensors that its passes write and that the model's state does not contain."""
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None
    options: dict[str, Any] = {}  # noqa: RUF012
    """What else the trainer is made with."""


class Net(nn.Module):
    """Two layers, scaled by what a cheat makes of `scale`."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 8), nn.Linear(8, 3)

    def scale(self) -> Any:
        return 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(torch.relu(self.enter(x))) * self.scale()


Table = dict[str, Callable[[], Cheat]]


def into(table: Table) -> Callable[[Callable[[], Cheat]], Callable[[], Cheat]]:
    """Adds a cheat to a table, by its name."""

    def add(make: Callable[[], Cheat]) -> Callable[[], Cheat]:
        table[make.__name__] = make
        return make

    return add


def plain(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), *between, nn.ReLU(), nn.Linear(8, 3))


def scaled(scale: Callable[..., Any], **held: Any) -> Net:
    """A model of a class of its own, with this `scale` and what it holds."""
    model: Net = type("Scaled", (Net,), {"scale": scale})()
    for name, value in held.items():
        setattr(model, name, value)
    return model


def of_forward(before: Callable[[Any, Tensor], Tensor]) -> Cheat:
    """A model that makes this of its rows before the layers."""
    return Cheat(type("Before", (Net,), {"forward": lambda self, x: Net.forward(self, before(self, x))})())


def late(
    change: Callable[[Any], Any], model: Callable[[], Any] = plain, loss: Any = F.cross_entropy
) -> Callable[[], Cheat]:
    """A model that is changed late."""

    def cheat() -> Cheat:
        made = model()
        return Cheat(made, loss, lambda: change(made))

    return cheat


def late_loss(loss: Callable[[], Any], change: Callable[[Any], Any]) -> Callable[[], Cheat]:
    """A loss or an objective that is changed late."""

    def cheat() -> Cheat:
        made = loss()
        return Cheat(plain(), made, lambda: change(made))

    return cheat


def with_class(scale: Callable[[Any], Any], **members: Any) -> Callable[[], Net]:
    """Makes models of a class of their own, that has these members."""
    return lambda: type("Own", (Net,), {"scale": scale, **members})()


def norm() -> nn.Sequential:
    return plain(nn.BatchNorm1d(8))


def annealed() -> Cheat:
    return late(lambda model: setattr(model, "factor", 3.0), lambda: scaled(lambda self: self.factor, factor=1.0))()


class Annealed(hr.Objective):
    """An objective of a user's own, whose loss has a factor."""

    factor = 1.0

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"annealed": hr.Term(loss * self.factor, batch.rows)}


class Factor:
    """What a user makes losses and schedules of."""

    factor = 1.0

    def value(self) -> float:
        return self.factor

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs, target) * self.factor


def _scale_by_three(thing: Any) -> None:
    thing.factor = 3.0


def _put_three(box: Any) -> None:
    box[0] = 3.0


def counted_steps() -> Cheat:
    def scale(self: Any) -> float:
        self.steps += 1
        return 1.0 if self.steps < LATE else 2.0

    return Cheat(scaled(scale, steps=0))


def caches_its_last_output() -> Cheat:
    def scale(self: Any) -> Any:
        self.seen["calls"] = self.seen.get("calls", 0) + 1
        return 1 + 0.1 * self.seen["calls"]

    return Cheat(scaled(scale, seen={}))


def annealed_objective_with_a_prior() -> Cheat:
    objective = Annealed()
    return Cheat(plain(), objective + hr.L2Prior(1e-3), lambda: _scale_by_three(objective))


def variable_of_a_closure() -> Cheat:
    factor = 1.0

    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs, target) * factor

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return Cheat(plain(), loss, change)


def closures_with_one_code() -> Cheat:
    def made(box: list[float]) -> Callable[[Any], float]:
        return lambda self: box[0]

    boxes = [1.0], [1.0]
    model = with_class(lambda self: self.also() * self.first(), first=made(boxes[0]), also=made(boxes[1]))()
    return Cheat(model, change=lambda: _put_three(boxes[1]))


def partial_as_loss() -> Cheat:
    factors = [1.0]
    loss = functools.partial(lambda outputs, y, by: F.cross_entropy(outputs, y) * by[0], by=factors)
    return Cheat(plain(), loss, lambda: _put_three(factors))


def method_of_a_schedule() -> Cheat:
    schedule = Factor()
    return Cheat(scaled(lambda self: self.of(), of=schedule.value), change=lambda: _scale_by_three(schedule))


def cached_function() -> Cheat:
    box = [1.0]
    cached = functools.lru_cache(lambda: box[0])
    return Cheat(scaled(lambda self: cached()), change=lambda: (_put_three(box), cached.cache_clear()))


def global_replaced() -> Cheat:
    space: dict[str, Any] = {"F": F, "activation": F.relu}
    exec("def forward(self, x): return self.leave(activation(self.enter(x)))", space)
    model: Net = type("Global", (Net,), {"forward": space["forward"]})()
    return Cheat(model, change=lambda: space.__setitem__("activation", F.gelu))


def writes_a_parameter() -> Cheat:
    def clamped(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.enter.weight.clamp_(-0.3, 0.3)
        return x

    return of_forward(clamped)


def counts_in_a_buffer() -> Cheat:
    cheat = of_forward(lambda self, x: x * torch.where(self.calls.add_(1) > LATE, 2.0, 1.0))
    cheat.model.register_buffer("calls", torch.zeros(()))
    return cheat


def annealed_on_a_parameter() -> Cheat:
    model: Any = scaled(lambda self: self.enter.weight.factor)
    model.enter.weight.factor = 1.0
    return Cheat(model, change=lambda: _scale_by_three(model.enter.weight))


def own_backward() -> Cheat:
    class Own(torch.autograd.Function):
        factor = 1.0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * Own.factor

    return of_forward(lambda self, x: Own.apply(x * self.enter.weight.sum()))._replace(
        change=lambda: _scale_by_three(Own)
    )


CHEATS: Table = {
    each.__name__: each
    for each in [
        *(annealed, counted_steps, caches_its_last_output, annealed_objective_with_a_prior, variable_of_a_closure),
        *(closures_with_one_code, partial_as_loss, method_of_a_schedule, cached_function, global_replaced),
        *(writes_a_parameter, counts_in_a_buffer, annealed_on_a_parameter, own_backward),
    ]
} | {
    "python_random": lambda: Cheat(scaled(lambda self: random.random())),
    "numpy_random": lambda: Cheat(scaled(lambda self: float(np.random.rand()))),
    "numpy_generator": lambda: Cheat(scaled(lambda self: self.draw(), draw=np.random.default_rng(3).random)),
    "partial_in_c": lambda: Cheat(
        with_class(lambda self: self.draw(), draw=functools.partial(random.Random(3).random))()
    ),
    "reads_a_number": lambda: Cheat(scaled(lambda self: self.enter.weight.abs().mean().item())),
    "annealed_in_a_list": late(
        lambda model: _put_three(model.settings["deep"]),
        lambda: scaled(lambda self: self.settings["deep"][0], settings={"deep": [1.0]}),
    ),
    "annealed_on_the_class": late(
        lambda model: _scale_by_three(type(model)), with_class(lambda self: type(self).factor, factor=1.0)
    ),
    "annealed_behind_a_property": late(
        lambda model: _scale_by_three(type(model)),
        with_class(lambda self: self.seen, seen=property(lambda self: self.factor), factor=1.0),
    ),
    "annealed_objective": late_loss(Annealed, _scale_by_three),
    "callable_loss": late_loss(Factor, _scale_by_three),
    "method_as_loss": late_loss(lambda: Factor().__call__, lambda loss: _scale_by_three(loss.__self__)),
    "method_replaced": late(
        lambda model: setattr(type(model), "scale", lambda self: 3.0), with_class(lambda self: 1.0)
    ),
    "class_replaced": late(lambda model: setattr(model[1], "__class__", nn.Tanh)),
    "module_replaced": late(lambda model: model.__setitem__(1, nn.Tanh())),
    "forward_replaced": late(lambda model: setattr(model[1], "forward", torch.tanh)),
    "late_module_hook": late(lambda model: model[0].register_forward_hook(lambda module, args, out: out * 2)),
    "input_in_place": lambda: of_forward(lambda self, x: x.clamp_(-1, 1)),
    "seeds_torch": lambda: of_forward(lambda self, x: (torch.manual_seed(5), F.dropout(x, 0.3))[1]),
    "draws_from_torch": lambda: of_forward(lambda self, x: x + torch.randn(x.shape)),
    "checkpointing": lambda: of_forward(
        lambda self, x: checkpoint(lambda x: F.dropout(x, 0.3) * 2, x, use_reentrant=False)
    ),
    "memory_exchanged": late(lambda model: setattr(model[0].weight, "data", model[0].weight.data * 0.5)),
    "memory_written": late(lambda model: model[0].weight.data.mul_(0.5)),
    "frozen": late(lambda model: model[0].requires_grad_(False)),
    "parameter_replaced": late(lambda model: setattr(model[0], "bias", nn.Parameter(torch.ones(8)))),
    "weights_shared": late(
        lambda model: setattr(model[2], "weight", model[1].weight), lambda: plain(nn.BatchNorm1d(8), nn.LayerNorm(8))
    ),
    "mode_switched": late(lambda model: model.eval(), lambda: plain(nn.BatchNorm1d(8), nn.Dropout(0.3))),
    "buffer_replaced": late(lambda model: setattr(model[1], "running_mean", torch.ones(8)), norm),
    "momentum_changed": late(lambda model: setattr(model[1], "momentum", 0.5), norm),
    "dropout_changed": late(lambda model: setattr(model[1], "p", 0.7), lambda: plain(nn.Dropout(0.3))),
    "cumulative_average": late(lambda model: None, lambda: plain(nn.BatchNorm1d(8, momentum=None))),
    "spectral": late(lambda model: None, lambda: plain(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))),
}
