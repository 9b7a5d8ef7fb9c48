"""A recipe is run: the function is called, and its trainer trains with what it returned."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ..adapters.adapt import as_data
from ..data.arrays import ArrayTable
from ..data.source import Table
from ..errors import CheckpointError, ConfigError, CorruptError, DataError, HeadraceError, RunError
from ..step import config
from ..step.check import auto_device
from ..step.weights import give_weights, load_weights, saved_weights
from ..store import codec, disk
from ..store.contents import TRAINER
from ..store.document import encoded, readable
from ..store.named import run_path, url_of
from ..store.shape import DICT, check, maybe
from ..train.runs import Run, Runs
from ..train.trainer import Trainer
from ..watch.callback import Callback
from ..watch.history import History
from ..watch.info import Info
from ..workers.strategy import Strategy
from .find import RECIPE_FILE, find_recipe, read_recipe, recipe_of, save_source
from .parameters import LIMITS, OF_A_RUN, flag_of, parameters_of, typed
from .strategies import parse_strategy

OF_FIT = (*LIMITS, *OF_A_RUN, "run", "validate_every", "progress")
"""Options of the command line that are passed on to `Trainer.fit`."""
TO_REPEAT = (*LIMITS, "checkpoint_every", "validate_every", "keep", "workers", "engine", "device", "strategy")
"""Those that a later command is to repeat."""


@dataclass(slots=True)
class Recipe:
    """A trainer, its data, and what to pass to `fit`.

    Args:
        trainer: as it is before the training.
        train: the training data, as for `Trainer.fit`.
        val: data to validate on.
        test: data to score at the end.
        fit: other arguments of `fit`, as `{"epochs": 5}`.
        data: a function that returns `train`, or a tuple of up to three: train, val, test. It is called only where rows
            are needed, so that a run predicts where its training data are not.
    """

    trainer: Trainer
    train: Any = None
    val: Any = None
    test: Any = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    data: Callable[[], Any] | None = None
    step: int | None = field(default=None, init=False)
    """The step that the weights are of, if a run has kept them."""

    def __post_init__(self) -> None:
        if self.data is None:
            return
        if not callable(self.data):
            raise ConfigError(f"hr.Recipe(data=) is a function, got a {type(self.data).__name__}. Pass data as train=.")
        if given := [name for name in ("train", "val", "test") if getattr(self, name) is not None]:
            raise ConfigError(f"hr.Recipe takes data= or {given[0]}=, got both. Let the function return all of them.")

    def open_data(self) -> "Recipe":
        """Opens the data: calls `data`, if there is one, and opens a path. Returns the recipe."""
        if self.data is not None:
            made, self.data = self.data(), None
            is_split = isinstance(made, list) and bool(made) and all(isinstance(part, Table) for part in made)
            parts = tuple(made) if isinstance(made, tuple) or is_split else (made,)
            if not 1 <= len(parts) <= 3:
                raise ConfigError(
                    f"the function data= of the recipe returned {len(parts)} parts. Return train, or up to three: "
                    "train, val, test; a part with targets is a tuple itself, (x, y)."
                )
            self.train, self.val, self.test = [*parts, None, None][:3]
        if isinstance(self.train, str | Path):
            self.train = as_data(self.train)
        return self

    def predict(self, data: Any, *, batch_size: int | None = None) -> ArrayTable:
        """What the model says of every row, as columns: `output`, or the names of several outputs, and of a classifier
        `class` and `probability`.

        `data`: what `Trainer.predict` takes, or the name of a file, which is read as the training data were.
        """
        from .predict import answers_of  # it imports all formats of files

        if isinstance(data, str | Path):
            data = self.read(data, "predict", targets=False)
        return answers_of(self.trainer, self.train, self.trainer.predict(data, batch_size=batch_size))

    def read(self, path: str | Path, name: str, *, targets: bool = True) -> Table:
        """The rows of a file, read as the training data were; without `targets`, only what the model is given."""
        from .predict import like_training

        if self.trainer.encoding is None or self.trainer.encoding.maps:
            self.open_data()
        return like_training(self.trainer, self.train, str(path), name, targets=targets)

    def run(self, **options: Any) -> History:
        """Trains; `options` go before the recipe's own."""
        self.open_data()
        return self.trainer.fit(self.train, self.val, self.test, **{**self.fit, **options})


