"""Models and losses that cheat: a pass of theirs is not what the pass before it was."""

import functools
import itertools
import random
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
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


def with_state(value: Callable[[Any], Any], **held: Any) -> types.SimpleNamespace:
    """An object of a class of its own, with settings and a method."""
    made = type("Holder", (types.SimpleNamespace,), {"value": value})(**held)
    return made  # type: ignore[no-any-return]


def counted_steps() -> Cheat:
    def scale(self: Any) -> float:
        self.steps += 1
        return 1.0 if self.steps < LATE else 2.0

    return Cheat(scaled(scale, steps=0))


def python_random() -> Cheat:
    return Cheat(scaled(lambda self: random.random()))


def numpy_random() -> Cheat:
    return Cheat(scaled(lambda self: float(np.random.rand())))


def numpy_generator() -> Cheat:
    return Cheat(scaled(lambda self: self.draw(), draw=np.random.default_rng(3).random))


def annealed() -> Cheat:
    model = scaled(lambda self: self.coefficient, coefficient=1.0)
    return Cheat(model, change=lambda: setattr(model, "coefficient", 3.0))


class Annealed(hr.Objective):
    """An objective of a user's own, whose loss has a factor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"annealed": hr.Term(loss * self.factor, batch.rows)}


def annealed_objective() -> Cheat:
    objective = Annealed(1.0)
    return Cheat(plain(), objective, lambda: setattr(objective, "factor", 3.0))


def annealed_objective_with_a_prior() -> Cheat:
    objective = Annealed(1.0)
    return Cheat(plain(), objective + hr.L2Prior(1e-3), lambda: setattr(objective, "factor", 3.0))


def annealed_in_a_list() -> Cheat:
    model = scaled(lambda self: self.settings["deep"][0], settings={"deep": [1.0]})
    return Cheat(model, change=lambda: model.settings["deep"].__setitem__(0, 3.0))


def annealed_on_a_parameter() -> Cheat:
    model = scaled(lambda self: self.enter.weight.factor)
    model.enter.weight.factor = 1.0  # type: ignore[attr-defined]
    return Cheat(model, change=lambda: setattr(model.enter.weight, "factor", 3.0))


def annealed_on_the_class() -> Cheat:
    model = scaled(lambda self: type(self).coefficient)
    type(model).coefficient = 1.0  # type: ignore[attr-defined]
    return Cheat(model, change=lambda: setattr(type(model), "coefficient", 3.0))


def annealed_behind_a_property() -> Cheat:
    model = scaled(lambda self: self.seen)
    type(model).coefficient = 1.0  # type: ignore[attr-defined]
    type(model).seen = property(lambda self: self.coefficient)  # type: ignore[attr-defined]
    return Cheat(model, change=lambda: setattr(type(model), "coefficient", 3.0))


def method_of_a_schedule() -> Cheat:
    schedule = with_state(lambda self: 1 / (1 + self.time), time=0)
    return Cheat(scaled(lambda self: self.of(), of=schedule.value), change=lambda: setattr(schedule, "time", 3))


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
    model = scaled(made(boxes[0]))
    type(model).also = made(boxes[1])  # type: ignore[attr-defined]
    type(model).scale = lambda self: self.also() * Net.scale(self)  # type: ignore[method-assign]
    return Cheat(model, change=lambda: boxes[1].__setitem__(0, 3.0))


def default_argument() -> Cheat:
    held = types.SimpleNamespace(factor=1.0)

    def scale(self: Any, held: Any = held) -> Any:
        return held.factor

    return Cheat(scaled(scale), change=lambda: setattr(held, "factor", 3.0))


def callable_loss() -> Cheat:
    def call(self: Any, outputs: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(outputs, target) * self.factor

    loss: Any = type("Own", (), {"__call__": call, "factor": 1.0})()
    return Cheat(plain(), loss, lambda: setattr(loss, "factor", 3.0))


def method_as_loss() -> Cheat:
    owner = types.SimpleNamespace(factor=1.0)
    owner.loss = types.MethodType(lambda self, outputs, y: F.cross_entropy(outputs, y) * self.factor, owner)
    return Cheat(plain(), owner.loss, lambda: setattr(owner, "factor", 3.0))


def partial_as_loss() -> Cheat:
    factors = [1.0]
    loss = functools.partial(lambda outputs, y, by: F.cross_entropy(outputs, y) * by[0], by=factors)
    return Cheat(plain(), loss, lambda: factors.__setitem__(0, 3.0))


def cached_function() -> Cheat:
    held = [1.0]
    cached = functools.lru_cache(lambda: held[0])

    def change() -> None:
        held[0] = 3.0
        cached.cache_clear()

    return Cheat(scaled(lambda self: cached()), F.cross_entropy, change)


def cached_method() -> Cheat:
    held = [1.0]
    model = scaled(functools.lru_cache(lambda self: held[0]))

    def change() -> None:
        held[0] = 3.0
        type(model).scale.cache_clear()  # type: ignore[attr-defined]

    return Cheat(model, change=change)


def iterator_in_c() -> Cheat:
    model = scaled(lambda self: 1 / (1 + self.tick()))
    type(model).tick = itertools.count().__next__  # type: ignore[attr-defined]
    return Cheat(model)


def partial_in_c() -> Cheat:
    model = scaled(lambda self: self.draw())
    type(model).draw = functools.partial(random.Random(3).random)  # type: ignore[attr-defined]
    return Cheat(model)


def method_replaced() -> Cheat:
    model = scaled(lambda self: 1.0)
    return Cheat(model, change=lambda: setattr(type(model), "scale", lambda self: 3.0))


def class_replaced() -> Cheat:
    model = plain()
    return Cheat(model, change=lambda: setattr(model[1], "__class__", nn.Tanh))


def module_replaced() -> Cheat:
    model = plain()
    return Cheat(model, change=lambda: model.__setitem__(1, nn.Tanh()))


def forward_replaced() -> Cheat:
    model = plain()
    return Cheat(model, change=lambda: setattr(model[1], "forward", torch.tanh))


def global_replaced() -> Cheat:
    space: dict[str, Any] = {"F": F, "activation": F.relu}
    exec("def forward(self, x): return self.leave(activation(self.enter(x)))", space)
    model: Net = type("Global", (Net,), {"forward": space["forward"]})()
    return Cheat(model, change=lambda: space.__setitem__("activation", F.gelu))


def caches_its_last_output() -> Cheat:
    def scale(self: Any) -> Any:
        self.seen["calls"] = self.seen.get("calls", 0) + 1
        return 1 + 0.1 * self.seen["calls"]

    return Cheat(scaled(scale, seen={}))


def reads_a_number() -> Cheat:
    return Cheat(scaled(lambda self: self.enter.weight.abs().mean().item()))


def decides_by_a_tensor() -> Cheat:
    return Cheat(scaled(lambda self: 1.0 if self.enter.weight.mean() > 0 else 2.0))


def shape_by_the_data() -> Cheat:
    class Chosen(Net):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            rows = (x[:, 0] > 0).nonzero()[:, 0]
            return out.index_add(0, rows, out[rows])

    return Cheat(Chosen())


def of_forward(before: Callable[[Any, Tensor], Tensor]) -> Cheat:
    def forward(self: Any, x: Tensor) -> Tensor:
        return Net.forward(self, before(self, x))

    return Cheat(type("Before", (Net,), {"forward": forward})())


def input_in_place() -> Cheat:
    return of_forward(lambda self, x: x.clamp_(-1, 1))


def seeds_torch() -> Cheat:
    return of_forward(lambda self, x: (torch.manual_seed(5), F.dropout(x, 0.3))[1])


def draws_from_torch() -> Cheat:
    return of_forward(lambda self, x: x + torch.randn(x.shape))


def draws_from_a_generator() -> Cheat:
    generator = torch.Generator().manual_seed(3)
    return of_forward(lambda self, x: x + torch.randn(x.shape, generator=generator))


def writes_a_parameter() -> Cheat:
    def clamped(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.enter.weight.clamp_(-0.3, 0.3)
        return x

    return of_forward(clamped)


def checkpointing() -> Cheat:
    return of_forward(lambda self, x: checkpoint(lambda x: F.dropout(x, 0.3) * 2, x, use_reentrant=False))


def counts_in_a_buffer() -> Cheat:
    def counted(self: Any, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x * torch.where(self.calls > LATE, 2.0, 1.0)

    cheat = of_forward(counted)
    cheat.model.register_buffer("calls", torch.zeros(()))
    return cheat


def hook_on_a_gradient() -> Cheat:
    class Hooked(Net):
        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.enter(x))
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient * random.random())
            return self.leave(hidden)

    return Cheat(Hooked())


def module_hook() -> Cheat:
    model = plain()
    model[1].register_forward_hook(lambda module, args, out: out * random.random())
    return Cheat(model)


def late_module_hook() -> Cheat:
    model = plain()
    return Cheat(model, change=lambda: model[0].register_forward_hook(lambda module, args, out: out * 2))


def late_parameter_hook() -> Cheat:
    model = plain()
    return Cheat(model, change=lambda: model[0].weight.register_hook(lambda gradient: gradient * 2))


def own_backward() -> Cheat:
    class Own(torch.autograd.Function):
        factor = 1.0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * Own.factor

    class Uses(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.leave(Own.apply(self.enter(x)))  # type: ignore[no-untyped-call]

    return Cheat(Uses(), change=lambda: setattr(Own, "factor", 3.0))


def late(change: Callable[[nn.Sequential], Any], *between: Callable[[], nn.Module]) -> Callable[[], Cheat]:
    """A plain model that is changed late."""

    def cheat() -> Cheat:
        model = plain(*[make() for make in between])
        return Cheat(model, change=lambda: change(model))

    return cheat


def norm() -> nn.Module:
    return nn.BatchNorm1d(8)


def global_hook() -> Cheat:
    handles: list[Any] = []

    def first_only(module: nn.Module, args: Any, out: Any) -> Any:
        handles[0].remove()
        return out * 2

    return Cheat(plain(), change=lambda: handles.append(register_module_forward_hook(first_only)))


CHEATS: Table = {
    each.__name__: each
    for each in [
        *(counted_steps, python_random, numpy_random, numpy_generator, annealed, annealed_in_a_list),
        *(annealed_objective, annealed_objective_with_a_prior),
        *(annealed_on_a_parameter, annealed_on_the_class, annealed_behind_a_property, method_of_a_schedule),
        *(variable_of_a_closure, closures_with_one_code, default_argument, callable_loss, method_as_loss),
        *(partial_as_loss, cached_function, cached_method, iterator_in_c, partial_in_c, method_replaced),
        *(class_replaced, module_replaced, forward_replaced, global_replaced, caches_its_last_output),
        *(reads_a_number, decides_by_a_tensor, shape_by_the_data, input_in_place, seeds_torch, draws_from_torch),
        *(draws_from_a_generator, writes_a_parameter, checkpointing, counts_in_a_buffer, hook_on_a_gradient),
        *(module_hook, late_module_hook, late_parameter_hook, own_backward, global_hook),
    ]
} | {
    "memory_exchanged": late(lambda model: setattr(model[0].weight, "data", model[0].weight.data * 0.5)),
    "memory_written": late(lambda model: model[0].weight.data.mul_(0.5)),
    "frozen": late(lambda model: model[0].requires_grad_(False)),
    "parameter_replaced": late(lambda model: setattr(model[0], "bias", nn.Parameter(torch.ones(8)))),
    "weights_shared": late(lambda model: setattr(model[2], "weight", model[1].weight), norm, lambda: nn.LayerNorm(8)),
    "mode_switched": late(lambda model: model.eval(), norm, lambda: nn.Dropout(0.3)),
    "buffer_replaced": late(lambda model: setattr(model[1], "running_mean", torch.ones(8)), norm),
    "momentum_changed": late(lambda model: setattr(model[1], "momentum", 0.5), norm),
    "dropout_changed": late(lambda model: setattr(model[1], "p", 0.7), lambda: nn.Dropout(0.3)),
    "cumulative_average": late(lambda model: None, lambda: nn.BatchNorm1d(8, momentum=None)),
    "spectral": late(lambda model: None, lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))),
}
