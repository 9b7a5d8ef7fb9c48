"""Reads all lines of a block of text at once, or none of them if anything is wrong: `faults` then says what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data.batch import torch_dtype
from ...data.fields import Field
from ...data.ragged import Ragged
from ...data.sparse import Sparse
from .columns import Column
from .numbers import Bytes, Places, UnreadableError, cast

BLANK, TAB, NEWLINE, RETURN, PIPE, HASH, COLON = b" \t\n\r|#:"
FIRST = 1
"""How the bytes of the first column are marked."""
PAD = 16


@dataclass
class Parsed:
    """The rows of a block."""

    fields: dict[str, Field]
    rows: int
    """The number of sequences."""
    ids: tuple[int, int] | None
    """Of the first and the last sequence, where sequences have ids."""
    seen: Sequence[str]
    """The streams that have a field."""


def read_block(block: bytes, columns: Sequence[Column], has_ids: bool, one_by_one: bool = False) -> Parsed | None:
    """The rows of a block of whole sequences, or None; `one_by_one` reads numbers that Arrow refuses, too."""
    try:
        return _TextBlock(block, columns, one_by_one).parsed(has_ids)
    except UnreadableError:
        return None


def _require(fine: bool | np.bool_) -> None:
    if not fine:
        raise UnreadableError


class _TextBlock:
    """A block with one blank before it, a newline at its end, and blanks after that, as bytes and as positions."""

    def __init__(self, block: bytes, columns: Sequence[Column], one_by_one: bool) -> None:
        self._columns, self._one_by_one = columns, one_by_one
        self.text = text = _padded(block)
        marks = np.flatnonzero((text == PIPE) | (text == NEWLINE))
        is_pipe = text[marks] == PIPE
        ends = np.flatnonzero(~is_pipe)  # which of the marks end a line
        self.newlines = marks[ends]
        self.starts = np.append(1, self.newlines[:-1] + 1)
        self.heads = marks[np.append(0, ends[:-1] + 1)]
        """Where the first field of each line begins, or the line ends."""
        which = np.flatnonzero(is_pipe)
        self.pipes, self.stops = marks[which], marks[which + 1]
        """Where each field begins and ends, comments among them."""
        self.line = np.cumsum(~is_pipe)[which]
        """The line of each field."""
        self.code, self.comment = self._names()
        """Of each field: 0 for one that is not read, else its column + FIRST; and whether it is a comment."""

    def parsed(self, has_ids: bool) -> Parsed:
        """The rows."""
        self._check_names()
        sequence_of, ids, count = self._numbered() if has_ids else self._one_a_line()
        words = _ColumnWords(self.text, self._zones(), FIRST + sum(not column.sparse for column in self._columns))
        fields: dict[str, Field] = {}
        seen = []
        for k, column in enumerate(self._columns, FIRST):
            which = np.flatnonzero(self.code == k)
            at = self.line[which]
            owner = sequence_of[at]
            _require(not len(owner) or owner[0] >= 0)
            _require((at[1:] > at[:-1]).all())  # no field twice on a line
            items: Any = (self._sparse if column.sparse else self._dense)(column, which, words, k)
            if column.stream.sequence:
                bounds = np.zeros(count + 1, np.int64)
                np.cumsum(np.bincount(owner, minlength=count), out=bounds[1:])
                items = Ragged(items, torch.from_numpy(bounds))
            else:
                _require(len(owner) == count and (owner[1:] > owner[:-1]).all())
            fields[column.name] = items
            seen += [column.name] if len(which) else []
        limits = (int(ids[0]), int(ids[-1])) if ids is not None and count else None
        return Parsed(fields, count, limits, seen)

    # --- lines and fields ----------------------------------------------------------------------------------

    def _names(self) -> tuple[Bytes, NDArray[np.bool_]]:
        """The code of each field by its name, eight bytes of which are compared at once."""
        text, pipes = self.text, self.pipes
        words = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))[pipes + 1]
        code = np.zeros(len(pipes), np.uint8)
        for k, column in enumerate(self._columns, FIRST):
            size = len(column.field)
            if size < 8:
                wanted, mask = int.from_bytes(column.field, "little"), (1 << 8 * size) - 1
                after = (words >> np.uint64(8 * size)).astype(np.uint8)
                same = (words & np.uint64(mask)) == np.uint64(wanted)
                code[same & ((after <= BLANK) | (after == PIPE))] = k
                continue
            found = np.flatnonzero(words == np.uint64(int.from_bytes(column.field[:8], "little")))
            for i in range(8, size):
                found = found[text[pipes[found] + 1 + i] == column.field[i]]
            after = text[pipes[found] + 1 + size]
            code[found[(after <= BLANK) | (after == PIPE)]] = k
        return code, words.astype(np.uint8) == HASH

    def _check_names(self) -> None:
        """Fields that are not read have a name all the same."""
        others = np.flatnonzero((self.code == 0) & ~self.comment)
        if not len(others):
            return
        after = self.text[self.pipes[others] + 1]
        _require(not ((after <= BLANK) | (after == PIPE)).any())
        if self.text.max() > 127:
            high = np.searchsorted(self.pipes, np.flatnonzero(self.text > 127), side="right") - 1
            for field in np.intersect1d(high, others).tolist():
                content = self.text[self.pipes[field] + 1 : self.stops[field]].tobytes()
                _require(is_utf8(content.split(b" ", 1)[0]))

    def _one_a_line(self) -> tuple[Places, None, int]:
        """The sequence of each line in a file without ids: every line with a field is one."""
        _require(not len(self._ids()[0]))
        held = np.zeros(len(self.starts), np.int64)
        held[self.line[~self.comment]] = 1
        return np.cumsum(held) - 1, None, int(held.sum())

    def _numbered(self) -> tuple[Places, NDArray[np.uint64], int]:
        """The sequence of each line, and the ids of the sequences: the lines of one id, and those that follow."""
        at, found = self._ids()
        _require((self.heads[at] < self.newlines[at]).all())  # an id alone is no line
        begins = np.append(True, found[1:] != found[:-1])[: len(at)]
        ids = found[begins]
        _require((ids[1:] > ids[:-1]).all())
        marks = np.zeros(len(self.starts), np.int64)
        marks[at[begins]] = 1
        return np.cumsum(marks) - 1, ids, len(ids)

    def _ids(self) -> tuple[Places, NDArray[np.uint64]]:
        """The lines that have an id, and these ids."""
        text = self.text
        at = np.flatnonzero(self.heads > self.starts)
        starts, stops = self.starts[at], self.heads[at]
        while len(blank := np.flatnonzero((text[starts] == BLANK) & (starts < stops))):
            starts[blank] += 1
        while len(blank := np.flatnonzero((text[stops - 1] == BLANK) & (starts < stops))):
            stops[blank] -= 1
        if not (some := starts < stops).all():
            at, starts, stops = at[some], starts[some], stops[some]
        _require((text[starts] - np.uint8(ord("0")) <= 9).all())
        _require(((text[starts + 1] | 32) != ord("x")).all())  # Arrow would read 0x1F
        return at, cast(text, np.stack([starts, stops], 1), "uint64", self._one_by_one)

    def _zones(self) -> Bytes:
        """For every byte, whose value it is part of: a column + FIRST, or 0 for a name, an id and what is not read."""
        count = len(self.pipes)
        names = np.array([0] * FIRST + [1 + len(column.field) for column in self._columns])
        begins = self.pipes + names[self.code]
        lengths = np.empty(2 * count + 1, np.int64)
        lengths[0:-1:2] = begins
        lengths[2:-1:2] -= self.stops[:-1]
        lengths[1::2] = self.stops - begins
        lengths[-1] = len(self.text) - (self.stops[-1] if count else 0)
        codes = np.zeros(2 * count + 1, np.uint8)
        codes[1::2] = self.code
        return np.repeat(codes, lengths)

    # --- the items of a column -----------------------------------------------------------------------------

    def _dense(self, column: Column, fields: Places, words: "_ColumnWords", k: int) -> Tensor:
        """One item for each of these fields."""
        spans = words.of(k)
        size, begins, stops = column.size, self.pipes[fields], self.stops[fields]
        _require(len(spans) == size * len(fields) and _evenly(spans[:, 0], begins, stops, size))
        return self._numbers(column, spans).view(len(fields), *column.stream.shape)

    def _sparse(self, column: Column, fields: Places, words: "_ColumnWords", k: int) -> Sparse:
        """One item for each of these fields."""
        pairs = words.pairs_of(k)
        kind = "int32" if column.size < 2**31 else "int64"
        indices = cast(self.text, pairs[:, :2], kind, self._one_by_one)
        _require(not len(indices) or 0 <= int(indices.min()) <= int(indices.max()) < column.size)
        values = self._numbers(column, pairs[:, 2:])
        starts, begins = pairs[:, 0], self.pipes[fields]
        if len(starts) == len(begins) and _evenly(starts, begins, self.stops[fields], 1):
            bounds = np.arange(len(begins) + 1)
        else:
            bounds = np.append(np.searchsorted(starts, begins), len(starts))
            _require(_all_different(indices, bounds))
        held = None if bool((values == 1).all()) else values
        dtype = torch_dtype(column.stream.dtype)
        return Sparse(torch.from_numpy(indices), held, torch.from_numpy(bounds), column.size, dtype)

    def _numbers(self, column: Column, spans: Places) -> Tensor:
        values = cast(self.text, spans, column.stream.dtype, self._one_by_one)
        return torch.from_numpy(values).to(torch_dtype(column.stream.dtype))


class _ColumnWords:
    """The words of a block, sorted by what they are part of; those of a sparse column are cut at their colons."""

    def __init__(self, text: Bytes, zone: Bytes, sparse_from: int) -> None:
        self._text = text
        strange = np.flatnonzero(((text | 32) == ord("x")) | (text == ord("(")))  # as in 0x1F and nan(1)
        _require(not zone[strange].any())
        inside = (text > BLANK) & (zone != 0)
        cut = (text == COLON) & (zone >= sparse_from)
        self._colons = zone[cut]
        inside &= ~cut
        self._spans = (np.flatnonzero(inside[1:] != inside[:-1]) + 1).reshape(-1, 2)
        self._zones = zone[self._spans[:, 0]]

    def of(self, k: int) -> Places:
        """Starts and stops, of shape (n, 2), of the words that are part of column k."""
        mine = np.flatnonzero(self._zones == k)
        if len(mine) == len(self._spans):
            return self._spans
        pairs = self._spans.view(np.complex128).reshape(-1)  # two int64 that are taken as one
        return pairs.take(mine).view(np.int64).reshape(-1, 2)

    def pairs_of(self, k: int) -> Places:
        """The same of an index and a value, of shape (n, 4), with a colon between them and no other."""
        pairs = self.of(k)
        _require(len(pairs) % 2 == 0 and int(np.count_nonzero(self._colons == k)) == len(pairs) // 2)
        pairs = pairs.reshape(-1, 4)
        _require((pairs[:, 2] == pairs[:, 1] + 1).all() and (self._text[pairs[:, 1]] == COLON).all())
        return pairs


def _padded(block: bytes) -> Bytes:
    """A block as an array that can be written, in which every byte above a blank belongs to a word."""
    ends = block.endswith(b"\n")
    text = np.full(1 + len(block) + (not ends) + PAD, BLANK, np.uint8)
    text[1 : 1 + len(block)] = np.frombuffer(block, np.uint8)
    if not ends:
        text[1 + len(block)] = NEWLINE
    low = np.count_nonzero(text < BLANK)
    if low != np.count_nonzero(text == NEWLINE):
        returns = np.flatnonzero(text == RETURN)
        text[returns[text[returns + 1] == NEWLINE]] = BLANK
        text[text == TAB] = BLANK
        text[(text < BLANK) & (text != NEWLINE)] = 127  # it belongs to a word, and no number has it
    return text


def is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _evenly(starts: Places, begins: Places, stops: Places, size: int) -> bool:
    """Whether each field, from where it begins to where it stops, has `size` of the words that start here."""
    if not size or not len(begins):
        return True
    return bool((starts[::size] >= begins).all() and (starts[size - 1 :: size] < stops).all())


def _all_different(indices: NDArray[np.signedinteger], bounds: Places) -> bool:
    """Whether no index is twice in an item. Items whose indices rise, as nearly all do, need no more than a look."""
    within = np.ones(len(indices) + 1, bool)
    within[bounds] = False  # the pairs that are the first of their item
    falls = np.flatnonzero((indices[1:] <= indices[:-1]) & within[1:-1]) + 1
    if not len(falls):
        return True
    owner = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    unsorted = np.zeros(len(bounds) - 1, bool)
    unsorted[owner[falls]] = True
    mine = unsorted[owner]
    indices, owner = indices[mine], owner[mine]
    order = np.lexsort((indices, owner))
    indices, owner = indices[order], owner[order]
    return not ((indices[1:] == indices[:-1]) & (owner[1:] == owner[:-1])).any()
