"""The number formats that a forward pass runs in, and the loss scaling that half precision needs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..arena.arena import Arena
from ..errors import ConfigError, NonFiniteError, unknown

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """`"fp32"`, `"bf16"` (autocast) or `"fp16"` (autocast, and gradients scaled so that small ones survive)."""

    def __init__(self, name: str, device: torch.device) -> None:
        if not isinstance(name, str) or name not in _DTYPES:
            raise ConfigError(unknown("precision", name, _DTYPES))
        self._dtype = _DTYPES[name]
        self._device = device.type
        self._scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self._plain: AbstractContextManager[Any] = nullcontext()

    def context(self) -> AbstractContextManager[Any]:
        """What the forward pass runs under."""
        return self._plain if self._dtype is None else torch.autocast(self._device, self._dtype)

    @property
    def halves(self) -> bool:
        """Whether the model is called under autocast, so that outputs come in half precision."""
        return self._dtype is not None

    @property
    def scales(self) -> bool:
        """Whether gradients are scaled; an infinite one is then a sign that the scale is too high."""
        return self._scaler is not None

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and how it came about; nothing where nothing is scaled."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)

    def discard(self) -> None:
        """An update was left half way: the scaler forgets that it has begun to take the scale out."""
        if self._scaler is not None:
            state, self._scaler = self._scaler.state_dict(), torch.amp.GradScaler(self._device)
            self._scaler.load_state_dict(state)

    def scale(self, seed: Tensor) -> Tensor:
        """What a backward pass starts from."""
        return seed if self._scaler is None else self._scaler.scale(seed)

    def unscale(self, optimizer: Optimizer, gradients: Sequence[Tensor]) -> None:
        """Takes the scale out of the optimizer's gradients again, if there are any; `step` has to follow."""
        if self._scaler is not None and gradients:
            self._scaler.unscale_(optimizer)

    def step(self, arena: Arena, gradients: Sequence[Tensor]) -> None:
        """The update; a scaled one is left out, and the scale lowered, when its gradients overflowed."""
        if self._scaler is None or not gradients:
            arena.hooks.step()
            return
        skips = vars(arena.optimizer).pop("found_inf", None)  # the guard's; the scaler puts its own there
        if skips is not None and bool(skips):
            self.discard()
            return
        with arena.hooks.ours():
            self._scaler.step(arena.optimizer)
        self._scaler.update()
        if self._scaler.get_scale() < 1.0:
            raise NonFiniteError(
                "the fp16 loss scale fell below 1: the gradients are not finite, whatever the scale. "
                "Lower the rate, use clip_norm=, or precision='bf16'."
            )
