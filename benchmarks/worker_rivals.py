"""What one of the workers of a benchmark does: the same training by hand, by Accelerate and by headrace, in turns.

`worker_team.run` starts this file with a job, as JSON. All rivals train the same perceptron from the same first
weights with the same optimizer; where they share batches, these have the same rows, which the loop by hand gets in
the order that headrace reads them in, for nothing.
"""

from __future__ import annotations

import datetime
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from timing import Job, silence
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from worker_team import end_with_parent, move_apart

INPUTS, CLASSES = 784, 10
CHECKED_STEPS = 20
PARTS = 8

TIMEOUT = datetime.timedelta(seconds=60)


@dataclass(frozen=True)
class Work:
    """A perceptron with two hidden layers, and one epoch of so many joint updates."""

    hidden: int
    steps: int
    share: int = 32
    """Rows of each worker in an update."""
    lr: float = 0.05

    @property
    def batch(self) -> int:
        return self.share * dist.get_world_size()

    def data(self) -> tuple[Tensor, Tensor]:
        """Normal noise, labelled by a linear teacher; the same on all workers."""
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(self.steps * self.batch, INPUTS, generator=generator)
        return x, (x[:, -16:] @ torch.randn(16, CLASSES, generator=generator)).argmax(1)

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return perceptron(INPUTS, self.hidden)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9)


Prepare = Callable[[Work, Tensor, Tensor], tuple[Job, nn.Module]]


def perceptron(inputs: int, hidden: int) -> nn.Module:
    first, second = nn.Linear(inputs, hidden), nn.Linear(hidden, hidden)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(hidden, CLASSES))


def _prepared(run: Callable[[], object], model: nn.Module, x: Tensor, y: Tensor) -> tuple[Job, nn.Module]:
    def score() -> float:
        with torch.no_grad():
            return nn.functional.cross_entropy(model(x[:2048]), y[:2048]).item()

    return Job(run, score), model


def ddp(work: Work, x: Tensor, y: Tensor) -> tuple[Job, nn.Module]:
    """The hand-written loop over DistributedDataParallel: index slicing, nothing logged."""
    import headrace as hr

    model = work.model()
    wrapped = DistributedDataParallel(model)
    optimizer, criterion = work.optimizer(model), nn.CrossEntropyLoss()
    order = torch.from_numpy(hr.Order(len(x), "full", seed=0).indices(0, 0, len(x)))
    first = work.share * dist.get_rank()

    def run() -> None:
        model.train()
        for start in range(0, len(x), work.batch):
            rows = order[start + first : start + first + work.share]
            optimizer.zero_grad()
            loss = criterion(wrapped(x[rows]), y[rows])
            loss.backward()
            optimizer.step()

    return _prepared(run, model, x, y)


def accelerate(work: Work, x: Tensor, y: Tensor) -> tuple[Job, nn.Module]:
    """The loop of accelerate's examples."""
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    model, accelerator = work.model(), Accelerator(cpu=True)
    batches = DataLoader(TensorDataset(x, y), batch_size=work.share, shuffle=True)
    wrapped, optimizer, batches = accelerator.prepare(model, work.optimizer(model), batches)
    criterion = nn.CrossEntropyLoss()

    def run() -> None:
        model.train()
        for rows, target in batches:
            optimizer.zero_grad()
            loss = criterion(wrapped(rows), target)
            accelerator.backward(loss)
            optimizer.step()

    return _prepared(run, model, x, y)


def synchronous(work: Work, x: Tensor, y: Tensor) -> tuple[Job, nn.Module]:
    """`Trainer.fit` with progress lines, logging and accuracy: one batch for all workers."""
    import headrace as hr

    return _fit(hr.Synchronous(), work.batch, work, x, y)


def in_parts(work: Work, x: Tensor, y: Tensor) -> tuple[Job, nn.Module]:
    """The same update, with bits that do not depend on the number of workers."""
    import headrace as hr

    return _fit(hr.Synchronous(parts=PARTS), work.batch, work, x, y)


def in_microbatches(work: Work, x: Tensor, y: Tensor) -> tuple[Job, nn.Module]:
    """The same update by as many passes of as many rows."""
    import headrace as hr

    return _fit(hr.Synchronous(), work.batch, work, x, y, microbatch=work.batch // PARTS)


def periodic(work: Work, x: Tensor, y: Tensor) -> tuple[Job, nn.Module]:
    """The same, but every worker updates a replica of its own, and they agree every 16 updates."""
    import headrace as hr

    return _fit(hr.Periodic(every="16 steps"), work.share, work, x, y)


def _fit(
    strategy: Any, batch_size: int, work: Work, x: Tensor, y: Tensor, microbatch: int | None = None
) -> tuple[Job, nn.Module]:
    import headrace as hr

    model = work.model()
    trainer = hr.Trainer(
        model,
        loss=nn.CrossEntropyLoss(),
        optimizer=work.optimizer(model),
        batch_size=batch_size,
        microbatch=microbatch,
        strategy=strategy,
        metrics=["accuracy"],
        device="cpu",
    )
    return _prepared(lambda: trainer.fit((x, y), epochs=1, progress="plain"), model, x, y)


RIVALS: Mapping[str, Prepare] = {
    "ddp": ddp,
    "ddp-again": ddp,
    "accelerate": accelerate,
    "headrace synchronous": synchronous,
    "headrace in parts": in_parts,
    "headrace in microbatches": in_microbatches,
    "headrace periodic": periodic,
}


def steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """One work by every rival, in an order drawn anew for every repeat; and whether the same was done."""
    work = Work(**job["work"])
    x, y = work.data()
    few = slice(0, CHECKED_STEPS * work.batch)
    models = {name: _once(RIVALS[name], work, x[few], y[few])[2] for name in job["rivals"]}
    found: dict[str, Any] = {name: {"seconds": [], "loss": float("nan")} for name in job["rivals"]}
    draw = random.Random(0)
    for _ in range(job["repeats"]):
        for name in draw.sample(job["rivals"], len(job["rivals"])):
            seconds, loss, _ = _once(RIVALS[name], work, x, y)
            found[name]["seconds"].append(seconds)
            found[name]["loss"] = loss
    for name, model in models.items():
        found[name]["from_ddp"] = _distance(model, models["ddp"])
        found[name]["between_workers"] = _spread(model)
    return found


def _once(prepare: Prepare, work: Work, x: Tensor, y: Tensor) -> tuple[float, float, nn.Module]:
    """Seconds of a fresh training, from when all are ready to when all are done; its loss, its model."""
    with silence():
        job, model = prepare(work, x, y)
        gc.collect()
        dist.barrier()
        start = time.perf_counter()
        job.run()
        dist.barrier()
        return time.perf_counter() - start, job.score(), model


def _distance(model: nn.Module, other: nn.Module) -> float:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def _spread(model: nn.Module) -> float:
    """How far the workers' weights are from each other."""
    flat = torch.cat([param.detach().flatten() for param in model.parameters()])
    high, low = flat.clone(), flat.clone()
    dist.all_reduce(high, dist.ReduceOp.MAX)
    dist.all_reduce(low, dist.ReduceOp.MIN)
    return (high - low).max().item()


def main() -> None:
    """Does the job that is given, and writes down what was found."""
    from worker_race import race

    job = json.loads(sys.argv[1])
    if job["far"]:
        move_apart()
    end_with_parent()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    parts: dict[str, Callable[[Mapping[str, Any]], Any]] = {"steps": steps, "race": race}
    found = parts[job["part"]](job)
    if dist.get_rank() == 0:
        Path(job["out"]).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
