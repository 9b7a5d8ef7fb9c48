"""Averaging from time to time."""

from ..errors import ConfigError
from ..length import Length, interval
from .outer import Averaging, MakeOptimizer, Outer, OuterStep
from .round_start import Start
from .rounds import Rounds, Weights


class Periodic(Rounds):
    """θ ← Σ nᵢθᵢ / Σ nᵢ over the workers, n being the rows that each has used since the last time.

    `every`: "1 epoch", "16 steps", "4096 samples" (of all workers), or "end": once, when all is done. `outer` makes a
    torch optimizer of parameters; then θ₀ ← Outer(θ₀, grad=Δ̄) with Δ̄ = Σ nᵢ(θ₀ − θᵢ) / Σ nᵢ, the mean change.

    A worker alone trains as if there were no strategy, to the bit. Averaging after every update is `Synchronous` for
    SGD, with momentum too, and is not for Adam. https://arxiv.org/abs/1808.07217
    """

    def __init__(
        self,
        every: str | Length = "1 epoch",
        *,
        weights: Weights = "rows",
        outer: MakeOptimizer | None = None,
        reset_inner: bool = False,
        start_after: str | Length | None = None,
    ) -> None:
        length = None if every == "end" else interval(every, "every")
        super().__init__(length, weights=weights, reset_inner=reset_inner, start_after=start_after)
        if outer is not None and not callable(outer):
            raise ConfigError(
                "outer= is a function that makes a torch optimizer of a list of parameters, as in "
                f"lambda params: torch.optim.SGD(params, lr=0.7), got a {type(outer).__name__}."
            )
        if outer is not None and length is None:
            raise ConfigError('every="end" has no rounds for outer= to step after. Use every="1 epoch", for example.')
        self.outer = outer

    def ending(self, start: Start) -> OuterStep:
        return Averaging() if self.outer is None else Outer(self.outer, start)
