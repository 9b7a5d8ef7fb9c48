"""Keeps NaN and infinity out of weights, buffers and optimizer.

On a CPU the numbers are at hand: the host looks at them and the run stops at that step. A GPU is not waited
for: a flag on the device masks the update, and the host reads the flag at the end of a macrobatch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..arena.buffers import Buffers
from ..arena.gradients import all_finite, total
from ..errors import NonFiniteError
from ..loss.outcome import Outcome

if TYPE_CHECKING:
    from .update import Update

Scalar = float | Tensor


class Guard(ABC):
    """Decides whether an update may happen. `skip` counts bad ones and goes on instead of stopping."""

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.skipped = 0
        """Updates left out so far because a loss or a gradient was not finite."""
        self._watched: tuple[str, Callable[[], Mapping[str, Tensor]]] | None = None

    read: Callable[[Scalar], Scalar]
    """A number as this guard keeps it: on the host, or left on the device."""

    @abstractmethod
    def sound(
        self, update: "Update", outcome: Outcome, gradients: Sequence[Tensor], doubts: Mapping[str, Scalar]
    ) -> bool | Tensor:
        """Whether an update may be made: all sums, gradients, moved buffers and doubts are finite.

        On a device it is a flag there, which nobody waits for.
        """

    @abstractmethod
    def buffers(self, buffers: Buffers) -> Scalar:
        """A number that is not finite if the step at hand has made a buffer so."""

    @abstractmethod
    def settle(self) -> None:
        """Learns about updates that the host has not looked at yet; raises if one was bad."""

    @abstractmethod
    def forget(self) -> None:
        """Drops what has not been looked at: a training that was left is no concern of the next."""

    def watch(self, step: str, left: Callable[[], Mapping[str, Tensor]]) -> None:
        """An update was made by hand, perhaps: `look` looks at what it has left, at the latest to settle."""
        self._watched = step, left

    def look(self) -> None:
        """Raises if what updates by hand have left is not finite."""
        watched, self._watched = self._watched, None
        if watched is None:
            return
        step, tensors = watched[0], watched[1]()
        if not tensors or math.isfinite(float(total(list(tensors.values())))):
            return
        flags = torch.stack([torch.isfinite(tensor).all() for tensor in tensors.values()]).tolist()
        if bad := [name for name, sound in zip(tensors, flags, strict=True) if not sound]:
            raise NonFiniteError(
                f"{step}: the updates of train_step have left {', '.join(map(repr, bad[:3]))} not finite, which cannot "
                "be undone. Go on from the last checkpoint, with a lower rate, or clip the gradients in train_step."
            )

    def _bad(self, what: str, untouched: str) -> None:
        self.skipped += 1
        if not self.skip:
            raise NonFiniteError(
                f"{what} {untouched} "
                "Lower the rate, use clip_norm=, look for bad rows with scan=True, or set nonfinite='skip'."
            )


class HostGuard(Guard):
    """Looks at every number before the update."""

    read = staticmethod(float)

    def sound(
        self, update: "Update", outcome: Outcome, gradients: Sequence[Tensor], doubts: Mapping[str, Scalar]
    ) -> bool:
        number = float(total(gradients)) if gradients else 0.0
        for term in outcome.terms.values():
            if term.coefficient:
                number += term.sum
        for doubt in doubts.values():
            number += float(doubt)
        if moved := update.buffers.moved():
            number += float(_sum(moved))
        if math.isfinite(number):
            return True
        sums = {name: float(term.sum) for name, term in outcome.terms.items() if term.coefficient}
        sums |= {name: float(doubt) for name, doubt in doubts.items()}
        bad = [f"the loss term {name!r} is {value}" for name, value in sums.items() if not math.isfinite(value)]
        if not bad and not all_finite(gradients):
            bad = [f"the gradient of {name!r} is not finite" for name in update.arena.unusual()]
        bad += [f"the buffer {name!r} is not finite" for name in update.buffers.unusual()]
        if not bad:  # the sum of large finite numbers has overflown
            return True
        update.buffers.restore()
        self._bad(f"{update.describe()}: {', '.join(bad[:3])}{update.bad_workers()}.", update.untouched)
        return False

    def buffers(self, buffers: Buffers) -> float:
        moved = buffers.moved()
        sound = not moved or math.isfinite(float(_sum(moved))) or not buffers.unusual()
        return 0.0 if sound else math.nan

    def forget(self) -> None:
        self._watched = None

    def settle(self) -> None:
        self.look()


class DeviceGuard(Guard):
    """Masks a bad update on the device; the host learns of it when it settles."""

    read = staticmethod(lambda scalar: scalar)

    def __init__(self, device: torch.device, skip: bool = False) -> None:
        super().__init__(skip)
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self._pending: list[tuple[Tensor, str, str]] = []

    def sound(
        self, update: "Update", outcome: Outcome, gradients: Sequence[Tensor], doubts: Mapping[str, Scalar]
    ) -> bool | Tensor:
        sums = [term.sum for term in outcome.terms.values() if term.coefficient]
        numbers = [value for value in [*sums, *doubts.values()] if isinstance(value, Tensor)]
        numbers += [total(gradients)] if gradients else []
        if moved := [buffer for buffer in update.buffers.spread() if buffer.device == self._count.device]:
            numbers.append(_sum(moved))
        bad = ~torch.isfinite(torch.stack([number.double() for number in numbers])).all()
        if not self.skip:
            bad |= self._count > 0  # after the first bad update nothing moves until the host has seen it
        self._count += bad
        known = [term.weight for term in outcome.terms.values() if term.counts and term.coefficient]
        weights = [weight for weight in known if isinstance(weight, Tensor)]
        idle = bad
        if weights and len(weights) == len(known):
            idle = bad | (torch.stack([weight.double() for weight in weights]) == 0).all()
        self._pending.append((bad, update.describe(), update.untouched))
        update.buffers.select(idle)
        return not bool(idle)

    def buffers(self, buffers: Buffers) -> Scalar:
        moved = [buffer for buffer in buffers.spread() if buffer.device == self._count.device]
        return _sum(moved) if moved else 0.0

    def forget(self) -> None:
        self._pending, self._watched = [], None
        self._count.zero_()

    def settle(self) -> None:
        self._read_flags()
        self.look()

    def _read_flags(self) -> None:
        pending, count = self._pending, int(self._count) if self._pending else 0
        if not pending:
            return
        flags = torch.stack([bad for bad, _, _ in pending]).tolist()
        self._pending = []
        self._count.zero_()
        if not count:
            return
        self.skipped += count if self.skip else 0
        if not self.skip:
            _, where, untouched = pending[flags.index(True)]
            self._bad(f"{where}: a loss or a gradient is not finite.", untouched)


def _sum(buffers: Sequence[Tensor]) -> Tensor:
    if len(buffers) == 1:
        return buffers[0].sum()
    return torch.cat([buffer if buffer.dim() == 1 else buffer.reshape(-1) for buffer in buffers]).sum()


def make_guard(device: torch.device, skip: bool) -> Guard:
    """The guard for a device."""
    return HostGuard(skip) if device.type == "cpu" else DeviceGuard(device, skip)
