"""Optimizers that change late: hooks, replaced methods, settings, memory. Models and losses are plain."""

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam
from torch.optim import optimizer as of_torch

import headrace as hr

from .tape_cheats import LATE, Cheat, Table, plain

OPTIMIZERS: Table = {}
Optimizer = torch.optim.Optimizer
Change = Callable[[Any, pytest.MonkeyPatch], Any]


def sgd(params: Any) -> Optimizer:
    return SGD(params, 0.05, 0.9)


def changed(change: Change, make: Callable[[Any], Optimizer] = sgd) -> Callable[[], Cheat]:
    """What changes an optimizer late; what `change` returns is removed afterwards, if it can be."""

    def cheat() -> Cheat:
        patch = pytest.MonkeyPatch()
        made: list[Optimizer] = []
        handles: list[Any] = []

        def optimizer(params: Any) -> Optimizer:
            made.append(make(params))
            return made[0]

        def undo() -> None:
            patch.undo()
            for handle in handles:
                handle.remove()

        def late() -> None:
            handle = change(made[0], patch)
            handles.extend([handle] if hasattr(handle, "remove") and not isinstance(handle, list) else [])

        return Cheat(plain(), change=late, undo=undo, optimizer=optimizer)

    return cheat


def from_the_start(change: Change, remains: bool = False) -> Callable[[], Cheat]:
    """What changes an optimizer before the training; late, it is removed, unless it remains."""

    def cheat() -> Cheat:
        patch = pytest.MonkeyPatch()
        handles: list[Any] = []

        def optimizer(params: Any) -> Optimizer:
            made = sgd(params)
            handles.append(change(made, patch))
            return made

        def undo() -> None:
            patch.undo()
            for handle in handles:
                if hasattr(handle, "remove"):
                    handle.remove()

        return Cheat(plain(), change=None if remains else undo, undo=undo, optimizer=optimizer)

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


def _instance_step(optimizer: Any, patch: Any) -> None:
    given = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        made = given(*args, **kwargs)
        shrink(optimizer)
        return made

    optimizer.step = step


def _bound_step(optimizer: Any, patch: Any) -> None:
    def step(self: Any, closure: Any = None) -> Any:
        made = type(self).step(self, closure)
        shrink(self)
        return made

    optimizer.step = types.MethodType(step, optimizer)


def _class_step(optimizer: Any, patch: Any) -> None:
    kind = type(optimizer)
    given = kind.step

    @functools.wraps(given)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = given(self, *args, **kwargs)
        shrink(self)
        return made

    patch.setattr(kind, "step", step)


def _zero_grad(optimizer: Any, patch: Any) -> None:
    given = optimizer.zero_grad

    def zero_grad(*args: Any, **kwargs: Any) -> None:
        given(*args, **kwargs)
        shrink(optimizer)

    optimizer.zero_grad = zero_grad


def _class_zero_grad(optimizer: Any, patch: Any) -> None:
    kind = type(optimizer)
    given = kind.zero_grad

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        given(self, *args, **kwargs)
        shrink(self)

    patch.setattr(kind, "zero_grad", zero_grad)


