"""A table that is written in CNTK's text format is read back as it was."""

import gzip
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headrace.data.arrays import ArrayTable
from headrace.data.batch import Batch, Stream
from headrace.data.ragged import Ragged
from headrace.data.source import Table
from headrace.data.sparse import Sparse
from headrace.errors import ConfigError, DataError
from headrace.formats import write
from headrace.formats.table import open_ctf
from headrace.formats.write import write_ctf

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "uint16", "uint64", "bool"]


def equal(one: Any, other: Any) -> bool:
    """Whether two fields hold the same bits, but that ones may be told by leaving the values out."""
    if isinstance(one, Ragged):
        return torch.equal(one.host_offsets, other.host_offsets) and equal(one.values, other.values)
    if isinstance(one, Sparse):
        ones = torch.ones(len(one.indices), dtype=one.dtype)
        values = [ones if rows.values is None else rows.values for rows in (one, other)]
        same = torch.equal(one.host_offsets, other.host_offsets) and torch.equal(
            one.indices.long(), other.indices.long()
        )
        return same and one.dim == other.dim and one.dtype == other.dtype and equal(*values)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    nan = one.isnan() & other.isnan() if one.is_floating_point() else torch.zeros_like(one, dtype=torch.bool)
    return bool(((one == other) | nan).all()) and torch.equal(one[~nan].signbit(), other[~nan].signbit())


def all_rows(table: Table) -> dict[str, Any]:
    return dict(table.rows(0, len(table)).fields)


def numbers(draw: Any, count: int, dtype: str) -> Tensor:
    """Any bits at all, but those of floats that are not numbers, of which a text knows only one."""
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=torch.bool)
    if draw(st.booleans()):
        return torch.tensor(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), dtype=kind)
    size = torch.empty(0, dtype=kind).element_size() * count
    return torch.frombuffer(bytearray(draw(st.binary(min_size=size, max_size=size)) + b"0" * 8), dtype=kind)[:count]


@st.composite
def items(draw: Any, count: int) -> Any:
    """Dense or sparse items."""
    dtype = draw(st.sampled_from(DTYPES))
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)]))
        return numbers(draw, count * int(np.prod(shape, dtype=int)), dtype).view(count, *shape)
    dim = draw(st.sampled_from([4, 1000, 2**40]))
    held = [draw(st.lists(st.integers(0, min(dim, 50) - 1), max_size=4, unique=True)) for _ in range(count)]
    indices = torch.tensor([i for row in held for i in row], dtype=torch.int64)
    offsets = torch.tensor(np.cumsum([0, *map(len, held)]))
    values = None if draw(st.booleans()) else numbers(draw, len(indices), dtype)
    return Sparse(indices, values, offsets, dim, getattr(torch, dtype))


@st.composite
def tables(draw: Any) -> ArrayTable:
    rows = draw(st.integers(1, 7))
    columns = {}
    for k in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(["x", "words", "größe"])) + str(k)
        if draw(st.booleans()):
            lengths = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
            offsets = torch.tensor(np.cumsum([0, *lengths]))
            columns[name] = Ragged(draw(items(int(offsets[-1]))), offsets)
        else:
            columns[name] = draw(items(rows))
    return ArrayTable(columns)


@given(table=tables(), packed=st.booleans(), rows=st.sampled_from([1, 2, 64]))
def test_what_is_written_is_read_back_bit_for_bit(table: ArrayTable, packed: bool, rows: int) -> None:
    expected = all_rows(table)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "MOST_ROWS", rows)
        path = Path(directory) / f"table.ctf{'.gz' * packed}"
        write_ctf(path, table)
        never = [s for s in table.streams if s.sequence and not expected[s.name].items]
        streams = [s for s in table.streams if s not in never]  # of those nothing is in the file
        if not streams:
            return
        found = all_rows(open_ctf(path, streams))
        for stream in streams:
            assert equal(expected[stream.name], found[stream.name]), path.read_bytes()


