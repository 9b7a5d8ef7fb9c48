"""Optimizers that change late: hooks, replaced methods, settings, memory. Models and losses are plain."""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim import optimizer as of_torch

import headrace as hr

from .tape_cheats import LATE, Cheat, Table, plain

Optimizer = torch.optim.Optimizer
Change = Callable[[Any, pytest.MonkeyPatch], Any]
Called = Callable[[], Any]


def sgd(params: Any) -> Optimizer:
    return SGD(params, 0.05, 0.9)


class Changing:
    """Changes an optimizer once it is made, or late, and takes back afterwards what can be taken back."""

    def __init__(self, change: Change, make: Callable[[Any], Optimizer], at_once: bool) -> None:
        self.change, self.make, self.at_once = change, make, at_once
        self.patch, self.handles = pytest.MonkeyPatch(), list[Any]()

    def optimizer(self, params: Any) -> Optimizer:
        self.made = self.make(params)
        if self.at_once:
            self.late()
        return self.made

    def late(self) -> None:
        handle = self.change(self.made, self.patch)
        self.handles += [handle] if hasattr(handle, "remove") and not isinstance(handle, list) else []

    def undo(self) -> None:
        self.patch.undo()
        for handle in self.handles:
            handle.remove()


def changed(change: Change, make: Callable[[Any], Optimizer] = sgd) -> Callable[[], Cheat]:
    """An optimizer that is changed late."""

    def cheat() -> Cheat:
        changing = Changing(change, make, at_once=False)
        return Cheat(plain(), change=changing.late, undo=changing.undo, optimizer=changing.optimizer)

    return cheat


def from_the_start(change: Change, remains: bool) -> Callable[[], Cheat]:
    """An optimizer that is changed before the training; late, the change is taken back, unless it remains."""

    def cheat() -> Cheat:
        changing = Changing(change, sgd, at_once=True)
        late = None if remains else changing.undo
        return Cheat(plain(), change=late, undo=changing.undo, optimizer=changing.optimizer)

    return cheat


def shrink(optimizer: Optimizer, *given: Any) -> None:
    """What a hook does: all weights become a little smaller."""
    with torch.no_grad():
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.mul_(0.99)


def double_gradients(optimizer: Optimizer, *given: Any) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                param.grad.mul_(2)


# --- what every update calls ----------------------------------------------------------------------------------


def _around(call: Callable[..., Any], called: Called) -> Callable[..., Any]:
    @functools.wraps(call)
    def around(*args: Any, **kwargs: Any) -> Any:
        made = call(*args, **kwargs)
        called()
        return made

    return around


def _bound_step(made: Any, called: Called, patch: Any) -> None:
    def step(self: Any, closure: Any = None) -> Any:
        stepped = type(self).step(self, closure)
        called()
        return stepped

    made.step = types.MethodType(step, made)


OF_SGD = sys.modules["torch.optim.sgd"]  # the package has hidden its name
HOOKS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "step_post_hook": lambda made, called, patch: made.register_step_post_hook(lambda *_: called()),
    "step_pre_hook": lambda made, called, patch: made.register_step_pre_hook(lambda *_: called()),
    "global_step_post_hook": lambda made, called, patch: of_torch.register_optimizer_step_post_hook(
        lambda *_: called()
    ),
    "global_step_pre_hook": lambda made, called, patch: of_torch.register_optimizer_step_pre_hook(lambda *_: called()),
}
METHODS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "step_of_the_instance": lambda made, called, patch: setattr(made, "step", _around(made.step, called)),
    "bound_step_of_the_instance": _bound_step,
    "step_of_the_class": lambda made, called, patch: patch.setattr(
        type(made), "step", _around(type(made).step, called)
    ),
    "zero_grad_of_the_instance": lambda made, called, patch: setattr(
        made, "zero_grad", _around(made.zero_grad, called)
    ),
    "zero_grad_of_the_class": lambda made, called, patch: patch.setattr(
        SGD, "zero_grad", _around(SGD.zero_grad, called)
    ),
    "function_of_torchs_module": lambda made, called, patch: patch.setattr(OF_SGD, "sgd", _around(OF_SGD.sgd, called)),
}
CALLERS = {
    **HOOKS,
    **METHODS,
    "step_of_a_subclass": lambda made, called, patch: setattr(
        made, "__class__", type("Own", (SGD,), {"step": _around(SGD.step, called)})
    ),
}
"""What makes every update call something."""


class Metric:
    """A metric of a user's."""

    def __init__(self, called: Called) -> None:
        self.called = called

    def update(self, outputs: Any, target: Any) -> None:
        self.called()

    def compute(self) -> float:
        return 1.0

    def reset(self) -> None: ...


