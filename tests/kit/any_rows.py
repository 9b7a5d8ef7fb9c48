"""Rows of any kind by chance, for property tests: dense, sparse, sequences, and sequences of sparse items."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "uint32", "bool")


def numbers(items: int, shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    """Numbers that every dtype holds exactly."""
    drawn = torch.randint(0, 100, (items, *shape), generator=torch.Generator().manual_seed(seed))
    return drawn.to(getattr(torch, dtype))


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])


@st.composite
def items(draw: Any, rows: int, dtypes: tuple[str, ...] = DTYPES, sparse: bool = True) -> Tensor | Sparse:
    """Dense or sparse items, one for each row."""
    dtype, seed = draw(st.sampled_from(dtypes)), draw(st.integers(0, 999))
    if not sparse or draw(st.booleans()):
        return numbers(rows, draw(st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 2)])), dtype, seed)
    held = offsets(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
    indices, count = numbers(int(held[-1]), (), "int64", seed), int(held[-1])
    kind = getattr(torch, dtype)
    values = None if draw(st.booleans()) else numbers(count, (), dtype, seed + 1)
    return Sparse(indices.to(draw(st.sampled_from([torch.int32, torch.int64]))), values, held, 100, kind)


@st.composite
def columns(draw: Any, /, rows: int, **options: Any) -> dict[str, Any]:
    """A few streams with so many rows."""
    found: dict[str, Any] = {}
    for name in draw(st.sampled_from(["a", "ab", "abc"])):
        if draw(st.booleans()):
            found[name] = draw(items(rows, **options))
        else:
            held = offsets(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
            found[name] = Ragged(draw(items(int(held[-1]), **options)), held)
    return found


def plain(field: Any) -> Any:
    """Everything that there is to a field, for comparison."""
    if isinstance(field, Tensor):
        return str(field.dtype), list(field.shape), field.tolist()
    if isinstance(field, Ragged):
        return "ragged", field.offsets.tolist(), field.host_offsets.tolist(), plain(field.values)
    ones = torch.ones(len(field.indices), dtype=field.dtype)
    values = ones if field.values is None else field.values
    return (
        "sparse",
        field.dim,
        field.offsets.tolist(),
        field.host_offsets.tolist(),
        field.indices.tolist(),
        plain(values),
    )


def contents(batch: hr.Batch) -> dict[str, Any]:
    return {name: plain(batch[name]) for name in batch.fields}
