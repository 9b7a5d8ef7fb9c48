"""How the workers of a training go together: in one process alone, in step, or each at its own pace."""

from ..errors import ConfigError
from ..workers.centered import Centered
from ..workers.here import here
from ..workers.strategy import Single, Strategy
from ..workers.synchronous import Synchronous
from .at_center import AtCenter
from .in_step import InStep
from .team import Team

__all__ = ["Team", "make_team"]


def make_team(strategy: Strategy | None) -> Team:
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
        return AtCenter(strategy)
    return Team(strategy) if comm.count == 1 else InStep(strategy)
