"""Streams are Arrow columns and back: the same rows, in place where the types allow it, and clear words where not."""

import datetime
import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kit.any_rows import columns, contents, plain

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
from headrace.formats.categories import strings_of
from headrace.formats.columns import fields_of, record_batch_of, tensor_of
from headrace.formats.schema import categories_in, schema_of, streams_of


def read(column: Any, stream: hr.Stream | None = None, **options: Any) -> Any:
    """One column, called x, by the stream that its type says or by this one."""
    batch = pa.record_batch({"x": column})
    streams = [stream] if stream else streams_of(batch.schema)
    return fields_of(batch, streams, **options)["x"]


def pointers(array: Any) -> list[int]:
    return [buffer.address for buffer in array.buffers() if buffer is not None]


# --- there and back --------------------------------------------------------------------------------------


@given(data=st.data())
def test_any_rows_come_back_as_they_were_and_so_does_any_part_of_them(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 6))
    fields = data.draw(columns(rows))
    streams = [hr.Stream.of(name, field) for name, field in fields.items()]
    batch = record_batch_of(fields, schema_of(streams))
    batch.validate(full=True)
    assert streams_of(batch.schema) == streams
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    found = fields_of(batch.slice(start, stop - start), streams)
    expected = hr.ArrayTable(fields).rows(start, stop)
    assert {name: plain(field) for name, field in found.items()} == contents(expected)


@given(data=st.data())
def test_sparse_rows_of_ones_are_written_without_values(data: st.DataObject) -> None:
    fields = data.draw(columns(4))
    items = {name: field.values if isinstance(field, Ragged) else field for name, field in fields.items()}
    ones = [name for name, held in items.items() if isinstance(held, Sparse) and held.values is None]
    streams = [hr.Stream.of(name, field) for name, field in fields.items()]
    batch = record_batch_of(fields, schema_of(streams, ones))
    found = fields_of(batch, streams)
    assert {name: plain(field) for name, field in found.items()} == contents(hr.Batch(fields))
    for name in ones:
        held = found[name].values if isinstance(fields[name], Ragged) else found[name]
        assert held.values is None
        assert "value" not in str(batch.schema.field(name).type)


def test_values_that_are_not_ones_are_not_dropped() -> None:
    words = Sparse(torch.tensor([1]), torch.tensor([2.0]), torch.tensor([0, 1]), 5)
    with pytest.raises(hr.DataError, match=r"'w' was to hold nothing but ones"):
        record_batch_of({"w": words}, schema_of([hr.Stream.of("w", words)], ["w"]))


def test_codes_are_written_as_a_dictionary_and_the_schema_tells_its_order() -> None:
    strings = {"x": ["b", "a", "never seen"]}
    stream = hr.Stream("x", (), "int64")
    schema = schema_of([stream], categories=strings)
    batch = record_batch_of({"x": torch.tensor([1, 0, 1])}, schema, strings)
    assert batch.column(0).to_pylist() == ["a", "b", "a"]
    assert categories_in(schema) == strings
    assert fields_of(batch, [stream], strings)["x"].tolist() == [1, 0, 1]


def test_a_dtype_that_arrow_does_not_have_is_refused() -> None:
    with pytest.raises(hr.DataError, match=r"'x': Arrow has no complex64\. Convert it"):
        schema_of([hr.Stream("x", (), "complex64")])


# --- in place --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "float16", "float32", "float64"])
def test_numbers_are_read_in_place_behind_an_offset_too(dtype: str) -> None:
    column = pa.array(np.arange(10), dtype)
    found = read(column[3:7])
    assert found.tolist() == [3, 4, 5, 6]
    assert found.data_ptr() == pointers(column)[0] + 3 * found.element_size()


def test_lists_of_either_size_and_sparse_rows_are_read_in_place() -> None:
    values = pa.array(np.arange(6.0))
    fixed = pa.FixedSizeListArray.from_arrays(values, 2)
    assert read(fixed[1:]).data_ptr() == pointers(values)[0] + 16
    for kind, exact in ((pa.ListArray, False), (pa.LargeListArray, True)):
        lists = kind.from_arrays(pa.array([0, 1, 1, 6], pa.int64() if exact else pa.int32()), values)
        found = read(lists)
        assert [row.tolist() for row in found] == [[0], [], [1, 2, 3, 4, 5]]
        assert found.values.data_ptr() == pointers(values)[0]
        assert (found.offsets.data_ptr() == pointers(lists)[0]) == exact
        assert [row.tolist() for row in read(lists[2:])] == [[1, 2, 3, 4, 5]]
    pairs = pa.StructArray.from_arrays([pa.array([3, 1], pa.int32()), pa.array([0.5, 2.0])], ["index", "value"])
    words = read(pa.LargeListArray.from_arrays([0, 1, 2], pairs), hr.Stream("x", (4,), "float64", "sparse"))
    assert words.to_dense().tolist() == [[0, 0, 0, 0.5], [0, 2, 0, 0]]
    assert words.values.data_ptr() == pointers(pairs.field(1))[0]


