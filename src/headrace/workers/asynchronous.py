"""Asynchronous training: each worker sends its change to a center that others have changed meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from ..errors import ConfigError
from ..length import Length
from .center import Push, Reply, Rule, Vectors
from .centered import Centered

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Descent(Rule):
    """c ← c - γ(s)·Δ, where s pushes of others have been applied since the worker had the center's weights."""

    lr: float
    bound: int
    down_weight: bool
    compensate: float | None

    def apply(self, center: Vectors, push: Push, staleness: int) -> Vectors | None:
        if staleness > self.bound:
            return None
        gamma = self.lr / max(1, staleness) if self.down_weight else self.lr
        c, delta = list(center.values()), [push.vectors[name] for name in center]
        if self.compensate is not None and staleness:
            delta = _compensated(delta, c, [push.origin[name] for name in center], self.compensate)
        torch._foreach_sub_(c, delta, alpha=gamma)
        if staleness == 0 and gamma == 1:
            for name, (places, values) in push.exact.items():
                center[name].put_(places, values)
        return center


class Asynchronous(Centered):
    """`every` so often a worker brings its change Δ = base - x since the center's weights `base`, and takes the newest.

        c ← c - γ(s)·Δ,   γ(s) = lr / max(1, s)

    The staleness s counts what others have brought meanwhile. Old changes weigh less (`down_weight=False`: as much);
    those older than `staleness`, 2W for W workers by default, are dropped and counted, and their rows read again.
    https://arxiv.org/abs/1511.05950

    With one worker s is always 0, and the training is the one without a strategy, to the bit: what Δ loses by
    rounding travels with it. With several, leave the momentum of the workers' optimizers low: a change that comes
    late is a kind of momentum already. https://arxiv.org/abs/1806.01660

    `compensate` is λ of DC-ASGD, Δ ← Δ + λ Δ⊙Δ⊙(c - base), which guesses by how much the change would have been
    another one by now. Of gradients, as in the paper, it is to be divided by the workers' learning rate. It sends
    `base` along, twice the bytes. https://arxiv.org/abs/1609.08326
    """

    def __init__(
        self,
        every: str | Length = "1 step",
        *,
        lr: float = 1.0,
        staleness: int | None = None,
        down_weight: bool = True,
        lease: int | None = None,
        compensate: float | None = None,
    ) -> None:
        super().__init__(every, lease)
        for name, number in (("lr", lr), ("compensate", compensate)):
            real = isinstance(number, Real) and not isinstance(number, bool)
            if number is not None and not (real and 0 < number < float("inf")):
                raise ConfigError(f"{name}= is greater than 0, got {number!r}.")
        if staleness is not None and (not isinstance(staleness, int) or isinstance(staleness, bool) or staleness < 0):
            raise ConfigError(f"staleness= counts pushes of other workers, 0 or more, got {staleness!r}.")
        self.lr, self.staleness, self.down_weight, self.compensate = lr, staleness, down_weight, compensate
        self._base: Vectors = {}

    @property
    def rule(self) -> Rule:
        bound = 2 * self.comm.count if self.staleness is None else self.staleness
        return Descent(float(self.lr), bound, self.down_weight, self.compensate)

    def fill(self, push: Push, weights: Vectors) -> None:
        names, x = list(weights), list(weights.values())
        base = [self._base[name] for name in names]
        delta = torch._foreach_sub(base, x)
        push.vectors = dict(zip(names, delta, strict=True))
        if self.comm.count == 1:  # of several there is always one that has moved the center meanwhile
            push.exact = _lost(names, torch._foreach_sub(base, delta), x)
        if self.compensate is not None:
            push.origin = self._base

    def take(self, reply: Reply) -> None:
        self._base = reply.vectors


def _compensated(delta: Sequence[Tensor], c: Sequence[Tensor], base: Sequence[Tensor], lam: float) -> list[Tensor]:
    """Δ + λ Δ⊙Δ⊙(c - base)."""
    moved = torch._foreach_sub(list(c), list(base))
    torch._foreach_mul_(moved, list(delta))
    torch._foreach_mul_(moved, list(delta))
    return list(torch._foreach_add(list(delta), moved, alpha=lam))


def _lost(names: Sequence[str], rounded: Sequence[Tensor], exact: Sequence[Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Where and what the exact values are, in flat order, where base - (base - x) is not x to the bit."""
    found = {}
    for name, near, x in zip(names, rounded, exact, strict=True):
        places = (_bits(near) != _bits(x)).nonzero().flatten()
        if len(places):
            found[name] = places, x.detach().reshape(-1)[places]
    return found


def _bits(tensor: Tensor) -> Tensor:
    """A flat tensor's values as integers: zeros of different sign are different, a NaN is equal to itself."""
    kind = _BITS.get(tensor.itemsize)
    flat = tensor.detach().reshape(-1)
    return flat if kind is None else flat.view(kind)
