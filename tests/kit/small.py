"""A small training, for tests that do not care which one it is, and what tells whether two trainings are the same.

X, Y = data()  # 50 rows of 6 numbers and their classes: batches of 16, 16, 16 and 2

def test_clipping_changes_the_weights() -> None:
    plain, clipped = trainer(), trainer(clip_norm=0.01)
    fit(plain)
    fit(clipped)
    assert not same(plain, clipped)

def test_a_schedule_resumes(tmp_path: Path) -> None:
    stop_and_resume(lambda: trainer(schedule=hr.Cosine()), [3, 5], tmp_path)
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.store.checkpoints import Store

ROWS, FEATURES, CLASSES, BATCH = 50, 6, 3, 16


def data(rows: int = ROWS, *, features: int = FEATURES, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Normal numbers, and for each row the class 0, 1 or 2: the place of the largest of its first three numbers."""
    x = torch.randn(rows, features, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :CLASSES].argmax(dim=1)


def model(
    *, norm: bool = False, dropout: float = 0.0, features: int = FEATURES, width: int = 8, seed: int = 0
) -> nn.Sequential:
    """Two layers, whose rows meet in batch statistics with `norm`, and which draw random numbers with `dropout`."""
    torch.manual_seed(seed)
    between = [*([nn.BatchNorm1d(width)] if norm else []), nn.Tanh(), *([nn.Dropout(dropout)] if dropout else [])]
    return nn.Sequential(nn.Linear(features, width), *between, nn.Linear(width, CLASSES))