def test_what_is_read_in_place_outlives_the_array() -> None:
    found = read(pa.array(np.arange(1000)))
    assert found.sum() == 499500


def test_numbers_at_an_odd_address_are_copied_and_right() -> None:
    raw = pa.py_buffer(bytes(1) + np.arange(5, dtype=np.int32).tobytes())
    column = pa.Array.from_buffers(pa.int32(), 5, [None, raw.slice(1)])
    assert tensor_of(column[2:]).tolist() == [2, 3, 4]


# --- what others write -----------------------------------------------------------------------------------


def test_a_type_alone_says_what_a_stream_is() -> None:
    schema = pa.schema(
        {
            "a": pa.int32(),
            "b": pa.list_(pa.float32(), 3),
            "c": pa.list_(pa.int64()),
            "d": pa.large_list(pa.list_(pa.float16(), 2)),
            "e": pa.string(),
            "f": pa.list_(pa.dictionary(pa.int8(), pa.string())),
            "g": pa.dictionary(pa.int32(), pa.float32()),
            "h": pa.fixed_shape_tensor(pa.uint8(), [2, 4]),
        }
    )
    assert [str(stream) for stream in streams_of(schema)] == [
        "a: int32[]",
        "b: float32[3]",
        "c: sequences of int64[]",
        "d: sequences of float16[2]",
        "e: int64[]",
        "f: sequences of int64[]",
        "g: float32[]",
        "h: uint8[2, 4]",
    ]


@pytest.mark.parametrize("permutation", [None, [2, 0, 1]])
def test_tensors_of_a_fixed_shape_keep_their_shape(permutation: Sequence[int] | None) -> None:
    kind = pa.fixed_shape_tensor(pa.int64(), [2, 3, 4], permutation=permutation)
    column = pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(np.arange(72), 24))
    expected = torch.arange(72).view(3, 2, 3, 4)
    if permutation:
        expected = expected.permute(0, 3, 1, 2)
    assert torch.equal(read(column), expected)
    assert torch.equal(read(column[1:]), expected[1:])


def test_a_dictionary_of_numbers_is_those_numbers() -> None:
    column = pa.array([1.5, 2.5, 1.5]).dictionary_encode()
    assert read(column).tolist() == [1.5, 2.5, 1.5]


def test_strings_are_their_places_among_the_categories_however_they_are_stored() -> None:
    plain_strings = pa.array(["b", "a", "b"])
    known = {"x": ["a", "b", "c"]}
    for column in (plain_strings, plain_strings.cast(pa.large_string()), plain_strings.dictionary_encode()):
        assert read(column, categories=known).tolist() == [1, 0, 1]
        assert read(column[1:], categories=known).tolist() == [0, 1]
    lists = pa.array([["b"], [], ["a", "b"]])
    assert [row.tolist() for row in read(lists, categories=known)] == [[1], [], [0, 1]]


def test_categories_are_sorted_unless_all_parts_have_one_dictionary() -> None:
    dictionary = pa.DictionaryArray.from_arrays([1, 0], ["b", "a"])
    assert strings_of([pa.array(["b", "c"]), pa.array(["a", "b"])]) == ["a", "b", "c"]
    assert strings_of([dictionary, dictionary]) == ["b", "a"]
    assert strings_of([dictionary, pa.array(["c"]).dictionary_encode()]) == ["a", "b", "c"]


def test_sparse_lists_that_do_not_say_their_width_are_to_be_declared() -> None:
    schema = pa.schema({"w": pa.list_(pa.struct({"index": pa.int32(), "value": pa.float32()}))})
    with pytest.raises(hr.DataError, match=r"'w' holds list.*Declare it: streams=\[Stream\('w', \(1000,\)"):
        streams_of(schema)
    declared = hr.Stream("w", (9,), layout="sparse")
    assert streams_of(schema, [declared]) == [declared]
    with pytest.raises(hr.DataError, match=r"expected w: float32\[9\], got list"):
        streams_of(schema, [hr.Stream("w", (9,))])


# --- refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "advice"),
    [
        (pa.array([datetime.datetime(2020, 1, 1)]), "timestamp.*Cast it to int64"),
        (pa.array([datetime.date(2020, 1, 1)]), "date32.*Cast it to int64"),
        (pa.array([decimal.Decimal("1.5")]), "decimal.*Cast it to float64"),
        (pa.array([{"a": 1}]), "struct.*Make a column of each of its fields"),
        (pa.array([b"raw"]), "binary.*Encode it as numbers"),
        (pa.nulls(2), "null.*Fill it or leave it out"),
        (pa.array([[[1]]]), "whether that is sparse"),
    ],
)
def test_what_is_not_a_number_is_refused_with_advice(column: Any, advice: str) -> None:
    with pytest.raises(hr.DataError, match=f"column 'x'.*{advice}"):
        streams_of(pa.schema({"x": column.type}))


