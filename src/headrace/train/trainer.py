"""The trainer: data, model, loss and optimizer in, a trained, validated and predicting model out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from ..data.batch import Batch
from ..data.encoding import Encoding
from ..data.staging import BatchSize, Sizes
from ..errors import ConfigError, DataError
from ..length import Length, whole
from ..loss.by_output import MetricsByOutput, Wanted
from ..loss.call import Inputs
from ..loss.objective import measured_by, module_of
from ..loss.outcome import Outcome
from ..step import check, config, evaluate
from ..step.arguments import (
    OptimizerLike,
    Optimizers,
    batch_for,
    by_key,
    check_optimizers,
    scorers,
    stays_ordinary,
)
from ..step.guard import make_guard
from ..step.regions import Patterns, change_in_place
from ..step.settings import Precision, Settings
from ..step.signals import Signals
from ..step.updates import Updates
from ..step.use import Use, one_thread
from ..step.weights import encoding_of
from ..watch.callback import Callback
from ..watch.history import History
from ..watch.info import Info
from ..workers.here import here
from ..workers.strategy import Strategy
from . import passes
from .own_step import step_by_hand
from .prepare import make_loop, make_workers
from .runs import Run
from .session import LastTraining
from .setting import BetweenTrainings, OfUpdates, check_change, check_names, check_setting

if TYPE_CHECKING:
    from .find import BatchFinding, LrFinding

DEFAULT_BATCH = 128


class Trainer:
    """Trains, validates and applies a model.

    `hr.Trainer(model)` predicts, `hr.Trainer(model, loss)` validates too, and with an optimizer it trains.

    `loss`: a term or a sum of them, an `nn.*Loss`, a function of (outputs, target), or an `Objective`; `optimizer`: one
    of torch's, a list of several that share the loss, or a function of the parameters that makes these. For several
    losses, dicts with equal keys, where `(optimizer, "5 steps")` is used at every fifth step.

    `batch_size`: rows in one update (128 if not given, a loader's own), or one from each point of the training on, as
    in `{0: 32, "5 epochs": 64}`; `microbatch`: how many of them pass the model at once ("auto": fewer when memory runs
    out); `macrobatch`: how many are staged on the device together. `recompute`: modules, as in "blocks.*", that compute
    intermediate results again in the backward pass; `compile`: all, or such modules, are compiled. `clip_norm`,
    `clip_value`: of the gradients. `precision`: "fp32", "bf16" or "fp16". `metrics`: names such as "accuracy",
    "f1:weighted", "top-3", or objects; for several outputs lists by name. `seed`: of the order in which rows are read,
    and of nothing else: dropout draws from torch's generator, in sequence; `order`: one of the five of `Order`. A `fit`
    begins with epoch 0 of that order, or where its run stands; one that is given a `Reader` goes on where that stands,
    as a loop of `fit(epochs=1)` wants it. `schedule`: a function of the progress (0 to 1) that gives a factor, rates by
    lengths, as in `{0: 1e-2, "5 epochs": 1e-3}`, or a `Schedule`, which makes torch's schedulers. `inputs`: the streams
    that the model gets (all but the target); `target`: the stream to compare with. `nonfinite`: "stop", or "skip" the
    update. `eval_loss`: what validations compute instead of `loss`. `strategy`: how several workers make one model
    (`Synchronous()`); `batch_size` is then that of an update, which they share or make each by itself. `arena=False`
    leaves parameters and buffers where they are. `tape`: "auto" replays recorded passes of a small model, with the same
    bits, where that is proven and quicker; `True` insists, `False` never does. `threads`: how many threads torch
    uses in this process from now on; the bits of a training depend on it. `augment`: a function of the fields of many
    training rows, and maybe of `Draws`, that changes them on the device, as that of `hr.map`; no other data.
    """

    batch_size, schedule, metrics = BetweenTrainings(), BetweenTrainings(), BetweenTrainings()
    seed, order = BetweenTrainings(), BetweenTrainings()
    macrobatch, deterministic = BetweenTrainings(), BetweenTrainings()
    microbatch = OfUpdates()
    """Rows that pass the model at once, from the next update on; "auto": fewer when memory runs out."""
    clip_norm = OfUpdates()
    """The largest norm of the gradients, from the next update on."""
    clip_value = OfUpdates()
    """The largest value in the gradients, from the next update on."""
    is_made = False
    """Whether `__init__` is over, and what was given stays as it is."""

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
        compile: bool | Patterns = False,
        recompute: Patterns = (),
        deterministic: bool = False,
        nonfinite: str = "stop",
        eval_loss: Any = None,
        arena: bool = True,
        tape: bool | Literal["auto"] = "auto",
        threads: int | None = None,
        augment: Callable[..., Any] | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.made_with = arguments
        for name, value in arguments.items():
            check_setting(name, value)
        if threads is not None:
            torch.set_num_threads(int(threads))
        shards = isinstance(strategy, Strategy) and strategy.shards
        self._wanted, self.device = strategy, check.device_for(device, model, shards)
        if shards:
            check.can_shard(arguments, self.has_own_train_step or self.has_own_evaluate_step)
        self.workers = make_workers(strategy, self.device)
        self.model = self.workers.strategy.place_model(model, self.device, optimizer)
        clip_norm, clip_value = check.plain_number(clip_norm), check.plain_number(clip_value)
        self.objectives, self.optimizers, every = by_key(loss, optimizer, model, own=self.has_own_train_step)
        self.eval_objectives = scorers(self.objectives, eval_loss)
        self.all_modules = [model]
        """Everything that has a train and an eval mode."""
        for objective in [*self.objectives.values(), *self.eval_objectives.values()]:
            objective.bind(inputs, target)
            module = module_of(objective)
            if module is not None and module not in self.all_modules:
                self.all_modules.append(module.to(self.device))
        check_optimizers(model, self.optimizers, self.objectives)
        self.precision = Precision(precision, self.device)
        self.batch_size, self.seed, self.order, self.macrobatch = batch_size, seed, order, macrobatch
        self.target, self.deterministic, self.schedule = target, deterministic, schedule
        self.augment = augment
        self.metrics, self.strategy = MetricsByOutput(metrics), self.workers.strategy
        check.can_split(self.objectives, microbatch, parts=self.strategy.parts)
        if shards or stays_ordinary(model, self.objectives, tape):
            arena = tape = False
        settings = Settings(whole(microbatch) or microbatch, clip_norm, clip_value, arena, tape, seed)
        guard = make_guard(self.device, skip=nonfinite == "skip")
        getters = self.metrics.output_getters(measured_by(self.objectives, target))
        parts = model, self.objectives, self.optimizers, settings, self.precision, guard, self.strategy, getters, every
        self.updates = Updates(*parts)
        self.last_training = LastTraining()
        self.signals, self.use = Signals(), Use()
        own = {"optimizer": config.of_optimizers(self.optimizers, every)}
        self.resume_settings = config.of_settings(arguments) | own
        """The settings that a run is resumed with, as plain values."""
        change_in_place(model, compile, recompute)
        self.is_made = True

    def __init_subclass__(cls, **options: Any) -> None:
        check_names(cls)
        super().__init_subclass__(**options)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.is_made:
            check_change(name)
        super().__setattr__(name, value)

    # --- what there is to know ----------------------------------------------------------------------------

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer; the first of several."""
        check.has_optimizer(self.optimizers, "trainer.optimizer")
        return next(iter(self.optimizers.values()))

    @property
    def history(self) -> History:
        """What the last training has reported."""
        if self.last_training.history is None:
            self.last_training.history = History()
        return self.last_training.history

    @property
    def info(self) -> Info | None:
        """The training that is under way, as callbacks see it, for a `train_step` of one's own; else `None`.

        There `info.batch` batches of this epoch, and `info.step` of all, have been used before this one.
        """
        return self.last_training.info

    @property
    def skipped(self) -> int:
        """Updates left out so far because a loss or a gradient was not finite (`nonfinite="skip"`)."""
        return self.updates.guard.skipped

    @property
    def tape_note(self) -> str:
        """Whether updates are replayed from a tape, or why not; nothing as long as that is not decided."""
        return self.updates.tape_note

    @property
    def categories(self) -> dict[str, list[str]]:
        """What the numbers of streams of strings stand for: in the model's last `fit`, or in the run of its weights."""
        return {stream: list(strings) for stream, strings in (self.encoding or Encoding()).categories.items()}

    @property
    def nulls(self) -> dict[str, Any]:
        """What stood for the nulls of each stream in the training, as `open_table` takes it; the run keeps it too."""
        return dict((self.encoding or Encoding()).nulls)

    @property
    def encoding(self) -> Encoding | None:
        """How the data of the training were read; `None` if it is not known."""
        return encoding_of(self.model)

    @property
    def has_own_train_step(self) -> bool:
        """Whether somebody has overridden `train_step`."""
        return getattr(self.train_step, "__func__", None) is not _TRAIN_STEP

    @property
    def has_own_evaluate_step(self) -> bool:
        """Whether somebody has overridden `evaluate_step`."""
        return getattr(self.evaluate_step, "__func__", None) is not _EVALUATE_STEP

    @property
    def batch_sizes(self) -> Sizes:
        """How large the batches of a training are."""
        return Sizes(self.batch_size or DEFAULT_BATCH)

    # --- one update ---------------------------------------------------------------------------------------

    @one_thread
    def step(self, batch: Any, *, full_batch: bool = False) -> dict[str, Any]:
        """Makes one update, and returns the losses by name: `total_loss` and every term.

        `batch`: a Batch, a tuple (x, y), a dict, or a Table, as `hr.samples` returns. `full_batch`: it has to
        have `batch_size` rows. The model stays in its arena between calls; `release` takes it out.
        """
        self.find_workers()
        check.has_optimizer(self.optimizers, "step()")
        check.can_split(self.objectives, None, self.workers.sharing)
        self.workers.comm.at(self.updates.count, "training")
        batch = batch_for(self.model, batch)
        if full_batch and batch.rows != (wanted := self.batch_sizes.first):
            raise DataError(
                f"step(full_batch=True) takes exactly batch_size={wanted} samples, got {batch.rows}. Give it as "
                "many; how many of them pass the model at once is microbatch=."
            )
        return step_by_hand(self, batch)

    def train_step(self, batch: Batch) -> Outcome:
        """One update. Override it to do something before or after, or an update of your own instead.

        Return what this returns, an `Outcome(losses, outputs)`, or losses by name, as means over the rows of the batch;
        without outputs there are no training metrics. An override that makes updates of its own needs `arena=False`,
        with which it finds an ordinary model and optimizer, and the trainer can have no `clip_norm`, `clip_value`,
        `microbatch`, `precision` or `nonfinite="skip"`. A run saves the optimizers in `self.optimizers`, and no others.
        """
        check.is_batch(batch, "train_step")
        self.updates.touched()
        return self.updates.make(batch)

    def evaluate_step(self, batch: Batch) -> Outcome:
        """One batch of a validation. Override it as you override `train_step`."""
        check.is_batch(batch, "evaluate_step")
        read, scored = self.updates.guard.read, bool(self.metrics)
        return evaluate.measure(self.eval_objectives, self.model, batch, self.precision, read, scored)

    @one_thread
    def release(self) -> None:
        """Makes model and optimizer ordinary again; `fit` does so at its end."""
        self.updates.release()

    # --- passes over data ---------------------------------------------------------------------------------

    @one_thread
    def validate(
        self,
        data: Any,
        name: str = "val",
        *,
        batch_size: int | None = None,
        limit: int | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> dict[str, Any]:
        """Loss and metrics over a data set, or over about the first `limit` rows; keys begin with `name`.

        Of several sets, as in `{"clean": a, "noisy": b}`, keys begin with "val/clean" and "val/noisy". Of `callbacks`
        `on_step_end` is called after every batch, and `on_macrobatch_end` after every macrobatch, with an `Info` that
        shows where the pass stands.
        """
        self.find_workers()
        return passes.validate(self, data, name, batch_size, limit, callbacks)

    def test(self, data: Any, *, batch_size: int | None = None, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """As `validate`, with keys that begin with "test"."""
        return self.validate(data, "test", batch_size=batch_size, callbacks=callbacks)

    @one_thread
    def predict(self, data: Any, *, batch_size: int | None = None, callbacks: Sequence[Callback] = ()) -> Any:
        """What the model returns for every row, in order, on the host; `callbacks` as in `validate`."""
        self.find_workers()
        return passes.predict(self, data, batch_size, callbacks)

    # --- trainings ----------------------------------------------------------------------------------------

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
        run: str | Path | Run | None = None,
    ) -> History:
        """Trains until the first limit is reached (10 epochs if none is given); returns what was reported.

        `val` is scored every so often, `test` once, at the end, on the weights that are kept; either may be several
        data sets, as in `{"clean": a, "noisy": b}`, with keys as "val/clean/loss". `scan` looks for NaN in the data
        first. `run` names a directory in which the training survives; `hr.Run(path, ...)` says how.
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        for _ in make_loop(self, **options).run(each_step=False):
            pass
        return self.history

    @one_thread
    def steps(self, train: Any, val: Any = None, test: Any = None, **options: Any) -> Generator[Info]:
        """The loop of `fit`, with its options, driven by you: an `Info` after every update and what is due then.

        To leave it early, close it: `with contextlib.closing(trainer.steps(...)) as steps`. With a `run`, the next call
        goes on from there.
        """
        options = {"progress": False, **options}
        return make_loop(self, train, val, test, **options).run(each_step=True)

    @one_thread
    def find_lr(self, train: Any, **options: Any) -> LrFinding:
        """Tries rising learning rates on a copy and suggests one. See `headrace.train.find.find_lr`."""
        from .find import find_lr

        check.has_optimizer(self.optimizers, "find_lr()")
        return find_lr(self, Trainer, train, **options)

    @one_thread
    def find_batch_size(self, train: Any, **options: Any) -> BatchFinding:
        """Tries growing batches on a copy and suggests a size. See `headrace.train.find.find_batch_size`."""
        from .find import find_batch_size

        check.has_optimizer(self.optimizers, "find_batch_size()")
        return find_batch_size(self, Trainer, train, **options)

    def preempt(self) -> None:
        """Asks the training at hand, from any thread or handler, to save and to end with exit status 143."""
        self.signals.request()

    # --- workers ------------------------------------------------------------------------------------------

    def find_workers(self) -> None:
        """Learns who the other workers are: the trainer may have been made before they were there."""
        comm = here()
        if self.workers.comm is not comm and not (self.workers.comm.count == 1 == comm.count):
            self.work_with(self._wanted)

    def work_with(self, strategy: Strategy | None) -> None:
        """From now on it works with the others, or alone, as this strategy says."""
        if isinstance(strategy, Strategy) and strategy.shards and strategy is not self._wanted:
            raise ConfigError(
                "hr.Sharded divides the model between processes when the trainer is made, and this one has been made "
                "without it. Give it as Trainer(strategy=); a rehearsal on virtual workers has no such processes."
            )
        self._wanted, vars(self)["workers"] = strategy, make_workers(strategy, self.device)
        self.updates.strategy = vars(self)["strategy"] = self.workers.strategy


_TRAIN_STEP, _EVALUATE_STEP = Trainer.train_step, Trainer.evaluate_step  # somebody may replace them here, too
