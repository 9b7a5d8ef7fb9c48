"""`headrace fit RECIPE` and `headrace resume RUN`: train a recipe, whose parameters are options too.

A value is the last of these that there is: the default, the environment (`HEADRACE_LR`), the files that `--config`
names in their order, the flags.
"""

import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ...engines.launch import launch
from ...errors import ConfigError, RunError, unknown
from ...workers.here import here
from ..find import PARTS, RECIPE_FILE, find_recipe, is_of_run, located, read_file, recipe_of
from ..parameters import Parameter, Value, check_parameters, described, parameters_of, plain, typed_values
from ..recipe import LIMITS, Trained, Training, run_recipe
from ..strategies import parse_strategy
from .commands import page, rows
from .options import (
    INTERRUPTED,
    OF_A_NEW_RUN,
    OWN,
    PREEMPTED,
    Known,
    Options,
    SweepOptions,
    UsageError,
    flag_of,
    no_option_error,
    options_of,
    parse_words,
    taken,
    taken_by,
)
from .output import numbers, print_line, print_result, print_text

_TAKES = {
    "fit": "RECIPE: file.py or file.py:function, which returns a Recipe. What the function takes are options, too.",
    "sweep": "RECIPE: file.py or file.py:function, which returns a Recipe. Each parameter of the function takes "
    "several values, with commas between: a run is made for each combination. The same command goes on where it "
    "stopped.",
    "resume": "RUN: the directory of a run. Options are as the run has them, unless others are given.",
}
_BOTH = {
    "config": ("--config FILE", "options from a file, YAML or JSON; may be given several times"),
    "recipe": ("--recipe RECIPE", "file.py or file.py:function, which the run was trained with"),
    "trust": ("--trust", "instead of --recipe: execute the copy of the recipe in the run, which is code"),
    "print_config": ("--print_config", "print all of it as --config takes it, and end"),
}
_ORDER = (
    "A value is the last of these that there is: the default, the environment (HEADRACE_LR=0.1), the files that "
    "--config names in their order, the flags. Of two options with one name, the recipe's counts."
)
PREFIX = "HEADRACE_"
_NOT_OPTIONS = {"CONFIG", "TIMEOUT_S"}
_NEAR = 0.8  # how alike a variable and an option are for one to be a slip of the other

Config = tuple[str, dict[str, Any]]
"""The name of a file of options, and what is in it."""


def fit(*words: str) -> int:
    """Trains the recipe that the words name."""
    return _run("fit", list(words))


def resume(*words: str) -> int:
    """Goes on with a run that a recipe has made."""
    left = list(words)
    if "-h" in left or "--help" in left:
        return _run("resume", ["--help"])
    if not left or left[0].startswith("-"):
        raise UsageError("RUN comes first: the directory of a run.")
    trust, left = "--trust" in left, [word for word in left if word != "--trust"]
    at = next((k for k, word in enumerate(left) if word.partition("=")[0] == "--recipe"), len(left))
    left, after = left[:at], left[at:]
    with as_usage():
        recipe = taken(after, "--recipe", "file.py")
    run, *left = [*left, *after]
    if any(word.partition("=")[0].removeprefix("--") in OF_A_NEW_RUN for word in left if word.startswith("--")):
        raise UsageError("it goes on with RUN, from its last checkpoint: leave --run and --resume out.")
    if left and not left[0].startswith("-"):
        raise UsageError(f"{left[0]!r} is too much: RUN comes first, then options. Another recipe is --recipe file.py.")
    recipe, _ = recipe_of(Path(run), recipe, trust)
    file = Path(run, RECIPE_FILE)
    known = [recipe, *(["--config", str(file)] if file.is_file() else [])]
    if not any(Path(run, "checkpoints").glob("step-*")):
        again = shlex.join(["headrace", "fit", *known, "--run", run])
        raise RunError(f"{run} has no checkpoint yet. Start it: {again}")
    return _run("resume", [*known, *left, "--run", run, "--resume", "must"])


def _run(command: str, words: list[str]) -> int:
    """Trains what the words ask for, unless they ask for help or for all options."""
    prints = {"--print_config", "--print-config"} & {*words}
    given = read_words(command, [word for word in words if word not in prints])
    if given is None:
        return 0
    with as_usage():
        options, training = given.training(given.values)
    if prints:
        import yaml

        print_text(yaml.safe_dump(dict(training.document), sort_keys=False))
        return 0
    return _train(given.recipe, options, training)


