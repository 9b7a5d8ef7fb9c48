"""DiLoCo: rare rounds, and an outer optimizer that looks ahead."""

from torch import nn
from torch.optim import SGD, Optimizer

from ..length import Length, interval
from .outer import Outer, OuterStep, check_settings
from .round_start import Start
from .rounds import Rounds, Weights


class DiLoCo(Rounds):
    """θ₀ ← Outer(θ₀, grad=Δ̄), where Outer is SGD with Nesterov momentum and Δ̄ = Σ nᵢ(θ₀ − θᵢ) / Σ nᵢ.

    Made for hundreds of steps of an inner AdamW, which keeps what it remembers. A steady change is taken
    lr / (1 − momentum) times, seven times by default. https://arxiv.org/abs/2311.08105
    """

    def __init__(
        self,
        every: str | Length = "500 steps",
        *,
        lr: float = 0.7,
        momentum: float = 0.9,
        weights: Weights = "rows",
        start_after: str | Length | None = None,
    ) -> None:
        super().__init__(interval(every, "every"), weights=weights, start_after=start_after)
        check_settings(lr, momentum)
        self.lr, self.momentum = lr, momentum

    def ending(self, start: Start) -> OuterStep:
        return Outer(self._outer, start)

    def _outer(self, params: list[nn.Parameter]) -> Optimizer:
        return SGD(params, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0)
