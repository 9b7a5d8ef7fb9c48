"""Tests whether a table keeps the contract of `headrace.Table`."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch, Stream
from ..data.ragged import Ragged
from ..data.source import Table, check_batch
from ..errors import SourceError
from .batches import rows_of, shown, streams_of
from .trial import PromiseTrial, Report, in_threads

PROMISES = {
    "calls": "every call works, and returns in time",
    "declared": "its attributes describe it correctly",
    "streams": "a batch has the streams that are declared, as they are declared",
    "take": "take returns the rows with these numbers, in any order, repeated, or none",
    "same": "two tables of one factory have the same rows, and a row is the same each time it is taken",
    "rows": "rows(start, stop) returns the rows with these numbers",
    "lengths": "lengths(stream) returns the number of items of every row: int64, on the host",
    "value": "batches do not change after they were returned",
    "fingerprint": "the same rows have the same fingerprint",
    "threads": "with thread_safe, several other threads may read it at once",
    "categories": "the numbers of a stream with categories are indices of them",
}
ROUNDS = 20  # how often several threads take at once


def check_table(factory: Callable[[], Table], *, limit_s: float = 10.0) -> Report:
    """Tests tables that `factory` makes; an AssertionError names the promise of the contract that is broken.

    Every call of `factory` makes a new table. Let it be small, with up to some thousand rows. No call may take longer
    than `limit_s`.
    """
    trial = PromiseTrial(PROMISES, limit_s)

    def work() -> None:
        tried = _Tried(trial, factory)
        tried.declared()
        all_rows = tried.all_rows = tried.seen(tried.take(torch.arange(len(tried.table)), "all rows"))
        other = _Tried(trial, factory)
        trial.that("same", all_rows == other.everything(), "all rows of another table", "the same", "other rows")
        tried.fingerprints(other)
        tried.takes()
        tried.runs()
        tried.lengths()
        tried.kept()
        tried.categories()
        tried.threads()

    return trial.run(work)


class _Tried:
    """One table, made by the factory, and its checks."""

    def __init__(self, trial: PromiseTrial, factory: Callable[[], Table]) -> None:
        self._trial = trial
        self.table: Table = trial.call("calls", "the factory", factory)
        trial.that("calls", isinstance(self.table, Table), "the factory", "a Table", type(self.table).__name__)
        trial.report.subject = type(self.table).__name__
        self.rows: int = trial.call("declared", "len", lambda: len(self.table))
        self.streams: list[Stream] = trial.call("streams", "streams", streams_of, self.table)
        self.all_rows: tuple[Hashable, ...] = ()

    def take(self, indices: Tensor, where: str) -> Batch:
        batch = self._trial.call("take", f"take of {where}", self.table.take, indices.clone())
        return self._checked(batch, len(indices), f"take of {where}")

    def everything(self) -> tuple[Hashable, ...]:
        return self.seen(self.take(torch.arange(self.rows), "all rows"))

    def seen(self, batch: Batch) -> tuple[Hashable, ...]:
        return rows_of(batch.fields, batch.rows)

    def declared(self) -> None:
        table, trial = self.table, self._trial
        trial.that("declared", bool(self.streams), "streams", "one at least", self.streams)
        trial.that("declared", table.block is None or table.block > 0, "block", "rows, or None", table.block)
        size = trial.call("declared", "row_bytes", lambda: table.row_bytes)
        trial.that("declared", size >= 0, "row_bytes", "a number of bytes", size)
        trial.equal("declared", self.rows, len(table), "len, asked again")
        trial.equal("streams", self.streams, list(table.streams), "streams, asked again")

    def fingerprints(self, other: "_Tried") -> None:
        trial = self._trial
        first = trial.call("fingerprint", "fingerprint()", self.table.fingerprint)
        trial.that("fingerprint", isinstance(first, str), "fingerprint()", "a text", first)
        trial.equal("fingerprint", first, self.table.fingerprint(), "fingerprint(), asked again")
        trial.equal("fingerprint", first, other.table.fingerprint(), "fingerprint() of another table")

    def takes(self) -> None:
        """In any order, with repeats, some, none."""
        n, generator = self.rows, torch.Generator().manual_seed(0)
        self._is(torch.arange(n), self.take(torch.arange(n), "all rows"), "same", "take of all rows, again")
        cases = {"no rows": torch.arange(0), "all rows backwards": torch.arange(n).flip(0)}
        cases["all rows shuffled"] = torch.randperm(n, generator=generator)
        if n:
            cases["one row thrice"] = torch.tensor([n - 1] * 3)
            cases["the last row and the first"] = torch.tensor([n - 1, 0])
            cases["rows drawn with repeats"] = torch.randint(n, (2 * n,), generator=generator)
        cases |= {f"row {k}": torch.tensor([k]) for k in {0, n // 2, n - 1} if 0 <= k < n}
        for where, indices in cases.items():
            self._is(indices, self.take(indices, where), "take", f"take of {where}")

    def runs(self) -> None:
        n = self.rows
        for start, stop in {(0, n), (0, 0), (n, n), (n // 3, n - n // 4), (n // 2, min(n, n // 2 + 1))}:
            what = f"rows({start}, {stop})"
            batch = self._checked(self._trial.call("rows", what, self.table.rows, start, stop), stop - start, what)
            self._is(torch.arange(start, stop), batch, "rows", what)

    def lengths(self) -> None:
        trial, batch = self._trial, self.take(torch.arange(self.rows), "all rows")
        for stream in [stream for stream in self.streams if stream.sequence and stream.name in batch]:
            what, field = f"lengths({stream.name!r})", batch[stream.name]
            try:
                found = self.table.lengths(stream.name)
            except SourceError as error:
                trial.skip("lengths", str(error).partition("\n")[0].rstrip("."))
                continue
            trial.that("lengths", isinstance(found, Tensor), what, "a tensor", type(found).__name__)
            trial.that("lengths", found.dtype == torch.int64, what, "torch.int64", found.dtype)
            trial.equal("lengths", "cpu", found.device.type, f"{what}, device")
            held = field.host_offsets.diff().tolist() if isinstance(field, Ragged) else None
            trial.equal("lengths", held, found.tolist(), what)

    def kept(self) -> None:
        """A batch is not a view of a buffer that the next take fills."""
        n = self.rows
        first = self.take(torch.arange(n), "all rows")
        seen = self.seen(first)
        self.table.rows(0, n)
        self.take(torch.arange(n).flip(0), "all rows backwards")
        now = self.seen(first)
        self._trial.that("value", now == seen, "all rows, after another take", "what was taken", shown(first.fields))

    def categories(self) -> None:
        trial, names = self._trial, [stream.name for stream in self.streams]
        found = trial.call("categories", "categories", lambda: self.table.categories)
        if not found:
            trial.skip("categories", "there are none")
        batch = self.take(torch.arange(self.rows), "all rows")
        for name, strings in found.items():
            trial.that("categories", name in names, "categories", f"streams of {names}", name)
            codes: Any = batch[name].values if isinstance(batch[name], Ragged) else batch[name]
            highest = int(codes.max()) if len(codes) else -1
            trial.that(
                "categories", highest < len(strings), f"categories[{name!r}]", f"{highest + 1} at least", len(strings)
            )

    def threads(self) -> None:
        if not self.table.thread_safe:
            self._trial.skip("threads", "thread_safe is False")
            return
        orders = [torch.arange(self.rows), torch.arange(self.rows).flip(0)]

        def taken(indices: Tensor) -> Any:
            return [self.seen(self.table.take(indices.clone())) for _ in range(ROUNDS)]

        found = self._trial.call(
            "threads", "take in two threads at once", in_threads, [lambda i=i: taken(i) for i in orders]
        )
        for indices, each in zip(orders, found, strict=True):
            expected = tuple(self.all_rows[k] for k in indices.tolist())
            wrong = [k for k, rows in enumerate(each) if rows != expected]
            self._trial.that(
                "threads", not wrong, "take in two threads at once", "the same rows", f"others in take {wrong[:1]}"
            )

    def _checked(self, batch: Any, rows: int, what: str) -> Batch:
        self._declares(batch, what)
        self._trial.equal("take" if what.startswith("take") else "rows", rows, batch.rows, f"{what}, number of rows")
        held: Batch = batch
        return held

    def _declares(self, batch: Batch, what: str) -> None:
        """Raises unless a batch holds the declared streams and no others."""
        self._trial.call("streams", what, check_batch, batch, self.streams, type(self.table).__name__)
        self._trial.uncompared(batch)
        extra = sorted(set(batch.fields) - {stream.name for stream in self.streams})
        self._trial.that("streams", not extra, what, "the declared streams", f"{extra} beside them")

    def _is(self, indices: Tensor, batch: Batch, promise: str, where: str) -> None:
        """Raises unless these are the rows of these numbers."""
        expected = [self.all_rows[k] for k in indices.tolist()]
        wrong = [k for k, (one, two) in enumerate(zip(expected, self.seen(batch), strict=True)) if one != two]
        if wrong:
            got = f"another row at place {wrong[0]}: {shown(batch.fields)}"
            self._trial.that(promise, False, where, f"row {int(indices[wrong[0]])}", got)
        self._trial.that(promise, True, where, "", "")
