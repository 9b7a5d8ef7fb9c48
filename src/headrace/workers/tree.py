"""Sums of the parts of a batch in one fixed binary tree: the same bits, whoever computes which parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..data.shard import Shard
from .comm import Comm

T = TypeVar("T")
Node = tuple[int, int]
"""A subtree: its first part, and the one after its last."""
Scalar = float | Tensor


def tree_sum(
    node: Node, value: Callable[[Node], T | None], known: Callable[[Node], bool], add: Callable[[T, T], T]
) -> T | None:
    """The sum of a node: of a `known` one its value, else that of its halves. `None` has no rows, and adds nothing."""
    if known(node):
        return value(node)
    start, stop = node
    middle = (start + stop) // 2
    left = tree_sum((start, middle), value, known, add)
    right = tree_sum((middle, stop), value, known, add)
    return right if left is None else left if right is None else add(left, right)


def is_part(node: Node) -> bool:
    """Whether a subtree is a single part."""
    return node[1] - node[0] == 1


def nodes_of(shard: Shard) -> list[Node]:
    """The largest subtrees that consist of a worker's parts alone, in order."""
    first, last = shard.mine.start, shard.mine.stop

    def within(start: int, stop: int) -> list[Node]:
        if first <= start and stop <= last:
            return [(start, stop)]
        if stop <= first or last <= start:
            return []
        middle = (start + stop) // 2
        return within(start, middle) + within(middle, stop)

    return within(0, shard.parts)


class WorkerTree:
    """The parts of batches, seen from a worker: adds up what all workers have computed of theirs."""

    def __init__(self, comm: Comm, shard: Shard) -> None:
        self._comm, self._root = comm, (0, shard.parts)
        self.nodes = nodes_of(shard)
        """The subtrees that this worker computes by itself."""
        shards = [Shard(worker, shard.count, shard.parts) for worker in range(shard.count)]
        self._owners = {node: each.index for each in shards for node in nodes_of(each)}
        in_pairs = not shard.count & (shard.count - 1)
        self._meet = len(self._owners) == shard.count and in_pairs  # each owns one, and two and two make the next

    def numbers(
        self,
        rows: Mapping[int, Sequence[Scalar]],
        count: int,
        cuts: Sequence[int],
        device: torch.device,
        flags: Tensor | None = None,
    ) -> list[Scalar]:
        """A few numbers of every part, added up; `rows`: those of this worker's parts that have rows.

        `flags` travel along, and become the sums over all workers.
        """
        parts, on_host = self._root[1], device.type == "cpu"
        table = [list(rows.get(part, [0.0] * count)) for part in range(parts)]
        if self._comm.count > 1 or not on_host:
            flat = [number for row in table for number in row]
            dtype = torch.float64 if device.type != "mps" else torch.float32
            if on_host:
                vector = torch.tensor(flat, dtype=dtype)
            else:
                vector = torch.stack([torch.as_tensor(number, dtype=dtype, device=device) for number in flat])
            if flags is not None:
                vector = torch.cat([vector, flags.to(vector)])
            if self._comm.count > 1:
                self._comm.all_reduce(vector)
            if flags is not None:
                vector, sums = vector.split([len(flat), len(flags)])
                flags.copy_(sums)
            table = vector.view(parts, count).tolist() if on_host else [list(row) for row in vector.view(parts, count)]
        total = tree_sum(
            self._root, lambda node: table[node[0]] if has_rows(node, cuts) else None, is_part, _added_numbers
        )
        return [0.0] * count if total is None else total

    def vectors(self, sums: Mapping[Node, Sequence[Tensor]], out: Sequence[Tensor], cuts: Sequence[int]) -> None:
        """`out` becomes the sum of the vectors of all subtrees; `sums`: those of this worker's, which it gives up.

        Where every worker has one subtree with rows, two and two exchange their sums. Otherwise each worker sends its
        sums to all, one subtree after the other.
        """
        outs = list(out)
        if self._comm.count > 1 and self._meet and all(has_rows(node, cuts) for node in self._owners):
            _move(list(*sums.values()), outs)
            for vector in outs:
                self._comm.all_reduce(vector, "tree")
        else:
            total = tree_sum(
                self._root,
                lambda node: self._received(node, sums, outs, cuts),
                self._owners.__contains__,
                _added_vectors,
            )
            _move(list(total or ()), outs)

    def _received(
        self, node: Node, sums: Mapping[Node, Sequence[Tensor]], out: Sequence[Tensor], cuts: Sequence[int]
    ) -> Sequence[Tensor] | None:
        """The sums of a subtree, from the worker that has computed them."""
        if not has_rows(node, cuts):
            return None
        vectors = sums[node] if node in sums else [torch.empty_like(vector) for vector in out]
        for vector in vectors:
            self._comm.broadcast(vector, self._owners[node])
        return vectors


def has_rows(node: Node, cuts: Sequence[int]) -> bool:
    """Whether any of a subtree's parts has rows, of a batch that is cut so."""
    return cuts[node[0]] < cuts[node[1]]


def _move(vectors: list[Tensor], out: list[Tensor]) -> None:
    """Copies the vectors that are not there already."""
    for vector, to in zip(vectors, out, strict=True):
        if vector.data_ptr() != to.data_ptr():
            to.copy_(vector)


def _added_numbers(left: list[Scalar], right: list[Scalar]) -> list[Scalar]:
    return [a + b for a, b in zip(left, right, strict=True)]


def _added_vectors(left: Sequence[Tensor], right: Sequence[Tensor]) -> Sequence[Tensor]:
    torch._foreach_add_(list(left), list(right))
    return left
