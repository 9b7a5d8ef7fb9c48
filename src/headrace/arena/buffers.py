"""A copy of a model's buffers, to undo a failed step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..errors import ModelError
from .gradients import all_finite

SMALL = 1 << 20  # elements; a larger buffer is copied only if torch reports that it has changed
WATCHED = 1 << 16  # elements; a larger one is checked only then, unless it is known to change silently


@dataclass(eq=False, slots=True)
class _Buffer:
    """A buffer's place in a module, the tensor that was there when it was saved, and a copy of its values.

    `watched`: whether it is checked even if torch reports no change. Batch normalisation and `.data` change silently.
    """

    name: str
    owned: dict[str, Any]
    key: str
    tensor: Tensor
    watched: bool
    before: Tensor
    version: int

    @property
    def now(self) -> Any:
        """The tensor that is in the module now."""
        return self.owned[self.key] if self.key in self.owned else None  # noqa: SIM401 - TorchScript has no `get`

    @property
    def has_changed(self) -> bool:
        """Whether torch reports that it was changed or replaced."""
        return self.now is not self.tensor or self.tensor._version != self.version


class Buffers:
    """The copy of a model's buffers as they were before the step at hand.

    Batch normalisation changes its statistics without a report by torch, so small buffers are always copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._each = list(_places(model))
        self.exist = bool(self._each)
        """Whether the model has any."""
        self._find_fractions()

    def save(self) -> None:
        """Before a step: a failed step returns to the present values."""
        fresh, copies = [], []
        for buffer in list(self._each):
            now = buffer.now
            if now is not buffer.tensor or now._version != buffer.version:
                if not isinstance(now, Tensor):  # it was removed
                    self._each.remove(buffer)
                    self._find_fractions()
                    continue
                if _layout(now) != _layout(buffer.before):
                    buffer.before = torch.empty_like(now)
                    self._find_fractions()
                buffer.tensor, buffer.version = now, now._version
            elif buffer.before.numel() > SMALL:
                continue
            fresh.append(now)
            copies.append(buffer.before)
        if fresh:
            torch._foreach_copy_(copies, fresh)

    def restore(self) -> None:
        """After a step that failed: all buffers are again as they were before it."""
        with torch.no_grad():
            for buffer in self._each:
                buffer.owned[buffer.key] = buffer.tensor
                if buffer.tensor._version == buffer.version and 0 in buffer.tensor.stride():
                    continue  # an expanded one, whose elements share memory
                if buffer.tensor.numel() <= SMALL or buffer.tensor._version != buffer.version:
                    buffer.tensor.copy_(buffer.before)
                    buffer.version = buffer.tensor._version

    @contextmanager
    def unchanged(self, device: torch.device) -> Iterator[None]:
        """Puts random numbers, and the buffers as they were saved, back after a pass that counts for nothing."""
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
        self.restore()

    def select(self, bad: Tensor) -> None:
        """As `restore` where the flag on the device is true, without a wait of the host."""
        for buffer in self._each:
            before, now = buffer.before, buffer.now
            if isinstance(now, Tensor) and now.shape == before.shape:
                now.copy_(torch.where(bad, before, now))

    # --- the parts of a batch, each of which begins with the buffers of before the update -----------------

    def take_growth(self) -> tuple[Tensor, Tensor]:
        """By how much the step at hand has changed fractions and counters; they are then as before it."""
        fractions, counters = self._parted()
        found = _growth(fractions, torch.float64), _growth(counters, torch.int64)
        self.restore()
        return found

    def grow(self, fractions: Tensor, counters: Tensor) -> None:
        """Changes the buffers by vectors like those of `take_growth`."""
        for pairs, vector in zip(self._parted(), (fractions, counters), strict=True):
            for (before, now), change in zip(pairs, vector.split([b.numel() for b, _ in pairs]), strict=True):
                growth = change.view(now.shape)
                if 0 not in now.stride():  # an expanded one does not change
                    now.copy_(torch.where(growth == 0, before, (_base(before, growth.dtype) + growth).to(now.dtype)))

    def _parted(self) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
        """Values before the step and now, of fractions and of counters; as many on every worker."""
        found: list[tuple[Tensor, Tensor]] = []
        for buffer in self._each:
            before, now = buffer.before, buffer.now
            fits = isinstance(now, Tensor) and (now.shape, now.dtype) == (before.shape, before.dtype)
            if before.numel() <= WATCHED and not before.is_complex() and fits:
                found.append((before, now))
            elif buffer.has_changed:
                raise ModelError(
                    f"the buffer {buffer.name!r} of {before.numel():,} elements changes while the model is "
                    f"trained. Where a batch is cut into parts, those of at most {WATCHED:,} real numbers may, if "
                    "they keep their shape."
                )
        fractions = [pair for pair in found if pair[0].is_floating_point()]
        return fractions, [pair for pair in found if not pair[0].is_floating_point()]

    # --- what is not finite -------------------------------------------------------------------------------

    def moved(self) -> list[Tensor]:
        """The buffers with fractions that the step at hand has changed, or may have."""
        return [now for _, now in self._changed()] if self._fractions else []

    def finite_where_it_was(self) -> list[Tensor]:
        """As `moved`, with zeros for what was not finite before; nothing here waits for a device."""
        pairs = [(buffer.before, now) for buffer, now in self._changed() if now.shape == buffer.before.shape]
        return [torch.where(torch.isfinite(before), now, 0) for before, now in pairs]

    def unusual(self) -> list[str]:
        """The names of buffers that the step at hand has made NaN or infinite.

        One that was so before, as a mask may be, is not watched any more.
        """
        found = []
        for buffer, now in self._changed():
            if not all_finite([now]):
                if all_finite([buffer.before]):
                    found.append(buffer.name)
                else:
                    buffer.watched = False
        return found

    def _changed(self) -> Iterator[tuple[_Buffer, Tensor]]:
        for buffer in self._fractions:
            if isinstance(now := buffer.now, Tensor) and (buffer.watched or buffer.has_changed):
                yield buffer, now

    def _find_fractions(self) -> None:
        self._fractions = [buffer for buffer in self._each if buffer.before.is_floating_point()]


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _growth(pairs: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Tensor:
    """By how much tensors have grown, in one vector; what is infinite and stays so has not."""
    parts = [torch.where(now == before, 0, now.to(dtype) - _base(before, dtype)).reshape(-1) for before, now in pairs]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)


def _base(before: Tensor, dtype: torch.dtype) -> Tensor:
    """What growth is counted from: zero where it began infinite, as the limits of what was observed do."""
    base = before.to(dtype)
    return torch.where(torch.isfinite(base), base, 0) if base.is_floating_point() else base


def _places(model: nn.Module) -> Iterator[_Buffer]:
    """Every place of a buffer in the model."""
    for prefix, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                name = f"{prefix}.{key}" if prefix else key
                watched = isinstance(module, _NormBase) or buffer.numel() <= WATCHED
                yield _Buffer(name, module._buffers, key, buffer, watched, buffer.detach().clone(), buffer._version)
