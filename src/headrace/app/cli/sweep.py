"""`headrace sweep RECIPE`: a run for each combination of values of the recipe's parameters.

The runs are all that a sweep remembers: the same command, given again, goes on where it stopped.
"""

import itertools
import json
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ...errors import ConfigError, HeadraceError, RunError
from ...store.document import encoded
from ...watch.rows import best_row, keys_of, number
from ..parameters import LIMITS, MisfitError, as_type, converted, flag_of, plain
from .fit import find_named
from .of_recipe import OfRecipe
from .options import Count, Files, UsageError
from .output import print_line
from .runs import runs

if TYPE_CHECKING:
    from ..recipe import Training

LONGEST = 200  # characters of the name of a run
DIGITS = 4  # of a number that Optuna chooses
_RANGE = re.compile(r"(.+)\.\.(.+?)(:log)?")


@dataclass(frozen=True, slots=True)
class Listed:
    """Values of a parameter, of which each makes runs."""

    values: list[Any]

    def distribution(self, optuna: Any) -> Any:
        """What Optuna draws from: places in the list."""
        return optuna.distributions.CategoricalDistribution([*range(len(self.values))])

    def value(self, drawn: Any) -> Any:
        return self.values[drawn]

    def drawn(self, value: Any) -> Any:
        """What Optuna has drawn for a value; `None` if it cannot have drawn it."""
        return self.values.index(value) if value in self.values else None


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers of which Optuna chooses one, as in `1e-5..1e-1:log`."""

    low: float
    high: float
    log: bool
    values: Sequence[Any] = ()

    def distribution(self, optuna: Any) -> Any:
        kind = "IntDistribution" if isinstance(self.low, int) else "FloatDistribution"
        return getattr(optuna.distributions, kind)(self.low, self.high, log=self.log)

    def value(self, drawn: Any) -> Any:
        """The number, of which a few digits are enough."""
        return drawn if isinstance(drawn, int) else min(max(float(f"{drawn:.{DIGITS}g}"), self.low), self.high)

    def drawn(self, value: Any) -> Any:
        return value if self.low <= value <= self.high else None


def _sweep(
    recipe: str,
    /,
    training: "Training",
    *,
    run: Path | None = None,
    trials: Count | None = None,
    monitor: str = "val/loss",
    config: Files = (),
) -> int:
    """Makes a run for each combination of the values that parameters of the recipe have, with commas between.

    Args:
        recipe: file.py or file.py:function, which returns a Recipe; each parameter takes several values
        run: directory of the runs, one for each combination (runs/RECIPE-sweep)
        trials: let Optuna choose so many combinations; --lr 1e-5..1e-1:log is then a range
        monitor: the number that tells a good run, as in val/loss or "max val/score"
        config: options from a file, YAML or JSON; may be given several times
    """
    from ...workers.here import here

    choices = {name: value for name, value in training.arguments.items() if isinstance(value, Listed | Range)}
    limits = {name: of.values[0] for name, of in choices.items() if name in LIMITS and len(of.values) == 1}
    choices = {name: of for name, of in choices.items() if name not in limits}  # a run that goes on keeps its name
    training = replace(training, arguments={**training.arguments, **limits})
    if ranges := [flag_of(name) for name, of in choices.items() if not of.values] if trials is None else []:
        raise UsageError(f"{ranges[0]} is a range, of which --trials N chooses. Or give values.")
    if all(len(of.values) == 1 for of in choices.values()):
        raise UsageError("nothing varies. Give a parameter several values, with commas between: --lr 1e-3,1e-4.")
    path, _, function = recipe.partition(":")
    where = run or Path("runs", f"{function or Path(path).stem}-sweep")
    each_of = _Trials(training, choices, where)
    combinations = each_of.grid() if trials is None else []
    if (where / "run.json").exists():
        raise RunError(f"{where} is a run. Name a directory for the runs of the sweep: --run DIR.")
    if here().count > 1:
        raise ConfigError("a sweep starts the workers of its runs itself: --workers 4 --engine processes.")
    try:
        for each in combinations:
            each_of.make(*each)
        if trials is not None:
            each_of.optimize(trials, monitor)
    except (KeyboardInterrupt, SystemExit):
        print_line("headrace: the same command goes on from here", sys.stderr)
        raise
    runs(str(where), json="json" in training.options)
    return 1 if each_of.failures else 0


def _values(parameter: Parameter, text: str) -> Any:
    """The values that an option gives a parameter, as plain values, or a range."""
    kind, name = parameter.annotation, parameter.name
    if found := _RANGE.fullmatch(text):
        low, high = (_number(kind, end) for end in found.groups()[:2])
        if low is not None and high is not None:
            if not low < high or (found[3] and low <= 0):
                raise ValueError(f"{text}: a range goes up, and begins above 0 with :log.")
            return Range(low, high, bool(found[3]))
    values = [plain(converted(kind, part, name)) for part in _parts(text)]
    if twice := next((each for k, each in enumerate(values) if each in values[:k]), None):
        raise ValueError(f"{twice!r} is given twice.")
    return Listed(values)


def _number(kind: Any, text: str) -> float | None:
    try:
        return number(as_type(kind, text))
    except MisfitError:
        return None


def _parts(text: str) -> list[str]:
    """What is between commas; those in brackets belong to a value."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


