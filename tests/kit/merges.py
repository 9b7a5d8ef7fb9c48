"""Trainings at a center that write down what every worker reads and in which order it merges; and the same by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.workers.here import here

RATE = 0.2
ROWS = 72


class Linear(nn.Module):
    """A linear model that writes down what it is trained with."""

    def __init__(self, at: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.at, self.inner = at, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            note(self.at, f"worker-{here().shard.index}", x.numpy())
        found: Tensor = self.inner(x)
        return found


class Merging(hr.Elastic):
    """Elastic averaging that writes down when a worker merges, and what worker 0 is given to merge."""

    at: ClassVar[str] = ""
    """The directory for the notes of strategies that are made from now on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._at = self.at

    def exchange(self, replica: Any) -> None:
        weights = replica.by_name(replica.tensors).values()
        note(self._at, f"worker-{self.comm.shard.index}", torch.cat([each.flatten() for each in weights]).numpy())
        super().exchange(replica)

    def merge(self, center: list[Tensor], worker: list[Tensor]) -> None:
        note(self._at, "merges", torch.cat([tensor.flatten() for tensor in worker]).numpy())
        super().merge(center, worker)


def note(at: str, name: str, array: np.ndarray[Any, Any]) -> None:
    with Path(at, name).open("ab") as file:
        np.save(file, array)


def notes(at: Path, name: str) -> list[np.ndarray[Any, Any]]:
    found = []
    if (at / name).exists():
        with (at / name).open("rb") as file:
            while file.peek(1):
                found.append(np.load(file))
    return found


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
    return x, targets(x)


def targets(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long()


def train(jobs: Sequence[tuple[str, dict[str, Any], dict[str, Any], int | None]]) -> None:
    """In every worker: trainings, up to a step of worker 0, which write down what is left in worker 0.

    Of each: a directory, the arguments of its strategy, those of `steps`, and the step.
    """
    for at, given, fit, stop in jobs:
        Merging.at = at
        model = Linear(at)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=4, strategy=Merging(**given))
        for info in trainer.steps(data(), progress=False, **{"epochs": 2, **fit}):
            if here().leader and info.step == stop:
                break
        if here().leader:
            Path(at, "weights").write_text(json.dumps(flat(model)))


def flat(model: nn.Module) -> list[float]:
    return [value for param in model.parameters() for value in param.detach().flatten().tolist()]


# --- the same by hand -----------------------------------------------------------------------------------------


def check_by_hand(at: Path, workers: int, take_center: bool, alpha: float) -> None:
    """Raises unless the weights are the center after all merges, in the order that was written down, of plain loops."""
    center = torch.tensor(flat(Linear(str(at))))
    own = [center.clone() for _ in range(workers)]
    order = merged(at, workers)
    assert len(order) == sum(len(_exchanges(at, k)) for k in range(workers)), "all that has been learnt is merged"
    for worker, batches, arrived in order:
        x = _loop(own[worker], batches)
        torch.testing.assert_close(x, torch.from_numpy(arrived), atol=5e-6, rtol=0)
        d = alpha * (x - center)
        center = center + d
        own[worker] = center.clone() if take_center else x - d
    found = torch.tensor(json.loads((at / "weights").read_text()))
    torch.testing.assert_close(found, center, atol=5e-6, rtol=0)
    assert rows_merged(at, workers) == sorted(2 * data()[0].tolist()), "every row once an epoch"


def merged(at: Path, workers: int, count: int | None = None) -> list[tuple[int, list[Tensor], np.ndarray[Any, Any]]]:
    """Of every merge in order, or of the first ones: the worker, the batches it has learnt from, and its weights."""
    left = [_exchanges(at, k) for k in range(workers)]
    found = []
    for arrived in notes(at, "merges")[:count]:
        worker = next(k for k, sent in enumerate(left) if sent and np.array_equal(sent[0][1], arrived))
        batches, _ = left[worker].pop(0)
        found.append((worker, batches, arrived))
    return found


def rows_merged(at: Path, workers: int, count: int | None = None) -> list[list[float]]:
    """The rows that the center has learnt from, in no order."""
    return sorted(row for _, batches, _ in merged(at, workers, count) for batch in batches for row in batch.tolist())


def merges_saved(run: str) -> int:
    """How many merges the newest checkpoint of a run knows."""
    states = [json.loads(path.read_text()) for path in Path(run).glob("checkpoints/*/trainer.json")]
    return int(max(states, key=lambda state: state["counters"]["steps"])["strategy"]["state"]["exchanges"])


def _exchanges(at: Path, worker: int) -> list[tuple[list[Tensor], np.ndarray[Any, Any]]]:
    """Of each exchange of a worker: the batches since the one before, and its weights."""
    found, batches = [], list[Tensor]()
    for array in notes(at, f"worker-{worker}"):
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
