"""Tensors of which each worker writes some rows into a file of its own, and reads those that it needs.

A layout says, for every file of tensors, the shape of each tensor and the row at which each worker's part of it begins.
The rows of worker 2 in `model.safetensors` are in `shard-00002-model.safetensors`. One pass over a file hashes it and
picks the rows out of it, so that no more than a piece of it is in memory beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import CorruptError
from .codec import dtype_of
from .shape import COUNT, check, each

if TYPE_CHECKING:
    from .contents import Opened, Specs, Written

LAYOUT = "layout.json"
SHARD = "shard-"
_LAYOUT = each(each({"shape": [COUNT], "rows": [COUNT]}))
Layout = dict[str, dict[str, dict[str, list[int]]]]
"""For every file and tensor in it the shape, and the rows at which the parts of workers begin and the last one ends."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """Which rows of every sharded tensor are wanted: the part `index` of so many."""

    index: int = 0
    count: int = 1

    def of(self, rows: int) -> tuple[int, int]:
        """Start and stop within so many rows, as `torch.chunk` divides them."""
        size = -(-rows // self.count)
        return min(self.index * size, rows), min((self.index + 1) * size, rows)


WHOLE = RowPart()


def shard_file(worker: int, file: str) -> str:
    """Where a worker writes its rows of the tensors of a file."""
    return f"{SHARD}{worker:05d}-{file}"


def place_of(shape: Sequence[int], count: int) -> dict[str, list[int]]:
    """How a tensor of this shape is laid out over so many workers."""
    starts = [RowPart(worker, count).of(shape[0])[0] for worker in range(count)]
    return {"shape": list(shape), "rows": [*starts, shape[0]]}


def read(
    directory: Opened, files: Mapping[str, Written], layout: Any, wanted: Sequence[str], part: RowPart
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, list[int]]]]:
    """The wanted rows of the sharded tensors of each file, and the shapes of these tensors."""
    where = str(directory.path / LAYOUT)
    checked: Layout = check(layout, _LAYOUT, where)
    found: dict[str, dict[str, Tensor]] = {}
    for file in wanted:
        places = checked.get(file, {})
        _check_places(places, file, files, where)
        found[file] = {name: _room(place, name, file, files, part) for name, place in places.items()}
        for worker in range(_workers(places)):
            pieces = [
                piece for name, place in places.items() for piece in _pieces(name, place, worker, part, found[file])
            ]
            if pieces:
                written = files[shard_file(worker, file)]
                _fill(directory.blocks(written), sorted(_located(pieces, written), key=lambda piece: piece[0]))
    return found, {file: {name: place["shape"] for name, place in checked.get(file, {}).items()} for file in wanted}


def _workers(places: Mapping[str, Mapping[str, list[int]]]) -> int:
    return max((len(place["rows"]) - 1 for place in places.values()), default=0)


def _check_places(places: Mapping[str, Any], file: str, files: Mapping[str, Written], where: str) -> None:
    """Raises unless the parts of every tensor are as the manifest lists them, one behind the other."""
    for name, place in places.items():
        rows, shape = place["rows"], place["shape"]
        written = [files.get(shard_file(worker, file)) for worker in range(len(rows) - 1)]
        specs = [None if each is None else each.tensors.get(name) for each in written]
        sizes = [[stop - start, *shape[1:]] for start, stop in pairwise(rows)]
        sound = shape and sizes and rows[0] == 0 and rows[-1] == shape[0] and all(size[0] >= 0 for size in sizes)
        if not sound or [None if spec is None else list(spec[1]) for spec in specs] != sizes:
            raise CorruptError(f"{where} does not fit the files of the checkpoint: {file}, {name[:60]!r}.")
        if len({spec[0] for spec in specs if spec is not None}) != 1:
            raise CorruptError(f"{where}: the parts of {name[:60]!r} in {file} are of several types.")


def _room(place: Mapping[str, list[int]], name: str, file: str, files: Mapping[str, Written], part: RowPart) -> Tensor:
    start, stop = part.of(place["shape"][0])
    dtype = dtype_of(files[shard_file(0, file)].tensors[name][0])
    return torch.empty((stop - start, *place["shape"][1:]), dtype=dtype)


def _pieces(
    name: str, place: Mapping[str, list[int]], worker: int, part: RowPart, rooms: Mapping[str, Tensor]
) -> Iterator[tuple[str, int, Tensor]]:
    """The rows of a worker's part that are wanted: the tensor, the first of them in that part, and room for them."""
    start, stop = part.of(place["shape"][0])
    first, last = place["rows"][worker], place["rows"][worker + 1]
    begin, end = max(start, first), min(stop, last)
    if begin < end:
        room = rooms[name][begin - start : end - start]
        if room.numel():
            yield name, begin - first, room


def _located(pieces: Sequence[tuple[str, int, Tensor]], written: Written) -> Iterator[tuple[int, memoryview]]:
    """Where in a file pieces begin, and the memory that they are to be copied to."""
    starts = _starts(written.tensors, written.size)
    for name, row, room in pieces:
        row_bytes = room.nbytes // len(room)
        yield starts[name] + row * row_bytes, room.reshape(-1).view(torch.uint8).numpy().data


def _starts(specs: Specs, size: int) -> dict[str, int]:
    """Where each tensor begins in a file that `tensor_pieces` has written: the data are at its end."""
    sizes = {name: dtype_of(dtype).itemsize * prod(shape) for name, (dtype, shape) in specs.items()}
    order = sorted(specs, key=lambda name: (-dtype_of(specs[name][0]).itemsize, name))
    found, start = {}, size - sum(sizes.values())
    for name in order:
        found[name], start = start, start + sizes[name]
    return found


def _fill(blocks: Iterator[memoryview], pieces: Sequence[tuple[int, memoryview]]) -> None:
    """Copies what pieces want out of the blocks of a file, all of which are read."""
    at, number = 0, 0
    for block in blocks:
        end = at + len(block)
        while number < len(pieces) and pieces[number][0] < end:
            start, room = pieces[number]
            begin, stop = max(start, at), min(start + len(room), end)
            room[begin - start : stop - start] = block[begin - at : stop - at]
            if stop < start + len(room):
                break  # the rest is in the next block
            number += 1
        at = end
