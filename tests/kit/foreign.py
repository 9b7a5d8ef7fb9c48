"""Data as others hold them, and a training on them: what the tests of datasets and loaders share."""

import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

import headrace as hr
from kit import trainees
from kit.sampled import sampled

ROWS, SIZE, BATCHES = 22, 4, 6


class Samples(Dataset[Any]):
    """Rows of which each knows its number; `give` makes the sample of it."""

    def __init__(self, give: Callable[[int], Any] = lambda i: (torch.tensor([i, -i]) / 2, i), rows: int = ROWS) -> None:
        self.give, self.count, self.asked = give, rows, list[Any]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        self.asked.append(i)
        return self.give(i)


class Many(Samples):
    def __getitems__(self, rows: list[int]) -> list[Any]:
        self.asked.append(rows)
        return [self.give(i) for i in rows]


def first(table: hr.Table, *rows: int) -> dict[str, Any]:
    return dict(table.take(torch.tensor(rows or (3, 0))).fields)


Pair = namedtuple("Pair", "left right")


class Stream(IterableDataset[Any]):
    """The numbers up to a count; several workers share them."""

    def __init__(self, rows: int = ROWS) -> None:
        self.count = rows

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        yield from ((torch.tensor([i, -i]) / 2, i) for i in range(worker, self.count, workers))


class TrainState(Stream):
    """The same with a state of its own, in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.at, self.loads = 0, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.count:
            self.at += 1
            yield torch.tensor([self.at - 1, 1 - self.at]) / 2, self.at - 1
        self.at = 0

    def state_dict(self) -> dict[Any, Any]:
        return {"at": self.at, "pair": (1, 2), 3: float("inf")}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        assert (state["pair"], state[3]) == ((1, 2), float("inf"))
        self.at = state["at"]
        self.loads += 1


class Augmented(Samples):
    """Samples that draw: in workers each from its own generator, in one process from the process's."""

    def __getitem__(self, i: int) -> Any:
        return torch.tensor([i, -i]) / 2 + torch.rand(2) + random.random() + float(np.random.rand()), i


class Own:
    """An iterable of batches that begins again, and says nothing of its length."""

    def __iter__(self) -> Iterator[Any]:
        order = random.sample(range(ROWS), ROWS)
        for start in range(0, ROWS, SIZE):
            rows = torch.tensor(order[start : start + SIZE])
            yield {"x": torch.stack([rows, -rows], 1) / 2, "y": rows}


def stateful(data: Any, **options: Any) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(data, batch_size=SIZE, **options)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def with_generator(**options: Any) -> Any:
    own = generator()
    return DataLoader(Samples(), SIZE, sampler=RandomSampler(range(ROWS), generator=own), generator=own, **options)


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffled": lambda: DataLoader(Samples(), SIZE, shuffle=True),
    "two workers": lambda: DataLoader(Samples(), SIZE, shuffle=True, num_workers=2),
    "a generator": with_generator,
    "weighted": lambda: DataLoader(Samples(), SIZE, sampler=WeightedRandomSampler([1.0, 2.0] * 11, ROWS)),
    "last dropped": lambda: DataLoader(Samples(), SIZE, shuffle=True, drop_last=True),
    "samples that draw": lambda: DataLoader(Augmented(), SIZE, shuffle=True),
    "workers that draw": lambda: DataLoader(Augmented(), SIZE, shuffle=True, num_workers=2),
    "workers that stay": lambda: DataLoader(Samples(), SIZE, shuffle=True, num_workers=2, persistent_workers=True),
    "iterable": lambda: DataLoader(Stream(), SIZE),
    "iterable, two workers": lambda: DataLoader(Stream(), SIZE, num_workers=2),
    "own iterable": Own,
    "a list": lambda: [(torch.arange(k, k + 8).view(4, 2) / 2, torch.arange(k, k + 4)) for k in range(0, 16, 4)],
    "stateful": lambda: stateful(Samples(), shuffle=True),
    "stateful, two workers": lambda: stateful(Samples(), shuffle=True, num_workers=2),
    "stateful iterable": lambda: stateful(Stream()),
    "stateful state": lambda: stateful(TrainState()),
    "stateful, plain sampler": lambda: stateful(Samples(), sampler=RandomSampler(range(ROWS))),
    "stateful, a generator": lambda: stateful(Samples(), shuffle=True, generator=generator()),
}
QUICK = ("shuffled", "samples that draw", "own iterable", "stateful", "stateful state")
OTHERS = sampled([name for name in LOADERS if name not in QUICK], keep=["stateful, two workers", "workers that stay"])
ALL = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


def pair_of(batch: Any) -> tuple[list[float], list[int]]:
    x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
    return x.tolist(), y.tolist()


def fed(batch: hr.Batch) -> tuple[list[float], list[int]]:
    return batch["x"].tolist(), batch["y"].tolist()


def trained(data: Any, run: Path | None, stop: int | None = None) -> str:
    """The training, from where its run is, up to a step; a hash of all that it has come to."""
    trainer = trainer_of()
    for info in trainer.steps(data, run=hr.Run(run, every="5 steps", wait=True), epochs=2):
        if info.step == stop:
            break
    return trainees.digest(trainer)


def trainer_of(**options: Any) -> hr.Trainer:
    """A model with dropout and noise from all three random generators; the seeds are those of a new program."""
    trainees.seed()
    model = torch.nn.Sequential(
        trainees.Noise(), torch.nn.Linear(2, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, ROWS)
    )
    return hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters(), lr=0.01), **options)
