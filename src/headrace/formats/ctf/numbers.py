"""Text to numbers: many at a time, by Arrow, where they lie in a block; or one by one, for what Arrow refuses."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..lazy import pa, pc

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

FLOAT = re.compile(rb"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))")
INTEGER = re.compile(rb"[+-]?[0-9]+")
LONGEST = 4000  # digits of a whole number that Python is asked to read
_STORED = {"float16": "float32", "bfloat16": "float32", "bool": "uint8"}


class UnreadableError(Exception):
    """Something in a block is not as it should be."""


def cast(text: Bytes, spans: Places, dtype: str, one_by_one: bool = False) -> NDArray[Any]:
    """The numbers at these spans, of shape (n, 2); raises `UnreadableError` if any is no number of this dtype.

    A bfloat16 is given as the float32 that it is rounded from. `one_by_one` also reads those that Arrow refuses, +1
    and others. What it reads and is none of our numbers, 0x1F and nan(1), has been refused before.
    """
    stored = _STORED.get(dtype, dtype)
    values: Any = _digits(text, spans, stored)
    if values is None:
        values = _by_arrow(text, spans, stored)
    if values is None and one_by_one:
        words = [value_of(text[start:stop].tobytes(), dtype) for start, stop in spans.tolist()]
        values = None if None in words else np.array(words, stored)
    if values is None:
        raise UnreadableError
    if dtype == "bool":
        if values.size and values.max() > 1:
            raise UnreadableError
        values = values != 0
    if dtype == "float16":
        with np.errstate(over="ignore"):
            values = values.astype(np.float16)
    if "float" in dtype and not np.isfinite(values).all():
        infinite = np.isinf(values)
        if (text[spans[infinite, 1] - 1] <= ord("9")).any():  # too large: an infinity ends with a letter
            raise UnreadableError
    found: NDArray[Any] = values
    return found


def value_of(word: bytes, dtype: str) -> float | int | None:
    """Reads one number, slowly, with the results of `cast`; `None` where the text is no number of this dtype."""
    if "float" in dtype:
        if not FLOAT.fullmatch(word):
            return None
        with np.errstate(over="ignore"):
            held = float(np.dtype("float32" if dtype == "bfloat16" else dtype).type(float(word)))
        return None if np.isinf(held) and word[-1:] in b"0123456789." else held
    if not INTEGER.fullmatch(word) or len(word) > LONGEST:
        return None
    limits, whole = np.iinfo(_STORED.get(dtype, dtype)), int(word)
    return whole if int(limits.min) <= whole <= (1 if dtype == "bool" else int(limits.max)) else None


def _digits(text: Bytes, spans: Places, dtype: str) -> NDArray[Any] | None:
    """Numbers of one digit each, as in one-hot rows; None if there are others."""
    if not len(spans) or spans[0, 1] - spans[0, 0] != 1 or (spans[:, 1] - spans[:, 0]).max() != 1:
        return None
    digits = text[spans[:, 0]] - np.uint8(48)
    return None if digits.max() > 9 else digits.astype(dtype)


def _by_arrow(text: Bytes, spans: Places, dtype: str) -> NDArray[Any] | None:
    """By Arrow's own parser, or None if it refuses any.

    Between two spans lies a gap. An array of strings in which every second one is such a gap, and null, has exactly
    the ends of the spans as its offsets: the bytes stay where they are.
    """
    if not len(spans):
        return np.empty(0, dtype)
    count = 2 * len(spans) - 1
    valid = np.full(-(-count // 8), 0b01010101, np.uint8)
    buffers = [pa.py_buffer(part) for part in (valid, np.ascontiguousarray(spans).reshape(-1), text)]
    strings = pa.Array.from_buffers(pa.large_string(), count, buffers, null_count=len(spans) - 1)
    try:
        numbers = pc.cast(strings, pa.type_for_alias(dtype))
    except pa.ArrowInvalid:
        return None
    held = np.frombuffer(numbers.buffers()[1], dtype)[numbers.offset :]
    return np.ascontiguousarray(held[:count:2])
