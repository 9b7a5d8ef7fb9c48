"""Rows in memory: headrace's feed beside torch's loaders, torchdata's and Hugging Face's, and loops by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from checkpoint import Report, has
from overhead import Target
from rates import Batches, Race, Rival
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, TensorDataset

import headrace as hr
from headrace.adapters.iterables import LoaderSource
from headrace.data.ragged import Ragged

BATCH, ITEMS = 128, 4096
FEATURES, CLASSES, WORDS = 32, 10, 10_000
SHORTEST, LONGEST = 5, 60

FEED, BY_HAND = "headrace: Feed", "by hand: x[rows], y[rows]"
LOADER, LOADER_2 = "DataLoader", "DataLoader, 2 workers"
FEED_ITEMS, LOADER_ITEMS = f"headrace: Feed, {ITEMS} items", f"DataLoader, {ITEMS} items"
OF_LOADER, OF_LOADER_2 = "headrace: Feed of a DataLoader", "headrace: Feed of a DataLoader, 2 workers"
OWN, OF_OWN = "DataLoader of a Dataset of one's own", "headrace: Feed of such a DataLoader"


def loader(data: Any, workers: int = 0, **options: Any) -> DataLoader[Any]:
    """torch's loader, shuffling; workers stay from one epoch to the next, as one would have them do."""
    options = {"batch_size": BATCH, "shuffle": True, **options}
    return DataLoader(data, num_workers=workers, persistent_workers=workers > 0, **options)


def rows(quick: bool, repeats: int, report: Report) -> None:
    """Rows of numbers with a label."""
    n = 50_000 if quick else 200_000
    x, y = numbers(n)
    tensors = TensorDataset(x, y)
    rivals = [
        Rival(FEED, feed({"x": x, "y": y}), quick=True),
        Rival(BY_HAND, lambda: by_hand(x, y), quick=True),
        Rival(LOADER, lambda: loader(tensors)),
        Rival(LOADER_2, again(loader(tensors, 2))),
        Rival("DataLoader of a BatchSampler", lambda: by_lists(tensors)),
    ]
    if has("torchdata"):
        from torchdata.stateful_dataloader import StatefulDataLoader

        rivals.append(Rival("StatefulDataLoader", lambda: StatefulDataLoader(tensors, BATCH, shuffle=True)))
    if has("datasets"):
        rivals += hugging_face(x, y)
    title = f"{n} rows in memory, {FEATURES} float32 and a label, shuffled, batch {BATCH}"
    Race("memory", title, rivals, [Target("DataLoader/headrace", LOADER, FEED, ">=", 20)]).run(repeats, report)


def sequences(quick: bool, repeats: int, report: Report) -> None:
    """Sequences of unequal lengths, padded and with a mask, in batches of rows and of items."""
    n = 10_000 if quick else 50_000
    words, y = texts(n)
    table = {"words": words, "y": y}
    samples: Any = list(zip(words, y.tolist(), strict=True))
    packed = ByItems(words.lengths.tolist())
    rivals = [
        Rival(FEED, feed(table, padded), quick=True),
        Rival(LOADER, lambda: loader(samples, collate_fn=pad)),
        Rival(LOADER_2, again(loader(samples, 2, collate_fn=pad))),
        Rival(FEED_ITEMS, feed(table, padded, ITEMS, count="words"), quick=True),
        Rival(LOADER_ITEMS, lambda: DataLoader(samples, batch_sampler=packed, collate_fn=pad), FEED_ITEMS),
    ]
    title = f"{n} sequences of {SHORTEST} to {LONGEST} int64 and a label, padded and masked, shuffled, batch {BATCH}"
    targets = [
        Target("DataLoader/headrace", LOADER, FEED, ">=", 5),
        Target("DataLoader/headrace, by items", LOADER_ITEMS, FEED_ITEMS, ">=", 5),
    ]
    Race("sequences", title, rivals, targets).run(repeats, report)


