"""CNTK's text format, written line by line."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def _is_tensor(data: Any) -> bool:
    """Whether it is an array, or numbers in lists."""
    if isinstance(data, np.ndarray):
        return True
    while isinstance(data, list) and data:
        data = data[0]
        if isinstance(data, np.ndarray):
            return False
    return isinstance(data, int | float | np.number)


def _text(item: Any) -> str:
    if isinstance(item, dict):
        return " ".join(f"{place}:{number}" for place, number in sorted(item.items()))
    return " ".join(np.ravel(item).astype(str))


def sequence_to_cntk_text_format(seq_idx: int, alias_tensor_map: Mapping[str, Any]) -> str:
    """A sequence as lines of the text format: for every field its items, dense or as dicts of places and numbers."""
    for alias, given in alias_tensor_map.items():
        sparse = isinstance(given, list) and bool(given) and isinstance(given[0], dict)
        if not sparse and not _is_tensor(given) and len(given):
            raise ValueError(f"field {alias!r}: expected an array (dense) or a list of dicts (sparse), got {given!r}.")
    lines = []
    for place in range(max(len(given) for given in alias_tensor_map.values())):
        fields = [
            f"{alias} {_text(given[place])}" for alias, given in sorted(alias_tensor_map.items()) if place < len(given)
        ]
        lines.append(f"{seq_idx}\t|" + " |".join(fields))
    return "\n".join(lines)
