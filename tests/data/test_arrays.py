"""Arrays become tables where they are: nothing is copied that need not be, and what cannot be used is named."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kit.late import pandas as pd
from kit.late import sparse

import headrace as hr
from headrace.adapters.adapt import as_table
from headrace.data.sparse import Sparse


def column(values: Any) -> Any:
    """What a table makes of one array."""
    return hr.ArrayTable({"x": values}).rows(0, len(values))["x"]


@pytest.fixture
def every_warning() -> Iterator[None]:
    """torch warns once a process, so a warning would depend on which test ran first."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


# --- in place --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32", "uint8", "bool", "complex64"])
def test_an_array_is_used_in_place(dtype: str) -> None:
    array = np.arange(12).reshape(6, 2).astype(dtype)
    assert column(array).data_ptr() == array.ctypes.data
    assert str(column(array).dtype) == f"torch.{dtype}"


def test_a_strided_array_is_used_in_place() -> None:
    array = np.arange(24.0).reshape(6, 4)
    for view in (array[::2], array[:, 1:3], array.T):
        assert column(view).data_ptr() == view.ctypes.data
        assert column(view).tolist() == view.tolist()


@pytest.mark.usefixtures("every_warning")
def test_a_read_only_array_is_used_in_place_and_in_silence() -> None:
    array = np.arange(6.0)
    array.flags.writeable = False
    with pytest.warns(UserWarning, match="not writable"):
        torch.from_numpy(array)
    assert column(array).data_ptr() == array.ctypes.data


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(6, 2)[::-1],
        np.arange(12.0).reshape(6, 2)[:, ::-1],
        np.arange(6, dtype=">i4"),
        np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i1"), ("b", "f4")])["b"],
    ],
    ids=["backwards", "mirrored", "big-endian", "field of a record"],
)
def test_an_array_that_torch_cannot_view_is_copied_right(array: np.ndarray) -> None:
    assert column(array).tolist() == array.tolist()


def test_a_parameter_is_read_without_its_history() -> None:
    assert not column(torch.randn(4, requires_grad=True)).requires_grad


# --- rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_integers_are_gathered_too(dtype: str) -> None:
    """Pictures of 16 bits a pixel, say. torch holds them, and gathers them in some shapes only."""
    for shape in ((6,), (6, 2), (6, 2, 1)):
        array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
        gathered = hr.ArrayTable({"x": array}).take(torch.tensor([4, 2]))["x"]
        assert gathered.tolist() == array[[4, 2]].tolist()


ROWS = torch.arange(99_000, 101_000)
MANY = torch.arange(2_000_000).view(-1, 2)


def test_the_fingerprint_tells_tables_of_other_rows_or_streams_apart() -> None:
    tables = [
        hr.ArrayTable({"x": torch.zeros(5, 3)}),
        hr.ArrayTable({"x": torch.zeros(6, 3)}),
        hr.ArrayTable({"x": torch.zeros(5, 2)}),
        hr.ArrayTable({"z": torch.zeros(5, 3)}),
        hr.ArrayTable({"x": torch.zeros(5, 3).double()}),
        hr.ArrayTable({"x": torch.zeros(5, 3), "y": torch.zeros(5)}),
    ]
    assert len({table.fingerprint() for table in tables}) == len(tables)
    assert tables[0].fingerprint() == hr.ArrayTable({"x": np.zeros((5, 3), "float32")}).fingerprint()


