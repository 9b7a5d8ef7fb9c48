"""SGD with momentum whose velocity holds the learning rate, as several older libraries have it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from ..errors import ConfigError


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
