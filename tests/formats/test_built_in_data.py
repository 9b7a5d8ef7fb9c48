"""Every table and source of the library keeps the promises that its kits try; for `Reader` see test_check_source."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.sampled import sampled
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import headrace as hr
from headrace.adapters.iterables import SampleSource
from headrace.testing.makers import dense_table, sparse_sequences
from headrace.testing.sources import check_source
from headrace.testing.tables import check_table

ROWS = 9  # a source is gone back to after every batch of one row: the trouble grows with the square
SOME: dict[str, Any] = {"workers": (1, 3)}

MAKERS: dict[str, Callable[[], hr.Table]] = {
    "dense": lambda: dense_table(ROWS),
    "sparse sequences": lambda: sparse_sequences([k % 5 for k in range(ROWS)]),
}
VIEWS: dict[str, Callable[[hr.Table], Any]] = {
    "concat": lambda t: hr.concat(t, hr.head(t, 5), hr.skip(t, 6)),
    "filter": lambda t: hr.filter(t, lambda fields: torch.arange(len(next(iter(fields.values())))) % 3 > 0),
    "split": lambda t: hr.split(t, 0.6, 0.4)[0],
    "map": lambda t: hr.map(t, dict),
    "zip": lambda t: hr.zip(t, {"number": torch.arange(len(t))}),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str) -> None:
    for make in MAKERS.values():
        check_table(lambda: VIEWS[view](make()))  # noqa: B023


@pytest.mark.parametrize("kind", sampled(["npy", "npz", "arrow", "parquet"], keep=["parquet"], of=3))
def test_tables_of_files(kind: str, tmp_path: Path) -> None:
    path, table = tmp_path / f"rows.{kind}", dense_table(ROWS)
    if kind == "npy":
        np.save(path, table.rows(0, ROWS)["x"].numpy())
    else:
        hr.write_table(table, path, rows_per_block=4)
    check_table(lambda: hr.open_table(path))
    check_source(lambda: hr.Reader(hr.open_table(path), "blocks"), sizes=(5,), rows=ROWS, **SOME)


def test_the_text_format(tmp_path: Path) -> None:
    path = tmp_path / "rows.ctf"
    lines = [f"{k} |words {(7 * k + j) % 5}:{1 + j}" for k in range(ROWS) for j in range(1 + k % 5)]
    path.write_text("\n".join(lines) + "\n")
    (stream,) = (s for s in sparse_sequences([1]).streams if s.name == "words")
    check_table(lambda: hr.open_ctf(path, [stream]))
    check_source(lambda: hr.Reader(hr.open_ctf(path, [stream]), count="words"), sizes=(9,), **SOME)


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from ((torch.tensor([float(k)]), k) for k in range(ROWS))


def test_data_of_torch() -> None:
    plain = TensorDataset(torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)), torch.arange(ROWS))
    check_table(lambda: hr.from_dataset(plain))
    check_table(lambda: hr.from_dataset([(torch.tensor([float(k)]), k) for k in range(ROWS)]))
    loader: dict[str, Any] = {"batch_size": 4, "shuffle": True}  # whatever size is asked
    check_source(lambda: hr.LoaderSource(DataLoader(plain, **loader, generator=torch.Generator())), sizes=())
    check_source(lambda: SampleSource(Counting()), sizes=(5,), **SOME)
