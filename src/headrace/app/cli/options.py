"""The options of every training from the command line, and checks of options."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from cyclopts import Parameter
from cyclopts.validators import Number

from ...errors import ConfigError, unknown

if TYPE_CHECKING:
    from ..recipe import Recipe

INTERRUPTED, PREEMPTED = 130, 143
"""The exit status after Ctrl-C, and after a signal that asks for the machine."""

Count = Annotated[int, Parameter(validator=Number(gte=1))]
"""A number that is greater than 0."""
Which = int | Literal["best", "last"] | None
"""The weights of a run: best, last or those of a step."""
Files = Annotated[tuple[str, ...], Parameter(show_default=False)]


def _check_strategies(_: Any, given: str | tuple[str, ...] | None) -> None:
    from ..strategies import parse_strategy

    for text in [given] if isinstance(given, str) else given or ():
        parse_strategy(text)


def of_kind(*endings: str) -> Parameter:
    """What says of a file that it has one of these endings."""

    def check(_: Any, file: Path | None) -> None:
        if file is not None and (ending := file.suffix.lower()) not in endings:
            raise ValueError(unknown("ending", ending, endings))

    return Parameter(validator=check)


OF_STRATEGIES = Parameter(validator=_check_strategies)
"""One that makes no sense is known before any work."""


class Options(TypedDict, total=False):
    """The training

    Args:
        run: directory to save the training in, and to resume it from; if it ends with a slash, a directory of numbered
            runs, of which the newest with the same settings is continued
        epochs: passes over the data, instead of the recipe's limits
        steps: updates of a worker, instead of the recipe's limits
        samples: rows over all workers, instead of the recipe's limits
        minutes: of training, instead of the recipe's limits
        resume: from a checkpoint: if there is one (auto), always (must), or never
        override: continue although settings differ from those of the run
        checkpoint_every: as in "1 epoch", "500 steps" or "10 min"
        validate_every: as in "1 epoch" or "500 steps"
        keep: how many checkpoints are kept
        progress: a bar or plain lines; auto is a bar in a terminal
        workers: how many workers train the model
        engine: simulated in this process (local), processes of this machine, or a Ray cluster
        device: instead of the recipe's, as in cpu or cuda:1
        strategy: how the workers combine what they learn, as in diloco or "periodic:every=16 steps,weights=equal"
        json: print JSON, for a program to read
    """

    run: str
    epochs: Count
    steps: Count
    samples: Count
    minutes: Annotated[float, Parameter(validator=Number(gt=0))]
    resume: Literal["auto", "must", "never"]
    override: bool
    checkpoint_every: str
    validate_every: str
    keep: int | Literal["all"]
    progress: Literal["auto", "bar", "plain", "off"]
    workers: Count
    engine: Literal["local", "processes", "ray"]
    device: str
    strategy: Annotated[str, OF_STRATEGIES]
    json: bool


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class HowMade:
    """What makes the model and the data of a run, and how the answer is printed.

    Args:
        recipe: file.py or file.py:function, which the run was trained with
        trust: instead of --recipe: execute the copy of the recipe in the run, which is code
        json: print JSON, for a program to read
    """

    recipe: str | None = None
    trust: bool = False
    json: bool = False

    @property
    def is_named(self) -> bool:
        return self.trust or self.recipe is not None

    def load(self, run: str, which: Which) -> "Recipe":
        """The recipe of a run with these weights."""
        from ..recipe import load

        return load(run, recipe=self.recipe, which=which, trust=self.trust)

    def remade(self, run: str | Path) -> "Recipe":
        """The recipe of a run as it was before the run."""
        from ...store.named import run_path
        from ..recipe import made_again

        return made_again(run_path(run), self.recipe, self.trust)


HOW_MADE = HowMade()


class UsageError(ConfigError):
    """A command line that makes no sense."""
