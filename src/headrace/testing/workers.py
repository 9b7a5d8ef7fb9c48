"""What several workers see of a source: the parts of a batch, who gets how much, and other numbers of workers."""

from collections.abc import Callable, Hashable, Sequence

from ..data.source import Shard
from .pulls import Pulls, Run, uncut
from .seen import Saved, Seen
from .trial import Trial

HISTORY = (1, 3, 2, 5, 4)  # numbers of workers, one after the other
STEPS = 25  # batches after which the number of workers changes

Fresh = Callable[[], Pulls]


def check_workers(trial: Trial, fresh: Fresh, run: Run, workers: Sequence[int], initial: Saved | None) -> None:
    """Everything about shards, for one size."""
    probe = fresh().source
    if not probe.shards and uncut(run):
        trial.skip("shards", "it does not shard, and has fields that have no rows")
        return
    for count in workers:
        _parts(trial, fresh, run, count)
    _macrobatches(trial, fresh, run, min(2, max(workers)))
    if initial is None:
        trial.skip("workers", "it has no state")
    elif probe.shards and not probe.elastic:
        trial.skip("workers", "elastic is False")
        _restored(trial, fresh, run, initial, min(2, max(workers)))
    else:
        _changing(trial, fresh, run, initial, [count for count in HISTORY if count <= max(workers)])


def _parts(trial: Trial, fresh: Fresh, run: Run, count: int) -> None:
    """So many workers, each with a source of its own, read on together."""
    sources = [fresh() for _ in range(count)]
    for k, whole in enumerate(run.batches):
        where = f"size {run.size}, batch {k}"
        parts = [held.part(run.size, where, Shard(r, count)) for r, held in enumerate(sources)]
        _whole(trial, "shards", whole, parts, where)
        if sources[0].source.shards:
            _balanced(trial, whole, parts, where, sources[0].source.sized_by)
    if run.finished:
        where = f"size {run.size}, after batch {len(run.batches) - 1}"
        for r, held in enumerate(sources):
            part = held.part(run.size, where, Shard(r, count))
            trial.that("end", part is None, f"{where}, shard {r} of {count}", "None, as the whole source", part)


def _whole(trial: Trial, promise: str, whole: Seen, parts: Sequence[Seen | None], where: str) -> None:
    count, rows = len(parts), list[Hashable]()
    for r, part in enumerate(parts):
        at = f"{where}, shard {r} of {count}"
        if part is None:
            trial.that("end", False, at, "an empty Batch, or None for every shard", "None for some")
            return
        trial.that(promise, part.total == whole.total, at, f"total={whole.total}, of all shards", part.total)
        trial.that(promise, part.ends == whole.ends, at, f"ends_epoch={whole.ends}", part.ends)
        rows.extend(part.rows)
    trial.that(promise, tuple(rows) == whole.rows, f"{where}, {count} workers", whole, Listed(parts))


def _balanced(trial: Trial, whole: Seen, parts: Sequence[Seen | None], where: str, sized_by: str) -> None:
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


def _macrobatches(trial: Trial, fresh: Fresh, run: Run, count: int) -> None:
    """The parts of a macrobatch are those of its batches."""
    found = list[list[Seen]]()
    for r in range(count):
        held, parts = fresh(), list[Seen]()
        while len(parts) < len(run.batches):
            more, finished = held.macrobatch(run.size, 3 * run.size, f"size {run.size}", Shard(r, count))
            parts += more
            if finished:
                break
        found.append(parts[: len(run.batches)])
        trial.equal("macrobatch", len(run.batches), len(found[-1]), f"size {run.size}, shard {r} of {count}: batches")
    for k, whole in enumerate(run.batches):
        rows = tuple(row for parts in found for row in parts[k].rows)
        where = f"size {run.size}, batch {k}, in macrobatches of {3 * run.size} rows, {count} workers"
        trial.that("macrobatch", rows == whole.rows, where, whole, Listed([parts[k] for parts in found]))


def _restored(trial: Trial, fresh: Fresh, run: Run, initial: Saved, count: int) -> None:
    """As many workers go on, each from its own state."""
    states = [initial] * count
    for k, whole in enumerate(run.batches[:STEPS]):
        where = f"size {run.size}, batch {k}, from the states of {count} workers before it"
        parts = list[Seen | None]()
        for r in range(count):
            held, kept = fresh(), list[Saved]()
            held.load(states[r], where)
            parts.append(held.part(run.size, where, Shard(r, count)))
            held.save(kept, where)
            states[r] = kept[0]
        _whole(trial, "restore", whole, parts, where)


def _changing(trial: Trial, fresh: Fresh, run: Run, initial: Saved, history: Sequence[int]) -> None:
    """Another number of workers at every batch, all from the state of one of those before."""
    state = initial
    for k, whole in enumerate(run.batches[:STEPS]):
        count, before = history[k % len(history)], history[(k - 1) % len(history)]
        where = f"size {run.size}, batch {k}, {count} workers from the state of one of {before}"
        parts, states = list[Seen | None](), list[Saved]()
        for r in range(count):
            held = fresh()
            held.load(state, where, "workers")
            parts.append(held.part(run.size, where, Shard(r, count)))
            held.save(states, where)
        _whole(trial, "workers", whole, parts, where)
        state = states[k % count]


class Listed(list[Seen | None]):
    """Parts, written only if it comes to that."""

    def __str__(self) -> str:
        return "the parts " + " | ".join(map(str, self))