class Parts(nn.Module):
    """Modules and parameters by name, used as a function says."""

    def __init__(self, call: Callable[[Any, Any], Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


def momentum(of: nn.Module | Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(of.parameters() if isinstance(of, nn.Module) else of, lr=0.1, momentum=0.9)


def adam(of: nn.Module | Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(of.parameters() if isinstance(of, nn.Module) else of, lr=0.02)


def trainer(of: nn.Module | None = None, kind: type[hr.Trainer] = hr.Trainer, **options: Any) -> hr.Trainer:
    """A trainer of this model, or of a new `model()`; options replace cross entropy, momentum and batches of 16."""
    defaults = {"loss": hr.CrossEntropy(), "optimizer": momentum, "batch_size": BATCH}
    return kind(model() if of is None else of, **{**defaults, **options})


def fit(made: hr.Trainer, *sources: Any, **options: Any) -> hr.History:
    """Trains, for two epochs on `data()` unless told otherwise, without a display of the progress.

    What `hr.Run` takes, as in `every="1 step"`, may be among the options.
    """
    return made.fit(*(sources or [data()]), **_given(options))


def drive(made: hr.Trainer, *sources: Any, until: int | None = None, **options: Any) -> int:
    """Trains as `fit` does, by a loop that is left after the step `until`; returns the step that it went on from."""
    for info in made.steps(*(sources or [data()]), **_given(options)):
        if info.step == until:
            break
    return info.resumed


def in_run(run: Any = None, **options: Any) -> dict[str, Any]:
    """The options of a `fit`, with those that are about its run in one `hr.Run`."""
    names = ("resume", "every", "keep", "override", "wait", "logs")
    about = {name: options.pop(name) for name in names if name in options}
    return {"run": replace(hr.Run.of(run), **about), **options}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    limits = {} if options.keys() & {"epochs", "steps", "samples", "minutes"} else {"epochs": 2}
    return in_run(**{"progress": False, **limits, **options})


# --- what a run has saved, and when ----------------------------------------------------------------------------


def saved_steps(run: Path) -> list[int]:
    """The steps of a run's checkpoints, which are verified."""
    store = Store(run / "checkpoints", None)
    return [store.verify(step).step for step in store.steps()]


def saved_weights(run: Path, step: int | None = None) -> dict[str, Tensor]:
    """The weights and buffers in the checkpoint of a step, or in the last one."""
    return (
        Store(run / "checkpoints", None)
        .load(saved_steps(run)[-1] if step is None else step)
        .tensors["model.safetensors"]
    )


class Clock:
    """Time that passes where a test says so, and nowhere else: in the place of the module `time`."""

    now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def passes(self, seconds: float) -> None:
        self.now_s += seconds

    def __deepcopy__(self, memo: Any) -> "Clock":
        return self  # there is one time, also for a copy of a model that has it


# --- what is the same -----------------------------------------------------------------------------------------


def state(of: Any) -> Any:
    """A copy of a trainer's weights, buffers and optimizers, of a module's weights and buffers, or of any value."""
    if isinstance(of, hr.Trainer):
        return {"model": state(of.model), "optimizers": [state(o.state_dict()) for o in of.optimizers.values()]}
    if isinstance(of, nn.Module):
        return state(of.state_dict())
    if isinstance(of, Mapping):
        return {key: state(value) for key, value in of.items()}
    if isinstance(of, list | tuple):
        return [state(value) for value in of]
    return of.detach().clone() if isinstance(of, Tensor) else of


def same(a: Any, b: Any) -> bool:
    """Whether two trainers, modules, or values made of tensors have the same state, to the last bit."""
    return not difference(a, b)


def difference(a: Any, b: Any) -> str:
    """The first place where two states differ, and how; nothing if they are the same. A NaN is the same as itself."""
    return _difference(state(a), state(b), "")


def _difference(a: Any, b: Any, place: str) -> str:
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return next((found for key in a if (found := _difference(a[key], b[key], f"{place}/{key}"))), "")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next((f for n in range(len(a)) if (f := _difference(a[n], b[n], f"{place}/{n}"))), "")
    return "" if _bits(a) == _bits(b) else f"{place or 'the value'}: {a} and {b}"


def exact(of: Any) -> Any:
    """The state of a value, with bits in place of numbers and tensors, as it can be sent to another process."""
    of = state(of)
    if isinstance(of, dict):
        return {key: exact(value) for key, value in of.items()}
    return [exact(value) for value in of] if isinstance(of, list) else _bits(of)


def _bits(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return "array", value.dtype, value.shape, value.tobytes()
    if isinstance(value, Tensor):
        flat = value.cpu().to_dense() if value.is_sparse else value.cpu()
        return "tensor", value.dtype, value.shape, flat.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return type(value), value.hex() if isinstance(value, float) else value


# --- resuming -------------------------------------------------------------------------------------------------


class StoppedError(Exception):
    """Ends a training from within."""


class StopAt(hr.Callback):
    """Ends a training after this step, in the middle of everything: nothing is saved for it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == self.step:
            raise StoppedError


def stop_and_resume(
    make: Callable[[], hr.Trainer],
    steps: Sequence[int],
    where: Path,
    /,
    *sources: Any,
    callbacks: Callable[[], Sequence[hr.Callback]] = list,
    every: str = "2 steps",
    **how: Any,
) -> hr.Trainer:
    """Fails unless a training that is ended after each of these steps, and resumed, is the same as an undisturbed one.

    Each part has a trainer and callbacks of its own, and a source of its own where `sources` has a function that makes
    one; and it has other random numbers until it has read what the part before has saved. All that `state` knows of
    the trainer is compared, the history and the random generators. `how` goes to `fit`. Returns the resumed trainer.
    """

    def part(run: Path, number: int, *more: hr.Callback) -> tuple[hr.Trainer, Any]:
        made = make()
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(number)
        given = [source() if callable(source) else source for source in sources]
        history = fit(made, *given, run=hr.Run(run, every=every), callbacks=[*callbacks(), *more], **how)
        return made, [state(made), history.rows, random.getstate(), np.random.get_state(), torch.get_rng_state()]

    _, expected = part(where / "undisturbed", 0)
    for number, step in enumerate(steps):
        with contextlib.suppress(StoppedError):
            part(where / "resumed", number, StopAt(step))
            raise AssertionError(f"the training has ended before step {step}")
    made, found = part(where / "resumed", len(steps))
    assert not (where_it_differs := difference(found, expected)), where_it_differs
    return made
