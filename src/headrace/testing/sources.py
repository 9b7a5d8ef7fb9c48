"""The conformance kit for sources: every sentence of the contract of `headrace.Source`, tried."""

from collections.abc import Callable, Sequence

from ..data.source import Source, Table
from ..store import rng
from .epochs import check_epochs, check_flags
from .pulls import ENDLESS, Pulls, Run, same, same_state
from .seen import Saved, Seen
from .trial import Report, Trial
from .watch import elsewhere
from .workers import check_workers

AHEAD = 3000  # batches that are read after all restores of one size together, where an epoch is long

PROMISES = {
    "calls": "every call does what it is for and comes back",
    "declared": "what it says of itself is so",
    "streams": "a batch holds the streams that are declared, as they are declared",
    "size": "a batch is never larger than asked, one sequence alone excepted",
    "rows": "a batch has rows, and says how many; only a shard's part may have none",
    "end": "it ends with None, for every shard at the same pull and again when asked again; an endless one never ends",
    "marks": "with marks_ends, the batch that reaches or crosses the end of an epoch says so; else none does",
    "epoch": "an epoch has every row once, whatever size is asked",
    "batches": "batches(size) is the number of batches in an epoch",
    "same": "two sources of one factory give the same batches, and asking for the state changes nothing",
    "random": "what it draws, it draws from a generator of its own",
    "value": "what it has given stays as it was: batches, states",
    "state": "state_dict gives plain JSON values and tensors, always or never",
    "rewind": "back at its first state, or after None if it has no state, it gives the epoch again",
    "restore": "from the state after any batch follow the batches that came after it",
    "cursor": "the cursor of a batch is the state after it",
    "macrobatch": "the batches are the same whatever macrobatch they are read in",
    "shards": "the parts of all shards, in their order, make up the whole batch",
    "balance": "every shard has its share: rows [g*r // W, g*(r+1) // W), or items to within one sequence",
    "workers": "another number of workers goes on from a state with the same batches",
    "threads": "pulled in another thread, it gives the same batches",
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
    """Holds the sources that `factory` makes to the contract; an AssertionError names the promise that is broken.

    Every call makes a source anew that stands at its beginning; let it be a small one, of 10 to 100 rows. It is pulled
    with each of `sizes` (and with 1), for two epochs. `batches`: an epoch ends within so many. `rows`: those of an
    epoch, as a Table, or how many there are, if that is to be checked too. `limit_s`: a call takes no longer than this.
    """
    trial = Trial(PROMISES, limit_s)

    def fresh() -> Pulls:
        return Pulls(trial, factory)

    def work() -> None:
        source = _declared(trial, fresh())
        runs = [_one_size(trial, fresh, size, batches, workers) for size in sorted({1, *sizes})]
        check_epochs(trial, source, runs, rows)

    return trial.run(work)


def _declared(trial: Trial, held: Pulls) -> Source:
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


def _one_size(trial: Trial, fresh: Callable[[], Pulls], size: int, batches: int, workers: Sequence[int]) -> Run:
    """Everything that can be said of one size; returns what the source gives."""
    first = fresh()
    before = rng.standing()
    run = first.run(size, batches)
    trial.that("random", rng.standing() == before, f"size {size}", "the global generators left alone", "one moved on")
    trial.that("rows", bool(run.batches), f"size {size}", "a batch at least", "None at once")
    _unchanged(trial, first, run)
    check_flags(trial, first.source, run)
    saved = _states(trial, fresh, run, batches)
    if saved:
        _asked_again(trial, first, run)
        _restored(trial, fresh, run, saved)
        _rewound(trial, first, run, saved)
    else:
        _begun_again(trial, first, run, batches)
    _macrobatches(trial, fresh, run, saved)
    check_workers(trial, fresh, run, workers, saved[0] if saved else None)
    if first.source.thread_safe:
        threaded = fresh()
        threaded.promise = "threads"
        found = elsewhere(lambda: threaded.run(size, batches).batches)
        same(trial, "threads", run.batches, found, f"size {size}, in another thread")
    else:
        trial.skip("threads", "thread_safe is False")
    return run


def _states(trial: Trial, fresh: Callable[[], Pulls], run: Run, batches: int) -> list[Saved]:
    """The state at the beginning, after every batch, and after None; none if the source has no state."""
    held, saved, size = fresh(), list[Saved](), f"size {run.size}"
    first = held.save(saved, f"{size}, before the first batch")
    again = held.run(run.size, batches, saved=saved if saved else None)
    if first is None:
        trial.skip("restore", "it has no state")
        late = held.state(f"{size}, at the end")
        trial.that("state", late is None, f"{size}, at the end", "None, as before the first batch", late)
    else:
        same_state(trial, "value", saved[0], Saved(first).text, f"{size}, the first state, looked at at the end")
        if run.finished:
            held.save(saved, f"{size}, at the end")
    same(trial, "same", run.batches, again.batches, f"{size}, another source")
    trial.equal("same", run.finished, again.finished, f"{size}, another source: finished")
    return saved


def _asked_again(trial: Trial, held: Pulls, run: Run) -> None:
    for time in ("a second time", "a third time") if run.finished else ():
        trial.equal("end", None, held.pull(run.size, "after None"), f"size {run.size}, asked {time}")


def _rewound(trial: Trial, held: Pulls, run: Run, saved: list[Saved]) -> None:
    """The source that has read everything goes back: to its first state, into the middle, and to the first again."""
    for k in (0, len(run.batches) // 2, 0):
        where, rest = f"size {run.size}, back at batch {k}", run.batches[k:]
        held.load(saved[k], where, "rewind")
        same(trial, "rewind", rest, _follow(held, run.size, len(rest), where), where)


def _begun_again(trial: Trial, held: Pulls, run: Run, batches: int) -> None:
    """Without a state it begins again by itself after None."""
    if not run.finished:
        trial.skip("rewind", "it has neither a state nor an end")
        return
    expected, got = run.stops[-1], held.run(run.size, batches).stops[-1:]
    where = f"size {run.size}, after None"
    trial.that("rewind", [expected] == got, where, f"{expected} rows, begun again by itself", got or "None again")


def _restored(trial: Trial, fresh: Callable[[], Pulls], run: Run, saved: list[Saved]) -> None:
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
        same_state(trial, "value", state, Saved(given).text, f"{where}: what load_state_dict was given")


def _follow(held: Pulls, size: int, count: int, where: str) -> list[Seen | None]:
    """The next so many batches, no further than None."""
    found: list[Seen | None] = []
    while len(found) < count and (not found or found[-1] is not None):
        found.append(held.pull(size, where))
    return found


def _macrobatches(trial: Trial, fresh: Callable[[], Pulls], run: Run, saved: list[Saved]) -> None:
    """Several batches at a time: the same ones, and their cursors."""
    for rows in (1, 2 * run.size, 5 * run.size + 2, ENDLESS * run.size):
        held, found, finished = fresh(), list[Seen](), False
        where = f"size {run.size}, in macrobatches of {rows} rows"
        while len(found) < len(run.batches) and not finished:
            more, finished = held.macrobatch(run.size, rows, where)
            found += more
        for k, (one, other) in enumerate(zip(run.batches, found, strict=False)):
            trial.that("macrobatch", one.rows == other.rows, f"{where}, batch {k}", one, other)
            if held.source.marks_ends:
                trial.that("macrobatch", one.ends == other.ends, f"{where}, batch {k}", one, other)
            if saved:
                same_state(trial, "cursor", saved[k + 1], other.cursor, f"{where}, batch {k}")
        trial.that("macrobatch", len(found) >= len(run.batches), where, f"{len(run.batches)} batches", len(found))


def _unchanged(trial: Trial, held: Pulls, run: Run) -> None:
    """The batches are what they were when they came, though others have come since."""
    for k, (batch, seen) in enumerate(zip(held.given, run.batches, strict=True)):
        now = held.see(batch, f"size {run.size}, batch {k}")
        trial.that("value", now.rows == seen.rows, f"size {run.size}, batch {k}, looked at after the last", seen, now)
    held.given.clear()
