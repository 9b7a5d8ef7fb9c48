"""Writes reports as curves for TensorBoard, each number once, however often the training was interrupted."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..store import disk
from ..store.document import Row
from .callback import Callback
from .files import OutputPath
from .rows import numbers

if TYPE_CHECKING:
    from .info import Info

FOLDER, PICTURES = "tb", "pictures"
NEWEST = "newest.png"
OURS = ".headrace"  # how the names of our files end; others in the directory are somebody else's
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, its bits reversed
_AROUND = 16  # bytes of a record that are not its data
_LONGEST = 1 << 30  # bytes of a record; more than that is no record
_EVERY_S = 0.5  # between two writes, at least: many reports are written at once


Point = tuple[int, str, float]
"""Step, tag and value."""


class TensorBoard(Callback):
    """Writes every number of a report at its step, by its key; without a `path`, into the directory `tb` of the run.

    A resumed training first removes from its file what was reported after the checkpoint; a running TensorBoard
    follows. Another training in the same directory replaces the file.
    """

    everywhere = False
    _looks_on = True

    def __init__(self, path: str | Path | None = None) -> None:
        self._place = OutputPath(self, path, FOLDER)
        self._events: _Events | None = None

    def forget(self) -> None:
        self._close()

    def on_fit_start(self, info: Info) -> None:
        self._folder = self._place.folder(info)
        with self._place.usable(self._folder):
            if info.history.rows:
                self._events = _Events(self._folder, info.history.rows)

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        try:
            if self._events is None:
                self._events = _Events(self._folder, info.history.rows, anew=not info.resumed)
            elif not self._events.add(row):
                self._close()
                self._events = _Events(self._folder, info.history.rows)
        except OSError as error:
            raise disk.failure(error, f"writing step {row['step']} to {self._folder}", self._folder, 0) from error

    def on_error(self, info: Info, error: BaseException) -> None:
        with suppress(OSError):
            self._close()

    def on_fit_end(self, info: Info) -> None:
        self._close()

    def _close(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            with events.file:
                events.flush()


class _Events:
    """A file of events that equals a history. A report is one record, which is there as a whole or not at all."""

    def __init__(self, folder: Path, rows: Iterable[Row], anew: bool = False) -> None:
        before = sorted(folder.glob(f"events.out.tfevents.*{OURS}"))
        path = before[-1] if before and not anew else folder / _name()
        for other in before:
            if other != path:
                disk.unlink(other)
        points = [point for row in rows for point in _points(row)]
        self._last = {tag: (step, repr(value)) for step, tag, value in points}
        self.file = disk.File(path, new=False)
        end, known = _common(path, points)
        self.file.truncate(end)
        self.file.write((b"" if end else _first()) + _records(points[known:]))
        self._waiting: list[Point] = []
        self._written_at = time.monotonic()

    def add(self, row: Row) -> bool:
        """Adds what is new in a report, to be written soon; returns False where it corrects what is there."""
        new = [(step, tag, v) for step, tag, v in _points(row) if self._last.get(tag) != (step, repr(v))]
        if any(tag in self._last and self._last[tag][0] >= step for step, tag, _ in new):
            return False
        self._last |= {tag: (step, repr(value)) for step, tag, value in new}
        self._waiting += new
        if time.monotonic() >= self._written_at + _EVERY_S:
            self.flush()
        return True

    def flush(self) -> None:
        """Writes what waits."""
        waiting, self._waiting, self._written_at = self._waiting, [], time.monotonic()
        self.file.write(_records(waiting))


def write_picture(folder: Path, step: int, png: bytes, size: tuple[int, int]) -> None:
    """Writes a picture, columns and rows in size, as the newest, and for TensorBoard into a file of its step."""
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=time.time(), step=step)
    image = event.summary.value.add(tag=PICTURES).image
    image.width, image.height, image.colorspace, image.encoded_image_string = *size, 3, png
    disk.write_file(folder / NEWEST, png)
    disk.write_file(folder / _of_step(step), _first() + _record(bytes(event.SerializeToString())))


def drop_pictures(folder: Path, after: int) -> None:
    """Removes the pictures of later steps: a training goes on from this one, or begins."""
    for path in folder.glob(_of_step()):
        if int(path.name.split(".")[3]) > after or not after:
            disk.unlink(path)


def _of_step(step: int | None = None) -> str:
    return f"events.out.tfevents.{'*' if step is None else f'{step:010d}'}.{PICTURES}"


def _name() -> str:
    return f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}{OURS}"


def _points(row: Row) -> list[Point]:
    """The numbers of a report; tags are UTF-8, which cannot hold half of a surrogate pair."""
    tags = ((tag.encode(errors="backslashreplace").decode(), value) for tag, value in numbers(row).items())
    return [(row["step"], tag, value) for tag, value in tags]


def _common(path: Path, points: Sequence[Point]) -> tuple[int, int]:
    """How many bytes of a file agree with these points, and how many points they hold."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto.event_pb2 import Event

    end = known = 0
    for data in _read(path):
        try:
            event = Event.FromString(data)
        except DecodeError:  # nobody who writes events has written that
            break
        count = len(event.summary.value)
        if count and data != _event(event.wall_time, points[known : known + count]):
            break
        end, known = end + len(data) + _AROUND, known + count
    return end, known


def _first() -> bytes:
    """The first record of a file of events."""
    from tensorboard.compat.proto.event_pb2 import Event

    return _record(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())


def _records(points: Iterable[Point]) -> bytes:
    """A record for every step."""
    now = time.time()
    return b"".join(_record(_event(now, list(found))) for _, found in groupby(points, lambda point: point[0]))


def _event(wall_time: float, points: Sequence[Point]) -> bytes:
    """The event of one step."""
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(wall_time=wall_time, step=points[0][0] if points else 0)
    for _, tag, value in points:
        event.summary.value.add(tag=tag, simple_value=value)
    return bytes(event.SerializeToString())


def _read(path: Path) -> Iterator[bytes]:
    """The records of a file, up to the first that is incomplete."""
    with open(disk.open_regular(path, os.O_RDONLY), "rb") as file:
        while len(head := file.read(12)) == 12:
            (length,) = struct.unpack("<Q", head[:8])
            if head[8:] != _masked(head[:8]) or length > _LONGEST:
                return
            data = file.read(length)
            if file.read(4) != _masked(data):
                return
            yield data


def _record(data: bytes) -> bytes:
    """Bytes framed as a record of a file of events.

    Tensorboard has a writer that makes the same of them; with all that it imports, that takes a tenth of a second.
    """
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    """The checksum of a record: CRC-32C, rotated and shifted, for it may be taken of bytes that hold one themselves."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _table() -> tuple[int, ...]:
    """The table of CRC-32C for a byte."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
