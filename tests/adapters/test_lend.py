"""Headrace's batches for the loaders of others: the same with any workers, and after any resume."""

import pickle
from collections.abc import Callable
from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from kit import trainees
from kit.foreign import BATCHES, ROWS, SIZE
from kit.sampled import sampled
from torch.utils.data import (
    DataLoader,
)

import headrace as hr
from headrace.adapters.lend import as_dataset
from headrace.adapters.loaders import LoaderSource
from headrace.data.ragged import Ragged
from headrace.data.reader import Reader

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it


class Paused(hr.Source):
    """Numbers that end by `None`, and are rewound by whoever reads them."""

    def __init__(self) -> None:
        self.at = 0

    @property
    def streams(self) -> list[hr.Stream]:
        return [hr.Stream("x", dtype="int64")]

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard(0, 1)) -> hr.Batch | None:
        start, self.at = self.at, min(ROWS, self.at + size)
        return hr.Batch({"x": torch.arange(start, self.at)}) if start < ROWS else None

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def table() -> hr.Table:
    return hr.ArrayTable({"x": torch.arange(ROWS)})


LENT: dict[str, Callable[[], Any]] = {
    "table": table,
    "reader": lambda: Reader(table(), seed=3),
    "loader": lambda: LoaderSource([torch.arange(k, k + 3) for k in range(0, 18, 3)]),
    "paused": Paused,
}


def epoch_of(data: Any, epoch: int, workers: int, loader: Any = DataLoader) -> list[list[int]]:
    data.set_epoch(epoch)
    return [batch["x"].tolist() for batch in loader(data, batch_size=None, num_workers=workers)]


@pytest.mark.takes_turns
@pytest.mark.parametrize("name", LENT)
def test_lent_batches_are_the_same_with_any_number_of_workers(name: str) -> None:
    expected = []
    source = LENT[name]() if name != "table" else Reader(table())
    for _ in range(3):
        expected.append([batch["x"].tolist() for batch in hr.Feed(source, batch_size=SIZE)])
        if name == "paused":
            source.load_state_dict({"at": 0})
    lent = as_dataset(LENT[name](), SIZE)
    assert [epoch_of(lent, epoch, 0) for epoch in (0, 2, 1)] == [expected[epoch] for epoch in (0, 2, 1)]
    assert epoch_of(lent, 2, 2) == expected[2]
    assert epoch_of(as_dataset(LENT[name](), SIZE), 1, 1) == expected[1]
    if name != "paused":
        assert len(lent) == len(expected[0])


def test_workers_read_only_what_they_give() -> None:
    asked = torch.zeros(1, dtype=torch.int64).share_memory_()
    lent = as_dataset(trainees.Rows(ROWS, look=lambda rows: asked.add_(len(rows))), SIZE)
    asked.zero_()
    assert len(list(DataLoader(lent, batch_size=None, num_workers=2))) == BATCHES
    assert int(asked) == ROWS


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *((name, 0) for name in LENT),
        *(pytest.param(name, 2, marks=pytest.mark.slow) for name in sampled(LENT, keep=["reader"], of=3)),
    ],
)
def test_lent_batches_resume_in_a_stateful_loader(name: str, workers: int) -> None:
    loader_of = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    whole = epoch_of(as_dataset(LENT[name](), SIZE), 1, 0)
    lent = as_dataset(LENT[name](), SIZE)
    lent.set_epoch(1)
    loader = loader_of(lent, batch_size=None, num_workers=workers)
    states = [loader.state_dict() for _ in loader]
    for k in range(len(states)) if not workers else (0, len(states) - 2):
        lent = as_dataset(LENT[name](), SIZE)
        loader = loader_of(lent, batch_size=None, num_workers=workers)
        loader.load_state_dict(states[k])
        lent.set_epoch(1)
        assert [batch["x"].tolist() for batch in loader] == whole[k + 1 :]


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("name", "workers"), [*((name, 0) for name in LENT), *((name, 2) for name in sampled(LENT, keep=["reader"], of=3))]
)
def test_lent_batches_resume_in_a_loop_of_ones_own(name: str, workers: int) -> None:
    lent = as_dataset(LENT[name](), SIZE)
    whole, left = epoch_of(lent, 1, 0), as_dataset(LENT[name](), SIZE)
    left.set_epoch(1)
    assert [batch["x"].tolist() for batch in islice(left, 3)] == whole[:3]
    state = pickle.loads(pickle.dumps(left.state_dict()))
    going_on = as_dataset(LENT[name](), SIZE)
    going_on.load_state_dict(state)
    assert epoch_of(going_on, 1, workers) == whole[3:]
    assert epoch_of(going_on, 1, workers) == whole  # once only
    going_on.load_state_dict(state)
    assert epoch_of(going_on, 0, 0) == epoch_of(lent, 0, 0)  # another epoch