def read_words(command: str, words: list[str]) -> "Given | None":
    """What the words give; nothing if they ask for help, which is printed."""
    asks_help = {"-h", "--help"} & {*words}
    words = [word for word in words if word not in asks_help]
    with as_usage():
        configs = _configs(words)
        recipe = _recipe_in(words, configs)
        if recipe is None and not asks_help:
            raise ConfigError("RECIPE comes first: file.py or file.py:function, which returns a Recipe.")
    function = None if recipe is None else find_recipe(recipe)
    if function is not None:
        check_parameters(function)
    with as_usage():
        of_recipe = _of_recipe(command, function)
        if recipe is None or asks_help:
            print_line(_help(command, function, of_recipe))
            return None
        return Given(recipe, of_recipe, _values(command, of_recipe, configs, words))


@contextmanager
def as_usage() -> Iterator[None]:
    """Turns the errors of settings into errors of the command line, which have an exit status of their own."""
    try:
        yield
    except ConfigError as error:
        raise UsageError(str(error)) from None


# --- what the words ask for --------------------------------------------------------------------------------


def _configs(words: list[str]) -> list[Config]:
    """The files of options, which are taken out of the words."""
    files = [file] if (file := os.environ.get(PREFIX + "CONFIG")) else []
    left, words[:] = list(words), []
    while left:
        if (file := taken(left, "--config", "a file")) is not None:
            files.append(file)
        else:
            words.append(left.pop(0))
    return [(file, read_file(file)) for file in files]


def _recipe_in(words: list[str], configs: Sequence[Config]) -> str | None:
    """The recipe, which is taken out of the words and the files: the first word, or that of the last file."""
    named = [(file, str(config.pop("recipe"))) for file, config in configs if "recipe" in config]
    if words and not words[0].startswith("-"):
        return words.pop(0)
    if not named:
        return None
    file, recipe = named[-1]
    if is_of_run(Path(file)):
        raise ConfigError(
            f"{file} is of a run, and names the recipe {recipe!r:.200}. That is code, and a run may come from anybody: "
            f"name the recipe yourself, headrace fit RECIPE --config {file}."
        )
    return recipe


@dataclass(frozen=True)
class Given:
    """A recipe, its parameters, and the values that it and the training are given."""

    recipe: str
    of_recipe: dict[str, Parameter]
    values: list[Value]

    def training(self, values: Sequence[Value]) -> tuple[Options, Training]:
        """The options of the training, and what is to be trained, with these values."""
        known = parameters_of(Options) | self.of_recipe
        given = {value.name for value in values}
        if missing := [name for name, each in known.items() if each.required and name not in given]:
            raise ConfigError(f"{' and '.join(map(flag_of, missing))} is missing: the recipe has no default.")
        found = typed_values(known, values)
        options = Options(**{name: found[name] for name in known if name not in self.of_recipe})
        options.check()
        strategy = None if options.strategy is None else parse_strategy(options.strategy)
        arguments, name = {name: plain(found[name]) for name in self.of_recipe}, located(self.recipe)
        document = {"recipe": name, "arguments": arguments, "fit": options.said()}
        return options, Training(name, arguments, options.of_fit(), strategy, document, options.needs_run())


def _values(
    command: str, of_recipe: dict[str, Parameter], configs: Sequence[Config], words: Sequence[str]
) -> list[Value]:
    """The values that the environment, the files and the words give, in this order."""
    known = taken_by(command, of_recipe)
    values = [*_of_environment(known)]
    for file, config in configs:
        values += _of_file(file, config, known)
    flags = list(parse_words(words, known, [*options_of(command, of_recipe), "help"]))
    if extra := next((value for value in flags if not value.name), None):
        raise no_option_error(extra, known)
    if command == "resume" and any(value.name in LIMITS for value in flags):  # instead of those that it began with
        values = [value for value in values if value.name not in LIMITS or value.name in of_recipe]
    return values + flags


def _of_environment(known: Known) -> Iterator[Value]:
    """`HEADRACE_LR=0.1` and the like; a variable that is not near to any option may be another recipe's."""
    names = {name.upper(): name for name in known}
    for variable, text in os.environ.items():
        name = variable.removeprefix(PREFIX)
        if not variable.startswith(PREFIX) or name in _NOT_OPTIONS:
            continue
        if name in names:
            yield Value(names[name], text, variable)
        elif near := get_close_matches(name, names, n=1, cutoff=_NEAR):
            raise ConfigError(f"{variable} is in the environment. Did you mean {PREFIX}{near[0]}?")


