"""Updates that replay the tape of the update before them, with as little as possible beside its kernels."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..data.batch import Batch
from ..errors import is_out_of_memory
from ..loss.outcome import Outcome
from ..store.rng import capture_torch, restore_torch
from .guard import HostGuard
from .tape.tape import Tape
from .update import Update


def repeats(update: Update, batches: Iterable[Batch], *, touched: bool = False) -> Iterator[Outcome]:
    """Makes the next updates as long as each replays the tape of the last one, and all that it finds is finite.

    The first batch of which this is not so is left for an ordinary update, which starts from the same weights, buffers
    and random numbers, and finds out what is wrong. Between two of these updates only learning rates may change;
    `touched`: more may have changed since the last update.
    """
    kind, last, guard = update.repeated(), update.batch, update.guard
    if kind is None or kind.tape is None or last is None or not isinstance(guard, HostGuard):
        return
    tape, rows, whole = kind.tape, last.rows, last.whole
    if touched:
        if not tape.fills:
            return
        whole = None
        update.arena.begin(filled=True)
        update.found = update.gradients = update.arena.collect()
    step = update.arena.hooks.prepared()
    for batch in batches:
        if batch.rows != rows or ((batch.whole is None or batch.whole is not whole) and not update.is_alike(batch)):
            return
        whole = batch.whole
        update.batch = batch
        outcome = _repeated(update, tape, guard, step, batch)
        if outcome is None:
            return
        kind.replays += 1
        yield outcome


def _repeated(update: Update, tape: Tape, guard: HostGuard, step: Callable[[], Any], batch: Batch) -> Outcome | None:
    """One update; nothing if it was not made, since no row counts or a number is not finite."""
    update.buffers.save()
    update.stepping = False
    random = capture_torch(update.device) if tape.random else None
    made = False
    try:
        for vector in () if tape.fills else update.arena.vectors:
            vector.gradients.zero_()
        if tape.weighed:
            outcome = Outcome({})
            update.replay(tape, batch, None, outcome)
        else:  # which the seeds of the last update are for, too
            terms, outputs = tape.update(batch, update.tape_seeds)
            outcome = Outcome(terms, [(outputs, batch)] if tape.shows else [])
        update.weigh(outcome)
        update.sums = {name: term.sum for name, term in outcome.terms.items() if term.coefficient}
        if not guard.idle(update.weights) and guard.is_sound(update):
            update.clip()
            update.stepping = True
            step()
            update.stepping, made = False, True
    except BaseException as error:
        update.undo(error)
        if update.stepping or not is_out_of_memory(error):
            raise
    finally:
        if not made and random is not None:
            restore_torch(random, update.device)
    if not made:
        update.buffers.restore()
        return None
    return outcome
