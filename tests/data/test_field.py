"""Ragged and sparse fields do what the same does with plain lists, whatever the rows are."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headrace as hr
from headrace.data.fields import Rows, cat, take
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse

DIM = 7
VALUES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool]

lengths = st.lists(st.integers(0, 5), max_size=8)
Plain = list[Any]


def ragged(lengths: Sequence[int], shape: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> Ragged:
    """Sequences whose items are numbered."""
    items = sum(lengths)
    values = torch.arange(items * max(1, int(torch.tensor(shape).prod()))).view(items, *shape).to(dtype)
    return Ragged(values, torch.tensor([0, *accumulate(lengths)]))


def sparse(
    rows: Sequence[Sequence[tuple[int, float]]], dtype: torch.dtype = torch.float32, ones: bool = False
) -> Sparse:
    """Rows given as pairs of index and value."""
    offsets = torch.tensor([0, *accumulate(map(len, rows))])
    indices = torch.tensor([index for row in rows for index, _ in row], dtype=torch.int64)
    values = torch.tensor([value for row in rows for _, value in row], dtype=dtype)
    return Sparse(indices, None if ones else values, offsets, DIM, dtype)


def sparse_items(lengths: Sequence[int]) -> Ragged:
    """Sequences of sparse items: item k has k % 3 numbers."""
    rows = [[(j + k % 5, float(10 * k + j)) for j in range(k % 3)] for k in range(sum(lengths))]
    return Ragged(sparse(rows), torch.tensor([0, *accumulate(lengths)]))


def plain(field: Any) -> Plain:
    """The rows as lists; of sparse rows the pairs of index and value."""
    if isinstance(field, Tensor):
        return field.tolist()
    bounds = field.offsets.tolist()
    assert field.host_offsets.tolist() == bounds
    if isinstance(field, Ragged):
        items = plain(field.values)
    else:
        values = torch.ones(len(field.indices), dtype=field.dtype) if field.values is None else field.values
        items = list(zip(field.indices.tolist(), values.tolist(), strict=True))
    return [items[start:stop] for start, stop in pairwise(bounds)]


def dense(rows: Plain) -> Plain:
    """What rows of pairs are when every number is written."""
    out = [[0.0] * DIM for _ in rows]
    for numbers, row in zip(out, rows, strict=True):
        for index, value in row:
            numbers[index] += value
    return out


pairs = st.lists(st.tuples(st.integers(0, DIM - 1), st.integers(-4, 4).map(float)), max_size=4)
sparse_rows = st.builds(sparse, st.lists(pairs, max_size=8), ones=st.booleans())
fields = st.one_of(
    st.builds(ragged, lengths, st.sampled_from([(), (2,), (2, 3)]), st.sampled_from([torch.float32, torch.int64])),
    st.builds(sparse_items, lengths),
    sparse_rows,
)


# --- rows: taken, cut, joined ----------------------------------------------------------------------------


@given(field=fields, data=st.data())
def test_take_gives_the_rows_of_these_numbers_in_any_order(field: Rows, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(field) - 1), max_size=12) if len(field) else st.just([]))
    rows = plain(field)
    taken = field.take(torch.tensor(numbers, dtype=torch.int64))
    assert plain(taken) == [rows[k] for k in numbers]
    assert hr.Stream.of("x", taken) == hr.Stream.of("x", field)


@given(field=fields, data=st.data())
def test_split_gives_consecutive_runs_and_cat_joins_them_again(field: Rows, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(field)), max_size=5)))
    bounds = [0, *cuts, len(field)]
    counts = [stop - start for start, stop in pairwise(bounds)]
    parts, rows = field.split(counts), plain(field)
    assert [plain(part) for part in parts] == [rows[a:b] for a, b in pairwise(bounds)]
    assert plain(type(field).cat(parts)) == rows
    assert all(hr.Stream.of("x", part) == hr.Stream.of("x", field) for part in parts)


@given(field=fields, start=st.integers(-10, 10), stop=st.none() | st.integers(-10, 10))
def test_a_slice_is_that_of_a_list(field: Rows, start: int, stop: int | None) -> None:
    assert plain(field[start:stop]) == plain(field)[start:stop]


@pytest.mark.parametrize("dtype", VALUES + UNSIGNED)
def test_every_dtype_can_be_taken_cut_and_joined(dtype: torch.dtype) -> None:
    field = ragged([2, 0, 1], dtype=dtype)
    rows = plain(field)
    assert plain(field.take(torch.tensor([2, 0]))) == [rows[2], rows[0]]
    assert plain(cat(field.split([1, 2]))) == rows
    dense_field = field.values
    assert take(dense_field, torch.tensor([2, 0])).tolist() == [rows[2][0], rows[0][0]]
    assert {field.take(torch.tensor([0])).dtype, take(dense_field, torch.tensor([1])).dtype} == {dtype}


def test_a_part_is_a_view_and_what_was_taken_is_not() -> None:
    field = ragged([2, 1, 3])
    part, taken = field[1:], field.take(torch.tensor([1, 2]))
    field.values.fill_(9)
    assert plain(part) == [[9], [9, 9, 9]]
    assert plain(taken) == [[2], [3, 4, 5]]


@given(sizes=lengths)
def test_rows_can_be_read_one_by_one(sizes: list[int]) -> None:
    field = ragged(sizes, (2,))
    rows = plain(field)
    assert [row.tolist() for row in field] == rows
    assert [field[k].tolist() for k in range(len(field))] == rows
    assert [field[-k - 1].tolist() for k in range(len(field))] == rows[::-1]
    assert len(field) == len(sizes)
    with pytest.raises(IndexError):
        field[len(sizes)]


# --- made of what people have ----------------------------------------------------------------------------


@given(rows=st.lists(st.lists(st.integers(-9, 9), max_size=4), min_size=1, max_size=6))
def test_a_ragged_of_lists_tensors_or_arrays_has_their_rows(rows: list[list[int]]) -> None:
    for make in (list, torch.tensor, lambda row: torch.tensor(row).numpy()):
        assert plain(Ragged.of([make(row) for row in rows])) == rows
    if any(rows):
        assert Ragged.of(rows).dtype == torch.int64, "an empty list says nothing of the dtype"


@given(field=sparse_rows)
@pytest.mark.parametrize("layout", ["csr_matrix", "coo_matrix", "csc_array"])
def test_a_sparse_of_scipy_is_the_same_matrix(layout: str, field: Sparse) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = getattr(scipy_sparse, layout)(field.to_dense().numpy())
    made = Sparse.of(matrix)
    assert made.to_dense().tolist() == field.to_dense().tolist()
    assert made.offsets.dtype == torch.int64


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo, torch.sparse_csc])
@pytest.mark.filterwarnings("ignore:Sparse C.. tensor support")
def test_a_sparse_of_a_tensor_is_the_same_matrix(layout: Any) -> None:
    field = sparse([[(1, 2.0), (4, 3.0)], [], [(0, -1.0)]])
    made = Sparse.of(field.to_dense().to_sparse(layout=layout))
    assert plain(made) == plain(field)


@given(ids=st.lists(st.integers(0, DIM - 1), max_size=8))
def test_one_hot_rows_are_those_of_torch_and_give_their_ids_back(ids: list[int]) -> None:
    field = Sparse.one_hot(torch.tensor(ids, dtype=torch.int64), DIM)
    assert field.to_dense().tolist() == [[float(k == i) for k in range(DIM)] for i in ids]
    assert field.ids.tolist() == ids
    assert field.ids.dtype == torch.int64
    assert Sparse.one_hot(torch.tensor(ids, dtype=torch.int32), DIM).ids.dtype == torch.int64


# --- the forms that models take --------------------------------------------------------------------------


@given(sizes=lengths, shape=st.sampled_from([(), (2,), (2, 1)]), value=st.sampled_from([0, -1, 7]))
def test_padded_and_mask_hold_the_items_and_then_the_value(
    sizes: list[int], shape: tuple[int, ...], value: int
) -> None:
    field = ragged(sizes, shape)
    padded, mask, longest = field.padded(value), field.mask, max(sizes, default=0)
    assert padded.shape == (len(sizes), longest, *shape)
    assert mask.tolist() == [[k < size for k in range(longest)] for size in sizes]
    for k, (row, size) in enumerate(zip(padded, sizes, strict=True)):
        assert row[:size].tolist() == plain(field)[k]
        assert (row[size:] == value).all()
    assert padded[mask].tolist() == field.values.tolist()
    assert padded.dtype == field.dtype


@given(sizes=lengths)
def test_padded_sequences_of_sparse_items_are_dense(sizes: list[int]) -> None:
    field = sparse_items(sizes)
    padded, longest = field.padded(), max(sizes, default=0)
    assert padded.shape == (len(sizes), longest, DIM)
    for row, items in zip(padded.tolist(), plain(field), strict=True):
        assert row == dense(items) + [[0.0] * DIM] * (longest - len(items))


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), shape=st.sampled_from([(), (3,)]))
def test_packed_is_what_torch_packs(sizes: list[int], shape: tuple[int, ...]) -> None:
    field = ragged(sizes, shape)
    packed, expected = field.packed(), list[Any](nn.utils.rnn.pack_sequence(list(field), enforce_sorted=False))
    assert all(torch.equal(one, other) for one, other in zip(packed, expected, strict=True))


@given(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=8), shape=st.sampled_from([(), (3,)]))
def test_nested_holds_the_same_sequences(sizes: list[int], shape: tuple[int, ...]) -> None:
    field = ragged(sizes, shape)
    nested = field.nested()
    assert nested.layout == torch.jagged
    assert [row.tolist() for row in nested.unbind()] == plain(field)


@given(field=sparse_rows)
def test_to_dense_is_the_same_matrix(field: Sparse) -> None:
    matrix = dense(plain(field))
    assert field.to_dense().shape == (len(field), DIM)
    assert field.to_dense().tolist() == matrix


@given(field=sparse_rows.filter(len))
def test_a_bag_gives_an_embedding_bag_what_a_product_would_give(field: Sparse) -> None:
    embedding = nn.EmbeddingBag(DIM, 4, mode="sum")
    expected = field.to_dense() @ embedding.weight
    torch.testing.assert_close(embedding(**field.bag()), expected)
    part = field[len(field) // 2 :]
    if len(part):
        torch.testing.assert_close(embedding(**part.bag()), expected[len(field) // 2 :])


@pytest.mark.parametrize("indices", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [d for d in VALUES if d.is_floating_point])
def test_sparse_rows_of_every_dtype_have_every_form(dtype: torch.dtype, indices: torch.dtype) -> None:
    field = sparse([[(1, 2.0), (4, 3.0)], [], [(0, -1.0)]], dtype)
    field = Sparse(field.indices.to(indices), field.values, field.offsets, DIM)
    assert field.to_dense().dtype == field.dtype == dtype
    assert field.to_dense().tolist() == dense(plain(field))
    assert field.bag()["input"].dtype == torch.int64


def test_ones_joined_to_numbers_are_numbers() -> None:
    joined = cat([sparse([[(1, 1.0)]], ones=True), sparse([[(2, 5.0)], []])])
    assert plain(joined) == [[(1, 1.0)], [(2, 5.0)], []]


# --- outputs that belong to sequences --------------------------------------------------------------------


@given(sizes=lengths, shape=st.sampled_from([(), (3,)]))
def test_items_of_finds_the_items_in_every_form(sizes: list[int], shape: tuple[int, ...]) -> None:
    field = ragged(sizes, shape)
    outputs = field.values * 2 + 1
    assert torch.equal(field.items_of(field.with_values(outputs)), outputs)
    padded = field.with_values(outputs).padded(-7)
    assert torch.equal(field.items_of(padded), outputs)
    if tuple(outputs.shape[:2]) != (len(sizes), max(sizes, default=0)):
        assert torch.equal(field.items_of(outputs), outputs)


def test_gradients_reach_the_padded_outputs_and_none_the_padding() -> None:
    field = ragged([2, 0, 1])
    outputs = torch.randn(3, 2, 4, requires_grad=True)
    field.items_of(outputs).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad[..., 0].tolist() == field.mask.float().tolist()


# --- on another device -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[2, 0, 3], [0, 0], []], ids=str)
def test_no_form_asks_the_device_how_long_the_rows_are(sizes: list[int]) -> None:
    """The meta device has no numbers: whatever had to ask would fail."""
    field = ragged(sizes, (4,)).to("meta")
    longest = max(sizes, default=0)
    assert field.device.type == field.values.device.type == "meta"
    assert field.padded().shape == (len(sizes), longest, 4)
    assert field.mask.shape == (len(sizes), longest)
    assert field.items_of(torch.empty(len(sizes), longest, 2, device="meta")).shape == (sum(sizes), 2)
    assert len(field.take(torch.tensor([len(sizes) - 1] * bool(sizes), dtype=torch.int64))) == bool(sizes)
    assert [len(part) for part in field.split([len(sizes), 0])] == [len(sizes), 0]
    assert len(cat([field, field])) == 2 * len(sizes)
    words = sparse_items(sizes).to("meta")
    assert words.padded().shape == (len(sizes), longest, DIM)
    assert words.values.bag()["input"].device.type == "meta"
    one_hot = Sparse.one_hot(torch.zeros(len(sizes), dtype=torch.int64), DIM).to("meta")
    assert one_hot.ids.shape == (len(sizes),)


@pytest.mark.parametrize(
    "laid_out",
    [
        lambda x: x,
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(2, 3),
        lambda x: x[:, :, 1:],
        lambda x: x[..., 0].transpose(1, 2),
        lambda x: x[:, 0, 0].t().contiguous().t(),
        lambda x: x[:, :1].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        lambda x: x.expand(5, 3, 4, 6).permute(0, 2, 1, 3),
    ],
)
def test_rows_of_a_tensor_lie_in_memory_as_torch_indexes_them(laid_out: Any) -> None:
    """A convolution has other last bits where its input lies otherwise."""
    field, rows = laid_out(torch.randn(5, 3, 4, 6)), torch.tensor([4, 0, 4])
    assert take(field, rows).stride() == field[rows].stride()
    assert torch.equal(take(field, rows), field[rows])
