"""The control of exact resume: a part of the state that is lost or wrong is noticed, whichever it is."""

import copy
import shutil
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.resume_harness import Record, Stop, differences, in_process, saved_parts, uninterrupted
from kit.sampled import sampled
from torch import Tensor

from headrace.store.checkpoints import Store
from headrace.train.checkpoint import decode

State = dict[str, Any]
Change = Callable[[State], None]
MIDDLE = 13  # of the second epoch of ten steps
Prepared = Callable[[str, int, str], tuple[Path, Record]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Where a training has been stopped, and what it would have come to."""
    expected: dict[str, Record] = {}
    stopped: dict[tuple[str, int, str], Path] = {}

    def of(name: str, step: int, kind: str) -> tuple[Path, Record]:
        if name not in expected:
            expected[name] = uninterrupted(name, tmp_path_factory.mktemp("whole") / "run")
        if (name, step, kind) not in stopped:
            stopped[name, step, kind] = tmp_path_factory.mktemp("stopped") / "run"
            in_process(name, stopped[name, step, kind], Stop(step, kind))
        return stopped[name, step, kind], expected[name]

    return of


def at(*path: Any, to: Any) -> Change:
    """Sets a value in the state; `to` may be a function of what is there."""

    def change(state: State) -> None:
        state[path[0]] = _replaced(state[path[0]], path[1:], to)

    return change


def _replaced(value: Any, path: tuple[Any, ...], to: Any) -> Any:
    """The same with another value at the end of the path."""
    if not path:
        return to(value) if callable(to) else to
    if isinstance(value, dict):
        return {**value, path[0]: _replaced(value[path[0]], path[1:], to)}
    parts = [*value[: path[0]], _replaced(value[path[0]], path[1:], to), *value[path[0] + 1 :]]
    return tuple(parts) if isinstance(value, tuple) else parts


def remembered(key: str, optimizer: str = "") -> Change:
    """Everything of one name that an optimizer remembers begins at 0 again."""

    def change(state: State) -> None:
        entries = state["step"]["optimizers"][optimizer]["state"].values()
        assert any(key in entry for entry in entries)
        for entry in entries:
            if key in entry:
                entry[key] = entry[key] * 0

    return change


def forgotten(optimizer: str) -> Change:
    return at("step", "optimizers", optimizer, "state", to=none)


def another_generator(state: Tensor) -> Tensor:
    return torch.Generator().manual_seed(77).get_state()


def other_words(state: list[Any]) -> list[Any]:
    return [state[0], torch.cat([state[1][:-1].roll(1), state[1][-1:]]), state[2]]


def other_key(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "state": {**state["state"], "key": np.roll(state["state"]["key"], 1)}}


def plus(n: float) -> Callable[[Any], Any]:
    return lambda value: value + n


def zero(value: Any) -> Any:
    return value * 0


def none(value: Any) -> Any:
    return type(value)()


DRAWS, REPORTS = "draws in a callback", "reports within epochs"
GOES_ON, ENDS = "source that goes on", "source that ends"
OBJECTIVE, SEVERAL, SAMPLES = "objective with parameters", "several optimizers", "reports by samples"
MARK = "EarlyStopping val/loss"
LOSSES = ("workers", 0, "tally", "losses", "0", "terms")
Lost = tuple[str, Change, str]
LOST: dict[str, Lost] = {  # the training, what is lost, and where that shows (among others)
    "torch's random numbers": ("table", at("workers", 0, "rng", "torch", to=another_generator), "weights"),
    "Python's random numbers": (DRAWS, at("workers", 0, "rng", "python", to=other_words), "weights"),
    "Python's next number": (DRAWS, at("workers", 0, "rng", "python", 2, to=3.0), "weights"),
    "NumPy's random numbers": (DRAWS, at("workers", 0, "rng", "numpy", to=other_key), "weights"),
    "the step": ("table", at("counters", "steps", to=plus(-1)), "events"),
    "the samples": ("cyclic", at("counters", "samples", to=plus(-4)), "weights"),
    "the epoch": ("table", at("counters", "epochs", to=zero), "events"),
    "the batch of the epoch": ("table", at("place", "batch", to=0), "events"),
    "a scheduler": ("cosine", at("rates", 0, "state", "last_epoch", to=0), "weights"),
    "a scheduler's base": ("function", at("rates", 0, "state", "base_lrs", to=[0.7]), "weights"),
    "a plateau": ("plateau of steps", at("rates", 0, "state", "best", to=float("inf")), "weights"),
    "the rate": ("step", at("step", "optimizers", "", "groups", 0, "lr", to=0.1), "weights"),
    "the first rate": ("table", at("step", "optimizers", "", "groups", 0, "initial_lr", to=0.2), "weights"),
    "a group's decay": ("groups", at("step", "optimizers", "", "groups", 1, "weight_decay", to=0.0), "weights"),
    "the scale": ("fp16", at("step", "scaler", "scale", to=65536.0), "weights"),
    "the scaler": ("fp16", at("step", "scaler", to=none), "weights"),
    "the cursor of a table": ("table", at("source", "cursor", "position", to=0), "weights"),
    "the epoch of a table": ("table", at("source", "cursor", "epoch", to=0), "weights"),
    "the cursor of a source": (ENDS, at("source", "cursor", "at", to=0), "weights"),
    "the order of a source": (GOES_ON, at("source", "cursor", "order", to=lambda o: o.roll(1)), "weights"),
    "the noise of a source": (GOES_ON, at("source", "cursor", "generator", to=another_generator), "weights"),
    "the beginning of a source": (ENDS, at("source", "initial", "generator", to=another_generator), "weights"),
    "the momentum": ("momentum", remembered("momentum_buffer"), "weights"),
    "one of two optimizers": (SEVERAL, forgotten("a"), "weights"),
    "the other of two optimizers": (SEVERAL, forgotten("b"), "weights"),
    "the weights": ("table", at("model", "0.weight", to=zero), "weights"),
    "the mean of a batch norm": ("table", at("model", "1.running_mean", to=zero), "weights"),
    "the variance of a batch norm": ("table", at("model", "1.running_var", to=torch.ones_like), "weights"),
    "the count of a batch norm": ("table", at("model", "1.num_batches_tracked", to=zero), "weights"),
    "a buffer that a model does not save": (OBJECTIVE, at("modules", "transient", "drift", to=zero), "weights"),
    "state that is no tensor": (OBJECTIVE, at("extra", "_extra_state", "calls", to=0), "weights"),
    "a weight of the objective": (OBJECTIVE, at("modules", "others", 0, "centers", to=zero), "weights"),
    "a buffer of the objective": (OBJECTIVE, at("modules", "others", 0, "seen", to=zero), "weights"),
    "sums of losses": ("table", at(*LOSSES, "cross_entropy", 1, to=zero), "history"),
    "weights of losses": ("table", at(*LOSSES, "cross_entropy", 2, to=plus(4)), "history"),
    "the tally": ("table", at(*LOSSES, to=none), "history"),
    "a block of outputs": ("table", at("workers", 0, "tally", "metrics", "0 ", "block", to=none), "history"),
    "which is the best": (SAMPLES, at("marks", MARK, "step", to=30), "weights"),
    "the history": (REPORTS, at("history", "sha256", to="0" * 64), "raised"),
    "how long a callback has waited": (SAMPLES, at("callbacks", "EarlyStopping", "waited", to=49), "stopped"),
    "what a callback compares with": (SAMPLES, at("callbacks", "EarlyStopping", "reference", to=-9.0), "documents"),
    "a ranking": (SAMPLES, at("callbacks", "EarlyStopping", "ranking", to=none), "weights"),
    "what a callback has seen": (REPORTS, at("callbacks", "Counts", "seen", to=zero), "tensors"),
    "one of two callbacks": (
        REPORTS,
        at("callbacks", to=lambda all: {key: all[key] for key in all if key != "Counts 2"}),
        "documents",
    ),
    "how many were skipped": ("skipping", at("step", "skipped", to=0), "events"),
    "the size of a microbatch": ("as much as fits", at("workers", 0, "microbatch", to=None), "weights"),
}
CORE = {  # of each kind of state one; two kinds of trainings have them
    *("torch's random numbers", "the step", "the cursor of a table", "the variance of a batch norm", "sums of losses"),
    *("a block of outputs", "a buffer that a model does not save", "state that is no tensor"),
    "a weight of the objective",
}
MEMORIES = {
    "momentum": ["momentum_buffer"],
    "table": ["exp_avg", "exp_avg_sq", "step"],
    "adamw": ["exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"],
    "nadam": ["exp_avg", "exp_avg_sq", "mu_product", "step"],
    "radam": ["exp_avg", "exp_avg_sq", "step"],
    "adamax": ["exp_avg", "exp_inf", "step"],
    "adagrad": ["sum", "step"],
    "adadelta": ["square_avg", "acc_delta", "step"],
    "rmsprop": ["square_avg", "grad_avg", "momentum_buffer", "step"],
    "rprop": ["prev", "step_size", "step"],
    "asgd": ["ax", "eta", "mu", "step"],
    "adafactor": ["row_var", "col_var", "variance", "step"],
}
UNCHANGED = sorted({name for name, _, _ in LOST.values()})


def core(value: str, chosen: set[str]) -> Any:
    return value if value in chosen else pytest.param(value, marks=pytest.mark.slow)


def noticed(name: str, change: Any, prepared: Prepared, step: int = MIDDLE, kind: str = "break") -> dict[str, str]:
    """What differs once this has happened to the state; a training that does not go on at all counts as noticed."""
    where, expected = prepared(name, step, kind)
    here = where.with_name("changed")
    shutil.rmtree(here, ignore_errors=True)
    shutil.copytree(where, here)
    try:
        return differences(in_process(name, here, None, change), expected)
    except AssertionError as error:  # as the child's traceback
        return {"raised": str(error)}


@pytest.mark.parametrize("name", [core(name, {"table"}) for name in sampled(UNCHANGED, keep=["table", OBJECTIVE])])
def test_nothing_is_noticed_where_nothing_is_changed(name: str, prepared: Prepared) -> None:
    """The control of the control, and of the way in which the state is reached."""
    assert noticed(name, copy.deepcopy, prepared) == {}


@pytest.mark.parametrize("lost", [core(lost, CORE) for lost in sampled(LOST, keep=CORE, of=6)])
def test_a_part_of_the_state_that_is_lost_is_noticed(lost: str, prepared: Prepared) -> None:
    name, change, shown = LOST[lost]
    found = noticed(name, change, prepared)
    assert shown in found, found


@pytest.mark.parametrize(
    ("kind", "memory"), sampled([(kind, key) for kind, keys in MEMORIES.items() for key in keys], of=12)
)
def test_whatever_an_optimizer_remembers_is_noticed(kind: str, memory: str, prepared: Prepared) -> None:
    assert noticed(kind, remembered(memory), prepared).keys() & {"tensors", "raised"}


def test_what_was_due_is_not_forgotten_when_a_validation_was_cut_short(prepared: Prepared) -> None:
    stopped: Any = {"step": 13, "kind": "validating"}
    assert noticed(SAMPLES, copy.deepcopy, prepared, **stopped) == {}
    assert "events" in noticed(SAMPLES, at("place", "rows", to=0), prepared, **stopped)


# --- every part there is --------------------------------------------------------------------------------------

IDLE = [
    ("counters", "minutes"),  # the clock
    ("place", "rows"),  # of the last step: what was due then has been done
    ("rates",),  # of a schedule of progress: rows tell the same where they are known; of a scheduler: see LOST
    ("step", "microbatch"),  # a setting, unless it is "auto"
    ("complete",),  # or else the same checkpoint would be written again
    ("marks", MARK),  # its owner puts it right, where it does not say what the owner wants
    ("best",),  # for those who want its weights; the training goes by the marks
    ("limits",),  # for the log, which names those that are others now
    ("data",),  # for those who predict files with the run
]


def parts(state: State) -> list[tuple[str, ...]]:
    """The paths to every part: to what a part is made of, where it is made of several."""
    found: list[tuple[str, ...]] = []
    for name, part in state.items():
        found += [(name, key) for key, value in part.items() if _held(value)] if isinstance(part, dict) else [(name,)]
    return [path for path in found if path not in IDLE and path[:1] not in IDLE and _held(reduce(getitem, path, state))]


def _held(value: Any) -> bool:
    """Whether there is any value in it."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return any(map(_held, items)) if items is not None else True


def other(value: Any) -> Any:
    """The same with every value changed for another of its kind."""
    if isinstance(value, dict):
        return {key: other(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(other, value))
    if isinstance(value, bool):
        return not value
    if isinstance(value, Tensor | np.ndarray):
        return ~value if value.dtype in (torch.bool, np.bool_) else value + 1
    if isinstance(value, int | float):
        return value + 1
    return 1.0 if value is None else f"{value}x"


@pytest.mark.parametrize("name", ["table", SAMPLES, OBJECTIVE, GOES_ON, "fp16", "cosine", SEVERAL])
def test_there_is_no_part_of_the_state_that_nobody_would_miss(name: str, prepared: Prepared) -> None:
    where, _ = prepared(name, MIDDLE, "break")
    contents = Store(where / "run" / "checkpoints", None).newest()
    assert contents is not None
    paths = parts(saved_parts(decode(contents)))
    assert len(paths) > 30
    idle = [path for path in sampled(paths, of=16) if not noticed(name, at(*path, to=other), prepared)]
    assert idle == []