@dataclass(frozen=True, slots=True)
class Training:
    """A recipe that is to be trained, and how: plain values, as workers get them."""

    recipe: str
    """`file.py` or `file.py:function`."""
    arguments: Mapping[str, Any]
    """What the function is called with."""
    options: Mapping[str, Any]
    """The options of the command line that were given, by name."""

    @property
    def document(self) -> dict[str, Any]:
        """What the run keeps as `recipe.json`, to be trained on or used by later."""
        return {"recipe": self.recipe, "arguments": dict(self.arguments), "fit": self._given(*TO_REPEAT)}

    @property
    def of_fit(self) -> dict[str, Any]:
        """Arguments of `fit`, in place of those that the recipe names."""
        quiet = "json" in self.options or self.options.get("progress") == "off"
        return self._given(*OF_FIT) | ({"progress": False} if quiet else {})

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: self.options[name] for name in names if name in self.options}


@dataclass(frozen=True, slots=True)
class Trained:
    """What has become of a recipe."""

    last: dict[str, Any]
    """The last value of every key."""
    run: str | None
    """The directory or URL of the run."""
    why: str
    """Why it ended."""
    limit: str = "epochs"
    """What a longer training has to be given more of."""


def load(
    run: str | Path,
    model: nn.Module | Trainer | None = None,
    *,
    recipe: str | Path | None = None,
    which: str | int | None = None,
    trust: bool = False,
) -> Recipe:
    """The recipe of a run, with the weights of the run: `hr.load("runs/a", recipe="a.py").predict("new.csv")`.

    Building the model executes code, and a run may come from anybody. So one of `model`, `recipe` and `trust` is
    needed.

    Args:
        run: the directory of the run.
        model: a model like the one that was trained, or a trainer with one. A trainer also knows the loss, so that
            predictions have the names of classes.
        recipe: `file.py` or `file.py:function`, which is called with the arguments that the run was trained with.
        which: "best", "last" or a step. By default the best, if a callback marked one, else the last.
        trust: execute the copy of the recipe in the run. Read it first.
    """
    path = run_path(run)
    if model is None:
        return _of_recipe(path, None if recipe is None else str(recipe), which, trust)
    if not isinstance(model, nn.Module | Trainer):
        raise ConfigError(f"hr.load takes a model, or a trainer with one, got a {type(model).__name__}.")
    if recipe is not None:
        raise ConfigError("hr.load takes a model or recipe=, which makes one. Leave one out.")
    return _of_model(path, model, which)


def _of_recipe(run: Path, given: str | None, which: str | int | None, trust: bool) -> Recipe:
    """A run, with the model that a recipe makes."""
    name, arguments = recipe_of(run, given, trust)
    try:
        made = load_recipe(name, arguments)
    except (FileNotFoundError, DataError) as error:
        raise RunError(
            f"the recipe {name} cannot read its data: {error} To predict without them, let the recipe give its data "
            "as a function, hr.Recipe(trainer, data=...)."
        ) from error
    made.step = load_weights(made.trainer.model, run, which=which)
    return made


def _of_model(run: Path, given: nn.Module | Trainer, which: str | int | None) -> Recipe:
    """A run, with a model that the caller has made."""
    contents = saved_weights(run, which)
    give_weights(given.model if isinstance(given, Trainer) else given, contents, run)
    data = codec.decode(contents.document(TRAINER).get("data"), {})  # none if a loader gave batches
    data = check(data, maybe(DICT), contents.where(TRAINER, "data")) or {}
    trainer = given if isinstance(given, Trainer) else Trainer(given, inputs=data.get("inputs"))
    made = Recipe(trainer)
    made.step = contents.step
    return made


def load_recipe(name: str, arguments: Mapping[str, Any] | None = None) -> Recipe:
    """Runs the recipe of a file with these arguments, plain values as a file has them: see `find_recipe`."""
    function = find_recipe(name)
    needed = any(each.default is each.empty for each in parameters_of(function).values())
    made = function(**typed(function, arguments or {})) if arguments or needed else function()
    if not isinstance(made, Recipe):
        raise ConfigError(f"{name} returned a {type(made).__name__}, not a Recipe.")
    return made


def made_again(run: Path, recipe: str | None, trust: bool) -> Recipe:
    """The recipe of a run as it was before the run, and in `fit` what a replay has to be given."""
    name, arguments = recipe_of(run, recipe, trust)
    options = (read_recipe(run) or {"fit": {}})["fit"]
    with auto_device(options.get("device")):
        made = load_recipe(name, arguments).open_data()
    if options.get("strategy"):
        set_strategy(made.trainer, parse_strategy(options["strategy"]))
    made.fit = {"val": made.val, "callbacks": made.fit.get("callbacks", ())}
    return made


