"""Keeps NaN and infinity out of weights, buffers and optimizer.

On a CPU the numbers are at hand: the host looks at them and the run stops at that step. A GPU is not waited
for: a flag on the device masks the update, and the host reads the flag at the end of a macrobatch.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from .arena import Arena, Buffers
from .arena.gradients import all_finite, total
from .errors import NonFiniteError

Scalar = float | Tensor


class Attempt(Protocol):
    """An update that is ready to be made."""

    arena: Arena
    buffers: Buffers

    def apply(self, gradients: Sequence[Tensor]) -> None: ...
    def describe(self) -> str: ...


class Guard(ABC):
    """Decides whether an update may happen. `skip` counts bad ones and goes on instead of stopping."""

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.skipped = 0
        """Updates left out so far because a loss or a gradient was not finite."""

    read: Callable[[Scalar], Scalar]
    """A number as this guard keeps it: on the host, or left on the device."""

    @abstractmethod
    def update(
        self,
        sums: Mapping[str, Scalar],
        weights: Sequence[Scalar],
        gradients: Sequence[Tensor],
        attempt: "Attempt",
    ) -> bool:
        """Applies the attempt if every sum and gradient is finite and any weight is not zero; says whether it did."""

    @abstractmethod
    def settle(self) -> None:
        """Learns about updates that the host has not looked at yet; raises if one was bad."""

    def _bad(self, what: str) -> None:
        self.skipped += 1
        if not self.skip:
            raise NonFiniteError(
                f"{what} The weights are as they were before this step. "
                "Lower the rate, use clip_norm=, look for bad rows with scan=True, or set nonfinite='skip'."
            )


class HostGuard(Guard):
    """Looks at every number before the update."""

    read = staticmethod(float)

    def update(
        self,
        sums: Mapping[str, Scalar],
        weights: Sequence[Scalar],
        gradients: Sequence[Tensor],
        attempt: "Attempt",
    ) -> bool:
        if not any(weights):
            attempt.buffers.restore()
            return False
        if not math.isfinite(sum(sums.values()) + float(total(gradients))):
            bad = [f"the loss term {name!r} is {value}" for name, value in sums.items() if not math.isfinite(value)]
            if not bad and not all_finite(gradients):
                bad = [f"the gradient of {name!r} is not finite" for name in attempt.arena.unusual()]
            if bad:
                attempt.buffers.restore()
                self._bad(f"{attempt.describe()}: {', '.join(bad[:3])}.")
                return False
        attempt.apply(gradients)
        return True

    def settle(self) -> None:
        pass


class DeviceGuard(Guard):
    """Masks a bad update on the device; the host learns of it when it settles."""

    read = staticmethod(lambda scalar: scalar)

    def __init__(self, device: torch.device, skip: bool = False) -> None:
        super().__init__(skip)
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self._pending: list[tuple[Tensor, str]] = []
        self._host_counters: list[Tensor] = []

    def update(
        self,
        sums: Mapping[str, Scalar],
        weights: Sequence[Scalar],
        gradients: Sequence[Tensor],
        attempt: "Attempt",
    ) -> bool:
        numbers = [
            *([total(gradients)] if gradients else []),
            *(value for value in sums.values() if isinstance(value, Tensor)),
        ]
        bad = ~torch.isfinite(torch.stack([n.double() for n in numbers])).all()
        if not self.skip:
            bad |= self._count > 0  # after the first bad update nothing moves until the host has seen it
        self._count += bad
        if all(isinstance(weight, Tensor) for weight in weights):
            bad = bad | (torch.stack([w.double() for w in weights if isinstance(w, Tensor)]) == 0).all()
        elif not any(weights):
            bad = torch.ones_like(bad)
        self._pending.append((bad, attempt.describe()))
        self._masked(gradients, bad, attempt)
        attempt.buffers.select(bad)
        return True

    def settle(self) -> None:
        pending, self._pending = self._pending, []
        count = int(self._count)
        self._count.zero_()
        if not pending or not count:
            return
        flags = torch.stack([bad for bad, _ in pending]).tolist()
        for counter in self._host_counters:
            counter -= sum(flags)
        self.skipped += count if self.skip else 0
        if not self.skip:
            self._bad(f"{pending[flags.index(True)][1]}: a loss or a gradient is not finite.")

    def _masked(self, gradients: Sequence[Tensor], bad: Tensor, attempt: "Attempt") -> None:
        """Runs the update, then puts back what was there before where the flag says so."""
        before = {id(t): t.detach().clone() for t in attempt.arena.live_tensors()}
        attempt.apply(gradients)
        self._host_counters = []
        for tensor in attempt.arena.live_tensors():
            if tensor.device != bad.device:
                self._host_counters.append(tensor)  # a step count on the host: set right when the host settles
                continue
            value = tensor.detach()
            value.copy_(torch.where(bad, before.get(id(tensor), torch.zeros_like(value)), value))


def make_guard(device: torch.device, skip: bool) -> Guard:
    """The guard for a device."""
    return HostGuard(skip) if device.type == "cpu" else DeviceGuard(device, skip)
