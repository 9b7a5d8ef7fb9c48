"""Trainings at a center that write down what every worker reads and in which order it merges; and the same by hand."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.workers.here import here
from kit.torch_workers import fork_workers, run_torchrun

AT = "MERGES_AT"
"""The variable that names the directory for the notes."""
RATE = 0.2


class Linear(nn.Module):
    """A linear model that writes down what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            note(f"worker-{here().shard.index}", x.numpy())
        found: Tensor = self.inner(x)
        return found


class Merging(hr.Elastic):
    """Elastic averaging that writes down when a worker merges, and what worker 0 is given to merge."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._notes_at = os.environ[AT]

    def join(self, comm: Any) -> None:
        os.environ[AT] = self._notes_at  # a cluster that is there already has the variables of its beginning
        super().join(comm)

    def exchange(self, replica: Any) -> None:
        weights = replica.by_name(replica.tensors).values()
        note(f"worker-{self.comm.shard.index}", torch.cat([tensor.flatten() for tensor in weights]).numpy())
        super().exchange(replica)

    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        note("merges", torch.cat([tensor.flatten() for tensor in worker]).numpy())
        super().merge(center, worker)


def note(name: str, array: np.ndarray[Any, Any]) -> None:
    with Path(os.environ[AT], name).open("ab") as file:
        np.save(file, array)


def notes(name: str) -> list[np.ndarray[Any, Any]]:
    path, found = Path(os.environ[AT], name), []
    with path.open("rb") if path.exists() else open(os.devnull, "rb") as file:
        while file.peek(1):  # type: ignore[attr-defined]
            found.append(np.load(file))
    return found


def targets(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long()


def data(rows: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    return x, targets(x)


def trained(strategy: hr.Strategy, epochs: int = 2, run: str | None = None, steps: int | None = None) -> list[float]:
    """In every worker: trains, up to a step of worker 0; the weights that are left in worker 0."""
    torch.manual_seed(0)
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=4, strategy=strategy)
    for info in trainer.steps(data(72), epochs=epochs, run=run, progress=False):
        if here().leader and info.step == steps:
            break
    return flat(model)


def launched(engine: str, workers: int, at: str, given: dict[str, Any], *arguments: Any) -> None:
    """In a process that forks its workers: trains with processes, or as torchrun would; writes down the weights."""
    os.environ[AT] = at
    strategy = Merging(**given)
    if engine == "torchrun":
        run_torchrun(["--standalone", f"--nproc-per-node={workers}"], _train, at, strategy, *arguments)
        return
    fork_workers()
    hr.launch(_train, at, strategy, *arguments, workers=workers, engine=engine)


def _train(at: str, *arguments: Any) -> None:
    found = trained(*arguments)
    if here().leader:
        Path(at, "weights").write_text(json.dumps(found))


def flat(model: nn.Module) -> list[float]:
    return [value for param in model.parameters() for value in param.detach().flatten().tolist()]


def by_hand(first: nn.Module, workers: int, take_center: bool, alpha: float) -> Tensor:
    """The center after all merges, in the order in which they were made, of workers that train by a plain loop."""
    center = torch.tensor(flat(first))
    own = [center.clone() for _ in range(workers)]
    order = merged(workers)
    assert len(order) == sum(len(_exchanges(k)) for k in range(workers)), "all that has been learnt is merged"
    for worker, batches, arrived in order:
        x = _loop(own[worker], batches)
        torch.testing.assert_close(x, torch.from_numpy(arrived), atol=5e-6, rtol=0)
        d = alpha * (x - center)
        center = center + d
        own[worker] = center.clone() if take_center else x - d
    return center


def merged(workers: int, count: int | None = None) -> list[tuple[int, list[Tensor], np.ndarray[Any, Any]]]:
    """Of every merge in order, or of the first ones: the worker, the batches it has learnt from, and its weights."""
    left = [_exchanges(k) for k in range(workers)]
    found = []
    for arrived in notes("merges")[:count]:
        worker = next(k for k, sent in enumerate(left) if sent and np.array_equal(sent[0][1], arrived))
        batches, _ = left[worker].pop(0)
        found.append((worker, batches, arrived))
    return found


def rows_merged(workers: int, count: int | None = None) -> list[list[float]]:
    """The rows that the center has learnt from, in no order."""
    return sorted(row for _, batches, _ in merged(workers, count) for batch in batches for row in batch.tolist())


def merges_saved(run: str) -> int:
    """How many merges the newest checkpoint of a run knows."""
    newest = max(
        Path(run).glob("checkpoints/*/trainer.json"), key=lambda path: json.loads(path.read_text())["counters"]["steps"]
    )
    return int(json.loads(newest.read_text())["strategy"]["state"]["exchanges"])


def _exchanges(worker: int) -> list[tuple[list[Tensor], np.ndarray[Any, Any]]]:
    """Of each exchange of a worker: the batches since the one before, and its weights."""
    found, batches = [], list[Tensor]()
    for array in notes(f"worker-{worker}"):
        if array.ndim == 2:
            batches.append(torch.from_numpy(array))
        else:
            found.append((batches, array))
            batches = []
    return found


def _loop(weights: Tensor, batches: list[Tensor]) -> Tensor:
    """These weights after updates by a plain loop."""
    model = nn.Linear(4, 2)
    torch.nn.utils.vector_to_parameters(weights.clone(), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), targets(x)).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()
