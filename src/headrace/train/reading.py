"""What workers that read by themselves have to agree on: that they read the same, and that there is more to read."""

import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.fields import has_rows, tensors_of
from ..errors import SourceError
from ..workers.comm import Comm

LOOKED_AT = 1024  # elements of a field


class SameBatchCheck:
    """Compares what workers read whole, of which each keeps its part: now and then, and where an epoch begins."""

    def __init__(self, comm: Comm, title: str) -> None:
        self._comm, self._title = comm, title
        self._seen, self._fresh = 0, True

    def __call__(self, batch: Batch) -> None:
        self._seen += 1
        due, self._fresh = self._fresh or not self._seen & (self._seen - 1), batch.ends_epoch
        if not due:
            return
        said = self._comm.all_gather([batch.rows, _digest(batch)])
        for worker, other in enumerate(said):
            if other != said[0]:
                raise SourceError(
                    f"worker {worker} has read another batch from its {self._title} than worker 0 ({other[0]} and "
                    f"{said[0][0]} rows). Each reads all and keeps its part, so all have to read the same: seed what "
                    "shuffles, as in DataLoader(..., generator=torch.Generator().manual_seed(0)), or pass the Dataset."
                )


def as_long_as_any(feed: Iterable[Batch], comm: Comm) -> Iterator[Batch]:
    """The batches of sources of one's own that shard: a worker that has none is given an empty one while others have.

    An epoch ends for all where the last of them ends it.
    """
    left, cursor, ended = iter(feed), None, False
    while True:
        batch = None if ended else next(left, None)
        ended = batch is None or batch.ends_epoch
        word = torch.tensor([0 if batch is None else batch.total, int(not ended)])
        comm.all_reduce(word, "max")
        total, ends = int(word[0]), not word[1]
        if not total:
            return
        if batch is None:
            batch = Batch({}, 0, total=total, cursor=cursor)
        cursor, batch.ends_epoch = batch.cursor, ends
        yield batch
        if ends:
            return


def _digest(batch: Batch) -> str:
    """What tells batches apart, mostly."""
    found = hashlib.blake2b(digest_size=8)
    for name, field in sorted(batch.fields.items()):
        found.update(name.encode())
        for tensor in tensors_of(field) if has_rows(field) else ():
            found.update(_bytes(tensor))
    return found.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    few = tensor.detach().reshape(-1)[:LOOKED_AT].cpu().contiguous()
    return few.view(torch.uint8).numpy().tobytes()
