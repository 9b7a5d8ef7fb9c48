"""What the loop shows of itself, to whoever drives `steps()` and to callbacks."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..length import Counters, Length, interval
from ..loss.objective import Objective, Supervised
from ..loss.tally import LossSums
from ..step.settings import mode
from ..store import rng
from .history import History
from .monitor import Expected, check_watched, mode_of, side_of

if TYPE_CHECKING:
    from ..arena.replica import Replica
    from ..data.source import Source
    from ..loss.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Best:
    """The step whose weights are to be kept, and by which number."""

    key: str
    value: float
    step: int
    keep: tuple[int, ...] = ()
    """The steps whose checkpoints are to be kept, this one among them."""
    restore: bool = False
    """Whether the model is to end as it was then."""


@dataclass(slots=True)
class Info:
    """The state of a training, which is updated in place: copy what you want to keep."""

    trainer: Any
    counters: Counters
    limits: list[Length]
    history: History
    measured: tuple[str, ...] = ("train", "val", "test")
    """Whose numbers there will be: keys begin with them, as with "val", or "val/clean" where sets have names."""
    expected: Expected = field(default_factory=Expected)
    """The numbers that there will be, as far as they are known beforehand."""
    batches: int | None = None
    """Of an epoch, where that is known."""
    macrobatch: int = 0
    macrobatches: int | None = None
    outcome: Outcome | None = None
    sums: LossSums = field(default_factory=LossSums)
    """Of the loss terms since the last report, of this worker's rows."""
    stopping: str = ""
    """Why the loop ends after this update, if it does."""
    stop_request: str = ""
    """Why this worker wants it to end, as long as the others have not been asked."""
    is_only_worker: bool = True
    """Whether there is nobody to be asked."""
    leased: bool = False
    """Whether a center lends out the data: it is known there when they end."""
    rates: list[float] = field(default_factory=list)
    """Rows a second of each worker, as of the last report."""
    per_row: dict[str, float] = field(default_factory=dict)
    """What a `Timer` knows of a row: its tokens, and its share of the operations that the devices make in a second."""
    marks: dict[str, Best] = field(default_factory=dict)
    """The best step so far, for each who looks for one."""
    resumed: int = 0
    """The step from which this training has gone on."""
    run: Path | None = None
    """The directory of the run."""
    train: Any = None
    """The data that are trained on."""
    scored: Mapping[str, Source] = field(default_factory=dict)
    """The data that are scored, by name: "val", "test", "val/clean"."""
    evaluated_weights: Sequence[Tensor] | None = None
    """The weights to judge and to keep instead of the model's own, like those of the replica."""
    extra_numbers: dict[str, float] = field(default_factory=dict)
    """What the next report will say beside what is measured."""
    logged: set[str] = field(default_factory=set)
    """What any report has said beside that."""
    sealed: bool = False
    """Whether the report of this step is complete."""
    owners: set[str] = field(default_factory=set)
    """What those who ask have a name for, in this training: marks of the best, frozen parameters."""
    raise_at_end: Exception | None = None
    """What is raised once the training has ended well, for whoever asked it to end."""
    asked: list[tuple[str, Any]] = field(default_factory=list)
    """What callbacks have asked for and the loop has not done yet."""
    _began: float = 0.0

    @property
    def step(self) -> int:
        """Updates made so far."""
        return self.counters.steps

    @property
    def samples(self) -> int:
        """Rows used so far, over all workers."""
        return self.counters.samples

    @property
    def epoch(self) -> int:
        """Whole passes over the data so far."""
        return self.counters.epochs

    @property
    def batch(self) -> int:
        """The batch of this epoch just used, counted from 1."""
        return self.counters.batch

    @property
    def rows(self) -> int:
        """Rows of the last update, over all workers."""
        return self.counters.rows

    @property
    def ends_epoch(self) -> bool:
        """Whether the last update ended an epoch."""
        return self.counters.ends_epoch

    @property
    def losses(self) -> dict[str, float]:
        """`total_loss` and every term of the last update, read from the device now."""
        return {} if self.outcome is None else {name: float(loss) for name, loss in self.outcome.losses.items()}

    @property
    def means(self) -> dict[str, float]:
        """`total_loss` and every term as means over the rows since the last report, read from the device now.

        Of several workers, over the rows of this one, unless they share updates.
        """
        found = LossSums().load([self.sums.state_dict()]).read()  # to read the sums themselves would round them
        return {name or "total_loss": mean for name, mean in found.items()}

    @property
    def rate(self) -> float:
        """The learning rate, of the first group of the first optimizer."""
        return float(next(iter(self.trainer.optimizers.values())).param_groups[0]["lr"])

    @property
    def skipped(self) -> int:
        """Updates left out so far because a loss or a gradient was not finite (`nonfinite="skip"`)."""
        return int(self.trainer.skipped)

    @property
    def replica(self) -> Replica:
        """The model as a few long vectors, in place."""
        return self.trainer.updates.replica()  # type: ignore[no-any-return]

    def start(self, batches: int | None, macrobatches: int | None) -> None:
        """The clock starts."""
        self.batches, self.macrobatches = batches, macrobatches
        self._began = time.perf_counter() - 60 * self.counters.minutes

    def look_around(self, macrobatch: int) -> None:
        """Updates have been made, the last one of a batch of this macrobatch: looks at the clock and at limits."""
        self.counters.minutes = (time.perf_counter() - self._began) / 60
        self.macrobatch = macrobatch
        self.look_at_limits()

    def look_at_limits(self) -> None:
        """Asks the loop to end if a limit has been reached. Only the clock differs from worker to worker."""
        for limit in self.limits:
            if limit.reached(self.counters):
                why = f"{limit} reached"
                if limit.unit == "minutes":
                    self.stop(why)
                elif limit.unit == "steps" or not self.leased:
                    self.stopping = self.stopping or why

    def stop(self, why: str) -> None:
        """Asks the loop to end after this update, or, with several workers, as soon as all of them know."""
        if self.is_only_worker:
            self.stopping = self.stopping or why
        else:
            self.stop_request = self.stop_request or why

    @property
    def best(self) -> Best | None:
        """The best step so far: of the owner who restores it at the end, else of the first."""
        marks = list(self.marks.values())
        return next((mark for mark in marks if mark.restore), marks[0] if marks else None)

    @property
    def kept(self) -> list[int]:
        """The steps whose weights are to be kept."""
        return sorted({step for mark in self.marks.values() for step in mark.keep})

    def mark_best(
        self, key: str, value: float, step: int, *, keep: Sequence[int] = (), restore: bool = False, owner: str = ""
    ) -> None:
        """Asks the loop to keep the weights of this step, the best so far by this key, and of the steps to `keep`.

        What the same `owner` has asked for with the same key before is forgotten; what an owner with a name asked for
        is forgotten too when a training is resumed without it.
        """
        self.owners.add(f"{owner} {key}")
        self.marks[f"{owner} {key}"] = Best(key, value, step, tuple(keep) or (step,), restore)

    def fires(self, every: str | Length) -> bool:
        """Whether the last update ended an interval of this length, as "100 steps"."""
        return interval(every, "every").fires(self.counters)

    def log(self, numbers: Mapping[str, float]) -> None:
        """Adds numbers to the report of this step: to the history, metrics.jsonl and trackers.

        From every hook but those that come after the report: on_report, on_checkpoint, on_error and on_fit_end.
        """
        if self.sealed:
            raise ConfigError(f"{', '.join(map(str, numbers))}: the report of this step is complete. Log it earlier.")
        taken = {*self.row(), *(self.history.keys_at(self.step) - self.logged)}
        for name, number in numbers.items():
            if not isinstance(name, str) or not name or name in taken:
                raise ConfigError(f"log() takes numbers by names of their own, got {name!r}, which is not one.")
            try:
                self.extra_numbers[name] = float(number)
            except (TypeError, ValueError):
                raise ConfigError(f"log() takes numbers, got {number!r} for {name!r}.") from None
        self.logged |= numbers.keys()

    def set_rate(self, rate: float) -> None:
        """Asks for this learning rate from the next update on; groups with other rates keep their ratio to it."""
        if not math.isfinite(rate) or rate < 0:
            raise ConfigError(f"a learning rate is a number of 0 or more, got {rate!r}.")
        self.asked.append(("rate", rate))

    def freeze(self, *patterns: str, owner: str = "") -> None:
        """Asks to leave parameters as they are, from the next update on; names or patterns, as in "features.*".

        A parameter is trained again when all owners who have frozen it thaw it. What an owner with a name wants ends
        when a training is resumed without it.
        """
        self.owners.add(owner)
        self.asked.append(("freeze", (patterns, owner)))

    def thaw(self, *patterns: str, owner: str = "") -> None:
        """Asks to train parameters again that this owner has frozen; all of them, unless some are named."""
        self.owners.add(owner)
        self.asked.append(("thaw", (patterns or ("*",), owner)))

    def evaluate_with(self, tensors: Sequence[Tensor] | None) -> None:
        """Requests that these weights are validated and kept instead of the model's own, which are trained further.

        They are like `replica.tensors`, or like `replica.values` where statistics are to be the model's own. They
        may change in place. Validation and test use them, checkpoints and the best model have them, and with them the
        model ends.
        """
        self.evaluated_weights = tensors

    @contextmanager
    def evaluating(self) -> Iterator[Any]:
        """The model as it would be validated now: averaged weights if there are any, eval mode, no gradients.

        `with info.evaluating() as model: ...`; weights, modes and random numbers are as they were afterwards, also
        after an error. Of several workers that make updates of their own it is this one's model.
        """
        trainer, averages = self.trainer, self.evaluated_weights
        before = rng.capture(trainer.device)
        weights = [] if averages is None else [tensor.clone() for tensor in self.replica.tensors]
        with mode(trainer.all_modules, training=False), torch.no_grad():
            try:
                if averages is not None:
                    self.replica.write(averages)
                yield trainer.model
            finally:
                if weights:
                    self.replica.write(weights)
                rng.restore(before, trainer.device)

    def forget_unclaimed(self) -> None:
        """Forgets best steps whose owner is missing after a resume."""
        self.marks = {name: m for name, m in self.marks.items() if name in self.owners or name.startswith(" ")}
        self.history.marked = None if self.best is None else self.best.step

    def row(self) -> dict[str, Any]:
        """The counters, as a report begins with them."""
        return {"epoch": self.epoch, "step": self.step, "samples": self.samples, "rate": self.rate}


