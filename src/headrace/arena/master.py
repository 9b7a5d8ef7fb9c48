"""An optimizer of parameters in half precision that keeps a copy of each in single precision."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import ConfigError

COPIED = tuple(getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop"))
"""Optimizers that update each element by itself, and begin their state in a step."""


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
