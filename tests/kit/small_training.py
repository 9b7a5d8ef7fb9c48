"""A small training on virtual workers that records each worker's rows and weights, step by step."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headrace.arena.replica import Replica
from headrace.data.arrays import ArrayTable
from headrace.data.batch import Batch
from headrace.engines.launch import launch
from headrace.engines.network import Network
from headrace.loss.outcome import Outcome
from headrace.train.runs import Run
from headrace.train.trainer import Trainer
from headrace.workers.centered import Centered
from headrace.workers.here import here
from headrace.workers.strategy import Single, Strategy
from kit.small import state

ROWS, BATCH, EPOCHS = 25, 4, 2  # the last batch of an epoch has no rows for some workers
PARAMETER, STATISTIC, COUNTER = "parameter", "statistic", "counter"
Weights = dict[str, Tensor]
Make = Callable[[], Strategy]


class Small(nn.Module):
    """A model with all kinds of tensors: parameters of two learning rates, one without any, statistics, a counter.

    Without `statistics` no row meets another.
    """

    def __init__(self, statistics: bool) -> None:
        super().__init__()
        self.inner = nn.Conv1d(2, 3, 1)
        self.norm = nn.BatchNorm1d(3) if statistics else nn.Identity()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.outer = nn.Linear(12, 2)
        self.used: list[int] = []
        """Rows that it has been trained on since they were asked for."""

    def forward(self, row: Tensor, x: Tensor) -> Tensor:
        if self.training:
            self.used += row.tolist()
        out: Tensor = self.outer(torch.tanh(self.scale * self.norm(self.inner(x))).flatten(1))
        return out


def small_table() -> ArrayTable:
    at = torch.arange(ROWS)
    x = torch.sin(at[:, None] * torch.arange(1, 9) * 0.7).view(ROWS, 2, 4)
    return ArrayTable({"row": at, "x": x, "y": x[:, :, :2].sum(2) + x[:, :, 3]})


@dataclass
class Moment:
    """The state of a worker after an update."""

    step: int
    ends_epoch: bool
    rows: list[int]
    """Those of the update; none on other workers than the first as long as each makes all updates by itself."""
    agrees: bool
    """Whether the strategy says that all workers have the same weights."""
    weights: Weights
    samples: int
    """Rows of all workers that this one knows to be used."""

    @property
    def digest(self) -> tuple[Any, ...]:
        """A value that differs if any bit does."""
        return self.step, self.ends_epoch, tuple(self.rows), self.agrees, bits_of(self.weights)


@dataclass
class Trace:
    """The record of one worker's training, from its beginning or from where it goes on."""

    start: Weights = field(default_factory=dict)
    """The weights before the first update; nothing if there is none."""
    samples: int = 0
    """Of a centered training: rows that the center's weights had learnt from by then."""
    moments: list[Moment] = field(default_factory=list)
    end: Weights = field(default_factory=dict)
    """The weights when all was over."""

    def after(self, step: int) -> Weights:
        """Its weights after so many updates."""
        return self.moments[step - 1].weights if step else self.start

    def since(self, step: int) -> "Trace":
        """What is left of it for a training that goes on after this step."""
        return replace(self, moments=self.moments[step:])


@dataclass
class SmallTraining:
    """A training that can be repeated, with these settings."""

    make: Make | None
    workers: int
    statistics: bool = True
    run: Path | None = None
    """Where it is saved, and goes on from."""
    saves: str = "1 step"
    """How often."""
    ask: Callable[[int, Strategy, Replica], None] | None = None
    """Asks every worker after every update what the strategy says of itself."""

    def __call__(self) -> list[Trace]:
        traces = [Trace() for _ in range(self.workers)]

        def main() -> None:
            worker = here().shard.index
            self._train_worker(worker, traces[worker])

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            launch(main, workers=self.workers, network=uneven(self.workers))
        return traces

    def _train_worker(self, worker: int, trace: Trace) -> None:
        torch.manual_seed(worker)
        model, strategy = Small(self.statistics), Single() if self.make is None else self.make()
        agrees = _listen(strategy, trace)
        biases = [param for name, param in model.named_parameters() if "bias" in name]
        others = [param for name, param in model.named_parameters() if "bias" not in name]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": biases, "lr": 0.02}]
        trainer = _Noting(
            model,
            nn.MSELoss(),
            torch.optim.SGD(groups, lr=0.05, momentum=0.5),
            batch_size=BATCH,
            inputs=("row", "x"),
            strategy=None if self.make is None else strategy,
        )
        trainer.trace = trace
        options: dict[str, Any] = {"epochs": EPOCHS}
        if self.run is not None:
            options["run"] = Run(self.run, every=self.saves, keep="all")
        for info in trainer.steps(small_table(), **options):
            rows = model.used[:]
            model.used.clear()
            now = not agrees or agrees[-1]
            trace.moments.append(Moment(info.step, info.ends_epoch, rows, now, state(model), info.samples))
            if self.ask is not None:
                self.ask(worker, strategy, info.replica)
        trace.end = state(model)


class _Noting(Trainer):
    """A trainer that records the weights before the first update."""

    trace: Trace

    def train_step(self, batch: Batch) -> Outcome:
        self.trace.start = self.trace.start or state(self.model)
        return super().train_step(batch)


def uneven(workers: int) -> Network | None:
    """A cluster with slow links and workers of different speeds, so that no two arrive at the same time."""
    if workers == 1:
        return None
    return Network(bandwidth="10 Mbit", rows_per_s=1e4, speeds=[3 / (3 + worker) for worker in range(workers)])


def _listen(strategy: Strategy, trace: Trace) -> list[bool]:
    """Records the center's samples at the beginning; returns a list that gets what `after` returns."""
    agreed: list[bool] = []
    begin, after = strategy.begin, strategy.after

    def on_begin(replica: Replica) -> None:
        begin(replica)
        if isinstance(strategy, Centered):
            trace.samples = strategy.progress["samples"]

    def on_after(*args: Any, **options: Any) -> bool:
        agreed.append(after(*args, **options))
        return agreed[-1]

    strategy.begin, strategy.after = on_begin, on_after  # type: ignore[method-assign]
    return agreed


def bits_of(weights: Weights) -> tuple[bytes, ...]:
    return tuple(tensor.numpy().tobytes() for tensor in weights.values())


def kind_of(name: str) -> str:
    """The kind of a tensor of the small model."""
    kinds = {"norm.running_mean": STATISTIC, "norm.running_var": STATISTIC, "norm.num_batches_tracked": COUNTER}
    return kinds.get(name, PARAMETER)


def loss_of(weights: Weights) -> float:
    """Of a model with statistics, over all rows."""
    model, table = Small(statistics=True), small_table()
    model.load_state_dict(weights)
    batch = table.take(torch.arange(ROWS))
    with torch.no_grad():
        return float(F.mse_loss(model(batch["row"], batch["x"]), batch["y"]))
