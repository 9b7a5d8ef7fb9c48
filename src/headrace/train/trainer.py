"""The trainer: data, model, loss and optimizer in, a trained, validated and predicting model out."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from ..data.batch import Batch, Stream
from ..data.staging import BatchSize, Sizes
from ..errors import ConfigError
from ..length import Counters, Length, limits, whole
from ..loss.metrics import Metrics, Wanted
from ..loss.objective import Inputs, as_objective
from ..loss.outcome import Outcome
from ..step import evaluate
from ..step.guard import make_guard
from ..step.precision import Precision
from ..step.step import Settings, Step
from ..step.weights import categories_of
from ..watch.callback import Callback
from ..watch.history import History
from ..watch.info import Info
from ..workers.here import here
from ..workers.strategy import Strategy
from . import check, config, passes
from . import plan as plans
from .checkpointer import make_checkpointer
from .crew import make_team
from .leaving import leave_at_exit
from .loop import Loop
from .plan import OptimizerLike, Plan
from .schedule import interval_of
from .signals import Signals
from .use import Use, one_thread

if TYPE_CHECKING:
    from .rate import LrFinding
    from .size import BatchFinding

_BETWEEN_TRAININGS = ("batch_size", "schedule", "metrics", "seed", "order", "macrobatch", "deterministic")
"""Settings that may be changed between two trainings."""
_MADE_WITH = (
    *("model", "loss", "optimizer", "precision", "strategy", "device", "inputs", "target", "compile", "nonfinite"),
    *("eval_loss", "arena", "objectives", "optimizers", "eval_objectives"),
)
"""What stays as it was given."""


class Trainer:
    """Trains, validates and applies a model.

    `loss`: a term or a sum of them, an `nn.*Loss`, a function of (outputs, target), or an `Objective`; `optimizer`: one
    of torch's, or a function that makes it of the parameters. For several, dicts with equal keys. `batch_size`: rows in
    one update (128 if not given, a loader's own), or one from each point of the training on, as in `{0: 32, "5 epochs":
    64}`; `microbatch`: how many of them pass the model at once ("auto": fewer when memory runs out); `macrobatch`: how
    many are staged on the device together. `clip_norm`, `clip_value`: of the gradients. `precision`: "fp32", "bf16" or
    "fp16". `metrics`: names such as "accuracy", "f1:weighted", "top-3", or objects. `seed`: of the order in which rows
    are read, and of nothing else: dropout draws from torch's generator, in sequence; `order`: one of the five of
    `Order`. A `fit` begins with epoch 0 of that order, or where its run stands; one that is given a `Reader` goes on
    where that stands, as a loop of `fit(epochs=1)` wants it. `schedule`: a function of the progress (0 to 1) that gives
    a factor, one of (optimizer, total_steps) or of the optimizer that makes a torch scheduler, or a `Schedule`.
    `inputs`: the streams that the model gets (all but the target); `target`: the stream to compare with. `nonfinite`:
    "stop", or "skip" the update. `eval_loss`: what validations compute instead of `loss`. `strategy`: how several
    workers make one model (`Synchronous()`); `batch_size` is then that of an update, which they share or make each by
    itself. `arena=False` leaves parameters where they are.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        optimizer: OptimizerLike | Mapping[str, Optimizer],
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
    ) -> None:
        given = locals().copy()
        for name, value in given.items():
            check.setting(name, value)
        microbatch = whole(microbatch) or microbatch
        self._wanted, self._team = strategy, make_team(strategy)
        self.device = check.device_for(device, model)
        self.model, self._team.device = model.to(self.device), self.device
        self.objectives, self.optimizers = plans.by_key(loss, optimizer, model)
        self.eval_objectives = self.objectives if eval_loss is None else {"": as_objective(eval_loss, "eval_loss")}
        self._modules = [model]
        """Everything that has a train and an eval mode."""
        for objective in [*self.objectives.values(), *self.eval_objectives.values()]:
            objective.bind(inputs, target)
            if isinstance(objective, nn.Module) and objective not in self._modules:
                self._modules.append(objective.to(self.device))
        check.optimizers_fit(model, self.optimizers, self.objectives)
        self.precision = Precision(precision, self.device)
        self.batch_size, self.seed, self.order, self.macrobatch = batch_size, seed, order, macrobatch
        self.target, self.deterministic, self.schedule = target, deterministic, schedule
        self.metrics, self.strategy = Metrics(metrics), self._team.strategy
        check.can_split(self.objectives, microbatch)
        settings = Settings(microbatch, clip_norm, clip_value, arena)
        guard = make_guard(self.device, skip=nonfinite == "skip")
        parts = model, self.objectives, self.optimizers, settings, self.precision, guard, self.strategy
        self._step = Step(*parts, measured=bool(self.metrics))
        self.history = History()
        """What the last training has reported."""
        self._known_streams: list[Stream] | None = None
        self._preemption, self._use = Signals(), Use()
        self._config = config.of_settings(given) | {"optimizer": config.of_optimizers(self.optimizers)}
        if compile:
            plans.compile_in_place(model)
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
        return next(iter(self.optimizers.values()))

    @property
    def skipped(self) -> int:
        """Updates left out so far because a loss or a gradient was not finite (`nonfinite="skip"`)."""
        return self._step.guard.skipped

    @property
    def categories(self) -> dict[str, list[str]]:
        """What the numbers of each stream stood for in the training, where they were strings.

        They are those of the last `fit` of the model, or of the run whose weights it was given.
        """
        known = categories_of(self.model) or {}
        return {stream: list(strings) for stream, strings in known.items() if strings}

    @one_thread
    def fit(
        self,
        train: Any,
        val: Any = None,
        test: Any = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        samples: int | None = None,
        minutes: float | None = None,
        progress: str | bool = "auto",
        validate_every: str | Length = "1 epoch",
        log_every: str | Length = "1 epoch",
        scan: bool = False,
        callbacks: Sequence[Callback] = (),
        logs: bool = True,
        run: str | Path | None = None,
        resume: str = "auto",
        checkpoint_every: str | Length = "1 epoch",
        keep: int | str = 3,
        override: bool = False,
        wait_for_saves: bool = False,
    ) -> History:
        """Trains until the first limit is reached (10 epochs if none is given); returns what was reported.

        `val` is scored every so often, `test` once, at the end, on the weights that are kept. `scan` looks for NaN in
        the data first. `run` names a directory in which the training survives: `resume="auto"` goes on from its last
        checkpoint if there is one, "must" insists on one, "never" refuses it. Limits may have grown since; any other
        setting that differs is an error, unless `override`. A checkpoint is written at every `checkpoint_every` (which
        may be in minutes) and at the end; the last `keep` stay (or "all"), and the best. A thread writes it while the
        training goes on, unless `wait_for_saves`. `logs`: a run has a log.txt, curves for TensorBoard and answers for
        its report. See `headrace.train.checkpointer`.
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        for _ in self.steps(**options):
            pass
        return self.history

    @one_thread
    def steps(
        self,
        train: Any,
        val: Any = None,
        test: Any = None,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        samples: int | None = None,
        minutes: float | None = None,
        progress: str | bool = False,
        validate_every: str | Length = "1 epoch",
        log_every: str | Length = "1 epoch",
        scan: bool = False,
        callbacks: Sequence[Callback] = (),
        logs: bool = True,
        run: str | Path | None = None,
        resume: str = "auto",
        checkpoint_every: str | Length = "1 epoch",
        keep: int | str = 3,
        override: bool = False,
        wait_for_saves: bool = False,
    ) -> Iterator[Info]:
        """The loop of `fit`, driven by you: an `Info` after every update and what is due then.

        Leaving it early is fine: with a `run`, it goes on from there.
        """
        self._find_workers()
        keeper = self._team.keeper(
            lambda: make_checkpointer(run, resume, checkpoint_every, keep, override, wait_for_saves)
        )
        source = plans.source_on(train, self.device, "train", self.order, self.seed)
        bounds = limits(epochs, steps, samples, minutes)
        source = self._team.source(source, Sizes(self.batch_size or passes.DEFAULT_BATCH).first, bounds)
        if not self._team.leads:
            val, test, callbacks, progress = None, None, (), False
        called = plans.all_callbacks(callbacks, progress, logs and keeper.keeps, self._team.comm.leader)
        others = [every for every in (keeper.every, interval_of(self.schedule)) if every is not None]
        plan = Plan.of(source, val, test, self.device, validate_every, log_every, called, others)
        check.has_an_end(source, bounds, sized=self.batch_size is not None)
        plan.check(self.objectives, self.eval_objectives, scan, self.target if self.metrics else None)
        self.metrics.load()
        info = Info(self, Counters(), bounds, History(), ("train",) if val is None else ("train", "val"))
        return leave_at_exit(Loop(self, plan, info, keeper).run(), self._preemption)

    @one_thread
    def validate(
        self, data: Any, name: str = "val", *, batch_size: int | None = None, limit: int | None = None
    ) -> dict[str, Any]:
        """Loss and metrics over a data set, or over about the first `limit` rows; keys begin with `name`."""
        source = passes.source_of(self, data, name, batch_size, limit)
        for objective in self.eval_objectives.values():
            objective.prepare(source.streams, {name: check.columns_of(source)})
        if self.metrics:
            check.measurable(self.eval_objectives, source.streams, self.target)
        return passes.score(self, source, name, batch_size, limit)

    def test(self, data: Any, *, batch_size: int | None = None) -> dict[str, Any]:
        """As `validate`, with keys that begin with "test"."""
        return self.validate(data, "test", batch_size=batch_size)

    @one_thread
    def predict(self, data: Any, *, batch_size: int | None = None) -> Any:
        """What the model returns for every row, in order, on the host."""
        return passes.predict(self, passes.source_of(self, data, "predict", batch_size), batch_size)

    @one_thread
    def step(self, batch: Any) -> dict[str, Any]:
        """One update from a Batch, a tuple, a dict or a list of sample dicts: `total_loss` and every term.

        The model stays in its arena between calls; `release` takes it out.
        """
        self._find_workers()
        self._team.comm.at(self._step.updates, "training")
        batch = self._team.shared(passes.batch_of(self, batch).to(self.device), self.model)
        try:
            if (streams := batch.streams) != self._known_streams:
                for objective in self.objectives.values():
                    objective.prepare(streams, {})
                self._known_streams = streams
            with evaluate.mode(self._modules, training=True), plans.deterministic_mode(self.deterministic):
                outcome = passes.update(self, batch)
                self._step.guard.settle()
        except BaseException as error:
            self._team.torn(error)
            raise
        return outcome.losses

    def train_step(self, batch: Batch) -> Outcome:
        """One update. Override it to do something before or after, or an update of your own instead.

        Return what this returns, an `Outcome(losses, outputs)`, or losses by name, as means over the rows of the batch;
        without outputs there are no training metrics. An override that never comes here finds an ordinary model and
        optimizer, and the trainer can have no `clip_norm`, `clip_value`, `microbatch`, `precision` or
        `nonfinite="skip"`; one that mixes both says `arena=False`.
        """
        check.is_batch(batch, "train_step")
        return self._step(batch)

    def evaluate_step(self, batch: Batch) -> Outcome:
        """One batch of a validation. Override it as you override `train_step`."""
        check.is_batch(batch, "evaluate_step")
        read, scored = self._step.guard.read, bool(self.metrics)
        return evaluate.measure(self.eval_objectives, self.model, batch, self.precision, read, scored)

    @one_thread
    def find_lr(self, train: Any, **options: Any) -> "LrFinding":
        """Tries rising learning rates and suggests one; nothing is changed. See `headrace.train.rate.find_lr`."""
        from .rate import find_lr

        return find_lr(self, train, **options)

    @one_thread
    def find_batch_size(self, train: Any, **options: Any) -> "BatchFinding":
        """Tries growing batches and suggests a size; nothing is changed. See `headrace.train.size.find_batch_size`."""
        from .size import find_batch_size

        return find_batch_size(self, train, **options)

    def preempt(self) -> None:
        """Asks the training at hand, from any thread or handler, to save and to end with exit status 143."""
        self._preemption.request()

    @one_thread
    def release(self) -> None:
        """Makes model and optimizer ordinary again; `fit` does so at its end."""
        self._step.release()

    @property
    def _updates_plainly(self) -> bool:
        """Whether nobody has overridden `train_step`."""
        return getattr(self.train_step, "__func__", None) is Trainer.train_step

    @property
    def _evaluates_plainly(self) -> bool:
        """Whether nobody has overridden `evaluate_step`."""
        return type(self).evaluate_step is Trainer.evaluate_step

    def _find_workers(self) -> None:
        """Learns who the other workers are: the trainer may have been made before they were there."""
        if self._team.comm is not here() and not (self._team.comm.count == 1 == here().count):
            self._follow(self._wanted)

    def _from_the_next_update(self, name: str, value: Any) -> None:
        """Changes a setting; within a training, which then keeps it in its state, that is no setting of the run."""
        check.setting(name, value)
        with self._use.during(f"setting {name}"):
            self._step.change(**{name: value})
            if not self._use.trains:
                self._config = self._config | {name: config.plain(value)}

    def _between_trainings(self, name: str, value: Any) -> Any:
        """A setting of the next training, checked."""
        if self._use.trains:
            hint = "Say batch_size={0: 32, '5 epochs': 64}." if name == "batch_size" else "Set it before fit()."
            raise ConfigError(f"{name} cannot be changed while a training is under way. {hint}")
        check.setting(name, value)
        if name in self._config:
            self._config = self._config | {name: config.plain(value)}
        if name == "metrics":
            value = value if isinstance(value, Metrics) else Metrics(value)
            self._step.measure(bool(value))
        return value

    def _follow(self, strategy: Strategy | None) -> None:
        """From now on it works with the others, or alone, as this strategy says."""
        self._wanted, self._team = strategy, make_team(strategy)
        self._team.device, self._step.strategy = self.device, self._team.strategy
        vars(self)["strategy"] = self._team.strategy
