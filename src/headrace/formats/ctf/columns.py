"""Which fields of a text file become which streams."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ...data.batch import Stream
from ...errors import ConfigError, unknown
from ..schema import DTYPES

MOST_STREAMS = 250
"""Every byte of a block is marked with the number of its stream, which is a byte too."""


@dataclass(frozen=True)
class Column:
    """One stream, and the field that it is read from."""

    stream: Stream
    field: bytes

    @property
    def name(self) -> str:
        return self.stream.name

    @property
    def sparse(self) -> bool:
        return self.stream.layout == "sparse"

    @property
    def size(self) -> int:
        """Numbers of one item; those of a sparse one are nearly all zero."""
        return prod(self.stream.shape)


def columns_of(streams: Sequence[Stream], fields: Mapping[str, str]) -> tuple[Column, ...]:
    """The columns that declared streams are read from, dense ones first; refuses what cannot be read from text.

    Dense columns are told from sparse ones by their number.
    """
    if not streams:
        raise ConfigError("streams= names nothing to read. Declare at least one Stream.")
    if len(streams) > MOST_STREAMS:
        raise ConfigError(f"at most {MOST_STREAMS} streams are read from one file, got {len(streams)}.")
    for name in fields:
        if name not in {s.name for s in streams}:
            raise ConfigError(f"fields=: {unknown('stream', name, [s.name for s in streams])}")
    columns = [Column(_checked(s), _field_name(s.name, fields.get(s.name, s.name))) for s in streams]
    names = [c.field for c in columns]
    if twice := [c for c in columns if names.count(c.field) > 1]:
        raise ConfigError(
            f"fields=: streams {twice[0].name!r} and {twice[1].name!r} are both read from field "
            f"{twice[0].field.decode()!r}. Each field is one stream."
        )
    return tuple(sorted(columns, key=lambda c: c.sparse))


def _field_name(stream: str, field: str) -> bytes:
    """The name of a field as it stands in a file."""
    if not isinstance(field, str) or not re.fullmatch(r"[^\s|#\x00-\x20\x7f][^\s|\x00-\x20\x7f]*", field):
        raise ConfigError(
            f"stream {stream!r} cannot be field {field!r} of a file: a name there has neither blanks nor '|', and does "
            f"not begin with '#'. Give it another one: fields={{{stream!r}: 'x'}}."
        )
    return field.encode()


def _checked(stream: Stream) -> Stream:
    if stream.dtype not in DTYPES:
        raise ConfigError(
            f"stream {stream.name!r} is declared {stream.dtype}, which is not read from text. "
            f"Choose one of: {', '.join(DTYPES)}."
        )
    if stream.layout == "sparse" and len(stream.shape) != 1:
        raise ConfigError(
            f"stream {stream.name!r} is sparse and has shape {stream.shape}: one dimension is expected, the number of "
            "indices, as in (1000,)."
        )
    if stream.layout == "sparse" and stream.shape[0] > 2**63 - 1:
        raise ConfigError(f"stream {stream.name!r}: {stream.shape[0]} indices are more than an int64 can tell apart.")
    return stream
