"""Reads the JSON documents of a run within limits of size and depth, since they may come from anybody."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

from . import disk

DEPTH = 100
"""How many lists and dicts a document may have inside each other."""
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