def test_a_negative_control_for_the_comparison() -> None:
    sparse = Sparse(torch.tensor([1, 2]), None, torch.tensor([0, 1, 2]), 5)
    assert equal(sparse, Sparse(torch.tensor([1, 2]), torch.ones(2), torch.tensor([0, 1, 2]), 5))
    assert not equal(sparse, Sparse(torch.tensor([1, 2]), torch.tensor([1.0, 2.0]), torch.tensor([0, 1, 2]), 5))
    assert not equal(sparse, Sparse(torch.tensor([1, 2]), None, torch.tensor([0, 0, 2]), 5))
    assert not equal(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not equal(torch.tensor([0.0]), torch.tensor([float("nan")]))


def test_lines_are_those_of_the_sample(tmp_path: Path) -> None:
    words = Ragged(Sparse.one_hot(torch.tensor([560, 0, 0, 424]), 1000), torch.tensor([0, 3, 3, 4]))
    table = ArrayTable({"words": words, "y": torch.eye(3), "w": torch.tensor([0.1, 2.0, 1e-30])})
    write_ctf(tmp_path / "a.ctf", table, fields={"words": "x"})
    assert (tmp_path / "a.ctf").read_text().splitlines() == [
        "0 |x 560:1 |y 1 0 0 |w 0.1",
        "0 |x 0:1",
        "0 |x 0:1",
        "1 |y 0 1 0 |w 2",
        "2 |x 424:1 |y 0 0 1 |w 1e-30",
    ]
    write_ctf(tmp_path / "b.ctf.gz", table, fields={"words": "x"})
    assert gzip.decompress((tmp_path / "b.ctf.gz").read_bytes()) == (tmp_path / "a.ctf").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ctf", "b.ctf.gz"]


def test_rows_of_one_line_need_no_ids_and_others_do(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    write_ctf(path, ArrayTable({"x": torch.arange(6.0).view(3, 2), "y": torch.arange(3)}), ids=False)
    assert path.read_text() == "|x 0 1 |y 0\n|x 2 3 |y 1\n|x 4 5 |y 2\n"
    long = ArrayTable({"x": Ragged(torch.arange(3), torch.tensor([0, 1, 3]))})
    with pytest.raises(DataError, match=r"row 1 takes 2 lines.*ids=True"):
        write_ctf(path, long, ids=False)
    assert path.read_text().startswith("|x 0 1"), "as it was before"
    with pytest.raises(DataError, match="row 1 takes 0 lines"):
        write_ctf(path, ArrayTable({"x": Ragged(torch.arange(1), torch.tensor([0, 1, 1]))}), ids=False)


def test_a_row_without_items_keeps_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    write_ctf(path, ArrayTable({"x": Ragged(torch.arange(3), torch.tensor([0, 0, 2, 2, 3]))}))
    assert path.read_text() == "0 |#\n1 |x 0\n1 |x 1\n2 |#\n3 |x 2\n"
    assert open_ctf(path, [Stream("x", (), "int64", sequence=True)]).lengths("x").tolist() == [0, 2, 0, 1]


def test_batches_are_written_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "a.ctf"
    write_ctf(path, (Batch({"x": torch.full((k,), k)}) for k in (1, 2, 3)))
    assert path.read_text() == "0 |x 1\n1 |x 2\n2 |x 2\n3 |x 3\n4 |x 3\n5 |x 3\n"
    with pytest.raises(DataError, match=r"the first batch has x: int64\[\]; a later one x: float32\[\]"):
        write_ctf(path, [Batch({"x": torch.arange(2)}), Batch({"x": torch.ones(2)})])
    with pytest.raises(DataError, match="expected a Table, or Batches"):
        write_ctf(path, [{"x": 1}])  # type: ignore[list-item]
    with pytest.raises(DataError, match="no rows to write"):
        write_ctf(path, [])
    assert path.read_text().startswith("0 |x 1\n1 |x 2")
    assert list(tmp_path.iterdir()) == [path]


def test_names_that_a_line_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither blanks"):
        write_ctf(tmp_path / "a.ctf", ArrayTable({"a b": torch.ones(2)}))
    write_ctf(tmp_path / "a.ctf", ArrayTable({"a b": torch.ones(2)}), fields={"a b": "ab"})
    with pytest.raises(ConfigError, match="complex64, which is not read from text"):
        write_ctf(tmp_path / "a.ctf", ArrayTable({"a": torch.ones(2, dtype=torch.complex64)}))
    with pytest.raises(ConfigError, match="there is no directory"):
        write_ctf(tmp_path / "no" / "a.ctf", ArrayTable({"a": torch.ones(2)}))
