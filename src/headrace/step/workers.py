"""The workers of a trainer: they share updates made by hand, scores and predictions."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .. import errors
from ..data.batch import Batch
from ..data.ragged import Ragged
from ..data.source import WHOLE, Shard
from ..errors import CheckpointError, ConfigError, DataError, HeadraceError, NonFiniteError, WorkerError
from ..loss.by_output import MetricsByOutput
from ..loss.outcome import LossSums
from ..workers.comm import Comm
from ..workers.here import here
from ..workers.strategy import Single, Strategy
from ..workers.synchronous import Synchronous
from .evaluate import Gather

Result = TypeVar("Result")
RAGGED = "headrace.Ragged"


class Workers:
    """All workers of a trainer, seen from one of them. They share updates made by hand, scores and predictions."""

    def __init__(self, strategy: Strategy, device: torch.device) -> None:
        self.strategy, self.comm, self.device = strategy, strategy.comm, device
        self.in_step = self.comm.count > 1 and not strategy.centered
        """Whether there are others, and all make equally many updates."""
        self.shard: Shard = self.comm.shard if self.in_step else WHOLE
        """The part of every batch, and of data to be scored or predicted, that is this worker's."""
        self.times = self.comm.count if self.in_step and not strategy.joint else 1
        """How many times as large as a worker's update a batch of all workers is."""
        self.gather: Gather | None = self._gather if self.in_step else None
        """Joins what several workers predict; `None` where one does it all."""
        self._rows = 0  # of this worker's, since `rate` was called, or data were scored
        self._since = self.comm.now()
        self._model: nn.Module | None = None
        self._failure = ""  # what has ended an update by hand that others may have made

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

    def fresh(self, metrics: MetricsByOutput) -> MetricsByOutput:
        """Metrics of which every worker sees a part."""
        if self.in_step:
            metrics.hold()
        return metrics

    def scored(self, sums: LossSums, metrics: MetricsByOutput) -> tuple[dict[str, float], dict[str, Any]]:
        """Losses and metrics over data that were scored, each worker's part of them."""
        losses, scores, _ = self.added_up(sums, metrics)
        self.rate()  # the time that it took is no time of the training
        return losses, scores

    def scored_by_each(self, sums: LossSums, metrics: MetricsByOutput) -> tuple[dict[str, float], dict[str, Any]]:
        """Losses and metrics over data that every worker has scored completely."""
        self.rate()
        return sums.read(), metrics.compute()

    def rate(self) -> float:
        """Rows a second of this worker since the last call."""
        now = self.comm.now()
        rate = self._rows / max(1e-9, now - self._since)
        self._rows, self._since = 0, now
        return rate

    def added_up(
        self, sums: LossSums, metrics: MetricsByOutput, joint: bool = False, fact: Any = None
    ) -> tuple[dict[str, float], dict[str, Any], list[Any]]:
        """Losses and metrics over what all workers have seen, and a `fact` of each; `joint`: all know all losses."""
        if not self.in_step:
            return sums.read(), metrics.compute(), []
        gathered = self.comm.gather([sums.totals(), metrics.state_dict() if metrics else None, fact])

        def add_up() -> list[Any]:
            assert gathered is not None
            if metrics:
                metrics.join([state for _, state, _ in gathered], self.device)
            losses = LossSums.of([totals for totals, _, _ in gathered[: 1 if joint else None]]).read()
            return [losses, metrics.compute(), [fact for _, _, fact in gathered]]

        losses, scores, facts = by_leader(self.comm, add_up)
        return losses, scores, facts

    def broadcast_weights(self, modules: Sequence[nn.Module]) -> None:
        """Worker 0's weights become everybody's."""
        if not self.in_step:
            return
        self._model, self._failure = modules[0], ""
        with torch.no_grad():
            for tensor in [tensor for module in modules for tensor in tensors_of(module).values()]:
                dense = tensor.contiguous()
                self.comm.broadcast(dense.view(-1))
                if dense is not tensor:
                    tensor.copy_(dense)

    def _gather(self, outputs: list[Any], totals: Sequence[int]) -> list[Any]:
        """The outputs of all workers in the order of the rows; `totals`: how many rows each batch has."""
        try:
            flat = [tree_flatten(output) for output in outputs]
            every = self.comm.all_gather([[_sent(leaf) for leaf in leaves] for leaves, _ in flat])
        except CheckpointError as error:
            raise DataError(f"what several workers predict has to be made of tensors: {error}") from None
        rest, shards = [iter(sent) for sent in every], [Shard(k, self.comm.count) for k in range(self.comm.count)]
        joined: list[Any] = []
        for total in totals:
            for shard, theirs in zip(shards, rest, strict=True):
                start, stop = shard.of(total)
                if start < stop:
                    leaves = [_received(leaf) for leaf in next(theirs)]
                    if flat:
                        joined.append(tree_unflatten(leaves, flat[0][1]))
                    else:  # this worker had no rows, and does not know the form
                        joined.append(leaves[0] if len(leaves) == 1 else tuple(leaves))
        return joined


def join(strategy: Strategy | None) -> Strategy:
    """The strategy, on this worker; without one, several workers share every update."""
    comm = here()
    if strategy is None:
        strategy = Single() if comm.count == 1 else Synchronous()
    if not isinstance(strategy, Strategy):
        what = f"the class {strategy.__name__}" if isinstance(strategy, type) else f"a {type(strategy).__name__}"
        raise ConfigError(
            f"strategy= takes a Strategy, as in hr.Periodic(every='1 epoch'), got {what}.", argument="strategy"
        )
    strategy.join(comm)
    return strategy


def by_leader(comm: Comm, act: Callable[[], Result]) -> Result:
    """The result of worker 0, for all; if it fails there, it fails everywhere, and for the same reason."""
    message: Any = None
    failure: BaseException | None = None
    if comm.leader:
        try:
            message = {"result": act()}
        except Exception as error:
            failure, message = error, {"kind": type(error).__name__, "why": str(error)}
    message = comm.share(message)
    if failure is not None:
        raise failure
    if "result" not in message:
        kind = getattr(errors, message["kind"], WorkerError)
        known = isinstance(kind, type) and issubclass(kind, HeadraceError)
        raise (kind if known else WorkerError)(f"worker 0: {message['why']}")
    return message["result"]  # type: ignore[no-any-return]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Everything that a model's state is made of, by name."""
    saved = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return {**saved, **dict(model.named_buffers())}


def _sent(leaf: Any) -> Any:
    """A part of an output as it travels: sequences as what they are made of."""
    return {RAGGED: [_sent(leaf.values), leaf.offsets]} if isinstance(leaf, Ragged) else leaf


def _received(sent: Any) -> Any:
    """What `_sent` was given."""
    return Ragged(*map(_received, sent[RAGGED])) if isinstance(sent, dict) else sent
