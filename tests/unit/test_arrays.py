"""Arrays become tables where they are: nothing is copied that need not be, and what cannot be used is named."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import headrace as hr
from headrace.data.adapt import as_source, as_table


def column(values: Any) -> Tensor:
    """What a table makes of one array."""
    return hr.ArrayTable({"x": values}).rows(0, len(values))["x"]


@pytest.fixture
def every_warning() -> Iterator[None]:
    """torch warns once a process, so a warning would depend on which test ran first."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


# --- in place --------------------------------------------------------------------------------------------


def test_a_tensor_is_used_in_place() -> None:
    tensor = torch.randn(10, 3)
    part = hr.ArrayTable({"x": tensor}).rows(2, 6)
    assert part.rows == 4
    assert part["x"].data_ptr() == tensor[2].data_ptr()


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


def test_take_gives_rows_in_any_order_and_any_number() -> None:
    table = hr.ArrayTable({"x": torch.arange(10) * 10, "y": torch.arange(20.0).reshape(10, 2)})
    batch = table.take(torch.tensor([7, 0, 7]))
    assert (batch.rows, batch["x"].tolist(), batch["y"].tolist()) == (3, [70, 0, 70], [[14, 15], [0, 1], [14, 15]])
    empty = table.take(torch.tensor([], dtype=torch.int64))
    assert (empty.rows, empty["y"].shape) == (0, (0, 2))


def test_a_table_declares_its_streams_its_length_and_its_bytes() -> None:
    table = hr.ArrayTable({"x": np.zeros((5, 3), "float32"), "y": torch.arange(5)})
    assert tuple(table.streams) == (hr.Stream("x", (3,)), hr.Stream("y", (), "int64"))
    assert (len(table), table.nbytes) == (5, 5 * 3 * 4 + 5 * 8)
    assert table.resident(torch.device("cpu"))
    assert not table.resident(torch.device("meta"))


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_unsigned_integers_are_gathered_too(dtype: str) -> None:
    """Pictures of 16 bits a pixel, say. torch holds them, and gathers them in some shapes only."""
    for shape in ((6,), (6, 2), (6, 2, 1)):
        array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
        gathered = hr.ArrayTable({"x": array}).take(torch.tensor([4, 2]))["x"]
        assert gathered.tolist() == array[[4, 2]].tolist()


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
    assert tables[0].fingerprint() == hr.ArrayTable({"x": np.ones((5, 3), "float32")}).fingerprint()


# --- what users call data --------------------------------------------------------------------------------


def test_data_becomes_a_table() -> None:
    x, y = torch.zeros(5, 3), np.zeros(5)
    names = {"x": ["x"], "pair": ["x", "y"], "list": ["x", "y"], "dict": ["a", "b", "c"]}
    made = {"x": x, "pair": (x, y), "list": [x, y], "dict": {"a": x, "b": y, "c": x}}
    for kind, data in made.items():
        assert [stream.name for stream in as_table(data).streams] == names[kind]
    table = hr.ArrayTable({"x": x})
    assert as_table(table) is table


def test_data_becomes_a_source() -> None:
    source = as_source(torch.arange(7), order="blocks", seed=3)
    assert source.state_dict() == hr.Reader(hr.ArrayTable({"x": torch.arange(7)}), "blocks", 3).state_dict()
    assert as_source(source) is source


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.ArrayTable({}), "at least one stream"),
        (lambda: hr.ArrayTable({"x": torch.zeros(5), "y": torch.zeros(4)}), "'x' has 5, 'y' has 4 rows"),
        (lambda: column(np.array(["a", "b"])), "'x' has dtype <U1"),
        (lambda: column(np.array([object()])), "'x' has dtype object"),
        (lambda: column(np.array(["2020-01-01"], "datetime64[D]")), "datetime64"),
        (lambda: column(np.zeros(3, "longdouble")), "'x'.*(longdouble|float128)"),
        (lambda: hr.ArrayTable({"x": torch.tensor(1.0)}), "'x' is a single number"),
        (lambda: hr.ArrayTable({"x": np.float32(1)}), "'x': expected a tensor or a NumPy array, got a float32"),
        (lambda: hr.ArrayTable({"x": [1, 2]}), "'x': expected a tensor or a NumPy array, got a list"),
        (lambda: hr.ArrayTable({"a.b": torch.zeros(3)}), "without dots, got 'a.b'"),
        (lambda: hr.ArrayTable({0: torch.zeros(3)}), "a name .* got 0"),
        (lambda: hr.ArrayTable({1: torch.zeros(3)}), "a name .* got 1"),
        (
            lambda: hr.ArrayTable({"x": torch.zeros(3), "y": torch.zeros(3, device="meta")}),
            "different devices: .*meta",
        ),
        (lambda: as_table((torch.zeros(3),) * 3), r"expected \(x, y\), got 3 arrays"),
        (lambda: as_table([torch.zeros(3)]), r"expected \(x, y\), got 1 arrays"),
        (lambda: as_table([1, 2, 3]), "expected rows by number, got a list"),
        (lambda: as_table(None), "cannot read data from a NoneType"),
        (lambda: as_table("train.csv"), "there is no file train.csv"),
    ],
)
def test_what_is_not_data_is_refused_and_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(hr.HeadraceError, match=message):
        make()