@pytest.mark.parametrize(
    ("column", "row"),
    [
        (pa.array([1, None, 3, None]), 1),
        (pa.array([[1.0, 2.0], None, None], pa.list_(pa.float64(), 2)), 1),
        (pa.array([[1.0, 2.0], [None, None]], pa.list_(pa.float64(), 2)), 1),
        (pa.array([[1], None, None]), 1),
        (pa.array([[1], [], [2, None, None]]), 2),
        (pa.array(["a", "b", None, None]), 2),
        (pa.array(["a", None, None]).dictionary_encode(), 1),
    ],
)
def test_nulls_are_counted_and_the_first_is_named(column: Any, row: int) -> None:
    with pytest.raises(
        hr.DataError, match=rf"column 'x' of t\.arrow has 2 nulls, the first in row {row + 100}\. .*fill"
    ):
        read(column, categories={"x": ["a", "b"]}, where="t.arrow", first=100)


def test_nulls_inside_of_sparse_rows_are_found() -> None:
    kind = pa.list_(pa.struct({"index": pa.int32(), "value": pa.float32()}))
    column = pa.array([[], [{"index": 1, "value": None}]], kind)
    with pytest.raises(hr.DataError, match="has 1 nulls, the first in row 1"):
        read(column, hr.Stream("x", (4,), layout="sparse"))


def test_nulls_outside_of_a_slice_do_no_harm() -> None:
    assert read(pa.array([None, 1, 2, None])[1:3]).tolist() == [1, 2]


def test_an_unknown_string_is_named_with_its_row_and_the_nearest() -> None:
    column = pa.array(["setosa", "virgincia"])
    expected = r"column 'x' of val\.csv, row 1: unknown string 'virgincia'\. Did you mean 'virginica'\?"
    for each in (column, column.dictionary_encode()):
        with pytest.raises(hr.DataError, match=expected):
            read(each, categories={"x": ["setosa", "virginica"]}, where="val.csv")


def test_strings_of_a_dictionary_that_no_row_has_do_no_harm() -> None:
    column = pa.DictionaryArray.from_arrays([0, 0], ["a", "unknown"])
    assert read(column, categories={"x": ["a"]}).tolist() == [0, 0]


def test_an_index_beyond_the_width_is_refused() -> None:
    column = pa.array([[1, 9]], pa.list_(pa.uint8()))
    with pytest.raises(hr.DataError, match=r"column 'x': index 9 is out of range for sparse rows of 9"):
        read(column, hr.Stream("x", (9,), layout="sparse"))
    huge = pa.array([[2**63 + 1]], pa.list_(pa.uint64()))
    with pytest.raises(hr.DataError, match="out of range"):
        read(huge, hr.Stream("x", (9,), layout="sparse"))


@pytest.mark.parametrize("offsets", [[0, 5, 2, 3], [1, 0, 0, 0], [0, 1, 2, 9], [-2, 0, 1, 2]])
def test_offsets_that_make_no_sense_are_refused(offsets: list[int]) -> None:
    bounds = np.arange(4)
    raw = pa.py_buffer(bounds)  # Arrow looks at them now, and a file that is mapped may say anything later
    column = pa.Array.from_buffers(pa.large_list(pa.int64()), 3, [None, raw], children=[pa.array([1, 2, 3])])
    batch = pa.record_batch({"x": column})
    bounds[:] = offsets
    with pytest.raises(hr.DataError, match="damaged"):
        fields_of(batch, streams_of(batch.schema))


@pytest.mark.parametrize("index", [-1, 2])
def test_an_index_outside_of_its_dictionary_is_refused(index: int) -> None:
    codes = pa.array([0, index], pa.int32())
    column = pa.DictionaryArray.from_arrays(codes, ["a", "b"], safe=False)
    with pytest.raises(hr.DataError, match="damaged"):
        read(column, categories={"x": ["a", "b"]})


@pytest.mark.parametrize("said", [b"{", b"[]", b'{"layout": "dense"}', b'{"layout": "round", "shape": [], "dtype": 1}'])
def test_metadata_that_make_no_sense_are_refused(said: bytes) -> None:
    schema = pa.schema([pa.field("x", pa.int64(), metadata={b"headrace": said})])
    with pytest.raises(hr.DataError, match=r"column 'x' of f\.arrow"):
        streams_of(schema, where="f.arrow")
