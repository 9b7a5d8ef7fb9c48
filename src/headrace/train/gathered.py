"""Joins what several workers predict."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_flatten, tree_unflatten

from ..data.ragged import Ragged
from ..data.shard import Shard
from ..errors import CheckpointError, DataError
from ..workers.comm import Comm

RAGGED = "headrace.Ragged"


def gathered(comm: Comm, shard: Shard, outputs: list[Any], totals: Sequence[int]) -> list[Any]:
    """The outputs of all workers in the order of the rows; `totals`: how many rows each batch has."""
    try:
        flat = [tree_flatten(output) for output in outputs]
        every = comm.all_gather([[_sent(leaf) for leaf in leaves] for leaves, _ in flat])
    except CheckpointError as error:
        raise DataError(f"what several workers predict has to be made of tensors: {error}") from None
    rest = [iter(sent) for sent in every]
    shards = [replace(shard, index=k) for k in range(comm.count)]
    joined: list[Any] = []
    for total in totals:
        for shard, theirs in zip(shards, rest, strict=True):
            start, stop = shard.of(total)
            if start < stop:
                leaves = [_received(leaf) for leaf in next(theirs)]
                if flat:
                    joined.append(tree_unflatten(leaves, flat[0][1]))
                else:  # this worker had no rows, and does not know the form
                    joined.append(leaves[0] if len(leaves) == 1 else tuple(leaves))
    return joined


def _sent(leaf: Any) -> Any:
    """A part of an output as it travels: sequences as what they are made of."""
    return {RAGGED: [_sent(leaf.values), leaf.offsets]} if isinstance(leaf, Ragged) else leaf


def _received(sent: Any) -> Any:
    """What `_sent` was given."""
    return Ragged(*map(_received, sent[RAGGED])) if isinstance(sent, dict) else sent