def test_an_iteration_of_a_source_that_another_has_overtaken_is_refused() -> None:
    lent = as_dataset(Reader(table()), SIZE)
    whole = epoch_of(lent, 0, 0)
    first, second = iter(lent), iter(lent)
    assert [next(each)["x"].tolist() for each in (first, second)] == [whole[0], whole[0]]
    with pytest.raises(hr.SourceError, match="a later iteration of these batches has begun"):
        next(first)
    assert [batch["x"].tolist() for batch in second] == whole[1:]
    by_number = as_dataset(table(), SIZE)  # any number of them, as none stands anywhere
    assert [(a["x"].tolist(), b["x"].tolist()) for a, b in zip(by_number, by_number, strict=True)] == [
        (batch, batch) for batch in epoch_of(by_number, 0, 0)
    ]


def test_a_state_of_another_number_of_workers_is_refused() -> None:
    lent = as_dataset(table(), SIZE)
    lent.load_state_dict({"epoch": 0, "next": 3, "step": 3, "source": None, "ended": False})
    with pytest.raises(hr.SourceError, match="saved with 3 loader workers, now there are 1"):
        next(iter(lent))
    with pytest.raises(hr.SourceError, match="lacks next, step"):
        lent.load_state_dict({"epoch": 0, "source": None, "ended": False})


def test_lent_batches_hold_every_kind_of_field_and_survive_workers() -> None:
    words = Ragged.of([torch.arange(i) for i in range(5)])
    lent = as_dataset(hr.ArrayTable({"words": words, "y": torch.arange(5)}), 2, order="none")
    for workers in (0, 1):
        batches = list(DataLoader(lent, batch_size=None, num_workers=workers))
        assert [[row.tolist() for row in batch["words"]] for batch in batches] == [
            [[], [0]],
            [[0, 1], [0, 1, 2]],
            [[0, 1, 2, 3]],
        ]
        assert [row.device.type for row in batches[0].values()] == ["cpu", "cpu"]


@pytest.mark.slow
def test_lent_batches_go_to_processes_that_are_spawned() -> None:
    lent = as_dataset(table(), SIZE)
    loader = DataLoader(lent, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    assert [batch["x"].tolist() for batch in loader] == epoch_of(lent, 0, 0)


def test_a_shard_of_lent_batches_is_a_part_of_each() -> None:
    whole = epoch_of(as_dataset(table(), SIZE), 0, 0)
    parts = [epoch_of(as_dataset(table(), SIZE, shard=hr.Shard(r, 3)), 0, 0) for r in range(3)]
    assert [[n for part in rows for n in part] for rows in zip(*parts, strict=True)] == whole


def test_a_size_that_is_none_is_refused() -> None:
    for size in (0, -1, True, 2.5):
        with pytest.raises(hr.ConfigError, match="batch_size= is a whole number, at least 1"):
            as_dataset(table(), size)  # type: ignore[arg-type]


def test_orders_differ_from_epoch_to_epoch() -> None:
    """The control of all that compares epochs."""
    lent = as_dataset(table(), SIZE)
    epochs = [epoch_of(lent, epoch, 0) for epoch in range(3)]
    assert all(a != b for a, b in pairwise(epochs))