def called_by(way: str, make: Callable[[], Cheat]) -> Cheat:
    """A cheat whose change is made at a late call by an update, instead of between two updates."""
    cheat, calls = make(), 0

    def called() -> None:
        nonlocal calls
        calls += 1
        if calls == LATE and cheat.change is not None:
            cheat.change()

    def call(made: Any, patch: Any) -> Any:
        return CALLERS[way](made, called, patch) if way in CALLERS else None

    changing = Changing(call, sgd, at_once=True)

    def undo() -> None:
        changing.undo()
        if cheat.undo is not None:
            cheat.undo()

    options: dict[str, Any] = {}
    if way == "metric":
        options["metrics"] = {"own": Metric(called)}
    if way == "schedule":
        options["schedule"] = lambda progress: (called(), 1.0)[1]
    return cheat._replace(change=None, undo=undo, optimizer=changing.optimizer, options=options)


# --- settings and memory --------------------------------------------------------------------------------------


class OtherStep(SGD):
    """Does as its base, and makes weights smaller."""

    def step(self, closure: Any = None) -> Any:
        made = super().step(closure)
        shrink(self)
        return made


class WithFactor(SGD):
    """Has a setting of its own beside the groups."""

    factor = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.add_(param.grad, alpha=-group["lr"] * self.factor)
        return None


def _group(**settings: Any) -> Change:
    return lambda optimizer, patch: [group.update(settings) for group in optimizer.param_groups]


def _set(name: str, value: Any) -> Change:
    return lambda optimizer, patch: setattr(optimizer, name, value)


def _replace_momenta(optimizer: Any, patch: Any) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"] * 2


def _reload(optimizer: Any, patch: Any) -> None:
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["momentum"] = 0.5
    optimizer.load_state_dict(state)


def _calling(way: str) -> Change:
    return lambda optimizer, patch: CALLERS[way](optimizer, lambda: shrink(optimizer), patch)


SETTINGS: dict[str, Change] = {
    "doubled_gradients": lambda optimizer, patch: optimizer.register_step_pre_hook(double_gradients),
    "momentum": _group(momentum=0.5),
    "weight_decay": _group(weight_decay=0.1),
    "nesterov": _group(nesterov=True),
    "maximize": _group(maximize=True),
    "foreach": _group(foreach=True),
    "rate": _group(lr=0.01),
    "rate_as_a_tensor": _group(lr=torch.tensor(0.01)),
    "momenta_zeroed": lambda optimizer, patch: [state["momentum_buffer"].zero_() for state in optimizer.state.values()],
    "momenta_replaced": _replace_momenta,
    "state_forgotten": lambda optimizer, patch: optimizer.state.clear(),
    "state_loaded": _reload,
    "class_replaced": _set("__class__", OtherStep),
    "groups_replaced": lambda optimizer, patch: setattr(
        optimizer, "param_groups", [{**group, "lr": 0.01} for group in optimizer.param_groups]
    ),
    "defaults": lambda optimizer, patch: optimizer.defaults.update(lr=1.0),
    "hook_by_its_dictionary": lambda optimizer, patch: optimizer._optimizer_step_post_hooks.update({7: shrink}),
}


def adam(params: Any) -> Optimizer:
    return Adam(params, 0.01)


def inside(params: Any) -> Optimizer:
    return hr.MomentumSGD(params, lr=0.05, momentum=0.9)


OPTIMIZERS: Table = {
    **{f"optimizer_{name}_late": changed(_calling(name)) for name in [*HOOKS, *METHODS]},
    **{f"optimizer_{name}_until_late": from_the_start(_calling(name), remains=False) for name in HOOKS},
    **{f"optimizer_{name}_always": from_the_start(_calling(name), remains=True) for name in METHODS},
    **{f"optimizer_{name}_late": changed(change) for name, change in SETTINGS.items()},
    "adam_step_post_hook_late": changed(_calling("step_post_hook"), adam),
    "adam_step_of_the_instance_late": changed(_calling("step_of_the_instance"), adam),
    "adam_betas_late": changed(_group(betas=(0.5, 0.9)), adam),
    "adam_weight_decay_late": changed(_group(weight_decay=0.1), adam),
    "momentum_sgd_step_post_hook_late": changed(_calling("step_post_hook"), inside),
    "momentum_sgd_step_of_the_class_late": changed(_calling("step_of_the_class"), inside),
    "momentum_sgd_momentum_late": changed(_group(momentum=0.5), inside),
    "subclass_with_a_step": changed(lambda optimizer, patch: None, lambda params: OtherStep(params, 0.05, 0.9)),
    "subclass_with_a_setting": changed(_set("factor", 3.0), lambda params: WithFactor(params, 0.05)),
    "subclass_with_a_class_setting": changed(
        lambda optimizer, patch: patch.setattr(WithFactor, "factor", 3.0), lambda params: WithFactor(params, 0.05)
    ),
    "subclass_without_anything": changed(
        _group(momentum=0.5), lambda params: type("Own", (SGD,), {})(params, 0.05, 0.9)
    ),
    "fused": changed(_group(weight_decay=0.1), lambda params: SGD(params, 0.05, 0.9, fused=True)),
    "foreach": changed(_group(weight_decay=0.1), lambda params: SGD(params, 0.05, 0.9, foreach=True)),
}
