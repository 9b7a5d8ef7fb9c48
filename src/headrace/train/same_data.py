"""Compares the settings and the data of several workers: they share the same rows, so these have to be the same."""

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from ..data.batch import Batch
from ..data.fields import has_rows, tensors_of
from ..data.reader import Reader
from ..data.source import Source, Table
from ..errors import ConfigError, DataError, SourceError
from ..step.config import differences
from ..store import rng
from ..workers.comm import Comm
from ..workers.leased import Leased

ROWS = 4  # that are compared at the beginning, in the middle and at the end of a table
LOOKED_AT = 1024  # elements of a field of a batch
_CPU = torch.device("cpu")


def compare(facts: Mapping[int, Mapping[str, Any]]) -> None:
    """Raises unless these workers, known by number, are all to do the same as worker 0, with the same data.

    "contents" are those of `contents`; all other facts are compared one by one.
    """
    others = {number: {**fact, "contents": None} for number, fact in facts.items()}
    for number, other in others.items():
        if found := differences(others[0], other, between=("for worker 0", f"for worker {number}")):
            listed = "\n  ".join(found[:8])
            raise ConfigError(
                f"worker {number} is to do something else than worker 0:\n  {listed}\n"
                "Give every worker the same model, data and settings."
            )
    for name, known in facts[0]["contents"].items():
        if unlike := [str(number) for number, fact in facts.items() if fact["contents"].get(name) != known]:
            who = f"workers {', '.join(unlike[:-1])} and {unlike[-1]} have" if unlike[1:] else f"worker {unlike[0]} has"
            raise DataError(
                f"{who} other {name} data than worker 0: the number of rows is the same, and their values or their "
                "order differ. Every worker reads a part of the same data, so make them alike everywhere: seed what "
                "draws, splits or shuffles them, as in np.random.default_rng(0), random_split(..., "
                "generator=torch.Generator().manual_seed(0)) or train_test_split(..., random_state=0), or read them "
                "from one file."
            )


def refuse_wrapped(modules: Iterable[nn.Module]) -> None:
    """Raises if a model exchanges gradients by itself, which workers of ours would do once more, or differently."""
    for model in modules:
        if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
            raise ConfigError(
                "the model is wrapped in DistributedDataParallel, and several workers exchange gradients or weights as "
                "strategy= says. Give the trainer the model within it: model.module."
            )


def contents(sources: Mapping[str, Source], comm: Comm) -> dict[str, str]:
    """For each of these data sets, a hash of the fingerprint of its table and of a few of its rows.

    The rows of other sources are known only when they are read: see `SameBatchCheck`.
    """
    return {name: _contents(name, source, comm) for name, source in sources.items()} if comm.count > 1 else {}


def _contents(name: str, source: Source, comm: Comm) -> str:
    reader = source.reader if isinstance(source, Leased) else source
    if not isinstance(reader, Reader):
        return source.title
    table, before = reader.table, rng.capture(_CPU)
    try:
        rows, again = _some_rows(table), _some_rows(table)
    finally:
        rng.restore(before, _CPU)
    if rows != again:
        if comm.leader:
            warnings.warn(
                f"the {name} data: rows that are read twice differ, so it cannot be checked that all workers have the "
                "same. Draw random numbers in Trainer(augment=f).",
                stacklevel=2,
            )
        rows = []
    values = reader.fingerprint or table.fingerprint()
    return hashlib.blake2b("\n".join([values, *rows]).encode(), digest_size=8).hexdigest()


def _some_rows(table: Table) -> list[str]:
    """Hashes of the first rows, of some in the middle and of the last ones."""
    size = len(table)
    starts = sorted({0, max(0, size // 2 - ROWS), max(0, size - ROWS)})
    return [_digest(table.rows(start, min(size, start + ROWS)), None) for start in starts]


class SameBatchCheck:
    """Compares what workers read whole, of which each keeps its part: now and then, and where an epoch begins.

    `first`: compares the very first batch only.
    """

    def __init__(self, comm: Comm, title: str, first: bool = False) -> None:
        self._comm, self._title, self._first = comm, title, first
        self._seen, self._fresh = 0, True

    def __call__(self, batch: Batch) -> None:
        self._seen += 1
        due, self._fresh = self._fresh or not self._seen & (self._seen - 1), batch.ends_epoch
        if not due or (self._first and self._seen > 1):
            return
        read = self._comm.all_gather([batch.rows, _digest(batch)])
        for worker, other in enumerate(read):
            if other != read[0]:
                raise SourceError(
                    f"worker {worker} has read another batch from its {self._title} than worker 0 ({other[0]} and "
                    f"{read[0][0]} rows). Each reads all and keeps its part, so all have to read the same: seed what "
                    "shuffles, as in DataLoader(..., generator=torch.Generator().manual_seed(0)), or pass the Dataset."
                )


def _digest(batch: Batch, most: int | None = LOOKED_AT) -> str:
    """A hash of the first elements of every field, or of all."""
    found = hashlib.blake2b(digest_size=8)
    for name, field in sorted(batch.fields.items()):
        found.update(name.encode())
        for tensor in tensors_of(field) if has_rows(field) else ():
            few = tensor.detach().reshape(-1)[:most].cpu().contiguous()
            found.update(few.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
