"""A model with its losses and optimizers: updated by hand, scored and applied, without a training around it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from ..data.batch import Batch, Stream
from ..data.feed import Feed
from ..data.read_by import nulls_of
from ..data.reader import rewound
from ..data.source import WHOLE, Source
from ..data.staging import BatchSize, Sizes
from ..errors import ConfigError, DataError
from ..length import whole
from ..loss.by_output import MetricsByOutput, Wanted
from ..loss.call import Inputs
from ..loss.objective import Supervised, measured_by, module_of, scoring
from ..loss.outcome import Outcome, as_outcome
from ..workers.here import here
from ..workers.strategy import Strategy
from . import check, config, evaluate
from .given import (
    OptimizerLike,
    Optimizers,
    batch_for,
    by_key,
    check_optimizers,
    compile_in_place,
    data_sets,
    deterministic_mode,
    pauses,
    scorers,
    source_on,
)
from .guard import make_guard
from .kept import Kept
from .precision import Precision
from .settings import Settings
from .signals import Signals
from .step import Step
from .team import make_team
from .use import Use, one_thread
from .weights import categories_of

DEFAULT_BATCH = 128
_BETWEEN_TRAININGS = ("batch_size", "schedule", "metrics", "seed", "order", "macrobatch", "deterministic")
"""Settings that may be changed between two trainings."""
_MADE_WITH = (
    *("model", "loss", "optimizer", "precision", "strategy", "device", "inputs", "target", "compile", "nonfinite"),
    *("eval_loss", "arena", "tape", "objectives", "optimizers", "eval_objectives"),
)
"""What stays as it was given."""


class Trainable:
    """What a `Trainer` is before it trains: see there for its arguments."""

    def __init__(
        self,
        model: nn.Module,
        loss: Any = None,
        optimizer: OptimizerLike | Optimizers | tuple[()] = (),
        *,
        batch_size: BatchSize | None = None,
        microbatch: int | Literal["auto"] | None = None,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        precision: str = "fp32",
        metrics: Wanted = (),
        schedule: Any = None,
        strategy: Strategy | None = None,
        device: str | torch.device = "auto",
        seed: int = 0,
        order: str = "full",
        macrobatch: int | str = "auto",
        inputs: Inputs = None,
        target: str = "y",
        compile: bool = False,
        deterministic: bool = False,
        nonfinite: str = "stop",
        eval_loss: Any = None,
        arena: bool = True,
        tape: bool | Literal["auto"] = "auto",
    ) -> None:
        given = locals().copy()
        for name, value in given.items():
            self._check_setting(name, value)
        microbatch = whole(microbatch) or microbatch
        self._wanted, self._team = strategy, make_team(strategy)
        self.device = check.device_for(device, model)
        self.model, self._team.device = model.to(self.device), self.device
        self.objectives, self.optimizers = by_key(loss, optimizer, model, own=not self._updates_plainly)
        self.eval_objectives = scorers(self.objectives, eval_loss)
        self._modules = [model]
        """Everything that has a train and an eval mode."""
        for objective in [*self.objectives.values(), *self.eval_objectives.values()]:
            objective.bind(inputs, target)
            module = module_of(objective)
            if module is not None and module not in self._modules:
                self._modules.append(module.to(self.device))
        check_optimizers(model, self.optimizers, self.objectives)
        self.precision = Precision(precision, self.device)
        self.batch_size, self.seed, self.order, self.macrobatch = batch_size, seed, order, macrobatch
        self.target, self.deterministic, self.schedule = target, deterministic, schedule
        self.metrics, self.strategy = MetricsByOutput(metrics), self._team.strategy
        check.can_split(self.objectives, microbatch)
        settings = Settings(microbatch, clip_norm, clip_value, arena, tape)
        guard = make_guard(self.device, skip=nonfinite == "skip")
        parts = model, self.objectives, self.optimizers, settings, self.precision, guard, self.strategy
        looks = self.metrics.looks(measured_by(self.objectives, target))
        self._step = Step(*parts, looks=looks, pauses=(every := pauses(optimizer)))
        self._known_streams: list[Stream] | None = None
        self._trained_on: Sequence[Stream] | None = None  # by the last training
        self._history: Any = None  # what the last training has reported
        self._scheduled_rates: list[float] = []  # where the last schedule has left them
        self._info: Any = None  # of the training under way
        self._along: evaluate.Watch = evaluate.unwatched  # who is called along a pass over data
        self._unsaved: Any = None  # finds optimizers that a run would miss, while one with train_step is trained
        self._signals, self._use = Signals(), Use()
        self._config = config.of_settings(given) | {"optimizer": config.of_optimizers(self.optimizers, every)}
        if compile:
            compile_in_place(model)
        self._made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if "_made" in vars(self):
            if name in _MADE_WITH:
                raise ConfigError(
                    f"{name} is what a trainer is made with, and stays as it is. Make another Trainer with it."
                )
            if name in _BETWEEN_TRAININGS:
                value = self._between_trainings(name, value)
        super().__setattr__(name, value)

    @property
    def microbatch(self) -> int | Literal["auto"] | None:
        """Rows that pass the model at once, from the next update on; "auto": fewer when memory runs out."""
        return self._step.settings.microbatch

    @microbatch.setter
    def microbatch(self, rows: int | Literal["auto"] | None) -> None:
        check.can_split(self.objectives, rows)
        self._from_the_next_update("microbatch", whole(rows) or rows)

    @property
    def clip_norm(self) -> float | None:
        """The largest norm of the gradients, from the next update on."""
        return self._step.settings.clip_norm

    @clip_norm.setter
    def clip_norm(self, norm: float | None) -> None:
        self._from_the_next_update("clip_norm", norm)

    @property
    def clip_value(self) -> float | None:
        """The largest value in the gradients, from the next update on."""
        return self._step.settings.clip_value

    @clip_value.setter
    def clip_value(self, value: float | None) -> None:
        self._from_the_next_update("clip_value", value)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer; the first of several."""
        check.has_optimizer(self.optimizers, "trainer.optimizer")
        return next(iter(self.optimizers.values()))

    @property
    def skipped(self) -> int:
        """Updates left out so far because a loss or a gradient was not finite (`nonfinite="skip"`)."""
        return self._step.guard.skipped

    @property
    def tape_note(self) -> str:
        """Whether updates are replayed from a tape, or why not; nothing as long as that is not decided."""
        return self._step.tape_note

    @property
    def categories(self) -> dict[str, list[str]]:
        """What the numbers of streams of strings stand for: in the model's last `fit`, or in the run of its weights."""
        return {stream: list(strings) for stream, strings in (categories_of(self.model) or {}).items() if strings}

    @property
    def nulls(self) -> dict[str, Any]:
        """What stood for the nulls of each stream in the training, as `open_table` takes it; the run keeps it too."""
        return dict(nulls_of(categories_of(self.model)))

    @one_thread
    def validate(
        self, data: Any, name: str = "val", *, batch_size: int | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """Loss and metrics over a data set, or over about the first `limit` rows; keys begin with `name`.

        Of several sets, as in `{"clean": a, "noisy": b}`, keys begin with "val/clean" and "val/noisy".
        """
        found: dict[str, Any] = {}
        for each, held in data_sets(data, name, self._trained_on or self._known_streams, self.target).items():
            found |= self._validate(held, each, batch_size, limit)
        return found

    def _validate(self, data: Any, name: str, batch_size: int | None, limit: int | None) -> dict[str, Any]:
        """`validate` for one data set."""
        source = self._source_of(data, name, batch_size, limit)
        for objective in self.eval_objectives.values():
            objective.prepare(source.streams, {name: check.columns_of(source)})
        if self.metrics:
            check.measurable(self.eval_objectives, source.streams, self.target, self.metrics.parts)
        return self._score(source, name, batch_size, limit)

    def test(self, data: Any, *, batch_size: int | None = None) -> dict[str, Any]:
        """As `validate`, with keys that begin with "test"."""
        return self.validate(data, "test", batch_size=batch_size)

    @one_thread
    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """What the model returns for every row, in order, on the host."""
        source = self._source_of(data, "predict", batch_size)
        objective = next(iter(self.eval_objectives.values()))
        with evaluate.mode(self._modules, training=False), rewound(source), self._once(source, batch_size) as feed:
            tapes = self._step.answers(objective, self._along is not evaluate.unwatched)
            given = self._along(feed, feed), self.precision, self._team.gather, tapes
            return evaluate.predictions(objective, self.model, feed, *given)

    @one_thread
    def step(self, batch: Any, *, exact: bool = False) -> dict[str, Any]:
        """Makes one update, and returns the losses by name: `total_loss` and every term.

        `batch`: a Batch, a tuple (x, y), a dict, or a Table, as `hr.samples` returns. `exact`: it has to have
        `batch_size` rows. The model stays in its arena between calls; `release` takes it out.
        """
        self._find_workers()
        check.has_optimizer(self.optimizers, "step()")
        check.can_split(self.objectives, None, self._team.sharing)
        self._team.comm.at(self._step.updates, "training")
        batch = batch_for(self.model, batch)
        if exact and batch.rows != self._sizes.first:
            raise DataError(
                f"step(exact=True) takes exactly batch_size={self._sizes.first} samples, got {batch.rows}. Give it as "
                "many; how many of them pass the model at once is microbatch=."
            )
        batch = self._team.share(batch.to(self.device), self.model)
        try:
            if (streams := batch.streams) != self._known_streams:
                for objective in self.objectives.values():
                    objective.prepare(streams, {})
                self._known_streams = streams
            plain = self._updates_plainly and all(each.training for each in self._modules)  # and stays so
            with (
                nullcontext() if plain else evaluate.mode(self._modules, training=True),
                deterministic_mode(self.deterministic),
            ):
                outcome = self._update(batch)
                self._step.guard.settle()
        except BaseException as error:
            self._team.tear(error)
            raise
        return outcome.losses

    def train_step(self, batch: Batch) -> Outcome:
        """One update. Override it to do something before or after, or an update of your own instead.

        Return what this returns, an `Outcome(losses, outputs)`, or losses by name, as means over the rows of the batch;
        without outputs there are no training metrics. An override that never comes here finds an ordinary model and
        optimizer, and the trainer can have no `clip_norm`, `clip_value`, `microbatch`, `precision` or
        `nonfinite="skip"`; one that mixes both says `arena=False`. A run saves the optimizers in
        `self.optimizers`, and no others.
        """
        check.is_batch(batch, "train_step")
        return self._step(batch)

    def evaluate_step(self, batch: Batch) -> Outcome:
        """One batch of a validation. Override it as you override `train_step`."""
        check.is_batch(batch, "evaluate_step")
        read, scored = self._step.guard.read, bool(self.metrics)
        return evaluate.measure(self.eval_objectives, self.model, batch, self.precision, read, scored)

    @one_thread
    def release(self) -> None:
        """Makes model and optimizer ordinary again; `fit` does so at its end."""
        self._step.release()

    @property
    def _updates_plainly(self) -> bool:
        """Whether nobody has overridden `train_step`."""
        return getattr(self.train_step, "__func__", None) is Trainable.train_step

    @property
    def _evaluates_plainly(self) -> bool:
        """Whether nobody has overridden `evaluate_step`."""
        return type(self).evaluate_step is Trainable.evaluate_step

    def _update(self, batch: Batch) -> Outcome:
        """One update by `train_step`. After one by an override, the guard checks the weights."""
        if self._updates_plainly:
            return self.train_step(batch)
        step, made = self._step, self._step.updates
        refusal = self._refusal() if step.unproven else ""
        kept = Kept.of(self._modules, self.optimizers.values()) if refusal else None  # until it is known who updates
        step.expect()
        with nullcontext() if self._unsaved is None else self._unsaved.watching():
            outcome = as_outcome(self.train_step(batch), "train_step", batch)
        if step.updates == made:
            if kept is not None:
                kept.restore()
            if refusal := refusal or self._refusal():
                raise ConfigError(refusal)
            step.updates += 1
        step.unproven = False
        step.watch(outcome)
        return outcome

    def _refusal(self) -> str:
        return check.own_update(self._config | asdict(self._step.settings), self.strategy.shares_updates)

    def _score(self, source: Source, name: str, size: int | None = None, limit: int | None = None) -> dict[str, Any]:
        """A pass over data that changes nothing; losses are computed a block at a time where that is the same."""
        objective, team = self.eval_objectives[scoring(self.eval_objectives)], self._team
        metrics = self.metrics.fresh(measured_by(self.eval_objectives, self.target))
        shares = all(each.splits for each in self.eval_objectives.values())  # otherwise each worker scores all rows
        metrics = team.fresh(metrics) if shares else metrics
        joins = self._evaluates_plainly and len(self.eval_objectives) == 1
        with evaluate.mode(self._modules, training=False), rewound(source), self._once(source, size, shares) as feed:
            batches = self._along(feed, evaluate.limited(feed, limit, self._signals.check_scoring))
            outcomes = evaluate.apart(self.evaluate_step, batches)
            if joins and isinstance(objective, Supervised) and objective.joins:
                read, scored = self._step.guard.read, metrics.targets
                tapes = self._step.answers(objective, self._along is not evaluate.unwatched)
                outcomes = evaluate.together(objective, self.model, batches, self.precision, read, scored, tapes)
            return evaluate.score(outcomes, name, metrics, team.scored if shares else team.scored_by_each)

    def _once(self, source: Source, batch_size: int | None, shares: bool = True) -> Feed:
        """The batches of one pass over data, this worker's part of them if they are shared."""
        return Feed(
            source,
            self.device,
            batch_size=batch_size or self._sizes.first,
            macrobatch=self.macrobatch,
            waiting=self._signals.check_scoring,
            shard=self._team.scores if shares else WHOLE,
            once=True,
        )

    @property
    def _sizes(self) -> Sizes:
        """How large the batches of a training are."""
        return Sizes(self.batch_size or DEFAULT_BATCH)

    def _source_of(self, data: Any, name: str, batch_size: int | None, limit: int | None = None) -> Source:
        """Data for one pass, checked; `name` is what errors call them."""
        self._find_workers()
        check.positive("batch_size", batch_size, whole=True)
        known = categories_of(self.model)
        source = source_on(data, self.device, name, categories=known)
        check.can_be_read(source, name, known, limit)
        return source

    def _check_setting(self, name: str, value: Any) -> None:
        """Raises on a setting that nothing could work with."""
        check.setting(name, value)

    def _from_the_next_update(self, name: str, value: Any) -> None:
        """Changes a setting; within a training, which then keeps it in its state, that is no setting of the run."""
        self._check_setting(name, value)
        with self._use.during(f"setting {name}"):
            self._step.change(**{name: value})
            if not self._use.trains:
                self._config = self._config | {name: config.plain(value)}

    def _between_trainings(self, name: str, value: Any) -> Any:
        """A setting of the next training, checked."""
        if self._use.trains:
            hint = "Say batch_size={0: 32, '5 epochs': 64}." if name == "batch_size" else "Set it before fit()."
            raise ConfigError(f"{name} cannot be changed while a training is under way. {hint}")
        self._check_setting(name, value)
        if name in self._config:
            self._config = self._config | {name: config.plain(value)}
        if name == "metrics":
            value = value if isinstance(value, MetricsByOutput) else MetricsByOutput(value)
            self._step.measure(value.looks(measured_by(self.objectives, self.target)))
        return value

    def _find_workers(self) -> None:
        """Learns who the other workers are: the trainer may have been made before they were there."""
        comm = here()
        if self._team.comm is not comm and not (self._team.comm.count == 1 == comm.count):
            self._follow(self._wanted)

    def _follow(self, strategy: Strategy | None) -> None:
        """From now on it works with the others, or alone, as this strategy says."""
        self._wanted, self._team = strategy, make_team(strategy)
        self._team.device, self._step.strategy = self.device, self._team.strategy
        vars(self)["strategy"] = self._team.strategy
