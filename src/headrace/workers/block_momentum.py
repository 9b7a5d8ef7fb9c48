"""Block momentum: the mean change of a round is filtered as gradients are by momentum."""

import math
from typing import Any, Literal

from torch import nn
from torch.optim import SGD, Optimizer

from ..errors import ConfigError, unknown
from ..length import Counters, Length
from .rounds import Outer, OuterStep, Rounds, RoundStart, check_settings, is_number, of_rounds

Form = Literal["mean", "cntk"]
_FORMS = ("mean", "cntk")


class BlockMomentum(Rounds):
    """v ← ηv + ζΔ̄; θ₀ ← θ₀ − v, with Δ̄ = Σ nᵢ(θ₀ − θᵢ) / Σ nᵢ, the mean change of the round that ends.

    η is `momentum`, by default 1 − 1/W for W workers, so that each of them counts for as much as if it were alone;
    ζ is `lr`. With `time_constant` τ, in rows of all workers, η = exp(−Σ nᵢ / τ): a short round fades the past less.
    `nesterov` is torch's. `reset_inner`: the workers' own momentum begins anew with every round.

    `form="cntk"` is the learner of that name: v ← ηv + (1 − η)ζ Σ(θ₀ − θᵢ), which is the above for a full round with
    the default η and overshoots otherwise (W times with η = 0); with `nesterov`, θ₀ moves on by another ηv and stays
    there. Its `every` is a block size in samples of all workers, of which each makes its part, counted from the end
    of the last round; a full block has the default η, another one that of the same time constant.
    K. Chen and Q. Huo, "Scalable training of deep learning machines by incremental block training", ICASSP 2016.
    """

    def __init__(
        self,
        every: str | Length = "16 steps",
        *,
        momentum: float | None = None,
        lr: float = 1.0,
        nesterov: bool = False,
        reset_inner: bool = True,
        time_constant: float | None = None,
        form: Form = "mean",
    ) -> None:
        length = of_rounds(every)
        super().__init__(
            length,
            weights="equal" if form == "cntk" else "rows",
            reset_inner=reset_inner,
        )
        check_settings(lr, 0.0 if momentum is None else momentum)
        if form not in _FORMS:
            raise ConfigError(unknown("form", form, _FORMS))
        if time_constant is not None and not (is_number(time_constant) and 0 <= time_constant < math.inf):
            raise ConfigError(f"time_constant= is a number of rows, 0 or more, got {time_constant!r}.")
        if time_constant is not None and momentum is not None:
            raise ConfigError("momentum= and time_constant= both say how fast the past fades. Give one of them.")
        self.momentum, self.time_constant = momentum, time_constant
        self.lr, self.nesterov, self.form = lr, nesterov, form
        self._block = int(length.count) if form == "cntk" and length.unit == "samples" else None

    def ending(self, start: RoundStart) -> OuterStep:
        return Outer(self._outer, start, self._adapt)

    def due(self, counters: Counters, total: int, ends_epoch: bool) -> bool:
        if self._block is None:
            return super().due(counters, total, ends_epoch)
        return self._total >= self._block // self.comm.count * self.comm.count

    def _outer(self, params: list[nn.Parameter]) -> Optimizer:
        return SGD(params, lr=self.lr)

    def _adapt(self, group: dict[str, Any], rows: int) -> float:
        eta = self._momentum_after(rows)
        if self.form == "mean":
            group.update(lr=self.lr, momentum=eta, nesterov=self.nesterov)
            return 1.0
        group.update(lr=1 + eta if self.nesterov else 1.0, momentum=eta)
        return (1 - eta) * self.lr * self.comm.count

    def _momentum_after(self, rows: int) -> float:
        """The factor η by which the past fades in a round of so many rows."""
        if self.momentum is not None:
            return self.momentum
        if self.time_constant is not None:
            return math.exp(-rows / self.time_constant) if self.time_constant else 0.0
        usual = 1 - 1 / self.comm.count
        return usual if self._block is None else float(usual ** (rows / self._block))
