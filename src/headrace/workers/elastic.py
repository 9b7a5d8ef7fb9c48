"""Elastic averaging: workers are tied to the center by springs."""

from numbers import Real

import torch
from torch import Tensor

from ..errors import ConfigError
from ..length import Length
from .centered import Centered

BETA = 0.9
"""α·W by default: how far one round of all workers pulls the center."""


class Elastic(Centered):
    """EASGD: `every` so often a worker's weights xᵢ and the center c pull each other, in the order of arrival.

        d = α(xᵢ - c);  xᵢ ← xᵢ - d;  c ← c + d

    The same d on both sides, of the values before, so that c + Σxᵢ never changes by an exchange. Between exchanges the
    workers explore by themselves; the center is their moving average, and the result.
    https://arxiv.org/abs/1412.6651

    `alpha` is 0.9 / W by default, for W workers. Exchanges come between updates: no gradient is of weights that have
    been pulled since. So with α ≤ 1 they are stable wherever the local updates are, for a rate γ and a curvature h at
    γh ≤ 2. (Where gradients are of the weights before the exchange, it takes α ≤ (4 - 2γh) / (4 - γh).)

    `alpha=0.5, take_center=True` is the merge c ← (c + xᵢ)/2 after which the worker goes on with c. The order of
    arrival matters there: the last worker weighs ½, the one before ¼, and so on.
    """

    def __init__(
        self,
        every: str | Length = "16 steps",
        *,
        alpha: float | None = None,
        take_center: bool = False,
        lease: int | None = None,
    ) -> None:
        super().__init__(every, lease)
        if alpha is not None and not (isinstance(alpha, Real) and not isinstance(alpha, bool) and 0 < alpha <= 1):
            raise ConfigError(
                f"alpha= is the part of the way that workers and center go towards each other, above 0 and at most 1, "
                f"got {alpha!r}. The default is {BETA} divided by the number of workers."
            )
        self.alpha, self.take_center = alpha, take_center

    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        d = torch._foreach_sub(worker, center)
        torch._foreach_mul_(d, BETA / self.comm.count if self.alpha is None else float(self.alpha))
        torch._foreach_add_(center, d)
        if self.take_center:
            torch._foreach_copy_(worker, center)
        else:
            torch._foreach_sub_(worker, d)
