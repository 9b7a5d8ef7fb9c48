"""A model's buffers as they were, for the step that fails."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SMALL = 1 << 20  # elements; a larger buffer is copied only when torch says that it has changed


@dataclass(eq=False, slots=True)
class _Kept:
    """A buffer's place, the tensor that stood there when it was saved, its version then, and a copy."""

    owned: dict[str, Any]
    key: str
    tensor: Tensor
    version: int
    copy: Tensor


class Buffers:
    """The copy of a model's buffers as they were before the step at hand.

    Batch normalisation changes its statistics without torch's noticing, so that small ones are copied always.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            _Kept(module._buffers, key, buffer, buffer._version, buffer.detach().clone())
            for module in model.modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]

    def save(self) -> None:
        """Before a step: what there is now is the state to go back to."""
        fresh, copies = [], []
        for kept in self._kept:
            now = kept.owned.get(kept.key)
            if not isinstance(now, Tensor):
                continue
            same = now is kept.tensor and now._version == kept.version
            if same and now.numel() > SMALL:
                continue
            if not same and (now.shape, now.dtype, now.device) != (kept.copy.shape, kept.copy.dtype, kept.copy.device):
                kept.copy = torch.empty_like(now)
            kept.tensor, kept.version = now, now._version
            fresh.append(now)
            copies.append(kept.copy)
        if fresh:
            torch._foreach_copy_(copies, fresh)

    def restore(self) -> None:
        """After a step that failed: as they were before it."""
        with torch.no_grad():
            for kept in self._kept:
                kept.owned[kept.key] = kept.tensor
                if kept.tensor.numel() <= SMALL or kept.tensor._version != kept.version:
                    kept.tensor.copy_(kept.copy)
                    kept.version = kept.tensor._version

    def select(self, bad: Tensor) -> None:
        """As `restore` where the flag on the device says so, without asking the host."""
        for kept in self._kept:
            now = kept.owned.get(kept.key)
            if isinstance(now, Tensor) and now.shape == kept.copy.shape:
                now.copy_(torch.where(bad, kept.copy, now))
