"""The workers of a training, seen from one of them: one worker alone, or several that make equally many updates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from ..arena.replica import Replica
from ..arena.sharding import is_sharded
from ..data.batch import Batch
from ..data.reader import Reader
from ..data.shard import WHOLE, Shard
from ..data.source import Source
from ..errors import ConfigError, NonFiniteError, WorkerError
from ..length import Counters, Length
from ..loss.metrics import Compared, Metrics
from ..loss.tally import Tally
from ..step.signals import Signals
from ..step.weights import tensors_of
from ..watch.info import Best, Info
from ..workers.dealt import Dealt, as_long_as_any
from ..workers.strategy import Single, Strategy
from .checkpoint import WorkerState
from .resume import Resumed
from .same_data import SameBatchCheck, compare, refuse_wrapped
from .schedule import Rates
from .shard_files import gather_parts
from .vote import StopVote, by_leader

Report = tuple[dict[str, float], dict[str, Any]]  # losses and metrics by name


class Workers:
    """All workers of a trainer, seen from one of them: they share updates, scores, predictions and checkpoints."""

    leads = True
    """Whether this worker scores, and calls the user's callbacks."""
    epoch_rows: int | None = None
    """Rows of an epoch, where a center counts them."""

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        self.strategy, self.comm, self.device = strategy, strategy.comm, device
        self.in_step = self.comm.count > 1 and not strategy.centered
        """Whether there are others, and all make equally many updates."""
        self.shard: Shard = strategy.shard if self.in_step else WHOLE
        """The part of every batch, and of data to be scored or predicted, that is this worker's."""
        self.times = self.comm.count if self.in_step and not strategy.joint else 1
        """How many times as large as a worker's update a batch of all workers is."""
        self._rows = 0  # of this worker's, since `rate` was called, or data were scored
        self._since = self.comm.now()
        self._model: nn.Module | None = None
        self._failure = ""  # what has ended an update by hand that others may have made
        self.rates: list[float] = []
        """Rows a second of each worker, as of the last report."""
        self._vote = StopVote(self.comm)
        self._agrees = True  # whether all workers have the same weights
        self._is_single = type(strategy) is Single
        self._measures = False  # whether each worker measures its own rows, as batch normalisation does
        self._ends_together = True  # whether all workers have equally many batches
        self.own_parts: Callable[[], WorkerState]
        """Gives what a checkpoint has of this worker; set before `begin`."""
        self._has_warned = False  # of a best step that cannot be kept

    def source(self, train: Source, batch_size: int, limits: Sequence[Length]) -> Source:
        """The training data as this worker reads them, whose updates have so many rows."""
        self._check_shards(train)
        if not self.in_step:
            return train
        if train.own_size and not train.shards and not self.strategy.joint:
            train = Dealt(train, self.comm.count)
        if not train.shards:
            if self.comm.leader:
                warnings.warn(
                    f"{train.title} does not shard: each of the {self.comm.count} workers reads all of it and keeps "
                    "its part.",
                    stacklevel=4,
                )
            if not train.thread_safe:  # else it may be read where workers cannot speak to each other
                train.compare_batch = SameBatchCheck(self.comm, train.title)
        return train

    def _check_shards(self, source: Source) -> None:
        if self.strategy.parts and source.shards and not source.elastic:
            raise ConfigError(
                f"{source.title} shares its rows by itself, in a way that may depend on the number of workers (its "
                "`elastic` is False), and parts= promises the same bits for any number. Leave shards = True out, or "
                "give every worker the rows that shard.of(size) says, with elastic = True."
            )

    def enter(self, train: Source, modules: Sequence[nn.Module], facts: Mapping[str, Any], signals: Signals) -> None:
        """A training begins: raises unless these facts about it are the same for all, who get the same weights."""
        self.rates, self._vote, self._agrees, self._has_warned = [], StopVote(self.comm), True, False
        self._ends_together = not self.in_step or isinstance(train, Reader) or not train.shards
        if self.comm.count > 1:
            refuse_wrapped(modules)
            tensors = {f"{k or ''}{n}": t for k, module in enumerate(modules) for n, t in tensors_of(module).items()}
            model = {name: f"{str(t.dtype)[6:]}{list(t.shape)}" for name, t in tensors.items()}
            threads = torch.get_num_threads() if self.strategy.parts else None
            every = self.comm.gather({**facts, "model": model, "threads": threads})
            by_leader(self.comm, lambda: compare(dict(enumerate(every or []))))
            self._broadcast(modules)

    def begin(self, info: Info, rates: Rates, resumed: Resumed | None) -> bool:
        """The model has its weights, and its optimizers their state. Whether all workers have the same weights."""
        replica, own = info.replica, {} if resumed is None else resumed.mine["replica"]
        self._measures = self.strategy.shares_updates and not self.strategy.parts and bool(replica.statistics)
        for source in info.scored.values():
            self._check_shards(source)
        for name, source in info.scored.items() if self.in_step else ():
            if not (source.shards or source.thread_safe):
                source.compare_batch = SameBatchCheck(self.comm, f"{name} data", first=True)
        put_back(replica, own.get("trained", {}))
        if self._is_single:
            return False
        self.strategy.begin(replica)
        saved = None if resumed is None else resumed.common["strategy"]
        if saved is None:
            return True
        put_back(replica, own)
        self.strategy.load_state_dict(replica, saved["state"], own.get("strategy"))
        self._agrees = saved["agrees"] or "strategy" not in own
        return False

    def each(self, feed: Iterable[Batch]) -> Iterable[Batch]:
        """The batches of an epoch, as many for every worker."""
        return self._each(feed) if self.in_step else feed

    def _each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        for batch in feed if self._ends_together else as_long_as_any(feed, self.comm):
            self._rows += batch.rows
            if not self.strategy.joint:
                batch.total = batch.rows  # the update is this worker's own
            yield batch

    def progress(self, info: Info) -> Counters:
        """How far the training has come, for schedules."""
        return info.counters

    def updated(self, info: Info, batch: Batch) -> bool:
        """An update was made of this batch. Whether workers that update replicas of their own have the same weights."""
        if not self.strategy.shares_updates:  # else it was reported where the update was computed
            self.comm.worked(batch.rows)
        if self._is_single:
            return False
        self._agrees = self.strategy.after(info.replica, info.counters, batch.rows, batch.samples, info.ends_epoch)
        meet = self._agrees and not self.strategy.joint
        self._agrees &= not self._measures
        return meet

    def decide(self, info: Info, signals: Signals, due: bool, now: bool) -> bool:
        """What one worker wants, all do: to stop, to be preempted, to save. Whether to save; it may take effect later.

        `now`: all workers have come to where something is due, and decide at once.
        """
        if not self.in_step:
            return due
        self.comm.at(info.step, "training")
        now |= self.strategy.parts > 0  # one worker decides at once, and several are to end where it ends
        vote = self._vote(bool(info.stop_request), bool(signals.why), due, now)
        if vote is None:
            return False
        if vote.stop or vote.leave:
            reasons = self.comm.all_gather(signals.why if vote.leave else info.stop_request)
            why = next(filter(None, reasons), "stopped")
            if vote.leave:
                signals.end_together(why)
            info.stopping = info.stopping or why
        return vote.save

    def trained(self, tally: Tally) -> Report:
        """Losses and metrics over what was trained since the last report."""
        joint = self.strategy.joint  # of updates that they make together, everybody knows the losses
        losses, scores, self.rates = self.added_up(tally, joint, self.rate())
        return losses, scores

    def has_more_rows(self, info: Info) -> bool:
        """All rows have been used: whether more is known than was reported."""
        return False

    def keeps(self, info: Info, common: bool) -> bool:
        """Whether the weights of this step are to be kept; worker 0 decides for all.

        `common`: all workers have come to where they report.
        """
        if self.in_step and common:
            marks = {name: asdict(mark) for name, mark in info.marks.items()}
            marks = self.comm.share(marks if self.comm.leader else None)
            info.marks = {name: Best(**mark) for name, mark in marks.items()}
        marked = any(info.step in mark.keep for mark in info.marks.values())
        if marked and self.in_step and not common:
            if not self._has_warned:
                warnings.warn(
                    f"step {info.step} was marked as the best, and several workers keep weights only where all of them "
                    "report: these are not kept. Mark it at the end of an epoch, or where log_every= or "
                    "validate_every= is due.",
                    stacklevel=2,
                )
            self._has_warned, marked = True, False
        return marked

    # --- what is judged, kept and saved -------------------------------------------------------------------

    def state(self, info: Info) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """The weights to save by name, if they are not the model's own, and the part "strategy" of the state."""
        replica = info.replica
        weights = replica.by_name(self._result(info)) if self._differs(info) else {}
        if self._is_single:
            return weights, None
        state = self.strategy.state_dict(replica)
        return weights, {"kind": self.strategy.kind, "agrees": self._agrees, "state": state}

    def cursor_now(self, cursor: Any) -> Any:
        """The cursor to save, where this one is that of the batch used last."""
        return cursor

    @property
    def has_own_optimizers(self) -> bool:
        """Whether this worker's optimizers have another state than those of worker 0."""
        return not (self._is_single or self.strategy.joint or self.comm.leader)

    def own_state(self, info: Info) -> dict[str, Any]:
        """What the strategy, and the weights that are trained, are on this worker alone."""
        own: dict[str, Any] = {} if self._is_single else {"strategy": self.strategy.own_state()}
        if self._differs(info):
            replica = info.replica
            weights = {"weights": replica.by_name(replica.tensors), "counts": replica.counts}
            own |= weights if info.evaluated_weights is None else {"trained": weights}  # else averages are kept
        return own

    def gather_states(self, own: Callable[[], WorkerState]) -> list[WorkerState] | None:
        """The parts of every worker, for those that save them; `own` gives those of this one."""
        return gather_parts(self.strategy, own())

    @contextmanager
    def consensus(self, info: Info) -> Iterator[None]:
        """For a while, the model has the weights to judge and to keep: see `_result`."""
        if not self._differs(info):
            yield
            return
        with _changed(info, self._result(info)):
            yield

    def finish(self, info: Info) -> None:
        """All is saved: the model becomes the common result, for good."""
        if self._differs(info):
            info.replica.write(self._result(info))
            self._agrees, info.evaluated_weights = True, None

    def report_error(self, error: BaseException) -> None:
        """This worker ends because of an error."""
        if self.in_step:
            self.comm.report_error(error)

    def leave(self) -> None:
        """This worker's part in the training is over."""
        self.own_parts = dict  # lets go of the data

    # --- updates by hand, scores and predictions ----------------------------------------------------------

    @property
    def sharing(self) -> int:
        """How many workers share every update."""
        return self.comm.count if self.in_step and self.strategy.joint else 1

    def share(self, batch: Batch, model: nn.Module) -> Batch:
        """A batch for one update of this model by hand, of which every worker brings its part."""
        if self.strategy.centered or (self.in_step and not self.strategy.shares_updates):
            how = "meets a center after several" if self.strategy.centered else "has rounds of several"
            raise ConfigError(
                f"step() makes one update, and {type(self.strategy).__name__} {how}. "
                "Use fit() or steps(), or strategy=hr.Synchronous()."
            )
        if not self.in_step:
            return batch
        if self._failure:
            raise WorkerError(
                f"worker {self.comm.shard.index} failed in an update that the workers make together ({self._failure}). "
                "The others may have made it, or may be waiting: end all workers, and go on from the last checkpoint."
            )
        if self._model is not model:
            self.broadcast_weights([model])
        rows = torch.tensor([float(batch.rows)], dtype=torch.float64)
        self.comm.all_reduce(rows)
        return Batch(batch.fields, batch.rows, total=int(rows))

    def mark_failed(self, error: BaseException) -> None:
        """An update by hand has failed. If a number is not finite, all workers notice it in the same numbers."""
        if self.in_step and not isinstance(error, NonFiniteError):
            self._failure = f"{type(error).__name__}: {error}"
            self.comm.report_error(error)

    @property
    def parts(self) -> range | None:
        """The parts of each batch that belong to this worker, if batches are cut into parts."""
        return self.strategy.shard.mine if self.strategy.parts else None

    def tally(self, metrics: Metrics, compared: Callable[[str], Compared]) -> Tally:
        """Adds up the losses and metrics of rows that the workers share."""
        shared = self.in_step or bool(self.strategy.parts)
        return Tally(metrics, compared, device=self.device, shared=shared)

    def cut(self, batch: Batch) -> list[Batch]:
        """The parts of a batch that this worker scores, one after the other."""
        return self.strategy.shard.parts_of(batch)

    def scored(self, tally: Tally) -> Report:
        """Losses and metrics over data of which each worker has scored a part."""
        losses, scores, _ = self.added_up(tally)
        self.rate()  # the time that it took is no time of the training
        return losses, scores

    def scored_by_each(self, tally: Tally) -> Report:
        """Losses and metrics over data that every worker has scored completely."""
        self.rate()
        return tally.compute()

    def rate(self) -> float:
        """Rows a second of this worker since the last call."""
        now = self.comm.now()
        rate = self._rows / max(1e-9, now - self._since)
        self._rows, self._since = 0, now
        return rate

    def added_up(
        self, tally: Tally, joint: bool = False, fact: Any = None
    ) -> tuple[dict[str, float], dict[str, Any], list[Any]]:
        """Losses and metrics over what all workers have seen, and a `fact` of each; `joint`: all know all losses."""
        if not (self.in_step or self.strategy.parts):
            return *tally.compute(), []
        gathered = self.comm.gather([tally.state_dict(losses=self.comm.leader or not joint), fact])

        def add_up() -> list[Any]:
            assert gathered is not None
            tally.load([state for state, _ in gathered])
            return [*tally.compute(), [fact for _, fact in gathered]]

        losses, scores, facts = by_leader(self.comm, add_up)
        return losses, scores, facts

    def broadcast_weights(self, modules: Sequence[nn.Module]) -> None:
        """Worker 0's weights become everybody's."""
        if self.in_step:
            self._broadcast(modules)

    def _broadcast(self, modules: Sequence[nn.Module]) -> None:
        self._model, self._failure = modules[0], ""
        with torch.no_grad():
            every = [tensor for module in modules for tensor in tensors_of(module).values()]
            for tensor in [tensor for tensor in every if not is_sharded(tensor)]:
                dense = tensor.contiguous()
                self.comm.broadcast(dense.view(-1))
                if dense is not tensor:
                    tensor.copy_(dense)

    def _differs(self, info: Info) -> bool:
        """Whether the weights to judge and to keep are others than the model's own."""
        return not self._agrees or info.evaluated_weights is not None

    def _result(self, info: Info) -> Sequence[Tensor]:
        """The weights to judge and to keep: averages if a callback gives some, else what the workers agree on."""
        averages = info.evaluated_weights
        if averages is None:
            return self.strategy.consensus(info.replica)
        if self._agrees:
            return averages
        with _changed(info, averages):
            return [tensor.clone() for tensor in self.strategy.consensus(info.replica)]


@contextmanager
def _changed(info: Info, tensors: Sequence[Tensor]) -> Iterator[None]:
    """For a while, the model has these weights."""
    replica = info.replica
    before = [tensor.clone() for tensor in replica.tensors]
    replica.write(tensors)
    try:
        yield
    finally:
        info.replica.write(before)


def put_back(replica: Replica, saved: Mapping[str, Any]) -> None:
    """The weights that only this worker had, if it had any."""
    if "weights" in saved:
        replica.write(replica.joined(saved["weights"]))
        for count, before in zip(replica.counts, saved["counts"], strict=True):
            count.copy_(before)
