"""Text to numbers, many at a time: spans of a block's bytes are cast by Arrow where they lie, nothing is copied."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

FLOAT = re.compile(rb"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:nan|inf|infinity))")
INTEGER = re.compile(rb"[+-]?[0-9]+")
ID = re.compile(rb"[0-9]+")
LEAF = 64
_STORED = {"float16": "float32", "bfloat16": "float32", "bool": "uint8", "id": "uint64"}


def is_float(kind: str) -> bool:
    return "float" in kind


def cast(text: Bytes, spans: Places, kind: str) -> tuple[NDArray[Any], Places]:
    """The numbers at these spans, of shape (n, 2), and which of the spans are no numbers of this kind.

    `kind` is a dtype, or "id" for a sequence id. A bfloat16 is given as the float32 that it is rounded from.
    """
    dtype = _STORED.get(kind, kind)
    values, bad = _cast(text, spans, kind, dtype)
    if kind == "bool":
        bad = np.union1d(bad, np.flatnonzero(values > 1))
        return values != 0, bad
    if is_float(kind):
        if kind == "float16":
            with np.errstate(over="ignore"):
                values = values.astype(np.float16)
        bad = np.union1d(bad, _too_large(text, spans, values))
    return values, bad


def attempt(text: Bytes, spans: Places, dtype: str) -> NDArray[Any] | None:
    """The same without a word about what is no number: None if there is any. (Arrow reads 0x1F as a whole number.)"""
    values = _digits(text, spans, dtype)
    return values if values is not None else _arrow(text, spans, dtype)


def value_of(token: bytes, kind: str) -> float | int | None:
    """One number, the slow way: what `cast` is to agree with. None where the text is no number of this kind."""
    if is_float(kind):
        if not FLOAT.fullmatch(token):
            return None
        value = float(token)
        with np.errstate(over="ignore"):
            held = float(np.dtype(_STORED.get(kind, kind) if kind == "bfloat16" else kind).type(value))
        return None if np.isinf(held) and token[-1:] in b"0123456789." else held
    if not (ID if kind == "id" else INTEGER).fullmatch(token) or len(token) > 4000:
        return None
    whole = int(token)
    low, high = (0, 1) if kind == "bool" else (int(i) for i in _limits(kind))
    return whole if low <= whole <= high else None


def _limits(kind: str) -> tuple[int, int]:
    info = np.iinfo(_STORED.get(kind, kind))
    return info.min, info.max


def _digits(text: Bytes, spans: Places, dtype: str) -> NDArray[Any] | None:
    """Numbers of one digit each, as in one-hot rows; None if there are others."""
    if not len(spans) or spans[0, 1] - spans[0, 0] != 1 or (spans[:, 1] - spans[:, 0]).max() != 1:
        return None
    digits = text[spans[:, 0]] - np.uint8(48)
    return None if digits.max() > 9 else digits.astype(dtype)


def _cast(text: Bytes, spans: Places, kind: str, dtype: str) -> tuple[NDArray[Any], Places]:
    """All at once; where that fails, halves, down to a few that are looked at one by one."""
    values = attempt(text, spans, dtype)
    if values is not None:
        return values, np.empty(0, np.int64)
    fit = _written(text, spans, kind) if len(spans) > LEAF else np.empty(0, bool)
    if len(fit) and not fit.all():  # what is no number is left out, and the others are read at once
        held, worse = _cast(text, spans[fit], kind, dtype)
        every = np.zeros(len(spans), dtype)
        every[fit] = held
        return every, np.union1d(np.flatnonzero(~fit), np.flatnonzero(fit)[worse])
    if len(spans) > LEAF:
        middle = len(spans) // 2
        (left, bad), (right, worse) = (_cast(text, part, kind, dtype) for part in (spans[:middle], spans[middle:]))
        return np.concatenate([left, right]), np.concatenate([bad, worse + middle])
    found = [value_of(text[start:stop].tobytes(), kind) for start, stop in spans.tolist()]
    none = np.array([value is None for value in found])
    return np.array([0 if value is None else value for value in found], dtype), np.flatnonzero(none)


def _arrow(text: Bytes, spans: Places, dtype: str) -> NDArray[Any] | None:
    """By Arrow's own parser, or None if it refuses any.

    Between two spans lies a gap. An array of strings in which every second one is such a gap, and null, has exactly
    the ends of the spans as its offsets: the bytes stay where they are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(spans):
        return np.empty(0, dtype)
    strings = _strings(text, spans, pa.large_string())
    try:
        numbers = pc.cast(strings, pa.type_for_alias(dtype))
    except pa.ArrowInvalid:
        return None
    held = np.frombuffer(numbers.buffers()[1], dtype)[numbers.offset :]
    return np.ascontiguousarray(held[: len(strings) : 2])


def _strings(text: Bytes, spans: Places, kind: Any) -> Any:
    import pyarrow as pa

    count = 2 * len(spans) - 1
    valid = np.full(-(-count // 8), 0b01010101, np.uint8)
    offsets = np.ascontiguousarray(spans).reshape(-1)
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(kind, count, buffers, null_count=len(spans) - 1)


def _written(text: Bytes, spans: Places, kind: str) -> NDArray[np.bool_]:
    """Which of the spans are written as numbers of this kind are, whether or not it holds them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    form = FLOAT if is_float(kind) else ID if kind == "id" else INTEGER
    strings = _strings(text, spans, pa.large_binary())
    found = pc.match_substring_regex(strings, f"^(?:{form.pattern.decode()})$")
    return np.asarray(found.fill_null(False))[::2]


def _too_large(text: Bytes, spans: Places, values: NDArray[Any]) -> Places:
    """Those that are infinite and were not written so: an infinity ends with a letter, a number does not."""
    if np.isfinite(values).all():
        return np.empty(0, np.int64)
    found: Places = np.flatnonzero(np.isinf(values))
    suspects: Places = found[text[spans[found, 1] - 1] <= ord("9")]
    return suspects