def _of_file(file: str, config: Mapping[str, Any], known: Known) -> Iterator[Value]:
    """The keys of a file of options."""
    flat = {key: value for key, value in config.items() if key not in PARTS}
    for part in PARTS:
        flat |= config.get(part) or {}
    for key, value in flat.items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise ConfigError(f"{file}: {unknown('key', str(key), known)}")
        given = value if value is None or isinstance(value, str | list | dict) else json.dumps(value, default=str)
        yield Value(name, given, f"{file}: {key}")


def _of_recipe(command: str, function: Callable[..., Any] | None) -> dict[str, Parameter]:
    """The parameters of the recipe by name."""
    found = {} if function is None else parameters_of(function)
    own = (*OWN, *parameters_of(SweepOptions)) if command == "sweep" else OWN
    if reserved := next((name for name in own if name in found), None):
        raise ConfigError(f"the recipe has a parameter {reserved!r}, which the command line has itself. Rename it.")
    return found


# --- help --------------------------------------------------------------------------------------------------


def _help(command: str, function: Callable[..., Any] | None, of_recipe: dict[str, Parameter]) -> str:
    """The page of help, with types and defaults."""
    takes = _TAKES[command]
    options = {name: each for name, each in options_of(command, of_recipe).items() if name not in of_recipe}
    of_sweep = described(SweepOptions) if command == "sweep" else {}
    groups = {
        "The recipe": rows(of_recipe.values(), {} if function is None else described(function)),
        "The sweep": rows(options.values(), of_sweep),
        "The training": rows([options[name] for name in options if name not in of_sweep], described(Options)),
        "Both together": [row for name, row in _BOTH.items() if name in options],
    }
    usage = f"headrace {command} {takes.partition(':')[0]} [--option value ...]"
    return page(usage, takes, groups, _ORDER)


# --- training ----------------------------------------------------------------------------------------------


def _train(recipe: str, options: Options, training: Training) -> int:
    """Trains what was asked for, and prints how it ended."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as room:
        note = Path(room, "run")
        training = replace(training, note=str(note))
        try:
            trained: Trained = launch(run_recipe, training, workers=options.workers, engine=options.engine)
        except KeyboardInterrupt:
            return _ended_early(recipe, options.run, note, INTERRUPTED)
        except SystemExit as error:
            if error.code != PREEMPTED:
                raise
            return _ended_early(recipe, options.run, note, PREEMPTED)
    if here().leader:  # under torchrun, this is one of the workers
        report = _report(trained) if options.report else None
        document = trained.last | {"run": trained.run, "report": report, "why": trained.why}
        print_result(options.json, document, _result(recipe, trained, report))
    return 0


def _ended_early(recipe: str, run: str | None, note: Path, status: int) -> int:
    """Prints how a training goes on that somebody has ended early; a run that the recipe names is in the note."""
    run = note.read_text(encoding="utf-8") if note.is_file() else run
    known = run is not None and Path(run, "run.json").is_file()
    goes_on = f": {_resume(str(run), recipe)} goes on from there" if known else ""
    print_line(f"headrace: ended early{goes_on}", sys.stderr)
    return status


def _resume(run: str, recipe: str) -> str:
    """The command that goes on with a run."""
    return shlex.join(["headrace", "resume", run, "--recipe", recipe])


def _report(trained: Trained) -> str | None:
    from ...watch.report import write

    return None if trained.run is None else str(write(trained.run))


def _result(recipe: str, trained: Trained, report: str | None) -> str:
    """The text that is printed at the end: the last numbers, the run, and the next commands."""
    last = trained.last
    data = next((name for name in ("test/", "val/") if any(key.startswith(name) for key in last)), "train/")
    lines = numbers({key: value for key, value in last.items() if key in ("epoch", "step") or key.startswith(data)})
    if trained.run is None:
        return "\n".join([*lines, "", "nothing is kept: --run DIR keeps weights, curves and what a report is made of"])
    after = [f"{_resume(trained.run, recipe)} --{trained.limit} N"]
    lines += ["", f"run     {trained.run}"]
    if report:
        lines.append(f"report  {report}")
    else:
        after.insert(0, shlex.join(["headrace", "report", trained.run]))
    return "\n".join([*lines, "next    " + "    ".join(after)])
