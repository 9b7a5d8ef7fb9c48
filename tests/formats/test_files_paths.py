"""The paths that a table is opened by: files, lists, patterns, directories and remote file systems."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.file_tables import KINDS, every_row, mixed, numbers, parts, text

import headrace as hr
from headrace.formats import paths
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


@pytest.mark.slow
def test_the_files_of_a_set_have_the_same_order_in_every_process() -> None:
    for k in range(4):
        np.save(f"{k}.npy", np.array([k]))
    code = "import headrace as hr; print(hr.open_table({'2.npy', '0.npy', '3.npy', '1.npy'}).rows(0, 4)['x'].tolist())"
    for seed in ("1", "2"):  # of 24 orders each
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.strip() == "[0, 1, 2, 3]"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("part-9.arrow", r"there is no file part-9\.arrow\. In \. there are: .*part-0\.arrow, part-1\.arrow"),
        ("*.parquet", r"no file matches '\*\.parquet'\. In \. there are: "),
        ("nowhere/a.arrow", r"There is no directory nowhere either"),
        (".", r"the directory \. has files of several kinds, .* for example\. Name one"),
        (["part-0.arrow", "t.csv"], r"this list has files of several kinds"),
        ("empty", r"the directory empty has no data files\. Known are: \.npy"),
        ("notes.md", r"notes\.md is of no known kind"),
        ([], "an empty list of files"),
        ("gs://bucket/t.parquet", r"cannot read gs://bucket/t\.parquet: .*gcsfs"),
        ("nix://t.parquet", r"cannot read nix://t\.parquet: Protocol not known"),
        ("memory://none.parquet", r"there is no file memory://none\.parquet"),
        ("zero.arrow", r"zero\.arrow is empty"),
        ("part-1.arrow", r"part-1\.arrow has no rows"),
    ],
)
def test_a_path_that_means_no_data_says_what_there_is(path: Any, message: str) -> None:
    parts()
    text("t.csv", "a", "1")
    text("notes.md", "nothing")
    Path("zero.arrow").touch()
    Path("empty").mkdir()
    with pytest.raises((hr.ConfigError, hr.DataError), match=message):
        open_table(path)


def test_files_with_other_streams_are_refused_by_file_stream_and_type() -> None:
    np.savez("a.npz", x=np.zeros(3, np.float32))
    np.savez("b.npz", x=np.zeros(3, np.float64))
    np.savez("c.npz", y=np.zeros(3, np.float32))
    with pytest.raises(hr.DataError, match=r"'x' is float32\[\] in a\.npz and float64\[\] in b\.npz\. .*dtypes="):
        open_table(["a.npz", "b.npz"])
    with pytest.raises(hr.DataError, match=r"a\.npz has a stream 'x' and c\.npz has not"):
        open_table(["a.npz", "c.npz"])
    assert open_table(["a.npz", "b.npz"], dtypes={"x": "float32"}).rows(0, 6)["x"].dtype == torch.float32


def test_directories_that_say_what_a_column_is_are_not_passed_over_in_silence() -> None:
    for year in (2023, 2024):
        os.makedirs(f"parted/year={year}")
        write_table(numbers(), f"parted/year={year}/t.arrow")
    names = [f"parted/year={year}/t.arrow" for year in (2023, 2024)]
    for path in ("parted/*/*.arrow", names):
        with pytest.raises(hr.ConfigError, match=r"is parted by year=2023"):
            open_table(path)
    with pytest.raises(hr.DataError, match=r"There are directories in it, year=2023/ for example"):
        open_table("parted")
    assert len(open_table(names[0])) == len(open_table("parted/year=2024/*.arrow")) == 10


def test_text_of_no_known_kind_is_read_only_where_it_is_named() -> None:
    write_table(numbers(), "t.arrow")
    text("readme.txt", "hello")
    assert len(open_table(".")) == 10


def test_the_suffixes_are_those_that_the_message_names() -> None:
    assert set(paths.SUFFIXES) >= {".npy", ".npz", ".arrow", ".feather", ".parquet", ".csv", ".ctf"}


# --- from elsewhere -------------------------------------------------------------------------------------


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


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(hr.ConfigError, match=r"reading memory://t\.npy needs fsspec\. Install it"):
        open_table("memory://t.npy")
