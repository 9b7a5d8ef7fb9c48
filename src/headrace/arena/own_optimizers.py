"""Optimizers of this library: several as one, one with copies in single precision, and one with older momentum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import ConfigError, ModelError

COPIED = tuple(getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"))
"""Optimizers that update each element by itself, and begin their state in a step."""

_RELEASE = "_headrace_release"
"""The attribute of an optimizer at work that makes it ordinary again."""


class Joint(Optimizer):
    """Several optimizers, each with its own parameters, as one that steps all of them.

    Its groups are those of its `members`, the same dicts, so that whatever sets a rate sets theirs.
    """

    def __init__(self, members: Sequence[Optimizer]) -> None:
        self.members = list(members)
        self._places: list[tuple[int, int]] = []  # of each group: the number of its member, and its own there
        self.__setstate__({"defaults": {}})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all members; those that were added later come last."""
        return [self.members[number].param_groups[index] for number, index in self._found()]

    @property
    def owners(self) -> list[Optimizer]:
        """The member that each group belongs to."""
        return [self.members[number] for number, _ in self._found()]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """What the members remember of each parameter, to be read."""
        return MappingProxyType({param: state for member in self.members for param, state in member.state.items()})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """The step of each member."""
        for member in self.members:
            member.step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise ModelError("these are several optimizers. Add the group to one of them: optimizer.members[0], and so on.")

    def state_dict(self) -> dict[str, Any]:
        return {"members": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for member, state in zip(self.members, state_dict["members"], strict=True):
            member.load_state_dict(state)

    def __reduce__(self) -> tuple[type[Joint], tuple[list[Optimizer]]]:  # how it is copied and pickled
        return Joint, (self.members,)

    def _found(self) -> list[tuple[int, int]]:
        for number, member in enumerate(self.members):
            known = sum(owner == number for owner, _ in self._places)
            self._places += [(number, index) for index in range(known, len(member.param_groups))]
        return self._places


def parts_of(optimizer: Optimizer) -> list[Optimizer]:
    """The optimizers that make the step of this one: itself, or its members."""
    return optimizer.members if isinstance(optimizer, Joint) else [optimizer]


def params_of(optimizer: Optimizer) -> list[Any]:
    """The parameters of all groups of an optimizer, in order."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def put_to_work(optimizer: Optimizer, release: Callable[[], None]) -> None:
    """A trainer has an optimizer at work until `release`, which is called before anybody copies or pickles it."""
    for part in parts_of(optimizer):
        vars(part)[_RELEASE] = release
        vars(part)["__getstate__"] = partial(_state_of, part)


def put_to_rest(optimizer: Optimizer) -> None:
    """The optimizer is ordinary again."""
    for part in parts_of(optimizer):
        vars(part).pop(_RELEASE, None)
        vars(part).pop("__getstate__", None)


def release_elsewhere(optimizer: Optimizer) -> None:
    """Makes an optimizer ordinary that another trainer has at work: its state is that trainer's."""
    for part in parts_of(optimizer):
        if (release := vars(part).get(_RELEASE)) is not None:
            release()


def _state_of(optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer at work as a copy or a pickle has it, by its parameters."""
    release_elsewhere(optimizer)
    return type(optimizer).__getstate__(optimizer)


def kind_of(optimizer: Optimizer) -> str:
    """What an optimizer is called: by its class, or by those of its members."""
    return " + ".join(
        f"MasterWeights of {part.kind}" if isinstance(part, MasterWeights) else type(part).__name__
        for part in parts_of(optimizer)
    )


def joined(optimizers: Iterable[Any], model: nn.Module, title: str) -> Optimizer:
    """Several optimizers as one, if each parameter of the model that is trained is in exactly one of them.

    `title`: what an error calls the argument.
    """
    members: list[Optimizer] = list(optimizers)
    if not members or not all(isinstance(member, Optimizer) for member in members):
        kinds = ", ".join(type(member).__name__ for member in members)
        raise ConfigError(f"{title} takes torch optimizers in a list, as in [muon, adamw]; got [{kinds}].")
    if len(members) == 1:
        return members[0]
    names = {param: name for name, param in model.named_parameters()}
    owner: dict[Any, int] = {}
    for number, member in enumerate(members):
        for param in dict.fromkeys(params_of(member)):
            if owner.setdefault(param, number) != number:
                raise ModelError(
                    f"{title}: {_place(members, owner[param])} and {_place(members, number)} both have the parameter "
                    f"{names.get(param, 'outside of the model')!r}. Give each parameter to one of them."
                )
    refuse_missing(members, model, title)
    return Joint(members)


def refuse_missing(members: Sequence[Optimizer], model: nn.Module, title: str) -> None:
    """Raises if the model has a parameter that is trained and in none of the optimizers."""
    known = {param for member in members for param in params_of(member)}
    if missing := [name for name, param in model.named_parameters() if param.requires_grad and param not in known]:
        raise ModelError(
            f"{title}: no optimizer has {', '.join(map(repr, missing[:3]))}{' and others' * (len(missing) > 3)}. Give "
            "every parameter that is trained to one of them, and freeze the others: requires_grad_(False)."
        )


def _place(members: Sequence[Optimizer], number: int) -> str:
    return f"{type(members[number]).__name__} (number {number})"


def owners_of(optimizer: Optimizer) -> list[Optimizer]:
    """Which optimizer steps each group of this one."""
    return optimizer.owners if isinstance(optimizer, Joint) else [optimizer] * len(optimizer.param_groups)


class MasterWeights(Optimizer):
    """Updates parameters in bf16 or fp16 by another optimizer, which works on copies of them in fp32.

    `hr.MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)`: in every step the gradients become fp32, the
    optimizer updates the copies, and the parameters are the copies, rounded. Without copies, an update that is less
    than about 1/256 of a weight in bf16 is lost. `make` is one of torch's optimizers that update each element by
    itself. If something else writes into a parameter, its copy gets the same value.
    """

    elementwise = True

    def __init__(self, params: Iterable[Any], make: type[Optimizer], **settings: Any) -> None:
        if make not in COPIED:
            names = ", ".join(sorted(kind.__name__ for kind in COPIED))
            raise ConfigError(f"MasterWeights works with {names} of torch; got {getattr(make, '__name__', make)!r}.")
        groups = list(params)
        self._inner = make([nn.Parameter(torch.zeros(1))], **settings)
        self.kind = make.__name__
        super().__init__(groups, self._inner.defaults)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_inner": self._inner, "kind": self.kind}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As any optimizer does, but copies and moments stay in fp32: torch rounds them to the type of a parameter."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for number, param in zip(numbers, params, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if name != "step" and isinstance(value, torch.Tensor):
                    self.state[param][name] = value.to(param.device, copy=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        inner = self._inner
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            masters = [self._master(param) for param in params]
            if not params:
                continue
            inner.param_groups = [{**group, "params": masters}]
            inner.step()
            for param, master in zip(params, masters, strict=True):
                self.state[param].update(inner.state.pop(master, {}))
                master.grad = None
            torch._foreach_copy_(params, masters)

    def _master(self, param: torch.Tensor) -> torch.Tensor:
        """The copy of a parameter, with its gradient and its state at the inner optimizer."""
        state = self.state[param]
        if "master" not in state:
            state["master"] = param.detach().to(torch.float32, copy=True)
        master: torch.Tensor = state["master"]
        torch.where(master.to(param.dtype) == param, master, param.to(torch.float32), out=master)
        assert param.grad is not None
        master.grad = param.grad.to(torch.float32, copy=True)
        if known := {name: value for name, value in state.items() if name != "master"}:
            self._inner.state[master] = known
        return master


class MomentumSGD(Optimizer):
    """SGD with the learning rate λ inside the velocity: v ← μ v − λ g, w ← w + v, where g = ∇L + `weight_decay` · w.

    `torch.optim.SGD` has it outside: v ← μ v + g, w ← w − λ v. Both make the same steps while λ stays the same. When λ
    changes, earlier gradients keep their rate here, and get the new one there.
    """

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0.9, weight_decay: float = 0.0) -> None:
        for name, value in {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}.items():
            if not float(value) >= 0:
                raise ConfigError(f"{name}= is a number that is not negative, got {value!r}.")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if not params:
                continue
            gradients = [param.grad for param in params]
            if group["weight_decay"]:
                gradients = list(torch._foreach_add(gradients, params, alpha=group["weight_decay"]))
            for param in params:
                if "velocity" not in self.state[param]:
                    self.state[param]["velocity"] = torch.zeros_like(param)
            velocities = [self.state[param]["velocity"] for param in params]
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, gradients, alpha=-float(group["lr"]))
            torch._foreach_add_(params, velocities)
        return loss
