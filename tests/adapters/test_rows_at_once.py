"""A DataLoader over tensors in memory: its rows are taken at once, with the bits of torch, which stacks them."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kit.foreign import ROWS, SIZE, stateful
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, dataloader, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

import headrace as hr

PLAIN = [torch.randn(ROWS, 3), torch.arange(ROWS).to(torch.uint16), torch.randn(ROWS, 1, 2, 2), torch.zeros(ROWS, 0)]
STRIDED = [torch.randn(3, ROWS).T, torch.randn(ROWS, 2, 3, 3).to(memory_format=torch.channels_last)]
DATA = TensorDataset(*PLAIN)
UTILS = "torch.utils.data._utils"
PART = Subset(Subset(DATA, np.arange(20)[::-1]), [7, -1, 3, 5, 0])  # type: ignore[arg-type]


class Own(Dataset[Any]):
    """Rows that are made one by one, as `kind`."""

    def __init__(self, kind: Callable[[tuple[Any, ...]], Any] = tuple) -> None:
        self.kind = kind

    def __getitem__(self, row: int) -> Any:
        return self.kind((PLAIN[0][row], row, np.full(2, row, np.float32), STRIDED[1][row]))

    def __len__(self) -> int:
        return ROWS


class Once:
    """A sampler whose batches can be read once."""

    def __iter__(self) -> Iterator[Any]:
        yield from (iter(rows) for rows in ([3, 1], [2, 0]))

    def __len__(self) -> int:
        return 2


LOADERS: dict[str, tuple[Any, bool]] = {
    "tensors": (lambda: DataLoader(DATA, SIZE, shuffle=True), True),
    "a part of a part": (lambda: DataLoader(PART, 2, shuffle=True, drop_last=True), True),
    "with a state": (lambda: stateful(DATA, shuffle=True), True),
    "counted from the end": (lambda: DataLoader(DATA, batch_sampler=[[3, -1], [0, -ROWS]]), False),
    "tensors as indices": (lambda: DataLoader(Subset(DATA, torch.arange(4)[:, None]), 2), False),  # type: ignore[arg-type]
    "a tensor among numbers": (lambda: DataLoader(DATA, batch_sampler=[[3, torch.tensor(2)], [1]]), False),
    "numbers read once": (lambda: DataLoader(DATA, batch_sampler=Once()), False),
    "rows of one's own": (lambda: DataLoader(Own(), SIZE, shuffle=True), True),
    "rows that are lists": (lambda: DataLoader(Own(list), SIZE, shuffle=True), True),
    "a part of rows of one's own": (lambda: DataLoader(Subset(Own(), [3, 0, 2]), 2), True),
    "other strides": (lambda: DataLoader(TensorDataset(*STRIDED), SIZE), False),
    "a parameter": (lambda: DataLoader(TensorDataset(torch.nn.Parameter(torch.randn(ROWS))), SIZE), False),
    "a collate function": (lambda: DataLoader(DATA, SIZE, collate_fn=lambda rows: default_collate(rows)), False),
}


def laid_out(parts: Iterable[Tensor]) -> Any:
    return [(part.dtype, part.stride(), part.tolist()) for part in parts]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
@pytest.mark.parametrize("kind", LOADERS)
def test_rows_of_tensors_are_taken_at_once_with_the_bits_of_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, at_once = LOADERS[kind]
    torch.manual_seed(0)
    expected = [laid_out(batch) for batch in make()], torch.get_rng_state().tolist()
    asked, one_by_one = list[int](), vars(TensorDataset)["__getitem__"]

    def counted(self: Any, row: Any) -> Any:
        asked.append(row)
        return one_by_one(self, row)

    monkeypatch.setattr(TensorDataset, "__getitem__", counted)
    torch.manual_seed(0)
    loader = make()
    source = hr.LoaderSource(loader, names="abcd"[: len(loader.dataset[0])])
    asked.clear()
    found = [laid_out(batch.fields.values()) for batch in hr.Feed(source)]
    assert (found, torch.get_rng_state().tolist()) == expected
    assert (asked == []) == at_once


def test_an_own_way_to_take_several_rows_is_called() -> None:
    data = TensorDataset(torch.arange(3))
    data.__getitems__ = lambda rows: [(torch.tensor(-1),) for _ in rows]  # type: ignore[attr-defined]
    [batch] = hr.Feed(hr.LoaderSource(DataLoader(data, 3)))
    assert batch["x"].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("kind", [Tensor, tuple])
def test_a_collate_function_that_somebody_has_extended_is_called(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def first(batch: Any, *, collate_fn_map: Any) -> Any:
        return torch.stack(batch if kind is Tensor else [part for part, *_ in batch]) + 1

    monkeypatch.setitem(default_collate_fn_map, kind, first)
    [batch] = hr.Feed(hr.LoaderSource(DataLoader(TensorDataset(torch.arange(3)), 3)))
    assert batch["x"].tolist() == [1, 2, 3]


class Turned(_MapDatasetFetcher):
    """The fetcher of another version of torch, which gives rows in another order."""

    def fetch(self, possibly_batched_index: Any) -> Any:
        return super().fetch(possibly_batched_index[::-1])  # type: ignore[no-untyped-call]


class Changing(_MapDatasetFetcher):
    """One that also changes the batches of some loaders."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.change = torch.neg

    def fetch(self, possibly_batched_index: Any) -> Any:
        found = super().fetch(possibly_batched_index)  # type: ignore[no-untyped-call]
        return found if len(self.dataset) < 10 else [*map(self.change, found)]


def flips(patch: pytest.MonkeyPatch) -> None:
    """Has its iterator change the batches."""
    before = dataloader._BaseDataLoaderIter.__next__
    patch.setattr(dataloader._BaseDataLoaderIter, "__next__", lambda self: [part.flip(0) for part in before(self)])


OTHER_TORCH: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "another order": lambda patch: patch.setattr(f"{UTILS}.fetch._MapDatasetFetcher", Turned),
    "an iterator that changes": flips,
    "a part more": lambda patch: patch.setattr(f"{UTILS}.fetch._MapDatasetFetcher", Changing),
    "no such function": lambda patch: patch.delattr(f"{UTILS}.collate.collate_tensor_fn"),
    "no list of workers": lambda patch: patch.delattr("torch._C._remove_worker_pids"),
}


@pytest.mark.parametrize("torch_is", OTHER_TORCH)
def test_a_version_of_torch_that_reads_otherwise_is_asked_itself(
    torch_is: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    OTHER_TORCH[torch_is](monkeypatch)
    x = torch.arange(10)
    plain = [batch.tolist() for (batch,) in DataLoader(TensorDataset(x), 4)]
    assert (plain == [rows.tolist() for rows in x.split(4)]) == torch_is.startswith("no ")
    assert [batch["x"].tolist() for batch in hr.Feed(hr.LoaderSource(DataLoader(TensorDataset(x), 4)))] == plain
