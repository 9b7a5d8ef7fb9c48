"""The items of one column of a block: which numbers belong to which field, checked and as tensors."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data.batch import torch_dtype
from ...data.sparse import Sparse
from .layout import Column
from .lines import BLANK, COLON, LineError, Lines, spans_of
from .numbers import Bytes, Places, attempt, cast


class Words:
    """The words of a block, sorted by what they are part of; those of a sparse column are cut at their colons."""

    def __init__(self, lines: Lines, zone: Bytes, sparse_from: int) -> None:
        self.lines, self.zone = lines, zone
        text = lines.text
        self._refuse()
        inside = (text > BLANK) & (zone != 0)
        cut = (text == COLON) & (zone >= sparse_from)
        self.colons = zone[cut]
        inside &= ~cut
        self.spans = spans_of(inside)
        self.zones = zone[self.spans[:, 0]]

    def of(self, k: int) -> Places:
        """The spans that are part of column k."""
        mine = np.flatnonzero(self.zones == k)
        if len(mine) == len(self.spans):
            return self.spans
        pairs = self.spans.view(np.complex128).reshape(-1)  # two int64 that are taken as one
        return pairs.take(mine).view(np.int64).reshape(-1, 2)

    def _refuse(self) -> None:
        """What Arrow would read, and is none of our numbers: 0x1F, nan(1)."""
        text = self.lines.text
        strange = np.flatnonzero(((text | 32) == ord("x")) | (text == ord("(")))
        if len(found := strange[self.zone[strange] != 0]):
            raise LineError(self.lines.at(found))


def dense(column: Column, lines: Lines, fields: Places, words: Words, k: int) -> Tensor:
    """The items of a dense column, one for each of these fields."""
    spans = words.of(k)
    size, begins, stops = column.size, lines.pipes[fields], lines.stops[fields]
    if len(spans) != size * len(fields) or not _evenly(spans[:, 0], begins, stops, size):
        counts = np.diff(np.searchsorted(spans[:, 0], np.append(begins, len(lines.text))))
        raise LineError(lines.line[fields[counts != size]])
    values = _numbers(column, lines, spans)
    return values.view(len(fields), *column.stream.shape)


def sparse(column: Column, lines: Lines, fields: Places, words: Words, k: int) -> Sparse:
    """The items of a sparse column, one for each of these fields."""
    spans = words.of(k)
    _check_pairs(lines, words, spans, k)
    pairs = spans.reshape(-1, 4)
    kind = "int32" if column.size < 2**31 else "int64"
    indices, bad = cast(lines.text, pairs[:, :2], kind)
    if len(bad):
        raise LineError(lines.at(pairs[bad, 0]))
    if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < column.size:
        raise LineError(lines.at(pairs[(indices < 0) | (indices >= column.size), 0]))
    values = _numbers(column, lines, pairs[:, 2:])
    bounds = _bounds(pairs[:, 0], lines.pipes[fields], lines.stops[fields])
    _check_twice(lines, pairs, indices, bounds)
    held = None if bool((values == 1).all()) else values
    dtype = torch_dtype(column.stream.dtype)
    return Sparse(torch.from_numpy(indices), held, torch.from_numpy(bounds), column.size, dtype)


def ids(lines: Lines) -> tuple[Places, NDArray[np.uint64]]:
    """The lines that have an id, and these ids."""
    text, at = lines.text, np.flatnonzero(lines.heads > lines.starts)
    spans = np.stack([lines.starts[at], lines.heads[at]], 1)
    spans[:, 1] -= text[spans[:, 1] - 1] == BLANK
    found = attempt(text, spans, "uint64")
    if found is None or bool(((text[spans[:, 0] + 1] | 32) == ord("x")).any()):  # Arrow would read 0x1F
        return _odd_ids(lines)
    return at, found


def _odd_ids(lines: Lines) -> tuple[Places, NDArray[np.uint64]]:
    """The same, where what comes before the fields is not just an id and a blank."""
    turns = np.zeros(len(lines.text), np.int8)
    turns[lines.starts] += 1
    turns[lines.heads] -= 1
    inside = (lines.text > BLANK) & (np.cumsum(turns, dtype=np.int8) > 0)
    if (strange := inside & (lines.text - np.uint8(ord("0")) > 9)).any():
        raise LineError(lines.at(np.flatnonzero(strange)), lost=True)
    spans = spans_of(inside)
    at = lines.at(spans[:, 0])
    if len(twice := at[1:][at[1:] == at[:-1]]):
        raise LineError(twice, lost=True)
    found, bad = cast(lines.text, spans, "id")
    if len(bad):
        raise LineError(at[bad], lost=True)
    return at, found


def _numbers(column: Column, lines: Lines, spans: Places) -> Tensor:
    values, bad = cast(lines.text, spans, column.stream.dtype)
    if len(bad):
        raise LineError(lines.at(spans[bad, 0]))
    return torch.from_numpy(values).to(torch_dtype(column.stream.dtype))


def _evenly(starts: Places, begins: Places, stops: Places, size: int) -> bool:
    """Whether each field, from where it begins to where it stops, has `size` of the spans that start here."""
    if not size or not len(begins):
        return True
    return bool((starts[::size] >= begins).all() and (starts[size - 1 :: size] < stops).all())


def _bounds(starts: Places, begins: Places, stops: Places) -> Places:
    """The offsets of the fields among the pairs that start here."""
    if len(starts) == len(begins) and _evenly(starts, begins, stops, 1):
        return np.arange(len(begins) + 1)
    return np.append(np.searchsorted(starts, begins), len(starts))


def _check_pairs(lines: Lines, words: Words, spans: Places, k: int) -> None:
    """Two words on either side of every colon, and no word without one."""
    text = lines.text
    if len(spans) % 2 == 0 and int(np.count_nonzero(words.colons == k)) == len(spans) // 2:
        ends, begins = spans[0::2, 1], spans[1::2, 0]
        if bool((begins == ends + 1).all()) and bool((text[ends] == COLON).all()):
            return
    whole = spans_of((text > BLANK) & (words.zone == k))
    colons = np.flatnonzero((text == COLON) & (words.zone == k))
    counts = np.bincount(np.searchsorted(whole[:, 0], colons, side="right") - 1, minlength=len(whole))
    bad = (counts != 1) | (text[whole[:, 0]] == COLON) | (text[whole[:, 1] - 1] == COLON)
    raise LineError(lines.at(whole[bad, 0]))


def _check_twice(lines: Lines, pairs: Places, indices: NDArray[np.signedinteger], bounds: Places) -> None:
    """No index twice in an item. Items whose indices rise, as nearly all do, need no more than a look."""
    if len(bounds) == len(indices) + 1 and bool((np.diff(bounds) == 1).all()):
        return
    within = np.ones(len(indices) + 1, bool)
    within[bounds] = False  # the pairs that are the first of their item
    falls = np.flatnonzero((indices[1:] <= indices[:-1]) & within[1:-1]) + 1
    if not len(falls):
        return
    items = np.unique(np.searchsorted(bounds, falls, side="right") - 1)
    lengths = bounds[items + 1] - bounds[items]
    offsets = np.cumsum(lengths) - lengths
    which = np.repeat(bounds[items] - offsets, lengths) + np.arange(int(lengths.sum()))
    owner = np.repeat(items, lengths)
    order = np.lexsort((indices[which], owner))
    ranked, owners = indices[which][order], owner[order]
    twice = np.flatnonzero((ranked[1:] == ranked[:-1]) & (owners[1:] == owners[:-1]))
    if len(twice):
        raise LineError(lines.at(pairs[bounds[owners[twice]], 0]))
