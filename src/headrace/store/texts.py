"""The rows of a history as they stand in a checkpoint: text, made once of each row for as long as it stays as it is."""

import marshal
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from . import codec
from .contents import to_json

Row = dict[str, Any]


class Texts:
    """Rows as JSON. One that is as it was the last time, to the last bit, is not encoded again."""

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}  # the texts of plain rows by what is in them: they are never outdated

    def __call__(self, rows: Sequence[Row]) -> bytes:
        """All of these rows, as one list."""
        known, self._known, texts = self._known, {}, []
        for row in rows:
            content = _content(row)
            text = known.get(content) or to_json(_encoded(row))
            if content in known or (content and _is_plain([*row, *row.values()])):
                self._known[content] = text
            texts.append(text)
        return b"[" + b",".join(texts) + b"]"


def _content(row: Row) -> bytes:
    """What is in a row, and in no other that is plain: 1 is not 1.0, nor `True`. Empty if there is no telling."""
    try:
        return marshal.dumps(row, 2)  # later versions look at who else holds an object
    except ValueError:
        return b""


def _is_plain(value: Any, depth: int = 4) -> bool:
    """Whether a value is of numbers and text, in lists at most."""
    if type(value) is list:
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return value is None or type(value) in (bool, int, float, str)


def _encoded(row: Row) -> Row:
    """A row for JSON; what a metric of one's own gave, and cannot be saved, as text."""
    found = {}
    for key, value in row.items():
        value = value.tolist() if isinstance(value, Tensor) else value
        try:
            found[key] = codec.encode(value, {}, key)
        except CheckpointError:
            found[key] = str(value)
    return found
