"""Where epochs end, whether the source says so, and whether each has every row once."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from ..data.source import Source, Table
from .pulls import Run
from .seen import Seen, rows_of
from .trial import Trial


def check_flags(trial: Trial, source: Source, run: Run) -> None:
    """What one size shows of `marks_ends` and `batches`."""
    where = f"size {run.size}"
    if not source.marks_ends:
        flagged = [f"batch {k}" for k in run.flagged[:1]]
        trial.that("marks", not flagged, where, "no ends_epoch without marks_ends", flagged)
    elif run.finished:
        trial.that("marks", run.batches[-1].ends, f"{where}, before None", "ends_epoch=True", run.batches[-1])
    known = trial.call("batches", f"batches({run.size})", source.batches, run.size)
    found = run.flagged[0] + 1 if run.flagged else len(run.batches) if run.finished else None
    if known is not None and found is not None:
        trial.equal("batches", known, found, f"batches({run.size})")


def check_epochs(trial: Trial, source: Source, runs: Sequence[Run], rows: Table | int | None) -> None:
    """What several sizes, the first of them 1, show together."""
    known = rows if rows is None or isinstance(rows, int) else len(rows)
    length = _marked(trial, runs, known) if source.marks_ends else _ended(trial, runs[0], known)
    if length is None:
        trial.skip("epoch", "no epoch ends in the batches that were read")
        return
    for run in runs:
        _same_rows(trial, runs[0], run, length)
    if isinstance(rows, Table):
        expected = rows_of(rows.rows(0, length).fields, length)
        _counted(trial, expected, runs[0].rows[:length], "size 1, the rows of the table")


def _same_rows(trial: Trial, one: Run, other: Run, length: int) -> None:
    """Epoch by epoch, and what comes behind the last whole one before None."""
    for epoch in range(one.stops[-1] // length + one.finished):
        start, stop = epoch * length, (epoch + 1) * length
        if one.finished and other.finished and stop >= one.stops[-1]:
            stop = max(one.stops[-1], other.stops[-1])
        if other.finished or len(other.rows) >= stop:
            _counted(trial, one.rows[start:stop], other.rows[start:stop], f"size {other.size}, epoch {epoch}")


def _ended(trial: Trial, run: Run, known: int | None) -> int | None:
    """How many rows an epoch has that ends with None."""
    if not run.finished:
        return None
    if known is not None:
        trial.equal("epoch", known, run.stops[-1], f"size {run.size}, rows of an epoch")
    return run.stops[-1]


def _marked(trial: Trial, runs: Sequence[Run], known: int | None) -> int | None:
    """The number of rows with which every flag is right, that of the first epoch."""
    first = runs[0]
    if not first.flagged:
        return None
    stop, rows = first.stops[first.flagged[0]], first.batches[first.flagged[0]].total
    fitting = range(stop, stop - rows, -1)  # a batch that crosses the end does not tell where that is
    if known is not None:
        trial.that("epoch", known in fitting, f"size {first.size}, rows of an epoch", known, stop)
        fitting = range(known, known - 1, -1)
    wrong = [next(_misfits(runs, length), None) for length in fitting]
    where, over, batch = ("all flags", True, None) if None in wrong else wrong[0] or ("", False, None)
    told = f"ends_epoch={over}, the first epoch having had {fitting[0]} rows"
    trial.that("marks", None in wrong, where, told, batch)
    return fitting[wrong.index(None)]


def _misfits(runs: Sequence[Run], length: int) -> Iterator[tuple[str, bool, Seen]]:
    """Batches that say otherwise than they should if epochs have so many rows."""
    for run in runs:
        for k, (stop, batch) in enumerate(zip(run.stops, run.batches, strict=True)):
            last = run.finished and k == len(run.batches) - 1
            over = stop // length > (stop - batch.total) // length or last
            if batch.ends != over:
                yield f"size {run.size}, batch {k}", over, batch


def _counted(trial: Trial, expected: Sequence[Hashable], got: Sequence[Hashable], where: str) -> None:
    lost, more = Counter(expected) - Counter(got), Counter(got) - Counter(expected)
    wrong = f"{len(got)}, {more.total()} too many, and {lost.total()} lost"
    trial.that("epoch", not lost and not more, where, f"the {len(expected)} rows of an epoch", wrong)
