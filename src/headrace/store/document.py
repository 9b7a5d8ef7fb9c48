"""Reads the JSON documents of a run within limits of size and depth, whoever has written them."""

import json
from pathlib import Path
from typing import Any

from . import disk

DEPTH = 100
"""How many lists and dicts a document may have inside each other."""
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
    if is_deeper(found, DEPTH):
        raise ValueError(_DEEP)
    return found


def is_deeper(value: Any, levels: int) -> bool:
    """Whether plain values have more lists and dicts inside each other than that."""
    level = [value] if type(value) in (dict, list) else []
    while level and levels:
        levels -= 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
    return bool(level)