@dataclass
class _Trials:
    """Makes the runs of a sweep."""

    common: "Training"
    """What is the same in all of them, and what varies."""
    choices: Mapping[str, Listed | Range]
    where: Path
    failures: int = 0

    def grid(self) -> list[tuple[Path, "Training"]]:
        """Every combination: where its run goes, and what is to be trained."""
        return [self.training(values) for values in itertools.product(*(of.values for of in self.choices.values()))]

    def training(self, values: Sequence[Any], number: str = "") -> tuple[Path, "Training"]:
        """What is to be trained with these values, and where: the name of a run says which they are."""
        chosen = dict(zip(self.choices, values, strict=True))
        words = [f"{name}={quote(v if isinstance(v, str) else json.dumps(v), safe=' +')}" for name, v in chosen.items()]
        path = self.where / ",".join([*([number] if number else []), *words])
        if len(path.name) > LONGEST:
            raise ConfigError(f"the name of the run {path.name[:40]}... is too long. Vary fewer parameters.")
        arguments = {**self.common.arguments, **chosen}
        return path, replace(self.common, arguments=arguments, options={**self.common.options, "run": str(path)})

    def make(self, path: Path, training: "Training") -> bool:
        """Trains, or goes on with what was begun, unless it is finished; whether it is finished now."""
        from ..recipe import changed_arguments, launch_recipe

        same = {name: v for name, v in training.arguments.items() if name not in LIMITS or name in self.choices}
        if changed := changed_arguments(path, same):
            listed = "\n  ".join(changed)
            raise RunError(f"{path} was made with other values:\n  {listed}\nGive those, or name another --run.")
        if _is_finished(path, training):
            print_line(f"headrace: {path} is finished", sys.stderr)
            return True
        print_line(f"headrace: {path}", sys.stderr)
        try:
            launch_recipe(training)
        except Exception as error:
            self.failures += 1
            if not isinstance(error, HeadraceError):
                traceback.print_exc()
            print_line(f"headrace: {path} failed: {error}", sys.stderr)
            return False
        return True

    def optimize(self, count: int, monitor: str) -> None:
        """Makes so many runs, each with the values that Optuna chooses by the results of those before."""
        from ...watch.monitor import side_of

        optuna = _optuna()
        given_mode, _, key = monitor.rpartition(" ")
        if (mode := given_mode or side_of(key)) not in ("min", "max"):
            message = f"whether {key} should be small or large is not known"
            raise ConfigError(f'--monitor: {message}: say "min {key}" or "max {key}".')
        spaces = {name: of.distribution(optuna) for name, of in self.choices.items() if len(of.values) != 1}
        history: list[Any] = []
        for k in range(count):
            values = self._begun(f"{k:03d}")
            if values is None:  # a new study each time: a sweep that goes on chooses what it would have chosen
                sampler = optuna.samplers.TPESampler(seed=k)
                study = optuna.create_study(direction=f"{mode}imize", sampler=sampler)
                study.add_trials(history)
                asked = study.ask(spaces).params
                values = {n: of.value(asked[n]) if n in asked else of.values[0] for n, of in self.choices.items()}
            path, training = self.training([*values.values()], f"{k:03d}")
            drawn = {name: of.drawn(values[name]) for name, of in self.choices.items()}
            if None in drawn.values():
                raise RunError(f"{path} was made with other choices. Give those, or name another --run.")
            if self.make(path, training) and (score := _score(path, key, mode)) is not None:
                params = {name: drawn[name] for name in spaces}
                history.append(optuna.trial.create_trial(params=params, distributions=spaces, value=score))

    def _begun(self, number: str) -> dict[str, Any] | None:
        """The values of the run with this number, if there is one."""
        from ..find import read_recipe

        for path in self.where.glob(f"{number},*") if self.where.is_dir() else ():
            if document := read_recipe(path):
                return {name: document["arguments"].get(name) for name in self.choices}
        return None


def _is_finished(path: Path, training: "Training") -> bool:
    """Whether a run has all that is asked for: its recipe, its arguments and the options of the training are those."""
    from ...watch.report.read import read
    from ..find import PARTS, SOURCE, read_recipe

    document = read_recipe(path)
    if document is None or any(document[part] != encoded(training.document[part]) for part in PARTS):
        return False
    source = Path(training.recipe.partition(":")[0]).read_bytes()
    kept = path / SOURCE
    return kept.is_file() and kept.read_bytes() == source and read(path).is_finished


# --- Optuna ------------------------------------------------------------------------------------------------


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise ConfigError('--trials needs Optuna, which is not installed: pip install "headrace[optuna]".') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _score(path: Path, key: str, mode: str) -> float | None:
    """The best number that a run has reported."""
    from ...watch.report.read import read

    rows = read(path).rows
    if key not in (there := keys_of(rows)):
        raise ConfigError(f"--monitor {key}: {path} has not measured it. There are: {', '.join(there)}.")
    best = best_row(rows, key, mode)
    return None if best is None else float(best[key])


sweep = OfRecipe(_sweep, find_named, without=("resume",), convert=_values)
