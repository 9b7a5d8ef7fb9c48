"""State becomes JSON and tensors and comes back as it was; what would not is refused, and named."""

import contextlib
import json
import math
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headrace.errors import CheckpointError, CorruptError
from headrace.store.codec import decode, encode, from_json, to_json


def through(value: Any, *, strict: bool = False) -> Any:
    """What comes back, by way of the bytes of a JSON document."""
    tensors: dict[str, Tensor] = {}
    document = encode(value, tensors, "state", strict=strict)
    return decode(from_json(to_json(document), "state.json"), tensors)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same type and to the last bit; NaN is NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, float):
        return bool(a.hex() == b.hex())
    return bool(a == b)


tensors = st.sampled_from([torch.arange(3), torch.tensor(1.5), torch.empty(0, 2), torch.ones(2, 2, dtype=torch.bool)])
plain: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
)
plain |= st.text(max_size=8) | tensors
keys = st.text(max_size=5).filter(lambda key: not key.startswith("$"))
strict_values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)
odd_keys = (
    st.text(max_size=3) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
)
values = st.recursive(
    plain | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_keys, inner, max_size=4) | st.tuples(inner, inner),
)


@given(strict_values)
def test_what_strict_accepts_comes_back_as_it_was(value: Any) -> None:
    assert same(through(value, strict=True), value)


@given(values)
def test_what_is_accepted_comes_back_as_it_was(value: Any) -> None:
    assert same(through(value), value)


@pytest.mark.parametrize("value", [{}, [], (), "", "$tensor", {"$tensor": "x"}, {"$": 1}, {"$float": "nan", "b": 2}])
def test_what_looks_like_a_sign_of_the_codec_comes_back_as_it_was(value: Any) -> None:
    assert same(through(value), value)


def test_numbers_of_numpy_and_enums_become_plain_ones_and_a_dict_keeps_its_order() -> None:
    Size = IntEnum("Size", {"SMALL": 3})
    found = through([np.int64(7), np.float32(0.5), np.bool_(True), np.float64(math.nan), Size.SMALL])
    assert same(found, [7, 0.5, True, math.nan, 3])
    assert list(through(OrderedDict([("z", 1), ("a", 2)]))) == ["z", "a"]


# np.ascontiguousarray gives an array without dimensions one.
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "int64", "uint64", "float16", "float64"])
def test_an_array_comes_back_as_it_was(dtype: str) -> None:
    for shape in [(), (0,), (1,), (2, 0), (2, 3)]:
        array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
        assert same(through({"array": array}), {"array": array}), shape


# torch.from_numpy warns of arrays that cannot be written to.
def test_an_array_of_another_layout_or_byte_order_comes_back_with_its_values_and_without_a_warning() -> None:
    array = np.arange(12, dtype=">i4").reshape(3, 4)
    fixed = array.copy()
    fixed.flags.writeable = False
    for value in (array, array.T, array[::2, ::-1], np.asfortranarray(array), fixed):
        found = through(value)
        assert found.dtype == np.int32
        assert np.array_equal(found, value)


def test_tensors_are_kept_by_names_of_their_own_and_not_in_the_document() -> None:
    value = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "a/b~2": torch.tensor(3)}
    kept: dict[str, Tensor] = {}
    document = encode(value, kept, "state")
    assert len(kept) == 3
    assert all(name.startswith("state/") for name in kept)
    assert same(decode(document, kept), value)
    assert encode({"momentum": [torch.ones(2)]}, {}, "optim") == {"momentum": [{"$tensor": "optim/momentum/0"}]}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        *[((1, 2), "(1, 2) (tuple)"), (math.nan, "nan (float)"), (-math.inf, "-inf (float)"), ({1, 2}, "a set")],
        *[({1: "a"}, "a dict with the keys [1]"), ({"$a": 1}, "a dict with the keys ['$a']"), (b"bytes", "a bytes")],
        *[(object(), "a object"), (1j, "a complex"), (np.int64(1), "a int64"), (len, "a builtin_function_or_method")],
    ],
)
def test_strict_refuses_what_would_not_come_back_and_says_where(value: Any, named: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        encode({"source": [0, {"cursor": value}]}, {}, "streams/words", strict=True)
    assert "'streams/words/source/1/cursor'" in str(caught.value)
    assert named in str(caught.value)
    assert "None, booleans, integers, finite floats" in str(caught.value)


@pytest.mark.parametrize("value", [{1, 2}, b"bytes", object(), 1j, len, np.array(["text"]), np.array([None])])
def test_what_is_no_value_is_refused_anywhere(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'state/a/0'.* cannot be saved"):
        encode({"a": [value]}, {}, "state")


@pytest.mark.parametrize(
    "document",
    [
        *[{"$unknown": 1}, {"$": 1}, {"$tensor": "missing"}, {"$tensor": None}, {"$tensor": []}, {"$tensor": {}}],
        *[{"$array": "missing"}, {"$array": "half"}, {"$float": "x"}, {"$float": None}, {"$float": []}, {"$tuple": 1}],
        *[{"$tuple": None}, {"$items": 1}, {"$items": [1]}, {"$items": [[[], 1]]}, {"$items": [[1, 2, 3]]}],
    ],
    ids=json.dumps,
)
def test_what_encode_never_gives_is_corrupt(document: Any) -> None:
    half = {"half": torch.ones(1, dtype=torch.bfloat16)}
    for value in (document, [document], {"a": {"b": document}}):
        with pytest.raises(CorruptError):
            decode(value, half)


@pytest.mark.parametrize("depth", [400, 700, 100_000])
def test_what_is_nested_too_deeply_is_an_error_of_ours_or_comes_back(depth: int) -> None:
    document: Any = 1
    for _ in range(depth):
        document = [document]
    with contextlib.suppress(CorruptError):
        decode(document, {})
    with contextlib.suppress(CheckpointError):
        encode(document, {}, "state", strict=True)
