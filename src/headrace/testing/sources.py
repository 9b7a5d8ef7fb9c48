"""Tests whether a source keeps the contract of `headrace.Source`."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence

from ..data.shard import Shard
from ..data.source import Source, Table
from ..store import rng
from .batches import ENDLESS, Pulled, Pulls, SavedState, Seen, rows_of, same, same_state, uncut
from .trial import PromiseTrial, Report, in_threads

AHEAD = 3000  # batches that are read after all restores of one size together, where an epoch is long
HISTORY = (1, 3, 2, 5, 4)  # numbers of workers, one after the other
STEPS = 25  # batches after which the number of workers changes

Fresh = Callable[[], Pulls]

PROMISES = {
    "calls": "every call works, and returns in time",
    "declared": "its attributes describe it correctly",
    "streams": "a batch has the streams that are declared, as they are declared",
    "size": "a batch is never larger than requested, unless it is a single sequence",
    "rows": "a batch has rows, and says how many; only a shard's part may have none",
    "end": "it ends with None, for all shards at the same call and at all later calls; an endless one never ends",
    "marks": "with marks_ends, the batch that reaches or crosses the end of an epoch has ends_epoch; else none has",
    "epoch": "an epoch has every row once, with any batch size",
    "batches": "batches(size) is the number of batches in an epoch",
    "same": "two sources of one factory return the same batches, and reading the state changes nothing",
    "random": "random numbers come from its own generator",
    "value": "batches and states do not change after they were returned",
    "state": "state_dict returns plain JSON values and tensors, always or never",
    "rewind": "from its first state, or after None if it has no state, it returns the epoch again",
    "restore": "after a restore of the state after any batch, the same batches follow",
    "cursor": "the cursor of a batch is the state after it",
    "macrobatch": "the batches are the same with any size of macrobatches",
    "shards": "the parts of all shards, in their order, make up the whole batch",
    "balance": "every shard has its share: rows [g*r // W, g*(r+1) // W), or items to within one sequence",
    "workers": "after a restore with another number of workers, the same batches follow",
    "threads": "in another thread, it returns the same batches",
}


def check_source(
    factory: Callable[[], Source],
    *,
    sizes: Sequence[int] = (1, 3, 7, 64),
    batches: int = 1000,
    rows: Table | int | None = None,
    workers: Sequence[int] = (1, 2, 3, 4, 5),
    limit_s: float = 10.0,
) -> Report:
    """Tests sources that `factory` makes; an AssertionError names the promise of the contract that is broken.

    Every call of `factory` makes a new source at its beginning. Let it be small, with 10 to 100 rows. The source is
    read in batches of each of `sizes` (and of 1), for two epochs. `batches` is the most that an epoch has. To check the
    rows of an epoch too, pass them as a Table, or their number, as `rows`. No call may take longer than `limit_s`.
    """
    trial = PromiseTrial(PROMISES, limit_s)

    def fresh() -> Pulls:
        return Pulls(trial, factory)

    def work() -> None:
        source = _declared(trial, fresh())
        runs = [_one_size(trial, fresh, size, batches, workers) for size in sorted({1, *sizes})]
        _check_epochs(trial, source, runs, rows)

    return trial.run(work)


def _declared(trial: PromiseTrial, held: Pulls) -> Source:
    source = held.source
    for name in ("shards", "thread_safe", "marks_ends", "endless", "elastic", "own_size"):
        trial.that("declared", isinstance(getattr(source, name), bool), name, "True or False", getattr(source, name))
    sequences = [stream.name for stream in held.streams if stream.sequence]
    trial.that(
        "declared", source.sized_by in ["rows", *sequences], "sized_by", f"'rows', or of {sequences}", source.sized_by
    )
    bytes_of_row = trial.call("declared", "row_bytes", lambda: source.row_bytes)
    trial.that("declared", bytes_of_row >= 0, "row_bytes", "a number of bytes", bytes_of_row)
    trial.that("declared", isinstance(source.level, str), "level", "a clause", source.level)
    return source


def _one_size(trial: PromiseTrial, fresh: Fresh, size: int, batches: int, workers: Sequence[int]) -> Pulled:
    """Does all checks of one batch size; returns what the source gives."""
    first = fresh()
    before = rng.standing()
    run = first.run(size, batches)
    trial.that("random", rng.standing() == before, f"size {size}", "the global generators left alone", "one moved on")
    trial.that("rows", bool(run.batches), f"size {size}", "a batch at least", "None at once")
    _unchanged(trial, first, run)
    _check_flags(trial, first.source, run)
    saved = _states(trial, fresh, run, batches)
    if saved:
        _asked_again(trial, first, run)
        _restored(trial, fresh, run, saved)
        _rewound(trial, first, run, saved)
    else:
        _begun_again(trial, first, run, batches)
    for rows in (1, 2 * run.size, 5 * run.size + 2, ENDLESS * run.size):
        _check_macrobatches(trial, fresh, run, saved, rows)
    _check_shards(trial, fresh, run, workers, saved[0] if saved else None)
    if first.source.thread_safe:
        threaded = fresh()
        threaded.promise = "threads"
        found = in_threads([lambda: threaded.run(size, batches).batches])[0]
        same(trial, "threads", run.batches, found, f"size {size}, in another thread")
    else:
        trial.skip("threads", "thread_safe is False")
    return run


def _states(trial: PromiseTrial, fresh: Fresh, run: Pulled, batches: int) -> list[SavedState]:
    """The state at the beginning, after every batch, and after None; none if the source has no state."""
    held, saved, size = fresh(), list[SavedState](), f"size {run.size}"
    first = held.save(saved, f"{size}, before the first batch")
    second = held.run(run.size, batches, saved=saved if saved else None)
    if first is None:
        trial.skip("restore", "it has no state")
        late = held.state(f"{size}, at the end")
        trial.that("state", late is None, f"{size}, at the end", "None, as before the first batch", late)
    else:
        same_state(trial, "value", saved[0], SavedState(first).text, f"{size}, the first state, looked at at the end")
        if run.finished:
            held.save(saved, f"{size}, at the end")
    same(trial, "same", run.batches, second.batches, f"{size}, another source")
    trial.equal("same", run.finished, second.finished, f"{size}, another source: finished")
    return saved


def _asked_again(trial: PromiseTrial, held: Pulls, run: Pulled) -> None:
    for time in ("a second time", "a third time") if run.finished else ():
        trial.equal("end", None, held.pull(run.size, "after None"), f"size {run.size}, asked {time}")


def _rewound(trial: PromiseTrial, held: Pulls, run: Pulled, saved: list[SavedState]) -> None:
    """The source that has read everything goes back: to its first state, into the middle, and to the first again."""
    for k in (0, len(run.batches) // 2, 0):
        where, rest = f"size {run.size}, back at batch {k}", run.batches[k:]
        held.load(saved[k], where, "rewind")
        same(trial, "rewind", rest, _follow(held, run.size, len(rest), where), where)


def _begun_again(trial: PromiseTrial, held: Pulls, run: Pulled, batches: int) -> None:
    """Without a state it begins again by itself after None."""
    if not run.finished:
        trial.skip("rewind", "it has neither a state nor an end")
        return
    expected, got = run.stops[-1], held.run(run.size, batches).stops[-1:]
    where = f"size {run.size}, after None"
    trial.that("rewind", [expected] == got, where, f"{expected} rows, begun again by itself", got or "None again")


def _restored(trial: PromiseTrial, fresh: Fresh, run: Pulled, saved: list[SavedState]) -> None:
    """In a source of its own, from the state after every batch."""
    ahead = max(3, AHEAD // len(run.batches))
    for k, state in enumerate(saved):
        where = f"size {run.size}, from the state after {k} batches"
        held, given = fresh(), state.load()
        rest: list[Seen | None] = [*run.batches[k : k + ahead]]
        if run.finished and len(rest) < ahead:
            rest.append(None)
        trial.call("restore", f"{where}: load_state_dict({state})", held.source.load_state_dict, given)
        same(trial, "restore", rest, _follow(held, run.size, len(rest), where), where)
        same_state(trial, "value", state, SavedState(given).text, f"{where}: what load_state_dict was given")


def _follow(held: Pulls, size: int, count: int, where: str) -> list[Seen | None]:
    """The next so many batches, no further than None."""
    found: list[Seen | None] = []
    while len(found) < count and (not found or found[-1] is not None):
        found.append(held.pull(size, where))
    return found


def _unchanged(trial: PromiseTrial, held: Pulls, run: Pulled) -> None:
    """The batches are what they were when they came, though others have come since."""
    for k, (batch, seen) in enumerate(zip(held.given, run.batches, strict=True)):
        now = held.see(batch, f"size {run.size}, batch {k}")
        trial.that("value", now.rows == seen.rows, f"size {run.size}, batch {k}, looked at after the last", seen, now)
    held.given.clear()


def _check_flags(trial: PromiseTrial, source: Source, run: Pulled) -> None:
    """Checks `marks_ends` and `batches` at one size."""
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


def _check_epochs(trial: PromiseTrial, source: Source, runs: Sequence[Pulled], rows: Table | int | None) -> None:
    """Compares the epochs of several sizes, the first of them 1."""
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


def _same_rows(trial: PromiseTrial, one: Pulled, other: Pulled, length: int) -> None:
    """Epoch by epoch, and what comes behind the last whole one before None."""
    for epoch in range(one.stops[-1] // length + one.finished):
        start, stop = epoch * length, (epoch + 1) * length
        if one.finished and other.finished and stop >= one.stops[-1]:
            stop = max(one.stops[-1], other.stops[-1])
        if other.finished or len(other.rows) >= stop:
            _counted(trial, one.rows[start:stop], other.rows[start:stop], f"size {other.size}, epoch {epoch}")


def _ended(trial: PromiseTrial, run: Pulled, known: int | None) -> int | None:
    """How many rows an epoch has that ends with None."""
    if not run.finished:
        return None
    if known is not None:
        trial.equal("epoch", known, run.stops[-1], f"size {run.size}, rows of an epoch")
    return run.stops[-1]


def _marked(trial: PromiseTrial, runs: Sequence[Pulled], known: int | None) -> int | None:
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
    wanted = f"ends_epoch={over}, the first epoch having had {fitting[0]} rows"
    trial.that("marks", None in wrong, where, wanted, batch)
    return fitting[wrong.index(None)]


def _misfits(runs: Sequence[Pulled], length: int) -> Iterator[tuple[str, bool, Seen]]:
    """Batches that say otherwise than they should if epochs have so many rows."""
    for run in runs:
        for k, (stop, batch) in enumerate(zip(run.stops, run.batches, strict=True)):
            last = run.finished and k == len(run.batches) - 1
            over = stop // length > (stop - batch.total) // length or last
            if batch.ends != over:
                yield f"size {run.size}, batch {k}", over, batch


def _counted(trial: PromiseTrial, expected: Sequence[Hashable], got: Sequence[Hashable], where: str) -> None:
    lost, more = Counter(expected) - Counter(got), Counter(got) - Counter(expected)
    wrong = f"{len(got)}, {more.total()} too many, and {lost.total()} lost"
    trial.that("epoch", not lost and not more, where, f"the {len(expected)} rows of an epoch", wrong)


def _check_shards(
    trial: PromiseTrial, fresh: Fresh, run: Pulled, workers: Sequence[int], initial: SavedState | None
) -> None:
    """Does all checks of several workers, for one size."""
    probe = fresh().source
    if not probe.shards and uncut(run):
        trial.skip("shards", "it does not shard, and has fields that have no rows")
        return
    for count in workers:
        _parts(trial, fresh, run, count)
    several = min(2, max(workers))
    _check_macrobatches(trial, fresh, run, [], 3 * run.size, several)
    if initial is None:
        trial.skip("workers", "it has no state")
    elif probe.shards and not probe.elastic:
        trial.skip("workers", "elastic is False")
        _restored_workers(trial, fresh, run, initial, [several], own=True)
    else:
        _restored_workers(trial, fresh, run, initial, [count for count in HISTORY if count <= max(workers)])


def _check_macrobatches(
    trial: PromiseTrial, fresh: Fresh, run: Pulled, saved: Sequence[SavedState], rows: int, count: int = 1
) -> None:
    """Several batches at a time, by so many workers: the same ones and, where there are states, their cursors."""
    where = f"size {run.size}, in macrobatches of {rows} rows{f', {count} workers' * (count > 1)}"
    found = list[list[Seen]]()
    for r in range(count):
        held, parts, finished = fresh(), list[Seen](), False
        while len(parts) < len(run.batches) and not finished:
            more, finished = held.macrobatch(run.size, rows, where, Shard(r, count))
            parts += more
        found.append(parts)
    for k, (whole, *each) in enumerate(zip(run.batches, *found, strict=False)):
        came, at = tuple(row for part in each for row in part.rows), f"{where}, batch {k}"
        trial.that("macrobatch", came == whole.rows, at, whole, _Listed(each))
        if held.source.marks_ends:
            trial.that("macrobatch", all(part.ends == whole.ends for part in each), at, whole, _Listed(each))
        if saved:
            same_state(trial, "cursor", saved[k + 1], each[0].cursor, at)
    least = min(map(len, found))
    trial.that("macrobatch", least >= len(run.batches), where, f"{len(run.batches)} batches", least)


def _parts(trial: PromiseTrial, fresh: Fresh, run: Pulled, count: int) -> None:
    """So many workers, each with a source of its own, read on together."""
    sources = [fresh() for _ in range(count)]
    for k, whole in enumerate(run.batches):
        where = f"size {run.size}, batch {k}"
        parts = [held.part(run.size, where, Shard(r, count)) for r, held in enumerate(sources)]
        _check_parts(trial, "shards", whole, parts, where)
        if sources[0].source.shards:
            _check_balance(trial, whole, parts, where, sources[0].source.sized_by)
    if run.finished:
        where = f"size {run.size}, after batch {len(run.batches) - 1}"
        for r, held in enumerate(sources):
            part = held.part(run.size, where, Shard(r, count))
            trial.that("end", part is None, f"{where}, shard {r} of {count}", "None, as the whole source", part)


def _check_parts(trial: PromiseTrial, promise: str, whole: Seen, parts: Sequence[Seen | None], where: str) -> None:
    count, rows = len(parts), list[Hashable]()
    for r, part in enumerate(parts):
        at = f"{where}, shard {r} of {count}"
        if part is None:
            trial.that("end", False, at, "an empty Batch, or None for every shard", "None for some")
            return
        trial.that(promise, part.total == whole.total, at, f"total={whole.total}, of all shards", part.total)
        trial.that(promise, part.ends == whole.ends, at, f"ends_epoch={whole.ends}", part.ends)
        rows.extend(part.rows)
    trial.that(promise, tuple(rows) == whole.rows, f"{where}, {count} workers", whole, _Listed(parts))


def _check_balance(trial: PromiseTrial, whole: Seen, parts: Sequence[Seen | None], where: str, sized_by: str) -> None:
    """Rows as `Shard.of` has them; items as evenly as whole sequences can be shared."""
    count, total, longest = len(parts), sum(whole.items), max(whole.items, default=0)
    for r, part in enumerate(parts):
        at, items = f"{where}, shard {r} of {count}", sum(part.items) if part is not None else 0
        if sized_by == "rows":
            start, stop = Shard(r, count).of(whole.total)
            trial.that("balance", items == stop - start, at, f"rows {start} to {stop} of the batch", f"{items} rows")
        else:
            most = f"{total / count:g} of {total} items, within one sequence of {longest}"
            trial.that("balance", abs(items - total / count) <= longest, at, most, items)


def _restored_workers(
    trial: PromiseTrial, fresh: Fresh, run: Pulled, initial: SavedState, counts: Sequence[int], own: bool = False
) -> None:
    """Another number of workers at every batch, all from the state of one of those before, or each from its `own`."""
    promise, states = "restore" if own else "workers", [initial] * max(counts)
    for k, whole in enumerate(run.batches[:STEPS]):
        count, before = counts[k % len(counts)], counts[(k - 1) % len(counts)]
        where = f"size {run.size}, batch {k}, {count} workers from the state{'s' if own else ' of one'} of {before}"
        parts, after = list[Seen | None](), list[SavedState]()
        for r in range(count):
            held = fresh()
            held.load(states[r], where, promise)
            parts.append(held.part(run.size, where, Shard(r, count)))
            held.save(after, where)
        _check_parts(trial, promise, whole, parts, where)
        states = after if own else [after[k % count]] * max(counts)


class _Listed(list[Seen | None]):
    """Parts that are formatted only for a message."""

    def __str__(self) -> str:
        return "the parts " + " | ".join(map(str, self))
