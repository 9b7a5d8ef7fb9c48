"""What a worker can say to the others. One worker alone has nobody to talk to, and a null object says so."""

from typing import Protocol

from .data.source import WHOLE, Shard


class Comm(Protocol):
    """The others, seen from one worker."""

    shard: Shard
    """Which part of every batch is this worker's."""


class Null:
    """A worker alone."""

    shard = WHOLE
