"""The loop: epochs, and what is due when. Step, validate, decide, report, save, in that order, and nowhere else."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import Tensor

from . import config, evaluate, rng
from .arena import plain_name
from .batch import Batch
from .data.source import Source
from .errors import CheckpointError, DataError
from .info import Best, Info
from .keeper import Keeper
from .length import Counters
from .malloc import keep_freed_memory
from .outcome import as_outcome
from .plan import Plan, deterministic_mode
from .preempt import Interrupted
from .schedule import make_rates
from .tally import Tally
from .weights import check_model, load_model

if TYPE_CHECKING:
    from .trainer import Trainer


class Loop:
    """One training of a trainer, by a plan; `run` gives its `info` after every update."""

    def __init__(self, trainer: Trainer, plan: Plan, info: Info, keeper: Keeper) -> None:
        self._trainer, self._plan, self.info, self._keeper = trainer, plan, info, keeper
        self.model = trainer.model
        self._objective = next(iter(trainer.objectives.values()))
        self._metrics = trainer.metrics.fresh(self._objective.reads, self._objective.ignores)
        self._tally = Tally()
        self._guard = trainer._step.guard
        self._asked = trainer._preemption
        self._rows = 0  # of the last update
        self._done: set[str] = set()  # what has been done of what was due after the last update
        self._complete = True  # whether all of it has been done
        self._saved = -1  # the step of the last checkpoint
        self._initial = copy.deepcopy(plan.train.state_dict())
        self._cursor = self._initial  # of the last batch used

    def run(self) -> Iterator[Info]:
        """Epoch after epoch, until a limit is reached or somebody asks to stop."""
        trainer, plan, info, call = self._trainer, self._plan, self.info, self._plan.callbacks.call
        with self._at_work(), trainer._feed(plan.train, None, self._asked.check) as feed:
            empty = False
            try:
                self._begin(feed.batches, feed.macrobatches)
                while not info.stopping:
                    found = False
                    for batch in feed:
                        if not info.batch:
                            call("on_epoch_start", info)
                        found = True
                        self._rates.before(info.counters)
                        info.outcome = as_outcome(trainer.train_step(batch), "train_step")
                        self._count(batch, feed.macrobatch, feed.finished)
                        evaluate.record(info.outcome, self._tally, self._metrics, self._objective, trainer.target)
                        for hook in plan.callbacks.on_step_end:
                            hook(info)
                        if feed.ends_macrobatch:
                            self._guard.settle()
                            call("on_macrobatch_end", info)
                        if plan.within_epochs or info.ends_epoch or info.stopping:
                            self._boundary()
                        self._asked.check()
                        yield info
                        if info.stopping:
                            self._boundary()
                            break
                    if not found and empty:
                        raise DataError(
                            "the train data gave no rows. A Source without state must start again by itself "
                            "after None; give it state_dict and load_state_dict, and it is rewound."
                        )
                    empty = not found
                    info.batch = 0 if found else info.batch
                    if feed.finished and self._initial is not None:
                        plan.train.load_state_dict(self._initial)
                self._end()
            except Interrupted:
                info.stop(self._asked.why)
                self._save()
                self._keeper.end(self._asked.why)
            info.history.stopped = info.stopping
            call("on_fit_end", info)
        if self._asked.heard:
            raise self._asked.error()

    def state_dict(self) -> dict[str, Any]:
        """All that the rest of the training depends on, by the parts that it is made of."""
        trainer, info = self._trainer, self.info
        saved = self.model.state_dict()
        transient = {plain_name(name): value for name, value in self._transient()}
        others = [module.state_dict() for module in trainer._modules[1:]]
        return {
            "model": {name: value for name, value in saved.items() if isinstance(value, Tensor)},
            "extra": {plain_name(name): value for name, value in saved.items() if not isinstance(value, Tensor)},
            "step": trainer._step.state_dict(),
            "modules": {"transient": transient, "others": others},
            "counters": asdict(info.counters),
            "place": {"batch": info.batch, "rows": self._rows, "ends_epoch": info.ends_epoch},
            "done": sorted(self._done),
            "complete": self._complete,
            "rates": self._rates.state_dict(),
            "callbacks": self._plan.callbacks.state_dict(),
            "best": None if info.best is None else asdict(info.best),
            "config": trainer._config | self._plan.config,
            "limits": config.of_limits(info.limits),
            "worker": {
                "rng": rng.capture(trainer.device),
                "tally": self._tally.state_dict(),
                "metrics": self._metrics.state_dict(),
            },
            "source": {"cursor": self._cursor, "initial": self._initial},
        }

    def _transient(self) -> Iterator[tuple[str, Tensor]]:
        """The buffers that are no part of the model's `state_dict`."""
        saved = self.model.state_dict()
        return ((name, buffer) for name, buffer in self.model.named_buffers() if name not in saved)

    def _check(self, state: dict[str, Any]) -> None:
        """Raises unless a state, whose weights and settings fit, fits altogether; nothing but the source is changed."""
        transient = state["modules"]["transient"]
        check_model(transient, dict(self._transient()))
        others = self._trainer._modules[1:]
        if len(others) != len(state["modules"]["others"]):
            raise CheckpointError(f"{len(state['modules']['others'])} objectives were modules, now {len(others)} are.")
        for module, saved in zip(others, state["modules"]["others"], strict=True):
            check_model(saved, module.state_dict())
        self._trainer._step.check_state(state["step"])
        source = state["source"]
        if state["overridden"]:
            source |= {name: self._reordered(cursor) for name, cursor in source.items()}
        self._load_source(source["cursor"], state["place"]["ends_epoch"] or not state["counters"]["steps"])

    def _load(self, state: dict[str, Any]) -> None:
        """Goes back to a state that has been checked."""
        trainer, info, worker, place = self._trainer, self.info, state["worker"], state["place"]
        changed = {difference.partition(":")[0].partition(".")[0] for difference in state["overridden"]}
        if "schedule" not in changed:
            self._rates.load_state_dict(state["rates"])
        self._initial, self._cursor = state["source"]["initial"], state["source"]["cursor"]
        load_model(self.model, {**state["model"], **state["extra"]})
        for name, value in self._transient():
            value.copy_(state["modules"]["transient"][plain_name(name)])
        for module, saved in zip(trainer._modules[1:], state["modules"]["others"], strict=True):
            module.load_state_dict(saved)
        trainer._step.load_state_dict(state["step"], overridden="optimizer" in changed)
        if "optimizer" in changed:
            self._rates.rebase()
        info.counters = Counters(**state["counters"])
        info.batch, self._rows, info.ends_epoch = place["batch"], place["rows"], place["ends_epoch"]
        info.resumed = info.step
        self._saved = info.step if state["complete"] else -1
        info.history.rows[:] = state["history"]
        info.best = None if state["best"] is None else Best(**state["best"])
        self._done = set(state["done"])
        self._plan.callbacks.load_state_dict(state["callbacks"])
        self._tally.load_state_dict(worker["tally"])
        self._metrics.load_state_dict(worker["metrics"], trainer.device)

    def _reordered(self, cursor: Any) -> Any:
        """A cursor at the same place of another order, for whoever has said that it may be another."""
        now = self._plan.train.state_dict()
        if not isinstance(cursor, dict) or now is None:
            return cursor
        return cursor | {key: now[key] for key in ("seed", "order", "block") if key in cursor and key in now}

    def _load_source(self, cursor: Any, between_epochs: bool) -> None:
        source = self._plan.train
        if cursor is not None:
            source.load_state_dict(copy.deepcopy(cursor))
        elif not between_epochs:
            raise CheckpointError(
                f"the run stopped within an epoch, and {type(source).__name__} cannot go back to where it was: give it "
                "state_dict and load_state_dict."
            )

    def _begin(self, batches: int | None, macrobatches: int | None) -> None:
        """The start of a training, or the point at which it goes on."""
        trainer, info, keeper = self._trainer, self.info, self._keeper
        state = keeper.find(self.model, trainer._config | self._plan.config, config.of_limits(info.limits))
        if state is not None:
            self._check(state)
        self._rates = make_rates(trainer.schedule, list(trainer.optimizers.values()), info.limits, batches)
        if state is not None:
            self._load(state)
        elif keeper.keeps and self._initial is None:
            warnings.warn(
                f"{type(self._plan.train).__name__} has no state_dict and load_state_dict: its run can go on between "
                "epochs only, where it starts again by itself.",
                stacklevel=2,
            )
        info.start(batches, macrobatches)
        keeper.begin(info, trainer._step.nbytes)
        self._plan.callbacks.call("on_fit_start", info)
        if state is not None:
            rng.restore(state["worker"]["rng"], trainer.device)
            info.look_at_limits()
            if info.step:
                self._boundary()
            info.batch = 0 if info.ends_epoch else info.batch
        else:
            self._save()

    def _count(self, batch: Batch, macrobatch: int, finished: bool) -> None:
        """An update has been made of this batch."""
        self.info.count(batch, macrobatch)
        self._rows = batch.total
        self._cursor = batch.cursor
        if finished and batch.ends_epoch and self._initial is not None:
            self._cursor = self._initial
        if self._done:
            self._done.clear()

    def _boundary(self) -> None:
        """What is due after an update and has not been done yet: validate, decide, report, save."""
        plan, info, call = self._plan, self.info, self._plan.callbacks.call
        self._complete = False
        now = (info.counters, self._rows, info.ends_epoch)
        if (plan.log_every.fires(*now) or info.stopping) and self._once("log"):
            self._guard.settle()
            info.history.at(info.row()).update(evaluate.report("train", self._tally, self._metrics))
        if plan.val is not None and (plan.validate_every.fires(*now) or info.stopping) and "val" not in self._done:
            self._score(plan.val, "val")
            self._done.add("val")
        if self._once("rates"):
            self._rates.after(*now, info.history)
        if info.ends_epoch and self._once("epoch"):
            row = info.history.rows[-1] if info.history.keys_at(info.step) else info.row()
            call("on_epoch_end", info, row)
        kept = info.best is not None and info.step in info.best.keep and self._once("best")
        if kept and info.best is not None and info.step == info.best.step:
            self._keeper.mark_best(self.model)
        if info.history.keys_at(info.step) and self._once("row"):
            self._keeper.report(info.history.rows[-1])
        self._complete = True
        if kept or (self._once("save") and self._keeper.due(info, self._rows)):
            self._save()

    def _once(self, what: str) -> bool:
        """Whether this has not been done since the last update; from now on it has."""
        new = what not in self._done
        self._done.add(what)
        return new

    def _score(self, source: Source, name: str) -> None:
        """Scores a data set in the middle of a training and writes it into the history."""
        before = rng.capture(self._trainer.device)
        try:
            with self._asked.scoring():
                scores = self._trainer._score(source, name, None, None)
        except Interrupted:
            rng.restore(before, self._trainer.device)
            raise
        self.info.history.at(self.info.row()).update(scores)
        self._plan.callbacks.call("on_validation_end", self.info, scores)

    def _save(self) -> None:
        """A checkpoint of this step, unless there is one."""
        if self._keeper.keeps and self._saved != self.info.step:
            self._guard.settle()
            self._plan.callbacks.call("on_checkpoint", self.info)
            self._keeper.save(self, again=self.info.step == self.info.resumed)
            self._saved = self.info.step

    def _end(self) -> None:
        """The last checkpoint is written; then the model becomes the one that is kept, and is tested."""
        plan, info = self._plan, self.info
        self._save()
        if info.best is not None and info.best.restore and info.best.step != info.step:
            self._keeper.restore(info.best, self.model)
        if plan.test is not None and "test/loss" not in info.history.keys_at(info.step):
            before = info.history.keys_at(info.step)
            self._score(plan.test, "test")
            self._keeper.report({k: v for k, v in info.history.rows[-1].items() if k not in before or k in info.row()})
        self._keeper.end(info.stopping)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The model in train mode; it and the optimizer are ordinary again however the training ends."""
        trainer, info, call = self._trainer, self.info, self._plan.callbacks.call
        keep_freed_memory()
        trainer._step.updates = 0
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
                info.stop("left")
                self._save()
                self._keeper.end("left")
                call("on_fit_end", info)
                raise
            except BaseException as error:
                call("on_error", info, error)
                raise
            finally:
                trainer.release()
