"""The trainer: data, model, loss and optimizer in, a trained, validated and predicting model out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data.reader import rewound
from ..length import Counters, Length, limits
from ..step import check
from ..step.evaluate import mode, unwatched
from ..step.given import source_on
from ..step.signals import leave_at_exit
from ..step.summary import shapes_in, table_of
from ..step.team import Team
from ..step.trainable import Trainable
from ..step.use import one_thread
from ..store import rng
from ..watch.callback import Callback
from ..watch.history import History
from ..watch.info import Info
from ..watch.passes import Along
from ..workers.centered import Centered
from .at_center import AtCenter
from .checkpointer import make_checkpointer
from .coordinator import Coordinator
from .in_step import InStep
from .loop import Loop
from .plan import Plan, all_callbacks
from .schedule import check_schedule, interval_of

if TYPE_CHECKING:
    from .rate import LrFinding
    from .size import BatchFinding


class Trainer(Trainable):
    """Trains, validates and applies a model.

    `hr.Trainer(model)` predicts, `hr.Trainer(model, loss)` validates too, and with an optimizer it trains.

    `loss`: a term or a sum of them, an `nn.*Loss`, a function of (outputs, target), or an `Objective`; `optimizer`: one
    of torch's, or a function that makes it of the parameters. For several, dicts with equal keys, where `(optimizer, "5
    steps")` is used at every fifth step. `batch_size`: rows in one update (128 if not given, a loader's own), or one
    from each point of the training on, as in `{0: 32, "5 epochs": 64}`; `microbatch`: how many of them pass the model
    at once ("auto": fewer when memory runs out); `macrobatch`: how many are staged on the device together. `clip_norm`,
    `clip_value`: of the gradients. `precision`: "fp32", "bf16" or "fp16". `metrics`: names such as "accuracy",
    "f1:weighted", "top-3", or objects; for several outputs lists by name. `seed`: of the order in which rows are read,
    and of nothing else: dropout draws from torch's generator, in sequence; `order`: one of the five of `Order`. A `fit`
    begins with epoch 0 of that order, or where its run stands; one that is given a `Reader` goes on where that stands,
    as a loop of `fit(epochs=1)` wants it. `schedule`: a function of the progress (0 to 1) that gives a factor, rates by
    lengths, as in `{0: 1e-2, "5 epochs": 1e-3}`, a function of (optimizer, total_steps) or of the optimizer that makes
    a torch scheduler, or a `Schedule`. `inputs`: the streams that the model gets (all but the target); `target`: the
    stream to compare with. `nonfinite`: "stop", or "skip" the update. `eval_loss`: what validations compute instead of
    `loss`. `strategy`: how several workers make one model (`Synchronous()`); `batch_size` is then that of an update,
    which they share or make each by itself. `arena=False` leaves parameters and buffers where they are. `tape`: "auto"
    replays recorded passes of a small model, with the same bits, where that is proven and quicker; `True` insists,
    `False` never does.
    """

    @property
    def history(self) -> History:
        """What the last training has reported."""
        if self._history is None:
            self._history = History()
        return self._history  # type: ignore[no-any-return]

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
        with self._calling(callbacks):
            return super().validate(data, name, batch_size=batch_size, limit=limit)

    def test(self, data: Any, *, batch_size: int | None = None, callbacks: Sequence[Callback] = ()) -> dict[str, Any]:
        """As `validate`, with keys that begin with "test"."""
        return self.validate(data, "test", batch_size=batch_size, callbacks=callbacks)

    @one_thread
    def predict(self, data: Any, *, batch_size: int | None = None, callbacks: Sequence[Callback] = ()) -> Any:
        """What the model returns for every row, in order, on the host; `callbacks` as in `validate`."""
        with self._calling(callbacks):
            return super().predict(data, batch_size=batch_size)

    @one_thread
    def summary(self, data: Any = None) -> str:
        """The model's layers as a table to print, with their parameters; with `data`, also the shapes of their outputs.

        The shapes are those of two rows. Nothing is changed.
        """
        if data is None:
            return table_of(self.model, None)
        source, objective = self._source_of(data, "summary", None), next(iter(self.eval_objectives.values()))
        before = rng.capture(self.device)
        try:
            with mode(self._modules, training=False), rewound(source), self._once(source, 2) as feed, torch.no_grad():
                batch = next(iter(feed))
                with self.precision.context():
                    shapes = shapes_in(self.model, lambda: objective.outputs(self.model, batch), batch.rows)
        finally:
            rng.restore(before, self.device)
        return table_of(self.model, shapes)

    @contextmanager
    def _calling(self, callbacks: Sequence[Callback]) -> Iterator[None]:
        """These callbacks are called along a pass over data."""
        before, self._along = self._along, unwatched
        if callbacks:
            self._along = Along(self, all_callbacks(callbacks, False, False, self._team.comm.leader))
        try:
            yield
        finally:
            self._along = before

    @property
    def info(self) -> Info | None:
        """The training that is under way, as callbacks see it, for a `train_step` of one's own; else `None`.

        There `info.batch` batches of this epoch, and `info.step` of all, have been used before this one.
        """
        return self._info  # type: ignore[no-any-return]

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

        `val` is scored every so often, `test` once, at the end, on the weights that are kept; either may be several
        data sets, as in `{"clean": a, "noisy": b}`, with keys as "val/clean/loss". `scan` looks for NaN in the data
        first. `run` names a directory in which the training survives: `resume="auto"` goes on from its last
        checkpoint if there is one, "must" insists on one, "never" refuses it. A name that ends with a slash is a
        directory of runs (`"runs/"`): the training goes on with the newest run there of the same settings, or begins
        a new one, `runs/002`; `history.run` says which. Limits may have changed since; any other
        setting that differs is an error, unless `override`. A checkpoint is written at every `checkpoint_every` (which
        may be in minutes) and at the end; the last `keep` stay (or "all"), and the best. A thread writes it while the
        training goes on, unless `wait_for_saves`. `logs`: a run has a log.txt, curves for TensorBoard and answers for
        its report. See `headrace.train.checkpointer`.
        """
        options = {name: value for name, value in locals().items() if name != "self"}
        for info in self.steps(**options):
            info.driven = False
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
        check.has_optimizer(self.optimizers, "a training")
        self._find_workers()
        check.can_split(self.objectives, None, self._team.sharing)
        workers = make_coordinator(self._team)
        kept_as = run, resume, checkpoint_every, keep, override, wait_for_saves
        checkpointer = workers.checkpointer(lambda: make_checkpointer(*kept_as))
        source = source_on(train, self.device, "train", self.order, self.seed, resumes=True)
        bounds = limits(epochs, steps, samples, minutes)
        source = workers.source(source, self._sizes.first, bounds)
        if not workers.leads:
            val, test, callbacks, progress = None, None, (), False
        called = all_callbacks(callbacks, progress, logs and checkpointer.keeps, workers.comm.leader)
        others = [every for every in (checkpointer.every, interval_of(self.schedule)) if every is not None]
        plan = Plan.of(source, val, test, self.device, validate_every, log_every, called, others)
        check.has_an_end(source, bounds, sized=self.batch_size is not None)
        plan.check(self.objectives, self.eval_objectives, scan, self.target, self.metrics)
        if plan.scored and self._evaluates_plainly:
            check.can_score(self.eval_objectives)
        self.metrics.load()
        info = Info(self, Counters(), bounds, History(), ("train", *plan.val))
        return leave_at_exit(Loop(self, plan, info, checkpointer, workers).run(), self._signals)

    @one_thread
    def find_lr(self, train: Any, **options: Any) -> "LrFinding":
        """Tries rising learning rates and suggests one; nothing is changed. See `headrace.train.rate.find_lr`."""
        from .rate import find_lr

        check.has_optimizer(self.optimizers, "find_lr()")
        return find_lr(self, self.steps, train, **options)

    @one_thread
    def find_batch_size(self, train: Any, **options: Any) -> "BatchFinding":
        """Tries growing batches and suggests a size; nothing is changed. See `headrace.train.size.find_batch_size`."""
        from .size import find_batch_size

        check.has_optimizer(self.optimizers, "find_batch_size()")
        return find_batch_size(self, self.steps, train, **options)

    def preempt(self) -> None:
        """Asks the training at hand, from any thread or handler, to save and to end with exit status 143."""
        self._signals.request()

    def _check_setting(self, name: str, value: Any) -> None:
        if name == "schedule":
            check_schedule(value)
        else:
            super()._check_setting(name, value)


def make_coordinator(team: Team) -> Coordinator:
    """How these workers go through a training: alone, in step, or each at its own pace."""
    if isinstance(team.strategy, Centered):
        return AtCenter(team)
    return InStep(team) if team.in_step else Coordinator(team)
