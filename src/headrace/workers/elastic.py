"""Elastic averaging: each worker moves toward the center from time to time, and the center toward the worker."""

from numbers import Real

import torch
from torch import Tensor

from ..errors import ConfigError
from ..length import Length
from .centered import Centered

BETA = 0.9
"""α·W by default: how far one round of all workers pulls the center."""


class Elastic(Centered):
    """EASGD: after each `every`, a worker's weights xᵢ and the center c move toward each other.

        d = α(xᵢ - c);  xᵢ ← xᵢ - d;  c ← c + d

    Both sides change by the same d, so an exchange does not change c + Σxᵢ. Between exchanges each worker trains
    separately. The center is their moving average, and the result of the training. https://arxiv.org/abs/1412.6651

    `alpha` is α, by default 0.9 / W for W workers. Exchanges take place between updates, so no gradient belongs to
    weights from before an exchange. Therefore a training with α ≤ 1 is stable if the local updates are, which for a
    learning rate γ and a curvature h means γh ≤ 2. (If gradients belonged to the weights before the exchange, α would
    have to be at most (4 - 2γh) / (4 - γh).)

    With `alpha=0.5, take_center=True`, an exchange sets c ← (c + xᵢ)/2, and the worker continues with c. The order of
    the workers then matters: the last one has weight ½, the one before it ¼, and so on.
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
