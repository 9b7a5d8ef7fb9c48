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

from ..arena.arena import Arena
from ..arena.buffers import Buffers
from ..arena.gradients import all_finite, total
from ..arena.optimizer import is_plain
from ..errors import NonFiniteError

Scalar = float | Tensor


class Attempt(Protocol):
    """An update that is ready to be made."""

    arena: Arena
    buffers: Buffers
    sums: dict[str, Scalar]
    weights: list[Scalar]
    gradients: Sequence[Tensor]
    bad_workers: Callable[[], str]
    """Says on which workers something is not finite. All workers that share an update call it, after the same one."""

    @property
    def untouched(self) -> str: ...
    def apply(self) -> None: ...
    def describe(self) -> str: ...


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
    def update(self, attempt: "Attempt") -> bool | Tensor:
        """Applies the attempt if all its sums and gradients are finite; says whether it did, perhaps on the device."""

    @abstractmethod
    def idle(self, weights: Sequence[Scalar]) -> bool:
        """Whether the host knows that a batch teaches nothing: none of its weights is more than 0."""

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

    def is_sound(self, attempt: "Attempt") -> bool:
        """Whether all that an update has found is finite. A sum of large finite numbers may overflow: a false alarm."""
        number = sum(attempt.sums.values()) + float(total(attempt.gradients))
        if moved := attempt.buffers.moved():
            number += float(_sum(moved))
        return math.isfinite(number)

    def update(self, attempt: "Attempt") -> bool:
        if not self.is_sound(attempt):
            sums = attempt.sums.items()
            bad = [f"the loss term {name!r} is {value}" for name, value in sums if not math.isfinite(value)]
            if not bad and not all_finite(attempt.gradients):
                bad = [f"the gradient of {name!r} is not finite" for name in attempt.arena.unusual()]
            bad += [f"the buffer {name!r} is not finite" for name in attempt.buffers.unusual()]
            if bad:
                attempt.buffers.restore()
                self._bad(f"{attempt.describe()}: {', '.join(bad[:3])}{attempt.bad_workers()}.", attempt.untouched)
                return False
        attempt.apply()
        return True

    def idle(self, weights: Sequence[Scalar]) -> bool:
        return not any(weights)

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
        self._host_steps: list[tuple[Tensor, list[Tensor]]] = []

    def update(self, attempt: "Attempt") -> Tensor:
        numbers = [value for value in attempt.sums.values() if isinstance(value, Tensor)]
        numbers += [total(attempt.gradients)] if attempt.gradients else []
        if moved := [buffer for buffer in attempt.buffers.spread() if buffer.device == self._count.device]:
            numbers.append(_sum(moved))
        bad = ~torch.isfinite(torch.stack([number.double() for number in numbers])).all()
        if not self.skip:
            bad |= self._count > 0  # after the first bad update nothing moves until the host has seen it
        self._count += bad
        weights = [weight for weight in attempt.weights if isinstance(weight, Tensor)]
        idle = bad
        if weights and len(weights) == len(attempt.weights):
            idle = bad | (torch.stack([weight.double() for weight in weights]) == 0).all()
        self._pending.append((bad, attempt.describe(), attempt.untouched))
        if _can_be_masked(attempt.arena, idle.device):
            self._masked(idle, attempt)
        elif not bool(idle):  # an update that makes state of the optimizer's: the host waits for this one
            attempt.apply()
        attempt.buffers.select(idle)
        return ~bad

    def idle(self, weights: Sequence[Scalar]) -> bool:
        return not any(isinstance(weight, Tensor) or weight for weight in weights)

    def buffers(self, buffers: Buffers) -> Scalar:
        moved = [buffer for buffer in buffers.spread() if buffer.device == self._count.device]
        return _sum(moved) if moved else 0.0

    def forget(self) -> None:
        self._pending, self._host_steps, self._watched = [], [], None
        self._count.zero_()

    def settle(self) -> None:
        self._read_flags()
        self.look()

    def _read_flags(self) -> None:
        pending, count = self._pending, int(self._count) if self._pending else 0
        if not pending:
            return
        flags = torch.stack([bad for bad, _, _ in pending]).tolist()
        for idle, counters in self._host_steps:
            for counter in counters if bool(idle) else []:
                counter -= 1
        self._pending, self._host_steps = [], []
        self._count.zero_()
        if not count:
            return
        self.skipped += count if self.skip else 0
        if not self.skip:
            _, where, untouched = pending[flags.index(True)]
            self._bad(f"{where}: a loss or a gradient is not finite.", untouched)

    def _masked(self, idle: Tensor, attempt: "Attempt") -> None:
        """Runs the update, then puts back what was there before where the flag says so."""
        before = {id(t): t.detach().clone() for t in attempt.arena.live_tensors() if t.device == idle.device}
        try:
            attempt.apply()
        except BaseException:  # out of memory half way, say
            for tensor in attempt.arena.live_tensors():
                if id(tensor) in before:
                    tensor.detach().copy_(before[id(tensor)])
            raise
        for tensor in attempt.arena.live_tensors():
            if id(tensor) in before:
                value = tensor.detach()
                value.copy_(torch.where(idle, before[id(tensor)], value))
        counters = [t for t in attempt.arena.live_tensors() if t.device != idle.device]
        if counters:
            self._host_steps.append((idle, counters))  # step counts on the host: set right when the host settles


def _sum(buffers: Sequence[Tensor]) -> Tensor:
    if len(buffers) == 1:
        return buffers[0].sum()
    return torch.cat([buffer if buffer.dim() == 1 else buffer.reshape(-1) for buffer in buffers]).sum()


def _can_be_masked(arena: Arena, device: torch.device) -> bool:
    """Whether an update changes nothing but tensors on the device that exist already, and step counts."""
    optimizer = arena.optimizer
    states = [optimizer.state.get(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if not any(states):
        return is_plain(optimizer)
    held = [item for state in states if state for item in state.items() if isinstance(item[1], Tensor)]
    return all(states) and all(key == "step" or value.device == device for key, value in held)


def make_guard(device: torch.device, skip: bool) -> Guard:
    """The guard for a device."""
    return HostGuard(skip) if device.type == "cpu" else DeviceGuard(device, skip)
