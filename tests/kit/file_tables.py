"""Small tables for tests of files, and their rows as values that can be compared."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
from headrace.formats.write import write_table
from kit.any_rows import contents

KINDS = (".arrow", ".parquet")


def mixed(rows: int = 7) -> hr.ArrayTable:
    """A stream of every kind, and one of strings; `n` is the number of the row."""
    lengths = torch.arange(rows) % 3
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    count = int(bounds[-1])
    ids = torch.arange(count) * 7 % 50
    return hr.ArrayTable(
        {
            "n": torch.arange(rows),
            "image": torch.arange(rows * 6).view(rows, 2, 3).to(torch.uint8),
            "flag": torch.arange(rows) % 2 == 0,
            "words": Sparse(ids, torch.rand(count), bounds, 50),
            "bag": Sparse(ids, None, bounds, 50),
            "tokens": Ragged(ids, bounds),
            "frames": Ragged(torch.rand(count, 4), bounds),
            "tagged": Ragged(Sparse.one_hot(ids, 50), bounds),
            "species": torch.arange(rows) % 2,
        },
        categories={"species": ["virginica", "setosa"]},
    )


def numbers(rows: int = 10) -> hr.ArrayTable:
    return hr.ArrayTable({"n": torch.arange(rows), "x": torch.arange(rows * 2.0).view(rows, 2)})


def every_row(table: hr.Table) -> dict[str, Any]:
    return contents(table.rows(0, len(table)))


def write(table: hr.ArrayTable, name: str) -> None:
    """Writes a table of numbers as a file of any kind, which replaces the one that was there."""
    if not name.endswith(".npz"):
        write_table(table, name)
        return
    arrays: dict[str, Any] = dict(table.columns)
    np.savez("new.npz", **arrays)
    os.replace("new.npz", name)


def parts(suffix: str = ".arrow") -> list[str]:
    """Ten rows in three files, one of them empty, written in another order than that of their names."""
    names = [f"part-{k}{suffix}" for k in range(3)]
    table = numbers()
    for k, (start, stop) in [(2, (4, 10)), (0, (0, 4)), (1, (4, 4))]:
        write(hr.ArrayTable({n: column[start:stop] for n, column in table.columns.items()}), names[k])
    return names


def text(name: str, *lines: str) -> str:
    Path(name).write_text("\n".join(lines) + "\n")
    return name
