"""The training loop: updates; after each what is due, the agreement of the workers, and the checkpoint."""

from __future__ import annotations

import copy
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ..data.batch import Batch
from ..data.feed import Feed
from ..data.reader import Reader
from ..errors import DataError
from ..step import config
from ..step.arguments import deterministic_mode, groups_of, put_rate
from ..step.settings import mode
from ..step.signals import Interrupted
from ..step.weights import encoding_of, remember_encoding
from ..store import rng
from ..store.run import compare_machine
from ..watch.info import Info, expected
from ..workers.leased import Leased
from ..workers.strategy import Single
from .checkpointer import Checkpointer
from .own_step import UnsavedOptimizers, update
from .plan import Plan, rows_of
from .resume import Resumed, readable
from .same_data import contents
from .session import Session
from .tasks import AFTER_THE_REPORT, ScheduledTasks, warn_if_nothing_was_learnt
from .workers import Workers

if TYPE_CHECKING:
    from .trainer import Trainer

AT_ONCE_S = 0.05
"""For how many seconds updates may be made at once; the step after them looks at clocks, and calls displays."""


class Loop:
    """One training of a trainer, by a plan; `run` gives its `info` after every update."""

    def __init__(self, trainer: Trainer, plan: Plan, info: Info, checkpointer: Checkpointer, workers: Workers) -> None:
        self._trainer, self._plan, self._info = trainer, plan, info
        self._checkpointer, self._workers = checkpointer, workers
        self._at = Session(trainer, plan, info, workers, checkpointer)
        self._tasks = ScheduledTasks(self._at)
        self._guard, self._signals = trainer.updates.guard, trainer.signals
        info.scored = plan.scored
        self._loaded, self._saved = False, -1  # whether it goes on from a state, and the step of the last checkpoint
        self._next, self._samples, self._look_at = 0.0, -1, 0.0  # until when updates need no look around: see `_is_due`
        self._has_others = type(workers.strategy) is not Single  # with whom something may be due after every update
        is_ours = type(workers.strategy).__module__.startswith("headrace.")
        self._each_update = plan.callbacks.each_update or not is_ours  # whether code of the user's runs after each
        self._has_own_train_step, self._feeds_objects = trainer.has_own_train_step, trainer.metrics.has_objects
        self._tried = self._left_out = 0  # updates of this worker's, and how many were not made as far as the host knew
        self._skipped = 0  # updates skipped before this training

    def run(self, each_step: bool) -> Generator[Info]:
        """Trains until a limit is reached or a stop is requested; gives its `info` after updates, or `each_step`."""
        self._each_update |= each_step
        complete = False
        with self._session() as feed:
            try:
                self._begin(feed)
                for batch in self._batches(feed):
                    self._update(batch)
                    if self._is_due(batch, feed):
                        self._look_around(batch, feed)
                        yield self._info
                        self._take_turn()
                self._finish()
                complete = True
            except Interrupted:
                self._leave(self._signals.why)
            except GeneratorExit:  # the loop of `steps` is closed
                self._leave("left")
        if self._signals.last_reason:
            self._checkpointer.announce(self._info.step, complete, self._info.stopping)
            raise self._signals.error()
        if self._info.raise_at_end is not None:
            raise self._info.raise_at_end

    @contextmanager
    def _session(self) -> Iterator[Feed]:
        """The trainer at work: one thread, signals heard, train mode. All is put back however the training ends."""
        with self._trainer.use.during("fit() or steps()", trains=True), self._at_work(), self._feed() as feed:
            yield feed

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The model in train mode; it and the optimizer are ordinary again however the training ends."""
        trainer, info = self._trainer, self._info
        trainer.updates.begin(trainer.seed)
        self._workers.enter(self._plan.train, trainer.all_modules, self._facts(), self._signals)
        self._checkpointer.choose(trainer.model, self._at.settings)
        info.run = info.history.run = self._checkpointer.path
        self._signals.is_only_worker = info.is_only_worker = not self._workers.in_step
        info.leased, trainer.last_training.info = self._workers.strategy.centered, info
        if self._checkpointer.keeps and trainer.has_own_train_step:
            known, log = trainer.optimizers.values(), self._checkpointer.log
            trainer.last_training.unsaved = UnsavedOptimizers(known, trainer.all_modules, log)
        with (
            self._signals.listening(self._checkpointer.keeps),
            self._checkpointer,
            mode(trainer.all_modules, training=True),
            deterministic_mode(trainer.deterministic),
        ):
            try:
                yield
            except BaseException as error:
                self._workers.report_error(error)
                self._plan.callbacks.report_error(info, error)
                raise
            finally:
                with ExitStack() as stack:  # each of them, even if one fails
                    stack.callback(self._at.note_rates)
                    stack.callback(vars(trainer.last_training).update, info=None, unsaved=None)
                    stack.callback(self._guard.forget)
                    stack.callback(trainer.release)
                    stack.callback(self._at.frozen.release)
                    stack.callback(self._workers.leave)

    def _facts(self) -> dict[str, Any]:
        """What has to be the same for all workers."""
        trainer, plan, train = self._trainer, self._plan, self._plan.train
        known = self._at.initial if isinstance(train, Reader | Leased) else None  # other data are compared while read
        order = {key: value for key, value in (known or {}).items() if key != "fingerprint"}
        return {
            "settings": self._at.settings,
            "arena": trainer.updates.settings.arena,
            "metrics": trainer.metrics.names,
            "limits": config.of_limits(self._info.limits),
            "data": {**order, "kind": train.title, "streams": [*map(str, train.streams)]},
            "scored": {name: rows_of(source) for name, source in plan.scored.items()},
            "contents": contents({"train": train, **plan.scored}, self._workers.comm),
            "run": self._checkpointer.keeps and f"saved every {self._checkpointer.every}",
        }

    def _feed(self) -> Feed:
        """The batches of the training, whose size may depend on how far it has come."""
        trainer, info, workers = self._trainer, self._info, self._workers
        return Feed(
            self._plan.train,
            trainer.device,
            batch_size=trainer.batch_sizes.times(workers.times),
            macrobatch=trainer.macrobatch,
            waiting=self._signals.check,
            counters=lambda: info.counters,
            shard=workers.shard,
        )

    # --- the beginning ------------------------------------------------------------------------------------

    def _begin(self, feed: Feed) -> None:
        """A new training saves step 0; of one that goes on, what was due there and not done is done."""
        with self._unless_refused():
            resumed = self._load(feed)
        if resumed is None:
            self._save()
            if self._workers.comm.count > 1:
                self._checkpointer.wait()
        else:
            self._go_on(resumed)
        self._look_at_train_step()

    def _load(self, feed: Feed) -> Resumed | None:
        """Everything that may still refuse the training; the state that it goes on from, which is loaded."""
        trainer, info, plan, train = self._trainer, self._info, self._plan, self._plan.train
        resumed = self._checkpointer.find(trainer.model, self._at.settings, config.of_limits(info.limits))
        if resumed is not None:
            self._at.check(resumed)
        self._at.make_rates(feed.batches, self._workers.epoch_rows or rows_of(train))
        info.expected = expected(trainer, info.measured, plan.callbacks.those_before(AFTER_THE_REPORT))
        self._at.rates.check(info.expected)
        plan.callbacks.check(info)
        plan.callbacks.forget()
        if resumed is not None:
            self._loaded = True
            self._at.load(resumed)
            self._saved = info.step if self._at.complete else -1
        self._skipped = self._guard.skipped
        self._at.begin(resumed)
        if self._checkpointer.keeps:
            self._at.warn_of_gaps(new=resumed is None)
        info.start(feed.batches, feed.macrobatches)
        self._checkpointer.begin(info, trainer.updates.nbytes)
        last = trainer.last_training
        last.history, last.streams, last.trained_on = info.history, None, train.streams
        remember_encoding(trainer.model, self._at.encoding)
        self._tasks.call("on_fit_start", info)
        self._checkpointer.started(info, f"the train data ({type(train).__name__}) resume {train.level}")
        return resumed

    @contextmanager
    def _unless_refused(self) -> Iterator[None]:
        """What is refused before the first update leaves a trainer's history and its optimizers' settings as they were.

        The settings only as long as no state has been loaded, which has changed the rest of the optimizers too.
        """
        trainer = self._trainer
        last = trainer.last_training
        before, encoding = (last.history, last.streams), encoding_of(trainer.model)
        groups = [(group, dict(group), float(group["lr"])) for group in groups_of(trainer.optimizers.values())]
        try:
            yield
        except BaseException:
            last.history, last.streams = before
            remember_encoding(trainer.model, encoding)
            for group, settings, rate in groups if not self._loaded else ():
                group.clear()
                group.update(settings)
                put_rate(group, rate)
            raise

    def _go_on(self, resumed: Resumed) -> None:
        """What was due where the training goes on is done."""
        info = self._info
        self._at.forget_absent()
        if not info.is_only_worker:
            self._tasks.save |= self._workers.decide(info, self._signals, False, True)
        if resumed.mine["rng"] is not None:
            with readable():
                rng.restore(resumed.mine["rng"], self._trainer.device)
        info.look_at_limits()
        if not info.stopping and self._workers.comm.leader:
            compare_machine(resumed.common["machine"], self._trainer.device)
        if info.step:
            self._tasks.do()
        if self._tasks.save:
            self._save()
        info.counters.batch = 0 if info.ends_epoch else info.batch

    # --- an update, and what is due after it --------------------------------------------------------------

    def _batches(self, feed: Feed) -> Iterator[Batch]:
        """Every batch of every epoch, until the training is to stop."""
        info, empty = self._info, False
        while not info.stopping:
            found = False
            for batch in self._workers.each(feed):
                if not info.counters.batch:
                    self._tasks.call("on_epoch_start", info)
                    self._look_at_train_step()
                found = True
                yield batch
                if info.stopping:
                    break
            if not found and empty:
                raise DataError(
                    "the train data gave no rows. A Source without state must start again by itself "
                    "after None; give it state_dict and load_state_dict, and it is rewound."
                )
            empty = not found
            if found and (info.ends_epoch or not info.stopping):
                info.counters.batch = 0
            if feed.finished:
                self._end_data()

    def _end_data(self) -> None:
        """The source has no more rows: a center's training is over, and any other source begins anew."""
        info = self._info
        if info.leased:
            info.stopping = info.stopping or " or ".join(f"{limit} reached" for limit in info.limits)
            if self._workers.has_more_rows(info):  # what was reported is not what all have learnt
                self._at.done -= {"val", "row"}
            self._tasks.do()
        elif self._at.initial is not None:
            self._plan.train.load_state_dict(copy.deepcopy(self._at.initial))

    def _update(self, batch: Batch) -> None:
        """One update, counted and added to what is measured."""
        trainer, info, at = self._trainer, self._info, self._at
        if at.rates.moves:
            at.rates.before(self._workers.progress(info))
            if at.rates.asks:
                trainer.updates.touched()
        for change in self._plan.callbacks.changes:
            batch = change(info, batch)
        outcome = update(trainer, batch) if self._has_own_train_step else trainer.updates.make(batch)
        counters = info.counters
        counters.steps, counters.batch = counters.steps + 1, counters.batch + 1
        counters.samples, counters.epochs = counters.samples + batch.samples, counters.epochs + batch.ends_epoch
        counters.rows, counters.ends_epoch = batch.samples, batch.ends_epoch
        info.outcome, at.cursor = outcome, batch.cursor
        at.done.clear()
        at.tally.add(outcome)
        if self._feeds_objects:
            trainer.updates.touched()
        if batch.rows:  # a worker may have none of a small batch
            self._tried += 1
            self._left_out += outcome.applied is False

    def _is_due(self, batch: Batch, feed: Feed) -> bool:
        """Whether anything may be due after this update. Of what is not, none is before `_next`, or before `_look_at`.

        No callback is called in between, so that updates stay prepared; a model or a loss may still ask for things.
        """
        info = self._info
        is_seen = self._each_update or self._has_others
        quiet = info.counters.steps < self._next and batch.samples == self._samples and not is_seen
        wanted = info.stopping or info.asked or info.extra_numbers or self._signals.why
        if quiet and not (batch.ends_epoch or feed.ends_macrobatch or wanted):
            return time.perf_counter() > self._look_at
        return True

    def _look_around(self, batch: Batch, feed: Feed) -> None:
        """After an update: limits, workers, callbacks, and what is due."""
        info, at = self._info, self._at
        if self._each_update or "on_step_end" in self._plan.callbacks.acting:
            self._trainer.updates.touched()
        info.look_around(feed.macrobatch)
        self._tasks.common = False
        if feed.finished and batch.ends_epoch and at.initial is not None:
            at.cursor = at.initial
        if self._workers.updated(info, batch):
            at.mark_round()
            self._trainer.updates.touched()  # an outer optimizer may be the user's, and states may have been cleared
        for hook in self._plan.callbacks.on_step_end:
            hook(info)
        if info.asked:
            self._tasks.grant()
        if feed.ends_macrobatch:
            self._guard.settle()
            self._tasks.call("on_macrobatch_end", info)
        self._tasks.settle()

    def _take_turn(self) -> None:
        """The driver of the loop has had its turn: what it has asked for is done, and what the workers agree on."""
        info, plan = self._info, self._plan
        self._trainer.use.advance()
        self._tasks.take_requests()
        self._agree()
        self._save_if_due()
        self._samples, self._look_at = info.rows, time.perf_counter() + AT_ONCE_S
        self._look_at_train_step()
        self._next = info.step + min(each.ahead(info.counters) for each in [*info.limits, *plan.intervals])
        if self._each_update:  # somebody may have been called
            self._trainer.updates.touched()

    def _look_at_train_step(self) -> None:
        """Whoever has been called may have replaced it."""
        self._has_own_train_step = self._trainer.has_own_train_step
        self._each_update |= self._has_own_train_step

    def _agree(self) -> None:
        """What one worker wants, all do: to stop, to leave, to save."""
        info = self._info
        self._tasks.keep_best()
        self._tasks.save |= self._workers.decide(info, self._signals, self._checkpointer.overdue, self._tasks.common)
        if info.stopping and not self._signals.why:  # else it goes on from here, and nothing is over
            self._tasks.do()

    def _save_if_due(self) -> None:
        if self._tasks.save:
            self._save()
        if self._signals.why:
            self._signals.check()

    def _save(self) -> None:
        """A checkpoint of this step, unless there is one."""
        self._tasks.save = False
        if self._checkpointer.keeps and self._saved != self._info.step:
            self._trainer.updates.settle()
            self._trainer.updates.touched()
            self._tasks.call("on_checkpoint", self._info)
            again = self._info.step <= self._info.resumed
            self._checkpointer.save(self._at.checkpoint(), self._info, again=again)
            self._saved = self._info.step

    def _finish(self) -> None:
        """The last checkpoint is written; then the model becomes the one that is kept, and is tested."""
        plan, info = self._plan, self._info
        self._save()
        self._trainer.updates.settle()
        skipped = (self._guard.skipped - self._skipped) // len(self._trainer.optimizers)  # of several, one may learn
        warn_if_nothing_was_learnt(self._tried, self._left_out if len(self._trainer.optimizers) == 1 else 0, skipped)
        self._workers.finish(info)
        if info.best is not None and info.best.restore and info.best.step != info.step:
            self._checkpointer.restore(info.best, self._trainer.model)
            self._workers.broadcast_weights([self._trainer.model])
        if not {f"{name}/loss" for name in plan.test} <= info.history.keys_at(info.step):
            reported = info.history.keys_at(info.step)
            self._tasks.score(plan.test)
            self._tasks.report(reported, info.row())
        self._end(info.stopping)

    def _leave(self, why: str) -> None:
        """Saves where the training stands, which goes on from there."""
        self._trainer.use.advance()
        self._info.stop(why)
        self._info.history.stopped = self._info.stopping or self._info.stop_request
        self._save()
        self._end(why)

    def _end(self, why: str) -> None:
        self._info.history.stopped = self._info.stopping or self._info.stop_request
        self._checkpointer.end(why)
        self._tasks.call("on_fit_end", self._info)
