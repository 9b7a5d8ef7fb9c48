"""A model's buffers as they were, for the step that fails."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .gradients import all_finite

SMALL = 1 << 20  # elements; a larger buffer is copied only when torch says that it has changed
WATCHED = 1 << 16  # elements; a larger one is looked at only then, unless it is known to change silently


@dataclass(eq=False, slots=True)
class _Kept:
    """A buffer's place, the tensor that stood there when it was saved, its version then, and a copy.

    `watched`: whether it is looked at even if torch knows of no change, as batch norm and `.data` make them.
    """

    name: str
    owned: dict[str, Any]
    key: str
    watched: bool
    tensor: Tensor
    version: int
    copy: Tensor
    large: bool = field(init=False)

    def __post_init__(self) -> None:
        self.large = self.copy.numel() > SMALL


class Buffers:
    """The copy of a model's buffers as they were before the step at hand.

    Batch normalisation changes its statistics without torch's noticing, so that small ones are copied always.
    """

    def __init__(self, model: nn.Module) -> None:
        self._kept = [
            _Kept(
                f"{prefix}.{key}" if prefix else key,
                module._buffers,
                key,
                isinstance(module, _NormBase) or buffer.numel() <= WATCHED,
                buffer,
                buffer._version,
                buffer.detach().clone(),
            )
            for prefix, module in model.named_modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._fractions = [kept for kept in self._kept if kept.copy.is_floating_point()]

    def save(self) -> None:
        """Before a step: what there is now is the state to go back to."""
        fresh, copies = [], []
        for kept in self._kept:
            now = kept.owned.get(kept.key)
            if now is not kept.tensor or now._version != kept.version:
                if not isinstance(now, Tensor):
                    continue
                if not _alike(now, kept.copy):
                    self._replace(kept, now)
                kept.tensor, kept.version = now, now._version
            elif kept.large:
                continue
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

    def moved(self) -> list[Tensor]:
        """The buffers with fractions that the step at hand has changed, or may have."""
        return [now for _, now in self._moved()] if self._kept else []

    def spread(self) -> list[Tensor]:
        """As `moved`, with zeros for what was not finite before; nothing here waits for a device."""
        pairs = [(kept.copy, now) for kept, now in self._moved() if now.shape == kept.copy.shape]
        return [torch.where(torch.isfinite(before), now, 0) for before, now in pairs]

    def unusual(self) -> list[str]:
        """The names of buffers that the step at hand has made NaN or infinite.

        One that was so before, as a mask may be, is not watched any more.
        """
        found = []
        for kept, now in self._moved():
            if not all_finite([now]):
                if all_finite([kept.copy]):
                    found.append(kept.name)
                else:
                    kept.watched = False
        return found

    def _moved(self) -> Iterator[tuple[_Kept, Tensor]]:
        for kept in self._fractions:
            now = kept.owned.get(kept.key)
            if now is kept.tensor:
                if kept.watched or now._version != kept.version:
                    yield kept, now
            elif isinstance(now, Tensor):
                yield kept, now

    def _replace(self, kept: _Kept, now: Tensor) -> None:
        """A buffer has become another kind of tensor."""
        kept.copy, kept.large = torch.empty_like(now), now.numel() > SMALL
        self._fractions = [kept for kept in self._kept if kept.copy.is_floating_point()]

    def select(self, bad: Tensor) -> None:
        """As `restore` where the flag on the device says so, without asking the host."""
        for kept in self._kept:
            now = kept.owned.get(kept.key)
            if isinstance(now, Tensor) and now.shape == kept.copy.shape:
                now.copy_(torch.where(bad, kept.copy, now))


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
