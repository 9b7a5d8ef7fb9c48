"""Optimizers by PuzzleLib's names, with its update rules. Its gradients point downhill: w ← w + λ g."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...arena.own_optimizers import MomentumSGD as LearnRateInside
from ...errors import ConfigError
from ...train.trainer import Trainer as NativeTrainer
from .costs import __getattr__ as __getattr__
from .costs import made

Rule = Callable[[Tensor, Tensor, dict[str, Any], dict[str, Any]], None]


class WeightDecay:
    """A hook that takes `rate` times the weights from the gradient."""

    def __init__(self, rate: float) -> None:
        self.rate = rate


class Optimizer:
    """What the optimizers have in common: `setupOn` a module makes the optimizer of torch that does the work."""

    rule: Any = torch.optim.Optimizer
    """The optimizer of torch with the same rule; where there is none, `update_of` is the rule."""
    defaults: ClassVar[Mapping[str, float]] = {"learnRate": 1e-3}
    """The settings in their order, and their defaults."""
    called: ClassVar[Mapping[str, str]] = {"epsilon": "eps"}
    """What torch calls the settings that it calls otherwise."""

    def __init__(self, *given: float, nodeinfo: Any = None, **named: float) -> None:
        names = list(self.defaults)
        if odd := [*given[len(names) :], *sorted(named.keys() - set(names[len(given) :]))]:
            raise ConfigError(f"{type(self).__name__} takes {', '.join(names)}, once each, got {odd[0]!r} besides.")
        settings = {**self.defaults, **dict(zip(names, given, strict=False)), **named}
        self._rate, self.t = settings.pop("learnRate", settings.pop("alpha", 1.0)), 0
        self.settings, self.hooks = settings, list[WeightDecay]()
        self.module: nn.Module | None = None
        self.torch: torch.optim.Optimizer | None = None
        """The optimizer that does the work, once there is a module."""
        self.user: NativeTrainer | None = None
        """The trainer that updates with it at present."""

    @property
    def learnRate(self) -> float:
        """The learning rate, which may be changed between two batches."""
        return self._rate if self.torch is None else float(self.torch.param_groups[0]["lr"])

    @learnRate.setter
    def learnRate(self, rate: float) -> None:
        self._rate = rate
        for group in self.torch.param_groups if self.torch is not None else ():
            group["lr"] = rate

    def addHook(self, hook: Any) -> None:
        if not isinstance(hook, WeightDecay):
            raise ConfigError(
                f"hooks of optimizers other than WeightDecay are not offered, got {hook!r}. Natively, what changes "
                "gradients before an update is clip_norm=, clip_value=, or an optimizer of your own."
            )
        self.hooks.append(hook)
        for group in self.torch.param_groups if self.torch is not None else ():
            group["weight_decay"] = self._decay

    def setupOn(self, mod: nn.Module, useGlobalState: bool = False) -> None:
        """Prepares to update a module. `useGlobalState` joined the parameters in one vector, as is always done here."""
        self.attach(None)
        self.module = mod
        params = [param for param in mod.parameters() if param.requires_grad]
        self.torch = self.make(params)
        for group in self.torch.param_groups:
            group["weight_decay"] = self._decay

    def make(self, params: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of torch with this rule."""
        if self.rule is torch.optim.Optimizer:
            return _Ruled(params, self._rate, self.update_of, self.settings)
        named = {self.called.get(name, name): value for name, value in self.settings.items()}
        made: torch.optim.Optimizer = self.rule(params, lr=self._rate, **named)
        return made

    def update_of(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Changes a weight, given its gradient, which points downhill."""
        raise NotImplementedError

    def zeroGradParams(self) -> None:
        self._ready().zero_grad()

    def update(self, useStreams: bool = False, sync: bool = True) -> None:
        """An update from the gradients that a loop of your own has found."""
        self._ready().step()
        self.t += 1

    def attach(self, trainer: "NativeTrainer | None") -> None:
        """From now on this trainer updates with it; one that did so before lets go of the parameters."""
        if self.user is not trainer:
            if self.user is not None:
                self.user.release()
            self.user = trainer

    def save(self, hdf: Any, name: str | None = None) -> None:
        raise ConfigError(
            f"{type(self).__name__} is neither saved nor loaded here. Natively an optimizer is saved with its run: "
            "hr.Trainer(...).fit(data, run='runs/name')."
        )

    load = save

    def __setattr__(self, name: str, value: Any) -> None:
        """Settings may be changed between two batches, as the learning rate may."""
        if name not in self.__dict__.get("settings", {}):
            super().__setattr__(name, value)
            return
        self.settings[name] = value
        for group in self.torch.param_groups if self.torch is not None else ():
            group[self.called.get(name, name)] = value

    def __getattr__(self, name: str) -> Any:
        settings = self.__dict__.get("settings", {})
        if name in settings:
            return settings[name]
        raise AttributeError(
            f"{type(self).__name__} has no {name!r}. Its settings: {', '.join(['learnRate', *settings])}."
        )

    @property
    def _decay(self) -> float:
        return math.fsum(hook.rate for hook in self.hooks)

    def _ready(self) -> torch.optim.Optimizer:
        if self.torch is None:
            raise ConfigError(f"this {type(self).__name__} has no module yet. Call setupOn(mod) first.")
        return self.torch


class SGD(Optimizer):
    """w ← w + λ g."""

    rule = torch.optim.SGD


class MomentumSGD(Optimizer):
    """m ← μ m + λ g, w ← w + m."""

    rule, called = LearnRateInside, {"momRate": "momentum"}
    defaults: ClassVar[Mapping[str, float]] = {"learnRate": 1e-3, "momRate": 0.9}


class NesterovSGD(Optimizer):
    """w ← w + μ² m + (1 + μ) λ g, m ← μ m + λ g."""

    defaults: ClassVar[Mapping[str, float]] = {"learnRate": 1e-3, "momRate": 0.9}

    def update_of(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        rate, momentum = group["lr"], group["momRate"]
        moving = _kept(state, "mom", weight)
        weight.add_(moving, alpha=momentum**2).add_(gradient, alpha=(1 + momentum) * rate)
        moving.mul_(momentum).add_(gradient, alpha=rate)


class AdaGrad(Optimizer):
    """h ← h + g², w ← w + λ g / (√h + ε)."""

    rule = torch.optim.Adagrad
    defaults: ClassVar[Mapping[str, float]] = {"learnRate": 1e-3, "epsilon": 1e-8}


class AdaDelta(Optimizer):
    """Steps as large as the root mean square of the last ones; there is no learning rate."""

    rule = torch.optim.Adadelta
    defaults: ClassVar[Mapping[str, float]] = {"rho": 0.95, "epsilon": 1e-6}


class RMSProp(Optimizer):
    """s ← ρ s + (1 − ρ) g², w ← w + λ g / (√s + ε)."""

    rule, called = torch.optim.RMSprop, {"factor": "alpha", "epsilon": "eps"}
    defaults: ClassVar[Mapping[str, float]] = {"learnRate": 1e-3, "factor": 0.9, "epsilon": 1e-5}


class Adam(Optimizer):
    """m ← β₁ m + (1 − β₁) g, s ← β₂ s + (1 − β₂) g², w ← w + λₜ m / (√s + ε) with λₜ = α √(1 − β₂ᵗ) / (1 − β₁ᵗ)."""

    defaults: ClassVar[Mapping[str, float]] = {"alpha": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

    @property
    def alpha(self) -> float:
        return self.learnRate

    @alpha.setter
    def alpha(self, rate: float) -> None:
        self.learnRate = rate

    def update_of(self, weight: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        mean, square = _kept(state, "mg", weight), _kept(state, "ms", weight)
        state["t"] = steps = state.get("t", 0) + 1
        beta1, beta2 = group["beta1"], group["beta2"]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rate = group["lr"] * math.sqrt(1 - beta2**steps) / (1 - beta1**steps)
        weight.addcdiv_(mean, square.sqrt().add_(group["epsilon"]), value=rate)


class _Ruled(torch.optim.Optimizer):
    """An optimizer of torch with one of the rules above."""

    elementwise = True

    def __init__(self, params: list[nn.Parameter], rate: float, rule: Rule, settings: dict[str, Any]) -> None:
        super().__init__(params, {"lr": rate, "weight_decay": 0.0, **settings})
        self._rule = rule

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    downhill = param.grad.neg()
                    if group["weight_decay"]:
                        downhill.sub_(param, alpha=group["weight_decay"])
                    self._rule(param, downhill, self.state[param], group)


def by_name(optimizer: Any) -> Optimizer:
    """An optimizer, or the one of this name with its defaults."""
    kinds = (SGD, MomentumSGD, NesterovSGD, AdaGrad, AdaDelta, RMSProp, Adam)
    found: Optimizer = made("optimizer", optimizer, Optimizer, kinds, "Optimizers of torch are for hr.Trainer.")
    return found


def _kept(state: dict[str, Any], name: str, like: Tensor) -> Tensor:
    """A tensor of an optimizer's state, zeros at first."""
    if name not in state:
        state[name] = torch.zeros_like(like)
    found: Tensor = state[name]
    return found
