"""A model's buffers as they were, for the step that fails."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .gradients import all_finite
from .statistics import Place, Statistics, gather

SMALL = 1 << 20  # elements; a larger buffer is copied only when torch says that it has changed
WATCHED = 1 << 16  # elements; a larger one is looked at only then, unless it is known to change silently
ALTERED = -1  # a version that no tensor has


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
    """The copy of a model's buffers as they were before the step at hand, and the buffers that are kept in vectors.

    Batch normalisation changes its statistics without torch's noticing, so that small buffers are copied always.
    `packed`: its statistics are views of a vector until `release`, so that one copy saves them all.
    """

    def __init__(self, model: nn.Module, *, packed: bool = True) -> None:
        self._vectors = gather(model) if packed else []
        homed = {id(place.tensor) for vector in self._vectors for place in vector.places}
        self._kept = [
            _keep(
                f"{prefix}.{key}" if prefix else key,
                module._buffers,
                key,
                buffer,
                watched=isinstance(module, _NormBase) or buffer.numel() <= WATCHED,
            )
            for prefix, module in model.named_modules()
            for key, buffer in module._buffers.items()
            if buffer is not None and id(buffer) not in homed
        ]
        self._fractions = [kept for kept in self._kept if kept.copy.is_floating_point()]

    def save(self) -> None:
        """Before a step: what there is now is the state to go back to."""
        for vector in self._vectors:
            for place in vector.strays():
                vector.drop(place)
                now = place.owned.get(place.key)
                if isinstance(now, Tensor):
                    self._add(_keep(place.name, place.owned, place.key, now, watched=True))
            vector.save()
        if self._kept:
            self._save_apart()

    def _save_apart(self) -> None:
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
            for vector in self._vectors:
                vector.restore()
            for kept in self._kept:
                kept.owned[kept.key] = kept.tensor
                if kept.tensor.numel() <= SMALL or kept.tensor._version != kept.version:
                    kept.tensor.copy_(kept.copy)
                    kept.version = kept.tensor._version

    def release(self) -> None:
        """Gives every buffer memory of its own."""
        for vector in self._vectors:
            vector.release()

    def moved(self) -> list[Tensor]:
        """The buffers with fractions that the step at hand has changed, or may have; statistics as one vector."""
        return [now for _, now in self._pairs()]

    def spread(self) -> list[Tensor]:
        """As `moved`, with zeros for what was not finite before; nothing here waits for a device."""
        pairs = [(before, now) for before, now in self._pairs() if now.shape == before.shape]
        return [torch.where(torch.isfinite(before), now, 0) for before, now in pairs]

    def unusual(self) -> list[str]:
        """The names of buffers that the step at hand has made NaN or infinite.

        One that was so before, as a mask may be, is not watched any more.
        """
        found = []
        for vector in [vector for vector in self._vectors if vector.measured]:
            for place in list(vector.places):
                there = place.owned.get(place.key)
                if not isinstance(there, Tensor) or all_finite([there]):
                    continue
                if all_finite([place.before]):
                    found.append(place.name)
                elif there.shape == place.before.shape:
                    self._unwatch(vector, place)
        for kept, now in self._moved():
            if not all_finite([now]):
                if all_finite([kept.copy]):
                    found.append(kept.name)
                else:
                    kept.watched = False
        return found

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """What was before the step, and what is now."""
        found = []
        for vector in self._vectors:
            if vector.measured:
                found += [(vector.copy, vector.values), *vector.replaced()]
        return found + [(kept.copy, now) for kept, now in self._moved()] if self._fractions else found

    def _moved(self) -> Iterator[tuple[_Kept, Tensor]]:
        for kept in self._fractions:
            now = kept.owned.get(kept.key)
            if now is kept.tensor:
                if kept.watched or now._version != kept.version:
                    yield kept, now
            elif isinstance(now, Tensor):
                yield kept, now

    def _unwatch(self, vector: Statistics, place: Place) -> None:
        """A buffer that was not finite before the step leaves the vector, which would never be so otherwise."""
        kept = _keep(place.name, place.owned, place.key, place.tensor, watched=False)
        kept.copy.copy_(place.before)
        kept.version = ALTERED
        vector.drop(place)
        self._add(kept)

    def _add(self, kept: _Kept) -> None:
        self._kept.append(kept)
        self._fractions = [kept for kept in self._kept if kept.copy.is_floating_point()]

    def _replace(self, kept: _Kept, now: Tensor) -> None:
        """A buffer has become another kind of tensor."""
        kept.copy, kept.large = torch.empty_like(now), now.numel() > SMALL
        self._fractions = [kept for kept in self._kept if kept.copy.is_floating_point()]

    def select(self, bad: Tensor) -> None:
        """As `restore` where the flag on the device says so, without asking the host."""
        for vector in self._vectors:
            for before, now in ((vector.copy, vector.values), *vector.replaced()):
                if now.shape == before.shape:
                    now.copy_(torch.where(bad, before, now))
        for kept in self._kept:
            there = kept.owned.get(kept.key)
            if isinstance(there, Tensor) and there.shape == kept.copy.shape:
                there.copy_(torch.where(bad, kept.copy, there))


def _keep(name: str, owned: dict[str, Any], key: str, tensor: Tensor, *, watched: bool) -> _Kept:
    return _Kept(name, owned, key, watched, tensor, tensor._version, tensor.detach().clone())


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
