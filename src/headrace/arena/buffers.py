"""A copy of a model's buffers, to undo a failed step."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..errors import ModelError
from .arena import all_finite
from .vectors import aligned, extent, view

SMALL = 1 << 20  # elements; a larger buffer is copied only when torch says that it has changed
WATCHED = 1 << 16  # elements; a larger one is looked at only then, unless it is known to change silently
ALTERED = -1  # a version that no tensor has


@dataclass(eq=False, slots=True)
class _Buffer:
    """A buffer's place in a module, the tensor that stood there when it was saved, and a copy of what it held.

    `watched`: whether it is looked at even if torch knows of no change, as batch norm and `.data` make them.
    `value` is its part of a vector, at `address`; `before` is then a part of the vector's copy.
    """

    name: str
    owned: dict[str, Any]
    key: str
    tensor: Tensor
    watched: bool
    before: Tensor
    version: int
    value: Tensor | None = None
    address: int = 0

    @property
    def now(self) -> Any:
        """What stands there now."""
        return self.owned[self.key] if self.key in self.owned else None  # noqa: SIM401 - TorchScript has no `get`

    def move_out(self) -> None:
        """Gives it memory of its own; what has strayed keeps what it has become."""
        if self.value is not None and self.tensor.data_ptr() == self.address:
            self.tensor.data = self.value.clone()


class BufferVector:
    """Buffers of one dtype on one device, which are views of one vector until `release`, and a copy of it."""

    def __init__(self, buffers: list[_Buffer]) -> None:
        tensors = [buffer.tensor for buffer in buffers]
        *starts, end = aligned(tensors)
        self.values = torch.zeros(end, dtype=tensors[0].dtype, device=tensors[0].device)
        self.copy = torch.zeros_like(self.values)
        self.measured = self.values.is_floating_point()
        self.buffers = buffers
        for buffer, tensor, start in zip(buffers, tensors, starts, strict=True):
            buffer.value, buffer.before = view(self.values, tensor, start), view(self.copy, tensor, start)
            buffer.value.copy_(tensor)
            tensor.data = buffer.value
            buffer.address = tensor.data_ptr()

    def strays(self) -> list[_Buffer]:
        """The places at which another tensor stands, or whose tensor has got other memory."""
        return [b for b in self.buffers if b.owned.get(b.key) is not b.tensor or b.tensor.data_ptr() != b.address]

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """What was before the step, and what is now: of the vector, and of the places that have strayed from it."""
        strays = [(stray.before, stray.now) for stray in self.strays()]
        return [(self.copy, self.values), *(pair for pair in strays if isinstance(pair[1], Tensor))]


class Buffers:
    """The copy of a model's buffers as they were before the step at hand, and the buffers that are kept in vectors.

    Batch normalisation changes its statistics without torch's noticing, so that small buffers are copied always.
    `packed`: its statistics are views of a vector until `release`, so that one copy saves them all.
    """

    def __init__(self, model: nn.Module, *, packed: bool = True) -> None:
        places = list(_places(model))
        holders = Counter(id(buffer.tensor) for buffer, _ in places)
        groups: dict[tuple[torch.dtype, torch.device], list[_Buffer]] = {}
        self._loose: list[_Buffer] = []
        for buffer, normalises in places:
            tensor = buffer.tensor
            if packed and normalises and holders[id(tensor)] == 1 and _is_packable(tensor):
                groups.setdefault((tensor.dtype, tensor.device), []).append(buffer)
            else:
                buffer.before = buffer.before.clone()
                self._loose.append(buffer)
        self._vectors = [BufferVector(buffers) for buffers in groups.values()]
        self.exist = bool(places)
        """Whether the model has any."""
        self._find_fractions()

    def save(self) -> None:
        """Before a step: what there is now is the state to go back to."""
        for vector in self._vectors:
            for buffer in vector.strays():
                self._take_out(vector, buffer, watched=True)
            vector.copy.copy_(vector.values)
        if self._loose:
            self._save_loose()

    def _save_loose(self) -> None:
        fresh, copies = [], []
        for buffer in list(self._loose):
            now = buffer.now
            if now is not buffer.tensor or now._version != buffer.version:
                if not isinstance(now, Tensor):  # it was removed
                    self._loose.remove(buffer)
                    self._find_fractions()
                    continue
                if (now.shape, now.dtype, now.device) != (
                    buffer.before.shape,
                    buffer.before.dtype,
                    buffer.before.device,
                ):
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
        """After a step that failed: as they were before it."""
        with torch.no_grad():
            for vector in self._vectors:
                vector.values.copy_(vector.copy)
                for buffer in vector.strays():
                    buffer.owned[buffer.key] = buffer.tensor
                    buffer.tensor.copy_(buffer.before)
            for buffer in self._loose:
                buffer.owned[buffer.key] = buffer.tensor
                if buffer.tensor._version == buffer.version and 0 in buffer.tensor.stride():
                    continue  # an expanded one, whose elements share memory
                if buffer.tensor.numel() <= SMALL or buffer.tensor._version != buffer.version:
                    buffer.tensor.copy_(buffer.before)
                    buffer.version = buffer.tensor._version

    def select(self, bad: Tensor) -> None:
        """As `restore` where the flag on the device says so, without asking the host."""
        pairs = [pair for vector in self._vectors for pair in vector.pairs()]
        pairs += [(buffer.before, buffer.now) for buffer in self._loose]
        for before, now in pairs:
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
        """What was before the step and what is now, of fractions and of counters; as many on every worker."""
        found: list[tuple[Tensor, Tensor]] = []
        for vector in self._vectors:
            for stray in vector.strays():
                if isinstance(stray.now, Tensor) and stray.value is not None and stray.now.shape == stray.value.shape:
                    stray.value.copy_(stray.now)
            found.append((vector.copy, vector.values))
        for buffer in self._loose:
            before, now = buffer.before, buffer.now
            fits = isinstance(now, Tensor) and (now.shape, now.dtype) == (before.shape, before.dtype)
            if before.numel() > WATCHED or before.is_complex() or not fits:
                if now is not buffer.tensor or now._version != buffer.version:
                    raise ModelError(
                        f"the buffer {buffer.name!r} of {before.numel():,} elements changes while the model is "
                        f"trained. Where a batch is cut into parts, those of at most {WATCHED:,} real numbers may, if "
                        "they keep their shape."
                    )
                continue
            found.append((before, now))
        fractions = [pair for pair in found if pair[0].is_floating_point()]
        return fractions, [pair for pair in found if not pair[0].is_floating_point()]

    def release(self) -> None:
        """Gives every buffer memory of its own."""
        for vector in self._vectors:
            for buffer in vector.buffers:
                buffer.move_out()

    def moved(self) -> list[Tensor]:
        """The buffers with fractions that the step at hand has changed, or may have; statistics as one vector."""
        return [now for _, now in self._pairs()] if self._vectors or self._fractions else []

    def finite_where_it_was(self) -> list[Tensor]:
        """As `moved`, with zeros for what was not finite before; nothing here waits for a device."""
        pairs = [(before, now) for before, now in self._pairs() if now.shape == before.shape]
        return [torch.where(torch.isfinite(before), now, 0) for before, now in pairs]

    def unusual(self) -> list[str]:
        """The names of buffers that the step at hand has made NaN or infinite.

        One that was so before, as a mask may be, is not watched any more.
        """
        found = []
        for vector in [vector for vector in self._vectors if vector.measured]:
            for buffer in list(vector.buffers):
                if isinstance(buffer.now, Tensor) and not all_finite([buffer.now]):
                    if all_finite([buffer.before]):
                        found.append(buffer.name)
                    else:  # its vector would never be finite
                        self._take_out(vector, buffer, watched=False)
        for buffer, now in self._changed():
            if not all_finite([now]):
                if all_finite([buffer.before]):
                    found.append(buffer.name)
                else:
                    buffer.watched = False
        return found

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """What was before the step, and what is now."""
        found = [pair for vector in self._vectors if vector.measured for pair in vector.pairs()]
        return found + [(buffer.before, now) for buffer, now in self._changed()] if self._fractions else found

    def _changed(self) -> Iterator[tuple[_Buffer, Tensor]]:
        for buffer in self._fractions:
            now = buffer.now
            if now is buffer.tensor:
                if buffer.watched or now._version != buffer.version:
                    yield buffer, now
            elif isinstance(now, Tensor):
                yield buffer, now

    def _take_out(self, vector: BufferVector, buffer: _Buffer, *, watched: bool) -> None:
        """A buffer leaves its vector, with memory of its own."""
        vector.buffers.remove(buffer)
        buffer.move_out()
        before, value, buffer.value = buffer.before, buffer.value, None
        assert value is not None
        buffer.watched, buffer.version, buffer.before = watched, ALTERED, before.clone()
        value.zero_()
        before.zero_()
        self._loose.append(buffer)
        self._find_fractions()

    def _find_fractions(self) -> None:
        self._fractions = [buffer for buffer in self._loose if buffer.before.is_floating_point()]


def _growth(pairs: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype) -> Tensor:
    """By how much tensors have grown, in one vector; what is infinite and stays so has not."""
    parts = [torch.where(now == before, 0, now.to(dtype) - _base(before, dtype)).reshape(-1) for before, now in pairs]
    return torch.cat(parts) if parts else torch.empty(0, dtype=dtype)


def _base(before: Tensor, dtype: torch.dtype) -> Tensor:
    """What growth is counted from: zero where it began infinite, as the limits of what was observed do."""
    base = before.to(dtype)
    return torch.where(torch.isfinite(base), base, 0) if base.is_floating_point() else base


def _places(model: nn.Module) -> Iterator[tuple[_Buffer, bool]]:
    """Every place of a buffer, not copied yet, and whether it is batch normalisation's."""
    for prefix, module in model.named_modules():
        normalises = isinstance(module, _NormBase)
        for key, buffer in module._buffers.items():
            if buffer is not None:
                name, watched = f"{prefix}.{key}" if prefix else key, normalises or buffer.numel() <= WATCHED
                yield _Buffer(name, module._buffers, key, buffer, watched, buffer.detach(), buffer._version), normalises


def _is_packable(buffer: Tensor) -> bool:
    """Dense memory that is its own: no part of other memory that somebody may hold."""
    if type(buffer) is not Tensor or buffer.layout != torch.strided or buffer.is_meta or buffer.requires_grad:
        return False
    shared = buffer._base is not None or (not buffer.is_cuda and buffer.is_shared())
    if shared or buffer.untyped_storage().nbytes() != buffer.nbytes:
        return False
    return buffer.numel() > 0 and extent(buffer) == buffer.numel()
