"""Workers that make the same steps: what one of them decides, all decide at the same step, from the same numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..data.batch import Batch
from ..data.ragged import Ragged
from ..data.reader import Reader
from ..data.source import Shard, Source
from ..errors import CheckpointError, ConfigError, DataError, NonFiniteError, WorkerError
from ..length import Length
from ..loss.loss_sums import LossSums
from ..loss.metrics import Metrics
from ..watch.info import Best, Info
from ..workers.strategy import Strategy
from .checkpointer import Checkpointer, State
from .reading import SameBatchCheck, as_long_as_any
from .shared_checkpointer import SharedCheckpointer, by_leader
from .signals import Signals
from .stop_vote import StopVote
from .team import Report, Team, compare, tensors_of
from .train_state import TrainState

if TYPE_CHECKING:
    from .trainer import Trainer


RAGGED = "headrace.Ragged"


class InStep(Team):
    """Several workers that make equally many updates."""

    alone = False

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self.scores = self.comm.shard
        self._certain = True  # whether all workers have equally many batches
        self.times = 1 if strategy.joint else self.comm.count
        self._vote = StopVote(self.comm)
        self._rows, self._since = 0, self.comm.now()
        self._model: nn.Module | None = None
        self._warned = False  # of a best step that cannot be kept
        self._torn = ""  # what has ended an update by hand that others may have made
        self._measures = False  # whether each worker measures its own rows, as batch normalisation does

    def source(self, train: Source, batch_size: int, limits: Sequence[Length]) -> Source:
        if isinstance(train, Reader) and not self.strategy.joint:
            train.in_lanes(self.comm.count, batch_size)
        if not train.shards:
            if self.comm.leader:
                warnings.warn(
                    f"{train.title} does not shard: each of the {self.comm.count} workers reads all of it and keeps "
                    "its part.",
                    stacklevel=4,
                )
            if not train.thread_safe:  # else it may be read where workers cannot speak to each other
                train.witness = SameBatchCheck(self.comm, train.title)
        self._certain = isinstance(train, Reader) or not train.shards
        return train

    def keeper(self, make: Callable[[], Checkpointer]) -> Checkpointer:
        return SharedCheckpointer(make, self.comm)

    def greet(self, trainer: Trainer, facts: Mapping[str, Any]) -> None:
        tensors = [(f"{k or ''}{n}", t) for k, m in enumerate(trainer._modules) for n, t in tensors_of(m).items()]
        every = self.comm.gather({**facts, "model": {n: f"{str(t.dtype)[6:]}{list(t.shape)}" for n, t in tensors}})
        by_leader(self.comm, lambda: compare(dict(enumerate(every or []))))
        self._model, self._vote, self._torn = trainer.model, StopVote(self.comm), ""
        self._spread(trainer._modules)

    def shared(self, batch: Batch, model: nn.Module) -> Batch:
        if not self.strategy.shares_updates:
            raise ConfigError(
                f"step() makes one update, and {type(self.strategy).__name__} has rounds of several. "
                "Use fit() or steps(), or strategy=hr.Synchronous()."
            )
        if self._torn:
            raise WorkerError(
                f"worker {self.comm.shard.index} failed in an update that the workers make together ({self._torn}). "
                "The others may have made it, or may be waiting: end all workers, and go on from the last checkpoint."
            )
        if self._model is not model:
            self._model = model
            self._spread([model])
        rows = torch.tensor([float(batch.rows)], dtype=torch.float64)
        self.comm.all_reduce(rows)
        return Batch(batch.fields, batch.rows, total=int(rows))

    def torn(self, error: BaseException) -> None:
        if not isinstance(error, NonFiniteError):  # all workers find that in the same numbers, and go on alike
            self._torn = f"{type(error).__name__}: {error}"
            self.comm.tell(error)

    def each(self, feed: Iterable[Batch]) -> Iterator[Batch]:
        for batch in feed if self._certain else as_long_as_any(feed, self.comm):
            self._rows += batch.rows
            if not self.strategy.joint:
                batch.total = batch.rows  # the update is this worker's own
            yield batch

    def begin(self, at: TrainState, state: State | None) -> None:
        super().begin(at, state)
        self._measures = self.strategy.shares_updates and bool(at.replica().statistics)

    def updated(self, at: TrainState, batch: Batch) -> None:
        if not self.strategy.shares_updates:  # else it has been said where the update was computed
            self.comm.worked(batch.rows)
        if not self.strategy.started:
            return
        super().updated(at, batch)
        if self._measures:
            self._agrees = False

    def _start(self, at: TrainState) -> None:
        at.restart(forget=not self.comm.leader)
        self._spread(at.modules)
        at.take_over(self.comm.share(at.updates() if self.comm.leader else None))

    def decide(self, info: Info, asked: Signals, due: bool, now: bool) -> bool:
        self.comm.at(info.step, "training")
        word = self._vote(bool(info.stop_request), bool(asked.why), due, now)
        if word is None:
            return False
        if word.stop or word.leave:
            why = next(filter(None, self.comm.all_gather(asked.why if word.leave else info.stop_request)), "stopped")
            if word.leave:
                asked.agree(why)
            info.stopping = info.stopping or why
        return word.save

    def metrics(self, metrics: Metrics) -> Metrics:
        metrics.hold()
        return metrics

    def scored(self, tally: LossSums, metrics: Metrics) -> Report:
        losses, scores, _ = self._added_up(tally, metrics, range(self.comm.count))
        return losses, scores

    def trained(self, tally: LossSums, metrics: Metrics) -> Report:
        everybody = range(self.comm.count)
        if not self.strategy.started:  # all workers have done the same
            losses, scores, self.rates = self._added_up(tally, metrics, range(1))
        else:  # of updates that they make together, everybody knows the losses
            losses, scores, self.rates = self._added_up(tally, metrics, everybody, joint=self.strategy.joint)
        return losses, scores

    def _added_up(self, tally: LossSums, metrics: Metrics, workers: range, joint: bool = False) -> tuple[Any, Any, Any]:
        """Losses and metrics over what these workers have seen, and the rows a second of each of all."""
        now = self.comm.now()
        rate = self._rows / max(1e-9, now - self._since)
        said = self.comm.gather([tally.totals(), metrics.state_dict() if metrics else None, rate])
        self._rows, self._since = 0, now

        def found() -> list[Any]:
            assert said is not None
            of = [said[k] for k in workers]
            if metrics:
                metrics.join([state for _, state, _ in of], self.device)
            losses = LossSums.of([totals for totals, _, _ in of[: 1 if joint else None]]).read()
            return [losses, metrics.compute(), [rate for _, _, rate in said]]

        losses, scores, rates = by_leader(self.comm, found)
        return losses, scores, rates

    def restored(self, model: nn.Module) -> None:
        self._spread([model])

    def keeps(self, info: Info, common: bool) -> bool:
        """Worker 0 tells good from bad for all, where all have come to report."""
        if not common:
            if not self._warned and super().keeps(info, common):
                self._warned = True
                warnings.warn(
                    f"step {info.step} was marked as the best, and several workers keep weights only where all of them "
                    "report: these are not kept. Mark it at the end of an epoch, or where log_every= or "
                    "validate_every= is due.",
                    stacklevel=2,
                )
            return False
        marks = {name: asdict(mark) for name, mark in info.marks.items()}
        marks = self.comm.share(marks if self.comm.leader else None)
        info.marks = {name: Best(**mark) for name, mark in marks.items()}
        return super().keeps(info, common)

    def gather(self, outputs: list[Any], totals: Sequence[int]) -> list[Any]:
        try:
            flat = [tree_flatten(output) for output in outputs]
            every = self.comm.all_gather([[_sent(leaf) for leaf in leaves] for leaves, _ in flat])
        except CheckpointError as error:
            raise DataError(f"what several workers predict has to be made of tensors: {error}") from None
        left, shards = [iter(found) for found in every], [Shard(k, self.comm.count) for k in range(self.comm.count)]
        found = []
        for total in totals:
            for shard, theirs in zip(shards, left, strict=True):
                start, stop = shard.of(total)
                if start < stop:
                    leaves = [_received(leaf) for leaf in next(theirs)]
                    whole = leaves[0] if len(leaves) == 1 else tuple(leaves)
                    found.append(tree_unflatten(leaves, flat[0][1]) if flat else whole)  # else of what form, who knows
        return found

    def tell(self, error: BaseException) -> None:
        self.comm.tell(error)

    def _own_state(self, at: TrainState) -> State:
        own = super()._own_state(at)
        if not self._idle and not self.strategy.joint and not self.comm.leader:
            own["optimizers"] = at.optimizers()
        return own

    def _owns(self, own: State) -> list[State] | None:
        return self.comm.gather(own)

    def _spread(self, modules: Sequence[nn.Module]) -> None:
        """Worker 0's weights become everybody's."""
        with torch.no_grad():
            for tensor in [tensor for module in modules for tensor in tensors_of(module).values()]:
                whole = tensor.contiguous()
                flat = whole.view(-1)
                self.comm.broadcast(flat)
                if whole is not tensor:
                    tensor.copy_(whole)


def _sent(leaf: Any) -> Any:
    """A part of an output as it travels: sequences as what they are made of."""
    return {RAGGED: [_sent(leaf.values), leaf.offsets]} if isinstance(leaf, Ragged) else leaf


def _received(sent: Any) -> Any:
    """What `_sent` was given."""
    return Ragged(*map(_received, sent[RAGGED])) if isinstance(sent, dict) else sent
