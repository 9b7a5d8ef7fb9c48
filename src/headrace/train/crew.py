"""How the workers of a training go together: in one process alone, in step, or each at its own pace."""

from ..errors import ConfigError
from ..workers.centered import Centered
from ..workers.here import here
from ..workers.strategy import Single, Strategy
from ..workers.synchronous import Synchronous
from .at_center import Loose
from .in_step import Lockstep
from .team import Crew

__all__ = ["Crew", "make_crew"]


def make_crew(strategy: Strategy | None) -> Crew:
    """The crew for a strategy, on the worker that asks; without a strategy, several share every update."""
    comm = here()
    if strategy is None:
        strategy = Single() if comm.count == 1 else Synchronous()
    if not isinstance(strategy, Strategy):
        what = f"the class {strategy.__name__}" if isinstance(strategy, type) else f"a {type(strategy).__name__}"
        raise ConfigError(
            f"strategy= takes a Strategy, as in hr.Periodic(every='1 epoch'), got {what}.", argument="strategy"
        )
    strategy.join(comm)
    if isinstance(strategy, Centered):
        return Loose(strategy)
    return Crew(strategy) if comm.count == 1 else Lockstep(strategy)