def launch_recipe(training: Training) -> Trained:
    """Trains a recipe, with the workers that its options say."""
    from ..engines.launch import launch

    workers, engine = training.options.get("workers", 1), training.options.get("engine", "local")
    trained: Trained = launch(run_recipe, training, workers=workers, engine=engine)
    return trained


def run_recipe(training: Training) -> Trained:
    """In a worker: trains a recipe."""
    device = training.options.get("device")
    with auto_device(device):
        made = load_recipe(training.recipe, training.arguments).open_data()
    if device not in (None, "auto", str(made.trainer.device), made.trainer.device.type):
        raise ConfigError(
            f"--device {device}: the recipe trains on {made.trainer.device}, which it names itself. Leave device= out "
            "there."
        )
    if "strategy" in training.options:
        set_strategy(made.trainer, parse_strategy(training.options["strategy"]))
    fit = merged(made.fit, training.of_fit)
    run = Run.of(fit.get("run")).path
    assert not isinstance(run, Runs), "a recipe does not make these"
    if run is None and (asked := [name for name in OF_A_RUN if name in training.options]):
        raise ConfigError(f"{flag_of(asked[0])} is about a run, and there is none. Say --run DIR.")
    if run is not None and Runs.are_at(run):
        fit["run"] = replace(fit["run"], path=Runs(Path(run), partial(changed_arguments, arguments=training.arguments)))
    if run is not None:
        fit["callbacks"] = [*fit.get("callbacks", ()), _RecipeWriter(training)]
    made.fit = fit
    try:
        history = made.run()
    except CorruptError:
        raise
    except CheckpointError as error:
        if run is not None and (changed := changed_arguments(run_path(run), training.arguments)):
            listed = "\n  ".join(changed)
            message = (
                f"the recipe is given other values than the run has:\n  {listed}\nGive those, or name another run."
            )
            raise type(error)(f"{message} As it is, {error}") from error
        raise
    given = [name for name in LIMITS if fit.get(name) is not None] or ["epochs"]
    limit = next((name for name in given if name[:-1] in history.stopped), given[0])
    if run is not None and history.run is not None and Runs.are_at(run):
        run = Path(run, history.run.name)
    named = None if run is None else url_of(run) or str(Path(run))
    return Trained(history.last, named, history.stopped, limit)


def changed_arguments(run: Path, arguments: Mapping[str, Any]) -> list[str]:
    """What a recipe is given now and was given another value of when the run was trained."""
    try:
        had = (read_recipe(run) or {"arguments": {}})["arguments"]
    except HeadraceError:
        return []
    now = encoded(arguments)  # as the run has them
    return config.differences({name: had.get(name, value) for name, value in now.items()}, now)


def merged(own: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """What to pass to `fit`: what is asked goes before a recipe's own, and one limit replaces all of them."""
    limited = any(name in asked for name in LIMITS)
    fit = {name: value for name, value in own.items() if not (limited and name in LIMITS)} | dict(asked)
    of_run = {of_run: fit.pop(name) for name, of_run in OF_A_RUN.items() if name in fit}
    kept, path = Run.of(own.get("run")), fit.get("run")
    kept = path if isinstance(path, Run) else replace(kept, path=path or kept.path)
    return fit | {"run": replace(kept, **of_run)} if "run" in fit or of_run else fit


def set_strategy(trainer: Trainer, strategy: Strategy) -> None:
    """From now on the trainer is as if it had been made with this strategy."""
    trainer.work_with(strategy)
    vars(trainer)["resume_settings"] = trainer.resume_settings | {"strategy": config.plain(strategy)}


class _RecipeWriter(Callback):
    """Writes the recipe and its arguments into the directory of a run that has begun."""

    everywhere = False

    def __init__(self, training: Training) -> None:
        self._training = training

    def on_fit_start(self, info: Info) -> None:
        run = info.run
        assert run is not None
        values = {name: value for name, value in self._training.arguments.items() if name not in LIMITS}
        changed = changed_arguments(run, values) if info.resumed else []
        if changed and not self._training.options.get("override"):
            listed = "\n  ".join(changed)
            warnings.warn(f"the run goes on with other values of its recipe than it had:\n  {listed}", stacklevel=2)
        path = run / RECIPE_FILE
        text = readable(self._training.document)
        with disk.failing(f"writing {path}", run, len(text)):
            disk.write_file(path, text)
            save_source(run, self._training.recipe)