X = torch.arange(12.0).view(4, 3)
Two = Callable[[], tuple[dict[str, Any], dict[str, Any]]]
OTHER_VALUES: dict[str, Two] = {
    "one value of a few": lambda: ({"x": X}, {"x": X.index_fill(1, torch.tensor(1), 7.0)}),
    "rows in another order": lambda: ({"x": X}, {"x": X.flip(0)}),
    "whole numbers": lambda: ({"x": torch.arange(9)}, {"x": torch.arange(9) // 8}),
    "half a byte a number": lambda: ({"x": X.bfloat16()}, {"x": X.bfloat16() + 1}),
    "complex": lambda: ({"x": X + 1j}, {"x": X - 1j}),
    "cut elsewhere": lambda: ({"x": [X[:1], X[1:]]}, {"x": [X[:2], X[2:]]}),
    "sparse": lambda: ({"x": X.to_sparse()}, {"x": X.flip(1).to_sparse()}),
    "a run of many rows": lambda: (
        {"x": torch.zeros(200_000, 20)},
        {"x": torch.zeros(200_000, 20).index_fill(0, ROWS, 1.0)},
    ),
    "a column of many": lambda: (
        {"x": torch.zeros(200_000, 20)},
        {"x": torch.zeros(200_000, 20).index_fill(1, ROWS % 2, 1.0)},
    ),
    "many rows in another order": lambda: ({"x": MANY}, {"x": MANY[torch.randperm(len(MANY))]}),
}


@pytest.mark.parametrize("made", OTHER_VALUES.values(), ids=OTHER_VALUES)
def test_the_fingerprint_tells_tables_of_other_values_apart(made: Two) -> None:
    def table(columns: dict[str, Any]) -> hr.ArrayTable:
        return hr.ArrayTable({name: hr.Ragged.of(c) if isinstance(c, list) else c for name, c in columns.items()})

    one, other = made()
    assert table(one).fingerprint() == table(dict(one)).fingerprint() != table(other).fingerprint()


def test_the_fingerprint_is_that_of_the_values_wherever_they_are_in_memory() -> None:
    for values in (X, MANY):
        kept = [values, values.clone(), values.T.contiguous().T, torch.stack([values, values], 1)[:, 0]]
        assert len({hr.ArrayTable({"x": each}).fingerprint() for each in kept}) == 1


# --- what users call data --------------------------------------------------------------------------------


def test_a_batch_is_the_rows_that_it_holds() -> None:
    batch = hr.Batch({"x": torch.randn(3, 2), "words": hr.Ragged.of([[1], [], [2, 3]]), "y": torch.arange(3)})
    table = as_table(batch)
    assert len(table) == 3
    assert [stream.name for stream in table.streams] == ["x", "words", "y"]
    assert table.rows(1, 3)["words"][1].tolist() == [2, 3]


def test_a_pair_is_x_and_y_whatever_holds_the_numbers() -> None:
    rows, targets = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), np.array([0, 1, 0])
    frame = pd.DataFrame(rows, columns=["a", "b"]).assign(y=targets)
    xs = [
        rows,
        rows.tolist(),
        tuple(map(tuple, rows.tolist())),
        frame[["a", "b"]],
        pd.DataFrame(rows),
        sparse.csr_matrix(rows),
    ]
    for x in xs:
        for y in (targets, frame["y"], targets.tolist(), frame[["y"]]):
            batch = as_table((x, y)).rows(0, 3)
            assert [list(batch.fields), batch["y"].flatten().tolist()] == [["x", "y"], targets.tolist()]
            held = batch["x"]
            assert (held.to_dense() if isinstance(held, Sparse) else held).tolist() == rows.tolist()


def test_columns_by_name_may_be_lists_and_what_pandas_holds() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "kind": ["low", "high"]})
    table = as_table({"x": frame[["a", "b"]], "kind": frame["kind"], "n": [1, 2], "m": sparse.csr_matrix(np.eye(2))})
    assert list(map(str, table.streams)) == ["x: float64[2]", "kind: int64[]", "n: int64[]", "m: sparse float64[2]"]
    assert dict(table.categories) == {"kind": ["high", "low"]}
    assert len(as_table({"x": torch.zeros(0, 2)})) == len(as_table(frame[:0])) == 0
    assert as_table(frame["b"]).rows(0, 2)["x"].tolist() == [0.5, 1.5]
    assert as_table({"x": [[1.5, 2], [3, 4]]}).streams[0] == hr.Stream("x", (2,))  # a float of Python has no width
