"""The options of commands: those of `headrace fit` beside a recipe's parameters, and how words are read as such."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ...errors import ConfigError, unknown
from ..parameters import LIST, Parameter, Value, parameters_of

INTERRUPTED, PREEMPTED = 130, 143
"""The exit status after Ctrl-C, and after a signal that asks for the machine."""
OWN = (
    *("config", "print_config", "help", "recipe", "arguments", "fit"),
    *("run", "resume", "trust", "override", "progress", "report", "json"),
)
"""Names that the command line has for itself."""
OF_A_NEW_RUN = ("run", "resume")
"""What `headrace fit` takes and `headrace resume` does not: the run to go on with has said it."""
_OF_ONE_RUN = ("resume", "report")
"""What `headrace sweep` does not take."""
_COUNTS = ("epochs", "steps", "samples", "minutes", "keep", "workers")
_NOT_OF_FIT = ("report", "workers", "engine", "strategy", "json")
"""What is not passed on to `Trainer.fit`."""
_PASSING = ("run", "resume", "override", "progress", "report", "json")
"""What a later command is not to repeat."""
_OF_A_RUN = ("resume", "override", "checkpoint_every", "keep", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The training

    Args:
        run: directory in which the training survives; it goes on from its last checkpoint if there is one; with a slash
            at the end, a directory of numbered runs, of which the newest with the same settings goes on
        epochs: passes over the data, instead of the recipe's limits
        steps: updates of a worker, instead of the recipe's limits
        samples: rows over all workers, instead of the recipe's limits
        minutes: of training, instead of the recipe's limits
        resume: whether to go on from a checkpoint: if there is one, only if there is one, or only if there is none
        override: go on although settings differ from those of the run
        checkpoint_every: as in "1 epoch", "500 steps" or "10 min"
        validate_every: as in "1 epoch" or "500 steps"
        keep: how many checkpoints stay
        progress: a bar or plain lines (a bar on a terminal, if nothing is said)
        report: write the report at the end
        workers: how many workers train it
        engine: where they are
        strategy: how they make one model, as in diloco or "periodic:every=16 steps,weights=equal"
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
    strategy: str | None = None
    json: bool = False

    def check(self) -> None:
        """Raises on what contradicts itself, and on what no training could do."""
        for name in _COUNTS:
            given = getattr(self, name)
            if isinstance(given, int | float) and not 0 < given < float("inf"):
                raise ConfigError(f"--{name} is greater than 0, got {given}.")
        if self.run is not None and Path(self.run).exists() and not Path(self.run).is_dir():
            raise ConfigError(f"--run {self.run}: it is a file; name a directory.")
        if self.json and self.progress in ("bar", "plain"):
            raise ConfigError(f"--json prints nothing but JSON, --progress {self.progress} more. Leave one out.")
        if self.override and self.resume == "never":
            raise ConfigError("--override goes on with a run, --resume never does not. Leave one out.")

    def needs_run(self) -> str:
        """What was asked for that makes no sense without a run, as a flag; empty if nothing was."""
        return next((f"--{name}" for name in _OF_A_RUN if name in self._given()), "")

    def of_fit(self) -> dict[str, Any]:
        """The options that were given, for `Trainer.fit`."""
        asked = {name: value for name, value in self._given().items() if name not in _NOT_OF_FIT}
        return asked | ({"progress": False} if self.json or self.progress == "off" else {})

    def said(self) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """The sweep

    Args:
        run: directory of the runs, one for each combination (runs/RECIPE-sweep)
        trials: let Optuna choose so many combinations; --lr 1e-5..1e-1:log is then a range
        monitor: the number that tells a good run, as in val/loss or "max val/score"
    """

    run: str | None = None
    trials: int | None = None
    monitor: str = "val/loss"


def taken_by(command: str, of_recipe: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """What may have a value in a command that trains, by name; of two options with one name, the recipe's counts."""
    known = parameters_of(Options)
    if command == "sweep":
        known = {name: each for name, each in known.items() if name not in _OF_ONE_RUN} | parameters_of(SweepOptions)
    return known | dict(of_recipe)


def options_of(command: str, of_recipe: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The options of a command that trains, by name."""
    more = [Parameter("config", str)] + [Parameter("print_config", bool)] * (command != "sweep")
    if command == "resume":
        more += [Parameter("recipe", str), Parameter("trust", bool)]
    known = taken_by(command, of_recipe) | {each.name: each for each in more}
    return {name: each for name, each in known.items() if command != "resume" or name not in OF_A_NEW_RUN}


Known = Mapping[str, Parameter]


class UsageError(ConfigError):
    """A command line that makes no sense."""


def flag_of(name: str, dash: str = "_") -> str:
    """A parameter as an option: `--batch_size`, or `--batch-size`; a command takes either."""
    return f"--{name.replace('_', dash)}"


def parse_words(words: Sequence[str], known: Known, listed: Iterable[str], dash: str = "_") -> Iterator[Value]:
    """Options with their values, and words that belong to none, without a name but with that of the option before.

    A switch may stand alone, and `--no_` before one turns it off. `listed`: what there is, for the message about an
    option that there is not.
    """
    left, before = list(words), ""
    while left:
        flag, equals, text = left.pop(0).partition("=")
        if not flag.startswith("--"):
            yield Value("", flag + equals + text, before)
            continue
        name = flag[2:].replace("-", "_")
        before, off = name, name.removeprefix("no_")
        if name not in known and off in known and known[off].switch and not equals:
            name, text = off, "false"
        elif name not in known:
            raise ConfigError(unknown("option", flag_of(name, dash), [flag_of(each, dash) for each in listed]))
        elif not equals:
            alone = not left or left[0].startswith("--")
            if known[name].switch and (alone or not {*left[0].split(",")} <= {"true", "false"}):
                text = "true"
            elif alone:
                raise ConfigError(f"{flag}: expected {known[name].type}, got nothing.")
            else:
                text = left.pop(0)
        yield Value(name, text, flag)


def no_option_error(value: Value, known: Known) -> ConfigError:
    """The error for a word that belongs to no option."""
    of_list = value.where in known and known[value.where].type.startswith("list[")
    hint = f" A list is written as in --{value.where} {LIST}." if of_list else ""
    return ConfigError(f"{value.given!r} belongs to no option.{hint}")


def taken(words: list[str], flag: str, what: str) -> str | None:
    """The value of the first word if that is this flag; both are taken out of the words."""
    name, equals, value = words[0].partition("=") if words else ("", "", "")
    if name != flag:
        return None
    del words[0]
    if not equals and words and not words[0].startswith("--"):
        value = words.pop(0)
    if not value:
        raise ConfigError(f"{flag}: expected {what}, got nothing.")
    return value


def check_count(count: int | None, flag: str) -> None:
    """Raises unless a value is greater than 0, or not given."""
    if count is not None and count < 1:
        raise UsageError(f"{flag}: expected a whole number greater than 0, got {str(count)!r}.")


def check_ending(file: Path, endings: Sequence[str], flag: str) -> None:
    """Raises unless a file is of one of these kinds."""
    ending = file.suffix.lower()
    if ending not in endings:
        raise UsageError(f"{flag}: {file}: {unknown('ending', ending, endings)}")
