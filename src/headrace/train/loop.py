"""The loop: epochs, and what is due when. Step, validate, decide, report, save, in that order, and nowhere else."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Generator, Iterator, Set
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ..data.batch import Batch
from ..data.reader import Reader
from ..data.source import Source
from ..errors import ConfigError, DataError
from ..loss.objective import scoring
from ..step import evaluate
from ..step.weights import remember_categories
from ..store import rng
from ..store.run import compare_machine
from ..watch.info import Info, expected
from ..workers.leased import Leased
from . import config, passes
from .checkpointer import Checkpointer, State
from .leaving import answering, mind_if_unheard
from .plan import Plan, deterministic_mode
from .schedule import make_rates
from .signals import Interrupted
from .train_state import TrainState, readable
from .use import unless_refused

if TYPE_CHECKING:
    from .trainer import Trainer

AFTER_THE_REPORT = ("on_report", "on_checkpoint", "on_fit_end")
"""Hooks from which a number would come too late for the report of its step."""


class Loop:
    """One training of a trainer, by a plan; `run` gives its `info` after every update."""

    def __init__(self, trainer: Trainer, plan: Plan, info: Info, keeper: Checkpointer) -> None:
        self._trainer, self._plan, self._info, self._keeper = trainer, plan, info, keeper
        self._objective = trainer.objectives[scoring(trainer.objectives)]
        self._at = TrainState(trainer, plan, info)
        self._guard = trainer._step.guard
        self._asked = trainer._preemption
        self._team = trainer._team
        info.run, info.scored = keeper.path, plan.scored
        self._loaded = False  # whether the training goes on from a state
        self._saved = -1  # the step of the last checkpoint
        self._due = False  # whether another is due
        self._put_off = False  # whether one waits for the end of the epoch
        self._tried = self._left_out = 0  # updates of this worker's, and how many were not made as far as the host knew
        self._skipped = 0  # updates skipped before this training
        self._common = False  # whether something was due after the last update for all workers

    def run(self) -> Generator[Info]:
        """Epoch after epoch, until a limit is reached or somebody asks to stop."""
        trainer, plan, info, call = self._trainer, self._plan, self._info, self._call
        alone = trainer._use.during("fit() or steps()", trains=True)
        with answering(self._asked), alone, self._at_work(), passes.to_train(trainer, plan.train, info) as feed:
            empty = False
            try:
                with unless_refused(trainer, lambda: self._loaded):
                    state = self._begin(feed.batches, feed.macrobatches)
                self._catch_up(state)
                feed.share(self._team.trains)
                while not info.stopping:
                    found = starts = False
                    for batch in self._team.each(feed):
                        if not info.batch:
                            call("on_epoch_start", info)
                        found = True
                        self._at.rates.before(self._team.progress(info))
                        info.outcome = passes.update(trainer, batch)
                        if batch.rows:  # a worker may have none of a small one
                            self._tried += 1
                            self._left_out += info.outcome.applied is False
                        self._count(batch, feed.macrobatch, feed.finished)
                        evaluate.record(info.outcome, self._at.tally, self._at.metrics, self._objective, trainer.target)
                        self._team.updated(self._at, batch)
                        for hook in plan.callbacks.on_step_end:
                            hook(info)
                        if info.asked:
                            self._grant()
                        if feed.ends_macrobatch:
                            self._guard.settle()
                            call("on_macrobatch_end", info)
                        if plan.within_epochs or info.ends_epoch or info.stopping or info.extra_numbers:
                            self._boundary()
                        yield info
                        trainer._use.go_on()
                        if info.asked:
                            self._grant()
                        if info.extra_numbers:
                            self._tell(info.history.keys_at(info.step), info.row())
                        self._keep_best()
                        self._due |= self._team.decide(info, self._asked, self._keeper.overdue(), self._common)
                        if info.stopping and not self._asked.why:  # else it goes on from here, and nothing is over
                            self._boundary()
                        if self._due:
                            self._save()
                        if self._asked.why:
                            self._asked.check()
                        starts = self._team.starts(self._at)
                        if info.stopping or starts:
                            break
                    if starts:
                        feed.share(self._team.trains)
                        if not info.ends_epoch:
                            continue
                    if not found and empty:
                        raise DataError(
                            "the train data gave no rows. A Source without state must start again by itself "
                            "after None; give it state_dict and load_state_dict, and it is rewound."
                        )
                    empty = not found
                    if found and (info.ends_epoch or not info.stopping):
                        info.batch = 0
                    if feed.finished and info.leased:
                        info.stopping = info.stopping or " or ".join(f"{limit} reached" for limit in info.limits)
                        if self._team.last_news(info):  # what was reported is not what all have learnt
                            self._at.done -= {"val", "row"}
                        self._boundary()
                    elif feed.finished and self._at.initial is not None:
                        plan.train.load_state_dict(copy.deepcopy(self._at.initial))
                self._end()
            except Interrupted:
                info.stop(self._asked.why)
                self._save()
                self._keeper.end(self._asked.why)
            info.history.stopped = info.stopping
            call("on_fit_end", info)
        if self._asked.heard:
            raise self._asked.error()
        if info.raise_at_end is not None:
            raise info.raise_at_end

    def _begin(self, batches: int | None, macrobatches: int | None) -> State | None:
        """The start of a training, or the point at which it goes on; the state that it goes on from."""
        trainer, info, keeper, train = self._trainer, self._info, self._keeper, self._plan.train
        settings = trainer._config | self._plan.config
        state = keeper.find(self._trainer.model, settings, config.of_limits(info.limits))
        if state is not None:
            with readable():
                state = self._team.handed(state)
                self._at.check(state)
        optimizers = list(trainer.optimizers.values())
        rows = self._team.epoch_rows or passes.rows_of(train)
        self._at.rates = make_rates(trainer.schedule, optimizers, info.limits, batches, rows)
        info.expected = expected(trainer, info.measured, self._plan.callbacks.those_before(AFTER_THE_REPORT))
        self._at.rates.check(info.expected)
        self._plan.callbacks.check(info)
        self._plan.callbacks.forget()
        if state is not None:
            self._loaded = True
            with readable():
                self._at.load_state_dict(state)
            self._saved = info.step if self._at.complete else -1
        self._skipped = self._guard.skipped
        with readable():
            self._team.begin(self._at, state)
        trainer._step.ends_alone = passes.ends_alone(trainer, train, info.limits)
        if keeper.keeps:
            self._at.warn_of_gaps(new=state is None)
        info.start(batches, macrobatches)
        keeper.begin(info, trainer._step.nbytes)
        trainer.history, trainer._known_streams = info.history, None
        remember_categories(trainer.model, self._at.categories)
        self._call("on_fit_start", info)
        keeper.started(info, f"the train data ({type(train).__name__}) resume {train.level}")
        return state

    def _catch_up(self, state: State | None) -> None:
        """What was due where the training goes on is done; of a new one, step 0 is saved."""
        trainer, info = self._trainer, self._info
        if state is not None:
            self._at.forget_absent()
            if not info.alone:
                self._due |= self._team.decide(info, self._asked, False, True)
            if state["rng"] is not None:
                with readable():
                    rng.restore(state["rng"], trainer.device)
            info.look_at_limits()
            if not info.stopping and self._team.comm.leader:
                compare_machine(state.get("machine"), trainer.device)
            if info.step:
                self._boundary()
            if self._due:
                self._save()
            info.batch = 0 if info.ends_epoch else info.batch
        else:
            self._save()
            self._keeper.settle()  # whatever is reported from now on has a checkpoint before it

    def _count(self, batch: Batch, macrobatch: int, finished: bool) -> None:
        """An update has been made of this batch."""
        at = self._at
        self._info.count(batch, macrobatch)
        at.rows, at.cursor = batch.samples, batch.cursor
        self._common = False
        if finished and batch.ends_epoch and at.initial is not None:
            at.cursor = at.initial
        if at.done:
            at.done.clear()

    def _boundary(self) -> None:
        """What is due after an update and has not been done yet: validate, decide, report."""
        plan, info, call = self._plan, self._info, self._call
        self._at.complete = False
        told = info.history.keys_at(info.step) if "row" in self._at.done else set()
        counters = info.row()  # before the rates of the next update
        self._common |= info.ends_epoch
        now = (info.counters, self._at.rows, info.ends_epoch)
        if (plan.log_every.fires(*now) or info.stopping) and self._once("log"):
            self._guard.settle()
            self._common = True
            info.history.at(counters).update(self._report())
        if plan.val is not None and (plan.validate_every.fires(*now) or info.stopping) and "val" not in self._at.done:
            self._common = True
            self._score(plan.val, "val")
            self._at.done.add("val")
        if self._once("rates"):
            self._at.rates.after(*now, info.history)
        if info.ends_epoch and self._once("epoch"):
            row = info.history.rows[-1] if info.history.keys_at(info.step) else counters
            call("on_epoch_end", info, row)
        self._tell(told, counters)
        self._keep_best()
        self._at.complete = True
        self._due = self._due or (self._once("save") and self._save_is_due())

    def _keep_best(self) -> None:
        """The weights of this step are kept, if a callback or whoever drives the loop has marked it."""
        info = self._info
        if not self._team.keeps(info, self._common):
            return
        if info.best is not None and info.step == info.best.step != info.history.marked:
            info.history.marked = info.step
            with self._team.agreed(self._at):
                self._keeper.mark_best(self._trainer.model)
        self._due |= self._once("best")

    def _save_is_due(self) -> bool:
        """Whether a checkpoint is to be written. Where data have no state, it waits for the end of the epoch."""
        self._put_off |= self._keeper.due(self._info, self._at.rows)
        due = self._put_off and (self._at.initial is not None or self._info.ends_epoch)
        self._put_off &= not due
        return due

    def _report(self) -> dict[str, Any]:
        """What has been trained since the last report."""
        row = evaluate.report("train", self._at.tally, self._at.metrics, self._team.trained)
        self._info.rates = self._team.rates
        return row

    def _once(self, what: str) -> bool:
        """Whether this has not been done since the last update; from now on it has."""
        new = what not in self._at.done
        self._at.done.add(what)
        return new

    def _score(self, source: Source, name: str) -> None:
        """Scores a data set in the middle of a training and writes it into the history."""
        before = rng.capture(self._trainer.device)
        try:
            with self._asked.scoring(), self._team.agreed(self._at):
                scores = passes.score(self._trainer, source, name)
        except Interrupted:
            rng.restore(before, self._trainer.device)
            raise
        self._info.history.at(self._info.row()).update(scores)
        self._call("on_validation_end", self._info, scores)

    def _tell(self, told: Set[str], counters: dict[str, Any]) -> None:
        """The report of this step is complete, with what was logged: what has not been `told` of it goes out."""
        info = self._info
        if info.extra_numbers:
            info.history.at(counters).update(info.extra_numbers)
            info.extra_numbers = {}
        if not info.history.keys_at(info.step) - told:
            return
        row = {key: value for key, value in info.history.rows[-1].items() if key in counters or key not in told}
        self._call("on_report", info, row)
        self._keeper.report(row, info.counters.minutes)
        self._at.done.add("row")

    def _call(self, hook: str, *arguments: Any) -> None:
        """Calls a hook, and does what is asked for there."""
        self._info.sealed = hook in AFTER_THE_REPORT
        self._plan.callbacks.call(hook, *arguments)
        self._info.sealed = False
        if self._info.asked:
            self._grant()

    def _grant(self) -> None:
        """What callbacks have asked for is done, in the order in which they have."""
        asked, self._info.asked = self._info.asked, []
        if self._info.leased:
            raise ConfigError(
                f"a callback asks to change {', '.join(what for what, _ in asked)}, which workers at a center cannot "
                "agree on: each goes at its own pace. Use a strategy without a center."
            )
        for what, value in asked:
            if what == "rate":
                self._at.set_rate(value)
            elif what == "freeze":
                self._at.frozen.freeze(*value)
            else:
                self._at.frozen.thaw(*value)

    def _save(self) -> None:
        """A checkpoint of this step, unless there is one."""
        self._due = False
        if self._keeper.keeps and self._saved != self._info.step:
            self._guard.settle()
            self._call("on_checkpoint", self._info)
            self._keeper.save(self._team.state(self._at), self._info, again=self._info.step <= self._info.resumed)
            self._saved = self._info.step

    def _end(self) -> None:
        """The last checkpoint is written; then the model becomes the one that is kept, and is tested."""
        plan, info = self._plan, self._info
        self._save()
        self._warn_if_nothing_was_learnt()
        self._team.finish(self._at)
        if info.best is not None and info.best.restore and info.best.step != info.step:
            self._keeper.restore(info.best, self._trainer.model)
            self._team.restored(self._trainer.model)
        if plan.test is not None and "test/loss" not in info.history.keys_at(info.step):
            told = info.history.keys_at(info.step)
            self._score(plan.test, "test")
            self._tell(told, info.row())
        self._keeper.end(info.stopping)

    def _warn_if_nothing_was_learnt(self) -> None:
        self._guard.settle()
        tried, skipped = self._tried, self._guard.skipped - self._skipped
        several = len(self._trainer.optimizers)  # of which one may have learnt
        if tried and max(self._left_out if several == 1 else 0, skipped // several) >= tried:
            why = "no row counted. Look at the labels that are ignored, and at the weights of rows and classes."
            if skipped:
                why = "a loss or a gradient was not finite. Lower the rate, clip it, look for bad rows: scan=True."
            warnings.warn(
                f"none of the {tried} updates was made, and the weights are as they were: {why}", stacklevel=3
            )

    def _facts(self) -> dict[str, Any]:
        """What has to be the same for all workers."""
        trainer, plan, train = self._trainer, self._plan, self._plan.train
        return {
            "settings": trainer._config | plan.config,
            "arena": trainer._step.settings.arena,
            "metrics": trainer.metrics.names,
            "limits": config.of_limits(self._info.limits),
            "data": self._at.initial if isinstance(train, Reader | Leased) else train.title,  # else compared while read
            "scored": [name for name, given in (("val", plan.val), ("test", plan.test)) if given is not None],
            "run": self._keeper.keeps and f"saved every {self._keeper.every}",
        }

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The model in train mode; it and the optimizer are ordinary again however the training ends."""
        trainer, info, callbacks = self._trainer, self._info, self._plan.callbacks
        trainer._step.updates, trainer._step.unproven = 0, True
        self._team.greet(trainer, self._facts())
        self._asked.alone = info.alone = self._team.alone
        info.leased = self._team.leased
        self._guard.forget()
        with (
            self._asked.listening(self._keeper.keeps),
            self._keeper,
            evaluate.mode(trainer._modules, training=True),
            deterministic_mode(trainer.deterministic),
        ):
            try:
                yield
            except GeneratorExit:  # the caller has left the loop of `steps`
                trainer._use.go_on()
                info.stop("left")
                info.history.stopped = info.stopping or info.stop_request
                try:
                    self._save()
                    self._keeper.end("left")
                except BaseException as error:
                    callbacks.tell(info, error)
                    mind_if_unheard(error)
                    raise
                callbacks.call("on_fit_end", info)
                raise
            except BaseException as error:
                self._team.tell(error)
                callbacks.tell(info, error)
                raise
            finally:
                with ExitStack() as stack:  # each of them, even if one fails
                    stack.callback(trainer.release)
                    stack.callback(self._at.frozen.restore, {})
                    stack.callback(self._team.leave)