def expected(trainer: Any, families: Iterable[str], hooks: Iterable[Callable[..., Any]]) -> Expected:
    """The numbers that a training will measure; `hooks` are those from which a callback can log others."""
    known = {
        "train": _terms(trainer.objectives, not trainer.has_own_train_step, training=True),
        "val": _terms(trainer.eval_objectives, not trainer.has_own_evaluate_step, training=False),
    }
    has_user_hooks = any(not str(getattr(hook, "__module__", "")).startswith("headrace.") for hook in hooks)
    terms = {family: known[family.partition("/")[0]] for family in families}
    return Expected.of(terms, trainer.metrics.names, has_user_hooks)


def _terms(objectives: Mapping[str, Objective], plainly: bool, training: bool) -> list[str] | None:
    """The names of the loss terms; `None` where only a batch tells them."""
    only = next(iter(objectives.values()))
    if len(objectives) > 1 or type(only) is not Supervised or not plainly:
        return None
    terms = {name: loss for name, loss in only.loss.items() if training or not loss.training_only}
    return [] if terms.keys() == {"loss"} and terms["loss"].coefficient == 1 else list(terms)  # it is the loss itself


def watched(who: str, key: str, mode: str, info: Info) -> str:
    """Raises at the start of a training if the number will not be measured; "min" or "max", whichever is better."""
    check_watched(who, key, info.expected)
    metrics = info.trainer.metrics
    measured = [name for name in metrics.names if key.endswith(f"/{name}")]
    name = max(measured, key=len, default=key.partition("/")[2] or key)
    return mode_of(key, mode, metrics.mode(name) or side_of(metrics.kind(name)), info.expected.keys)


def warn_if_it_never_came(who: str, key: str, info: Info) -> None:
    """Warns at the end of a training if a number that only a callback could log was never logged."""
    if key.partition("/")[0] not in info.measured and not info.history[key]:
        there = ", ".join(dict.fromkeys(each for row in info.history for each in row if each not in info.row()))
        warnings.warn(
            f"{who} looks at {key!r}, which never came: it has done nothing. There were: {there}.", stacklevel=2
        )