def with_torch(quick: bool, repeats: int, report: Report) -> None:
    """A DataLoader through headrace, and headrace through a DataLoader."""
    n = 50_000 if quick else 200_000
    x, y = numbers(n)
    tensors = TensorDataset(x, y)
    loaders = {workers: loader(tensors, workers) for workers in (0, 2)}
    feeds = {workers: hr.Feed(LoaderSource(loader(tensors, workers))) for workers in (0, 2)}
    own, of_own = loader(Pairs(x, y)), hr.Feed(LoaderSource(loader(Pairs(x, y))))
    rivals = [
        Rival(LOADER, again(loaders[0])),
        Rival(OF_LOADER, lambda: fields(feeds[0])),
        Rival(OWN, again(own)),
        Rival(OF_OWN, lambda: fields(of_own), OWN),
        Rival(LOADER_2, again(loaders[2])),
        Rival(OF_LOADER_2, lambda: fields(feeds[2]), LOADER_2),
    ]
    targets = [
        Target("DataLoader/headrace of it", LOADER, OF_LOADER, ">=", 0.95),
        Target("DataLoader/headrace of it, a Dataset of one's own", OWN, OF_OWN, ">=", 0.95),
        Target("DataLoader/headrace of it, 2 workers", LOADER_2, OF_LOADER_2, ">=", 0.95),
    ]
    Race("torch", f"{n} rows in memory, headrace over a DataLoader", rivals, targets).run(repeats, report)


# --- data -----------------------------------------------------------------------------------------------------


class Pairs(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are asked for one by one, as of most Datasets."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self._x[row], self._y[row]


def numbers(n: int) -> tuple[Tensor, Tensor]:
    """Noise, with labels."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(n, FEATURES, generator=draw), torch.randint(CLASSES, (n,), generator=draw)


def texts(n: int) -> tuple[Ragged, Tensor]:
    """Sequences of word numbers, with labels."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (n,), generator=draw)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    words = torch.randint(1, WORDS, (int(offsets[-1]),), generator=draw)
    return Ragged(words, offsets), torch.randint(CLASSES, (n,), generator=draw)


# --- ways -----------------------------------------------------------------------------------------------------


def fields(batches: Any) -> Iterator[Sequence[Tensor]]:
    for batch in batches:
        yield batch["x"], batch["y"]


def padded(batches: Any) -> Iterator[Sequence[Tensor]]:
    for batch in batches:
        words = batch["words"]
        yield words.padded(), words.mask, batch["y"]


def feed(
    columns: Mapping[str, Any],
    parts: Callable[[Any], Batches] = fields,
    size: int = BATCH,
    **options: Any,
) -> Callable[[], Batches]:
    """headrace's feed of columns in memory."""
    batches = hr.Feed(hr.Reader(hr.ArrayTable(columns), **options), batch_size=size)
    return lambda: parts(batches)


def by_hand(x: Tensor, y: Tensor) -> Iterator[Sequence[Tensor]]:
    for rows in torch.randperm(len(x)).split(BATCH):
        yield x[rows], y[rows]


def by_lists(data: TensorDataset) -> Batches:
    """torch's loader as few write it: whole batches are taken at once."""
    lists = BatchSampler(RandomSampler(data), BATCH, drop_last=False)
    return DataLoader(data, sampler=lists, batch_size=None)


def again(batches: Batches) -> Callable[[], Batches]:
    """A loader that is there for all passes."""
    return lambda: batches


def hugging_face(x: Tensor, y: Tensor) -> list[Rival]:
    """datasets in memory, in torch's format: under a DataLoader, and by its own iteration."""
    import datasets

    columns = {"x": datasets.Sequence(datasets.Value("float32"), length=x.shape[1]), "y": datasets.Value("int64")}
    held = datasets.Dataset.from_dict({"x": x.numpy(), "y": y.numpy()}, features=datasets.Features(columns))
    formatted = held.with_format("torch")
    return [
        Rival("datasets, DataLoader", lambda: fields(loader(formatted))),
        Rival("datasets, shuffle().iter()", lambda: fields(formatted.shuffle(keep_in_memory=True).iter(BATCH))),
    ]


def pad(samples: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """The collate function that one writes for sequences."""
    words = pad_sequence([sequence for sequence, _ in samples], batch_first=True)
    lengths = torch.tensor([len(sequence) for sequence, _ in samples])
    mask = torch.arange(words.shape[1]) < lengths[:, None]
    return words, mask, torch.tensor([label for _, label in samples])


class ByItems(Sampler[list[int]]):
    """Batches of whole sequences, as many as fit into so many items."""

    def __init__(self, lengths: list[int]) -> None:
        self._lengths = lengths

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        items = 0
        for row in torch.randperm(len(self._lengths)).tolist():
            if items + self._lengths[row] > ITEMS and batch:
                yield batch
                batch, items = [], 0
            batch.append(row)
            items += self._lengths[row]
        yield batch