def _function(optimizer: Any, patch: Any) -> None:
    home = sys.modules["torch.optim.sgd"]  # the package has hidden its name
    given = home.sgd

    def doubled(params: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
        return given(params, [gradient * 2 for gradient in gradients], *args, **kwargs)

    patch.setattr(home, "sgd", doubled)


def _group(**settings: Any) -> Change:
    return lambda optimizer, patch: [group.update(settings) for group in optimizer.param_groups]


def _momenta(optimizer: Any) -> list[Tensor]:
    return [state["momentum_buffer"] for state in optimizer.state.values()]


def _zero_momenta(optimizer: Any, patch: Any) -> None:
    for momentum in _momenta(optimizer):
        momentum.zero_()


def _replace_momenta(optimizer: Any, patch: Any) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"] * 2


def _forget(optimizer: Any, patch: Any) -> None:
    optimizer.state.clear()


def _reload(optimizer: Any, patch: Any) -> None:
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["momentum"] = 0.5
    optimizer.load_state_dict(state)


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


def _set(name: str, value: Any) -> Change:
    return lambda optimizer, patch: setattr(optimizer, name, value)


HOOKS: dict[str, Change] = {
    "step_post_hook": lambda optimizer, patch: optimizer.register_step_post_hook(shrink),
    "step_pre_hook": lambda optimizer, patch: optimizer.register_step_pre_hook(double_gradients),
    "global_step_post_hook": lambda optimizer, patch: of_torch.register_optimizer_step_post_hook(shrink),
    "global_step_pre_hook": lambda optimizer, patch: of_torch.register_optimizer_step_pre_hook(double_gradients),
}
METHODS: dict[str, Change] = {
    "step_of_the_instance": _instance_step,
    "bound_step_of_the_instance": _bound_step,
    "step_of_the_class": _class_step,
    "zero_grad_of_the_instance": _zero_grad,
    "zero_grad_of_the_class": _class_zero_grad,
    "function_of_torchs_module": _function,
}
SETTINGS: dict[str, Change] = {
    "momentum": _group(momentum=0.5),
    "no_momentum": _group(momentum=0.0),
    "weight_decay": _group(weight_decay=0.1),
    "nesterov": _group(nesterov=True),
    "dampening": _group(dampening=0.5),
    "maximize": _group(maximize=True),
    "foreach": _group(foreach=True),
    "rate": _group(lr=0.01),
    "rate_as_a_tensor": _group(lr=torch.tensor(0.01)),
    "momenta_zeroed": _zero_momenta,
    "momenta_replaced": _replace_momenta,
    "state_forgotten": _forget,
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


OPTIMIZERS.update(
    {f"optimizer_{name}_late": changed(change) for name, change in {**HOOKS, **METHODS, **SETTINGS}.items()}
)
OPTIMIZERS.update({f"optimizer_{name}_until_late": from_the_start(change) for name, change in HOOKS.items()})
OPTIMIZERS.update(
    {f"optimizer_{name}_always": from_the_start(change, remains=True) for name, change in METHODS.items()}
)
OPTIMIZERS.update(
    {
        "adam_step_post_hook_late": changed(HOOKS["step_post_hook"], adam),
        "adam_step_of_the_instance_late": changed(_instance_step, adam),
        "adam_betas_late": changed(_group(betas=(0.5, 0.9)), adam),
        "adam_eps_late": changed(_group(eps=1e-2), adam),
        "adam_amsgrad_late": changed(_group(weight_decay=0.1), adam),
        "momentum_sgd_step_post_hook_late": changed(HOOKS["step_post_hook"], inside),
        "momentum_sgd_step_of_the_class_late": changed(_class_step, inside),
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
)


# --- what every update calls ----------------------------------------------------------------------------------


def _around(call: Callable[..., Any], called: Callable[[], Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def around(*args: Any, **kwargs: Any) -> Any:
        made = call(*args, **kwargs)
        called()
        return made

    return around


class Metric:
    """A metric of a user's."""

    def __init__(self, called: Callable[[], Any]) -> None:
        self.called = called

    def update(self, outputs: Any, target: Any) -> None:
        self.called()

    def compute(self) -> float:
        return 1.0

    def reset(self) -> None: ...


Calls = Callable[[Any, Callable[[], Any], pytest.MonkeyPatch], Any]
CALLERS: dict[str, Calls] = {
    "step_post_hook": lambda made, called, patch: made.register_step_post_hook(lambda *_: called()),
    "step_pre_hook": lambda made, called, patch: made.register_step_pre_hook(lambda *_: called()),
    "global_step_post_hook": lambda made, called, patch: of_torch.register_optimizer_step_post_hook(
        lambda *_: called()
    ),
    "global_step_pre_hook": lambda made, called, patch: of_torch.register_optimizer_step_pre_hook(lambda *_: called()),
    "step_of_the_instance": lambda made, called, patch: setattr(made, "step", _around(made.step, called)),
    "step_of_the_class": lambda made, called, patch: patch.setattr(SGD, "step", _around(SGD.step, called)),
    "zero_grad_of_the_class": lambda made, called, patch: patch.setattr(
        SGD, "zero_grad", _around(SGD.zero_grad, called)
    ),
    "function_of_torchs_module": lambda made, called, patch: patch.setattr(
        sys.modules["torch.optim.sgd"], "sgd", _around(sys.modules["torch.optim.sgd"].sgd, called)
    ),
    "step_of_a_subclass": lambda made, called, patch: setattr(
        made, "__class__", type("Own", (SGD,), {"step": _around(SGD.step, called)})
    ),
}
"""What makes every update call something."""


def called_by(way: str, make: Callable[[], Cheat]) -> Cheat:
    """A cheat whose change is made at a late call by an update, instead of between two updates."""
    cheat, patch = make(), pytest.MonkeyPatch()
    handles: list[Any] = []
    calls = 0

    def called() -> None:
        nonlocal calls
        calls += 1
        if calls == LATE and cheat.change is not None:
            cheat.change()

    def optimizer(params: Any) -> Optimizer:
        made = sgd(params)
        if way in CALLERS:
            handles.append(CALLERS[way](made, called, patch))
        return made

    def undo() -> None:
        patch.undo()
        for handle in [each for each in handles if each is not None]:
            handle.remove()
        if cheat.undo is not None:
            cheat.undo()

    options: dict[str, Any] = {}
    if way == "metric":
        options["metrics"] = {"own": Metric(called)}
    if way == "schedule":
        options["schedule"] = lambda progress: (called(), 1.0)[1]
    return cheat._replace(change=None, undo=undo, optimizer=optimizer, options=options)
