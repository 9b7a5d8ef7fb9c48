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
from ..length import Length, as_count
from ..loss.call import Inputs
from ..loss.metrics import Metrics, Wanted
from ..loss.objective import measured_by, module_of
from ..loss.outcome import Outcome
from ..step import check, config
from ..step.arguments import OptimizerLike, Optimizers, by_key, check_optimizers, scorers, stays_ordinary
from ..step.guard import make_guard
from ..step.settings import Patterns, Precision, Settings, change_in_place
from ..step.signals import Signals
from ..step.updates import Updates
from ..step.use import Use, one_thread
from ..step.weights import encoding_of
from ..watch.callback import Callback
from ..watch.history import History
from ..watch.info import Info
from ..workers.here import here
from ..workers.strategy import Strategy
from . import loop, passes
from .at_center import make_workers
from .own_step import step_by_hand
from .plan import prepare
from .predictions import predict
from .runs import Run
from .session import LastTraining
from .setting import BetweenTrainings, OfUpdates, check_change, check_names, check_setting, check_strategy

if TYPE_CHECKING:
    from .find import BatchFinding, LrFinding

DEFAULT_BATCH = 128


class Trainer:
    """Trains, validates and applies a model.

    `hr.Trainer(model)` can predict, `hr.Trainer(model, loss)` can also validate, and with an optimizer it can train.

    Args:
        model: any `nn.Module`. The trainer moves it to `device`.
        loss: a term or a sum of terms, an `nn.*Loss`, a function of (outputs, target), or an `Objective`. For several
            losses, a dict of them.
        optimizer: one of torch's, a list of several that share the loss, or a function of the parameters that makes
            these. For several losses, a dict with the same keys; `(optimizer, "5 steps")` is for every fifth update.
        batch_size: rows in one update, by default 128, or the size of a loader. `{0: 32, "5 epochs": 64}` changes it.
        microbatch: rows that pass through the model at once. "auto" tries fewer when memory runs out.
        clip_norm: the largest norm of the gradients.
        clip_value: the largest absolute value of a gradient.
        precision: "fp32", "bf16" or "fp16".
        metrics: names such as "accuracy", "f1:weighted" and "top-3", or objects. For several outputs, lists by name.
        schedule: a function of the progress (0 to 1) that returns a factor for the learning rate, rates by lengths, as
            in `{0: 1e-2, "5 epochs": 1e-3}`, or a `Schedule`, which makes torch's schedulers.
        strategy: how several workers train one model; the default is `Synchronous()`.
        device: a device of torch. "auto" is a CUDA device, or Apple's MPS, or the CPU.
        seed: of the order of the rows. Dropout and the initial weights use torch's generator, which it does not set.
        order: "full", "blocks", "blocks-only", "rows-only" or "none": see `Order`. Each `fit` begins with epoch 0 of
            it, unless a run or a `Reader` continues at another place.
        macrobatch: rows that are copied to the device together; "auto" chooses.
        inputs: the streams that the model gets; by default all but the target.
        target: the stream that the loss compares with.
        compile: `True`, or patterns of modules, as in "blocks.*", which `torch.compile` compiles one by one.
        recompute: patterns of modules that compute intermediate results again in the backward pass, to save memory.
        deterministic: whether torch is limited to deterministic operations during a training.
        nonfinite: "stop", or "skip" an update whose loss or gradient is not finite.
        eval_loss: the loss of validations, if it is another.
        arena: `False` leaves parameters in their own memory.
        tape: "auto" replays recorded passes where that is proven to give the same bits, and is faster. `True` raises
            where it cannot be, `False` never records.
        threads: the number of threads that torch uses in this process from now on. The bits of a training depend on it.
        augment: a function of the fields of a batch, and optionally of `Draws`, that changes training rows on the
            device.
    """

    batch_size, schedule, metrics = BetweenTrainings(), BetweenTrainings(), BetweenTrainings()
    seed, order = BetweenTrainings(), BetweenTrainings()
    macrobatch, deterministic, augment = BetweenTrainings(), BetweenTrainings(), BetweenTrainings()
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
        for name, value in arguments.items():
            check_setting(name, value)
        if threads is not None:
            torch.set_num_threads(int(threads))
        shards = isinstance(strategy, Strategy) and strategy.shards
        self._wanted, self.device = strategy, check.device_for(device, model, shards)
        if shards:
            check.can_shard(arguments, self.has_own_train_step or self.has_own_evaluate_step)
        self.workers = make_workers(strategy, self.device)
        self.model: Any = self.workers.strategy.place_model(model, self.device, optimizer)
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
        check_optimizers(model, self.optimizers, self.objectives, self.has_own_train_step)
        self.precision = Precision(precision, self.device)
        self.batch_size, self.seed, self.order, self.macrobatch = batch_size, seed, order, macrobatch
        self.target, self.deterministic, self.schedule, self.augment = target, deterministic, schedule, augment
        self.metrics, self.strategy = Metrics(metrics), self.workers.strategy
        check.can_split(self.objectives, microbatch, parts=self.strategy.parts)
        if shards or stays_ordinary(model, self.objectives, tape):
            arena = tape = False
        settings = Settings(as_count(microbatch) or microbatch, clip_norm, clip_value, arena, tape, seed)
        guard = make_guard(self.device, skip=nonfinite == "skip")
        getters = self.metrics.output_getters(measured_by(self.objectives, target))
        parts = model, self.objectives, self.optimizers, settings, self.precision, guard, self.strategy, getters, every
        self.updates = Updates(*parts)
        self.last_training = LastTraining(groups=config.of_groups(self.optimizers))
        self.signals, self.use = Signals(), Use()
        own = {"optimizer": config.of_optimizers(self.optimizers, every)}
        self.resume_settings = config.of_settings(arguments) | own
        """The settings that a run is resumed with, as plain values."""
        change_in_place(model, compile, recompute)
        self.is_made = True

    def __init_subclass__(cls, **options: Any) -> None:
        check_names(vars(cls))
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
        """The training under way, as callbacks see it, for your own `train_step`; `None` if there is none."""
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
    def step(self, batch: Any, *, full_batch: bool = False, unchanged: bool = False) -> dict[str, Any]:
        """Makes one update, and returns the losses by name: `total_loss` and every term.

        `batch`: a Batch, a tuple (x, y), a dict, or a Table, as of `hr.samples`; with `full_batch`, of `batch_size`
        rows. `unchanged` promises that only rates and values of weights have changed since the last step: batches of
        one macrobatch of an `hr.Feed` then take less time. The model stays in its arena until `release` is called.
        """
        self.find_workers()
        return step_by_hand(self, batch, full_batch, unchanged)

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
        return passes.measure(self, batch)

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
        """Computes the loss and the metrics over a data set; keys begin with `name`.

        Args:
            data: as for `fit`. The keys of several sets, `{"clean": a, "noisy": b}`, begin with "val/clean" and
                "val/noisy".
            name: the first part of the keys.
            batch_size: rows that pass through the model at once.
            limit: stop after about this many rows.
            callbacks: `on_step_end` is called after every batch, and `on_macrobatch_end` after every macrobatch.
        """
        self.find_workers()
        return passes.validate(self, data, name, batch_size, limit, callbacks)

    def test(self, data: Any, *, batch_size: int | None = None, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """As `validate`, with keys that begin with "test"."""
        return self.validate(data, "test", batch_size=batch_size, callbacks=callbacks)

    @one_thread
    def predict(self, data: Any, *, batch_size: int | None = None, callbacks: Sequence[Callback] = ()) -> Any:
        """What the model returns for every row, on the host; `callbacks` as in `validate`. Rows are in the order of the
        data; a Reader, a mix or a loader that shuffles gives them in its own order."""
        self.find_workers()
        return predict(self, data, batch_size, callbacks)

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
        callbacks: Sequence[Callback] = (),
        run: str | Path | Run | None = None,
    ) -> History:
        """Trains until the first limit is reached, and returns the history.

        Args:
            train: tensors, arrays, a dict, a frame, a path, a `Table`, a `Dataset`, a `DataLoader` or a `Source`.
            val: data to validate on, or several data sets, as in `{"clean": a, "noisy": b}`.
            test: data that are scored once, at the end, with the weights that are kept.
            epochs: passes over the training data. The default is 10, if no limit is given.
            steps: updates.
            samples: training rows, over all workers. The batch that reaches it is not cut.
            minutes: of training.
            progress: "auto", "bar", "plain", or `False` for none.
            validate_every: a length, as in "1 epoch" or "500 steps".
            log_every: how often a row is added to the history.
            callbacks: called at the points that `Callback` names.
            run: the directory to save to and resume from, or `hr.Run(path, ...)`.
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        for _ in loop.Loop(self, *prepare(self, **options)).run(each_step=False):
            pass
        return self.history

    @one_thread
    def steps(self, train: Any, val: Any = None, test: Any = None, **options: Any) -> Generator[Info]:
        """Runs the loop of `fit`, with its arguments, and yields an `Info` after every update.

        To leave it early, close it: `with contextlib.closing(trainer.steps(...)) as steps`. With a `run`, the next call
        goes on from there.
        """
        options = {"progress": False, **options}
        return loop.Loop(self, *prepare(self, train, val, test, **options)).run(each_step=True)

    @one_thread
    def find_lr(self, train: Any, **options: Any) -> LrFinding:
        """Tries rising learning rates on a copy and suggests one. See `headrace.train.find.find_lr`."""
        from .find import find_lr

        check.can_train(self.optimizers, "find_lr()")
        return find_lr(self, train, **options)

    @one_thread
    def find_batch_size(self, train: Any, **options: Any) -> BatchFinding:
        """Tries growing batches on a copy and suggests a size. See `headrace.train.find.find_batch_size`."""
        from .find import find_batch_size

        check.can_train(self.optimizers, "find_batch_size()")
        return find_batch_size(self, train, **options)

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
        check_strategy(strategy, self._wanted)
        self._wanted, vars(self)["workers"] = strategy, make_workers(strategy, self.device)
        self.updates.strategy = vars(self)["strategy"] = self.workers.strategy


_TRAIN_STEP, _EVALUATE_STEP = Trainer.train_step, Trainer.evaluate_step  # somebody may replace them here, too
