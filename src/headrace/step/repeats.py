"""Updates that replay the tape of the update before them, with as little as possible between two of them."""

from collections.abc import Iterable, Iterator

from ..data.batch import Batch
from ..loss.outcome import Outcome
from ..store.rng import capture_torch, restore_torch
from .guard import HostGuard
from .update import Update


def repeats(update: Update, batches: Iterable[Batch]) -> Iterator[Outcome]:
    """Makes the next updates as long as each replays the tape of the last one, and all that it finds is finite.

    The first batch of which this is not so is left for an ordinary update, which starts from the same weights, buffers
    and random numbers, and finds out what is wrong. Between two of these updates only learning rates may change.
    """
    kind, last, guard, device = update.repeated(), update.batch, update.guard, update.device
    if kind is None or last is None or not isinstance(guard, HostGuard):
        return
    tape = kind.tape
    assert tape is not None
    cleared = [] if tape.fills else [vector.gradients for vector in update.arena.vectors]
    step = update.arena.hooks.prepared()
    seeds, draws, whole = update.tape_seeds, tape.program.random, last.whole
    for batch in batches:
        if batch.rows != last.rows or (batch.whole is not whole and not update.is_alike(batch)):
            return
        update.batch, whole = batch, batch.whole
        update.buffers.save()
        random = capture_torch(device) if draws else None
        try:
            for gradients in cleared:
                gradients.zero_()
            terms, outputs = tape.update(batch, seeds)
            update.sums = {name: term.sum for name, term in terms.items() if term.coefficient}
            sound = guard.is_sound(update)
            if sound:
                update.clip()
                update.stepping = True
                step()
                update.stepping = False
        except BaseException as error:
            update.undo(error)
            if random is not None:
                restore_torch(random, device)
            raise
        if not sound:
            update.buffers.restore()
            if random is not None:
                restore_torch(random, device)
            return
        kind.replays += 1
        yield Outcome(terms, [(outputs, batch)] if tape.shows else [])
