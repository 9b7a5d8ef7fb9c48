"""Keeps NaN and infinity out of weights, buffers and optimizer.

On a CPU the host looks at the numbers, and the run stops at that step. On a device a flag is computed there, by which
torch's fused optimizers skip the update; the host reads the flags at the end of a macrobatch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves

from ..arena.buffers import Buffers
from ..arena.gradients import all_finite, total
from ..arena.optimizer import skips_on_device
from ..errors import NonFiniteError
from ..loss.outcome import Outcome

if TYPE_CHECKING:
    from .update import Update

Scalar = float | Tensor
Doubts = Mapping[str, Scalar]
"""Numbers beside losses and gradients that have to be finite, by what they show in a message."""


class Guard(ABC):
    """Decides whether an update may happen. `skip` counts bad ones and goes on instead of stopping."""

    read: Callable[[Scalar], Scalar]
    """A number as this guard keeps it: on the host, or left on the device."""

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.skipped = 0
        """Updates left out so far because a loss or a gradient was not finite."""
        self.allows: Callable[[Outcome], bool | Tensor] | None = None
        """Says by its outcome whether a finite update may be made, where a callback decides that."""

    @abstractmethod
    def sound(self, update: Update, outcome: Outcome, gradients: Sequence[Tensor], doubts: Doubts) -> bool | Tensor:
        """Whether an update may be made: sums, gradients, moved buffers and `doubts` are finite.

        If they are not, buffers become what they were, and the host raises or counts it. On a device the answer may be
        a flag. The optimizer skips the step where it is false: clip and step as usual, then call `done`.
        """

    def done(self, update: Update) -> None:
        """After the step of an update for which `sound` has returned a flag, even if the step has failed."""
        vars(update.arena.optimizer).pop("found_inf", None)

    @abstractmethod
    def buffers(self, buffers: Buffers) -> Scalar:
        """A number that is not finite if the step at hand has made a buffer so."""

    def settle(self) -> None:
        """Learns of updates that the host has not looked at yet; raises if one was bad."""

    def forget(self) -> None:
        """Drops what has not been looked at: a training that was left is no concern of the next."""
        self.allows = None

    def _leave_out(self, what: str, untouched: str, count: int = 1) -> None:
        self.skipped += count
        if not self.skip:
            raise NonFiniteError(
                f"{what} {untouched} Lower the rate, use clip_norm=, look for NaN in the rows, or set nonfinite='skip'."
            )


class HostGuard(Guard):
    """Looks at every number before the update."""

    read = staticmethod(float)

    def sound(self, update: Update, outcome: Outcome, gradients: Sequence[Tensor], doubts: Doubts) -> bool:
        number = float(total(gradients)) if gradients else 0.0
        for term in outcome.terms.values():
            if term.coefficient:
                number += term.sum
        if update.buffers.exist and (moved := update.buffers.moved()):
            number += float(total(moved))
        if math.isfinite(number) and all(map(math.isfinite, doubts.values())):
            return self.allows is None or self._is_allowed(update, outcome)
        terms = [(name, term.sum) for name, term in outcome.terms.items() if term.coefficient]
        bad = [f"the loss term {name!r} is {value}" for name, value in terms if not math.isfinite(value)]
        bad += [f"{name} is not finite" for name, value in doubts.items() if not math.isfinite(value)]
        if not bad and not all_finite(gradients):
            bad = [f"the gradient of {name!r} is not finite" for name in update.arena.unusual()]
        bad += [f"the buffer {name!r} is not finite" for name in update.buffers.unusual()]
        if bad:  # otherwise a sum of large finite numbers has overflowed
            update.buffers.restore()
            self._leave_out(f"{update.describe()}: {', '.join(bad[:3])}{update.bad_workers()}.", update.untouched)
        return not bad and (self.allows is None or self._is_allowed(update, outcome))

    def _is_allowed(self, update: Update, outcome: Outcome) -> bool:
        assert self.allows is not None
        if not (allowed := bool(self.allows(outcome))):
            update.buffers.restore()
        return allowed

    def buffers(self, buffers: Buffers) -> float:
        moved = buffers.moved()
        return math.nan if moved and not math.isfinite(float(total(moved))) and buffers.unusual() else 0.0


class DeviceGuard(Guard):
    """Finds out on the device whether an update is sound; the host learns of a bad one when it settles.

    After the first bad update nothing moves until the host has seen it. Where an optimizer cannot skip a step on the
    device, or has no state yet, the host waits for the flag before the step.
    """

    read = staticmethod(lambda scalar: scalar)

    def __init__(self, device: torch.device, skip: bool = False) -> None:
        super().__init__(skip)
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self._pending: list[tuple[Tensor, str, str]] = []

    def sound(self, update: Update, outcome: Outcome, gradients: Sequence[Tensor], doubts: Doubts) -> bool | Tensor:
        trained = [term for term in outcome.terms.values() if term.coefficient]
        numbers = [*(term.sum for term in trained), *doubts.values(), self.buffers(update.buffers)]
        numbers += [total(gradients)] if gradients else []
        bad = ~torch.stack([torch.isfinite(self._on_device(number)) for number in numbers]).all()
        if not self.skip:
            bad |= self._count > 0
        self._count += bad
        self._pending.append((bad, update.describe(), update.untouched))
        made, weights = (
            ~bad if self.allows is None else ~bad & self.allows(outcome),
            [term.weight for term in trained if term.counts],
        )
        if weights:
            made &= torch.stack([self._on_device(weight) != 0 for weight in weights]).any()
        update.buffers.select(~made)
        skips = update.arena.with_vectors(skips_on_device, update.arena.optimizer)
        if not skips or update.arena.hooks.prepared() is None:
            return bool(made)
        update.arena.optimizer.found_inf = (~made).float()  # type: ignore[attr-defined]
        return made

    def buffers(self, buffers: Buffers) -> Scalar:
        moved = [buffer for buffer in buffers.finite_where_it_was() if buffer.device == self._count.device]
        return total(moved) if moved else 0.0

    def settle(self) -> None:
        pending, self._pending = self._pending, []
        if pending and (count := int(self._count)):
            self._count.zero_()
            first = torch.stack([bad for bad, _, _ in pending]).tolist().index(True)
            _, where, untouched = pending[first]
            self._leave_out(f"{where}: a loss or a gradient is not finite.", untouched, count if self.skip else 1)

    def forget(self) -> None:
        self._pending = []
        self._count.zero_()

    def _on_device(self, number: Scalar) -> Tensor:
        return number if isinstance(number, Tensor) else torch.full((), number, device=self._count.device)


def make_guard(device: torch.device, skip: bool) -> Guard:
    """The guard for a device."""
    return HostGuard(skip) if device.type == "cpu" else DeviceGuard(device, skip)


def first_not_finite(model: nn.Module, forward: Callable[[], Any]) -> str:
    """A sentence on the first module whose output is not finite; nothing if all outputs are finite.

    `forward` makes one more pass. The caller restores random state and buffers.
    """
    names = {module: name or "the model" for name, module in model.named_modules()}
    found: list[str] = []

    def look(module: nn.Module, given: Any, output: Any) -> None:
        if module in names and not found and not all(bool(torch.isfinite(each).all()) for each in _fractions(output)):
            where = f"{names[module]!r} ({type(module).__name__})"
            found.append(f"The first module whose output is not finite is {where}: {_range(_fractions(given))}")

    with register_module_forward_hook(look), torch.no_grad():
        forward()
    return "".join(found)


def _fractions(value: Any) -> list[Tensor]:
    """Every dense tensor of fractions in a value, however it is nested."""
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.layout == torch.strided]


def _range(given: Sequence[Tensor]) -> str:
    """Between what the numbers of a module's input lie."""
    numbers = [tensor.detach().float().flatten() for tensor in given if tensor.numel()]
    if not numbers:
        return "it has no numbers as input."
    values = torch.cat(numbers)
    if not bool(torch.isfinite(values).all()):
        return "its input is not finite either, so an operation between modules, or a row of the data, is the cause."
    return f"its input lies between {float(values.min()):.4g} and {float(values.max()):.4g}."
