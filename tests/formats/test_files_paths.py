"""The paths that a table is opened by: files, lists, patterns, directories and remote file systems."""

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.file_tables import KINDS, every_row, mixed, numbers, parts, text

from headrace.formats.table import open_table
from headrace.formats.write import write_table

pytestmark = pytest.mark.usefixtures("in_tmp_path")


@pytest.mark.parametrize("suffix", [".arrow", ".parquet", ".npz"])
def test_many_files_are_read_one_after_the_other_in_the_order_of_their_names(suffix: str) -> None:
    names = parts(suffix)
    text("notes.md", "no data")
    text("_SUCCESS.csv", "no data")
    for path in ("part-*" + suffix, names, Path.cwd(), f"file://{Path.cwd()}/part-?{suffix}"):
        table = open_table(path)
        assert every_row(table) == every_row(numbers())
        assert table.take(torch.tensor([9, 0, 5]))["n"].tolist() == [9, 0, 5]
    assert open_table(names[::-1]).rows(0, 10)["n"].tolist() == [*range(4, 10), *range(4)], "a list keeps its order"


def test_files_of_other_dtypes_are_read_alike_by_dtypes() -> None:
    np.savez("a.npz", x=np.zeros(3, np.float32))
    np.savez("b.npz", x=np.zeros(3, np.float64))
    assert open_table(["a.npz", "b.npz"], dtypes={"x": "float32"}).rows(0, 6)["x"].dtype == torch.float32


def test_directories_that_say_what_a_column_is_are_read_where_one_is_named_and_text_only_where_it_is() -> None:
    for year in (2023, 2024):
        os.makedirs(f"parted/year={year}")
        write_table(numbers(), f"parted/year={year}/t.arrow")
    text("parted/year=2024/readme.txt", "hello")
    for path in ("parted/year=2023/t.arrow", "parted/year=2024/*.arrow", "parted/year=2024"):
        assert len(open_table(path)) == 10


@pytest.fixture
def memory() -> Iterator[Any]:
    """A remote file system, empty."""
    import fsspec

    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()


def test_remote_files_are_read_like_local_ones(memory: Any) -> None:
    for kind in KINDS:
        write_table(mixed(), "t" + kind, rows_per_block=3)
        memory.pipe(f"/d/t{kind}", Path("t" + kind).read_bytes())
        local, remote = open_table("t" + kind), open_table(f"memory://d/*{kind}")
        assert every_row(remote) == every_row(local)
        assert every_row(pickle.loads(pickle.dumps(remote))) == every_row(local)
        assert remote.fingerprint() == local.fingerprint()
    np.savez("n.npz", n=np.arange(10))
    memory.pipe("/n/n.npz", Path("n.npz").read_bytes())
    memory.pipe("/n/n2.npz", Path("n.npz").read_bytes())
    assert len(open_table("memory://n")) == 20
    memory.pipe("/c/t.csv", b"a,b\n1,2\n")
    assert open_table("memory://c/t.csv").rows(0, 1)["b"].tolist() == [2]
