"""The JSON documents of a run, and the rows of its reports: read within limits, since they may come from anybody."""

import json
import math
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from . import disk

DEPTH = 100
"""How many lists and dicts a document may have inside each other."""
Row = Mapping[str, Any]
COUNTERS = ("epoch", "step", "samples", "minutes")
"""The numbers of a row that say how far the training had come; the others have been measured."""
_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_NESTED = frozenset((dict, list))
SMALL_BYTES, LARGE_BYTES = 16 << 20, 1 << 32
_DEEP = f"it has more than {DEPTH} lists and dicts inside each other"


def read_document(path: Path, limit: int = SMALL_BYTES) -> Any:
    """The document in a file of a run; raises OSError, or ValueError if it is not JSON or nested too deeply.

    Links are not followed, and pipes and devices are not waited for.
    """
    return parse_document(disk.read_file(path, limit))


def parse_document(data: bytes | str) -> Any:
    """The values that JSON stands for; raises ValueError if it is not JSON or nested too deeply."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError(_DEEP) from None
    opened = data.count("[") + data.count("{") if isinstance(data, str) else data.count(b"[") + data.count(b"{")
    if opened > DEPTH and is_deeper(found, DEPTH):  # a row of metrics is not looked through
        raise ValueError(_DEEP)
    return found


def is_deeper(value: Any, levels: int) -> bool:
    """Whether plain values have more lists and dicts inside each other than that."""
    level = [value] if type(value) in _NESTED else []
    while level and levels:
        levels -= 1
        items = chain.from_iterable(each.values() if type(each) is dict else each for each in level)
        level = [item for item in items if type(item) in _NESTED]
    return bool(level)


def read_row(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl; `None` if it is not a whole one."""
    try:
        row = parse_document(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return None
    return _decoded(row) if all(isinstance(row.get(counter, 0), int | float) for counter in COUNTERS[:3]) else None


def encoded(value: Any) -> Any:
    """Plain values for JSON, which knows no NaN and no infinity: they become text."""
    if isinstance(value, Mapping):
        return {str(key): encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return encoded(value.tolist()) if hasattr(value, "tolist") else str(value)


def encoded_line(row: Row) -> bytes:
    """A row as a line of JSON."""
    try:
        text = _COMPACT.encode(row)
    except (TypeError, ValueError):  # NaN, or a value that JSON does not know
        text = _COMPACT.encode(encoded(row))
    return text.encode() + b"\n"


def readable(document: Mapping[str, Any]) -> bytes:
    """A document as JSON for a person to read; names of files need not be Unicode."""
    return json.dumps(encoded(document), indent=2, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def _decoded(value: Any) -> Any:
    """What was `encoded`."""
    if isinstance(value, dict):
        return {key: _decoded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, int) and abs(value) >= 1 << 63:  # none of ours: no counter comes that far
        return math.inf
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
