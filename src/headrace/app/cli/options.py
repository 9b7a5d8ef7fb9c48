"""The options of every training from the command line, and checks of options."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from ...errors import ConfigError, unknown

if TYPE_CHECKING:
    from ...workers.strategy import Strategy
    from ..recipe import Recipe

INTERRUPTED, PREEMPTED = 130, 143
"""The exit status after Ctrl-C, and after a signal that asks for the machine."""
LIMITS = ("epochs", "steps", "samples", "minutes")
_COUNTS = (*LIMITS, "keep", "workers")
_NOT_OF_FIT = ("report", "workers", "engine", "strategy", "device", "json")
"""What is not passed on to `Trainer.fit`."""
_PASSING = ("run", "resume", "override", "progress", "report", "json")
"""What a later command is not to repeat."""
_OF_A_RUN = ("resume", "override", "checkpoint_every", "keep", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
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
        report: write the report at the end
        workers: how many workers train the model
        engine: simulated in this process (local), processes of this machine, or a Ray cluster
        device: instead of the recipe's, as in cpu or cuda:1
        strategy: how the workers combine what they learn, as in diloco or "periodic:every=16 steps,weights=equal"
        json: print JSON, for a program to read
    """

    run: str | None = None
    epochs: int | None = None
    steps: int | None = None
    samples: int | None = None
    minutes: float | None = None
    resume: Literal["auto", "must", "never"] | None = None
    override: bool = False
    checkpoint_every: str | None = None
    validate_every: str | None = None
    keep: int | Literal["all"] | None = None
    progress: Literal["auto", "bar", "plain", "off"] | None = None
    report: bool = False
    workers: int = 1
    engine: Literal["local", "processes", "ray"] = "local"
    device: str | None = None
    strategy: str | None = None
    json: bool = False

    def check(self) -> None:
        """Raises on what contradicts itself, and on what no training could do."""
        for name in _COUNTS:
            given = getattr(self, name)
            if isinstance(given, int | float) and not 0 < given < float("inf"):
                raise UsageError(f"--{name} is greater than 0, got {given}.")
        if self.run is not None and Path(self.run).exists() and not Path(self.run).is_dir():
            raise UsageError(f"--run {self.run}: it is a file; name a directory.")
        if self.json and self.progress in ("bar", "plain"):
            raise UsageError(f"--json prints nothing but JSON, --progress {self.progress} more. Leave one out.")
        if self.override and self.resume == "never":
            raise UsageError("--override continues a run, and --resume never does not. Leave one out.")

    def needs_run(self) -> str:
        """What was asked for that makes no sense without a run, as a flag; empty if nothing was."""
        return next((flag_of(name) for name in _OF_A_RUN if name in self._given()), "")

    def of_fit(self) -> dict[str, Any]:
        """The options that were given, for `Trainer.fit`."""
        asked = {name: value for name, value in self._given().items() if name not in _NOT_OF_FIT}
        return asked | ({"progress": False} if self.json or self.progress == "off" else {})

    def to_repeat(self) -> dict[str, Any]:
        """What differs from the defaults, and a later command is to repeat."""
        return {
            name: value
            for name, value in self._given().items()
            if name not in _PASSING and value != getattr(Options(), name)
        }

    def _given(self) -> dict[str, Any]:
        """The options that were given, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value is not False}


Count = Annotated[int, Parameter(validator=Number(gte=1))]
"""A number that is greater than 0."""


Which = int | Literal["best", "last"] | None
"""The weights of a run: best, last or those of a step."""


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


def strategy_of(text: str) -> "Strategy":
    """The strategy of a name, with its options."""
    from ..strategies import parse_strategy

    try:
        return parse_strategy(text)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def flag_of(name: str) -> str:
    """A parameter as an option: `--batch-size`. A command also takes `--batch_size`."""
    return f"--{name.replace('_', '-')}"


def check_ending(file: Path, endings: Sequence[str], flag: str) -> None:
    """Raises unless a file is of one of these kinds."""
    ending = file.suffix.lower()
    if ending not in endings:
        raise UsageError(f"{flag}: {file}: {unknown('ending', ending, endings)}")
