"""Updates that replay the tape of the update before them, with as little as possible beside its kernels."""

from collections.abc import Callable
from typing import Any, Self

from ..data.batch import Batch
from ..errors import OutOfMemoryError, is_out_of_memory
from ..loss.outcome import Outcome
from ..store.rng import capture_torch, restore_torch
from .guard import HostGuard
from .tape.tape import Tape
from .tape.tapes import PassKind
from .update import Update


class Repeat:
    """Makes the last update once more, for other batches. Meanwhile nothing may change but learning rates.

    A batch that is not like the last one, that teaches nothing, or with which a number is not finite gives nothing. It
    is left for an ordinary update, which starts from the same weights, buffers and random numbers.
    """

    def __init__(
        self,
        update: Update,
        kind: PassKind,
        tape: Tape,
        guard: HostGuard,
        step: Callable[[], Any],
        rows: int,
        whole: Any,
    ) -> None:
        self._update, self._kind, self._tape, self._guard, self._step = update, kind, tape, guard, step
        self._rows, self._whole = rows, whole
        self._cleared = [] if tape.fills else [vector.gradients for vector in update.arena.vectors]

    @classmethod
    def of(cls, update: Update, touched: bool = False) -> Self | None:
        """How the last update is repeated, if that is possible; `touched`: something may have changed since."""
        kind, last, guard = update.repeated(filling=touched), update.batch, update.guard
        if kind is None or kind.tape is None or last is None or not isinstance(guard, HostGuard):
            return None
        if touched:
            update.arena.begin(filled=True)
            update.found = update.gradients = update.arena.collect()
        step = update.arena.hooks.prepared()
        same = None if touched else last.whole
        return None if step is None else cls(update, kind, kind.tape, guard, step, last.rows, same)

    def __call__(self, batch: Batch) -> Outcome | None:
        update, same = self._update, batch.whole is not None and batch.whole is self._whole
        if batch.rows != self._rows or not (same or update.is_alike(batch)):
            return None
        self._whole = batch.whole
        update.batch = batch
        update.buffers.save()
        random = capture_torch(update.device) if self._tape.random else None
        outcome = None
        try:
            outcome = self._made(batch)
        except BaseException as error:
            update.undo(error)
            if not is_out_of_memory(error):
                raise
            if update.stepping:
                raise OutOfMemoryError(update.no_room(str(error).partition("\n")[0])) from error
        finally:
            if outcome is None and random is not None:
                restore_torch(random, update.device)
        if outcome is not None:
            self._kind.replays += 1
            self._kind.seen += same
        return outcome

    def _made(self, batch: Batch) -> Outcome | None:
        update, tape = self._update, self._tape
        update.stepping = False
        for gradients in self._cleared:
            gradients.zero_()
        if tape.weighed:
            outcome = Outcome({})
            update.replay(tape, batch, None, outcome)
        else:  # which the seeds of the last update are for, too
            terms, outputs = tape.update(batch, update.tape_seeds)
            outcome = Outcome(terms, [(outputs, batch)] if tape.shows else [])
        update.weigh(outcome)
        update.sums = {name: term.sum for name, term in outcome.terms.items() if term.coefficient}
        if self._guard.idle(update.weights) or not self._guard.is_sound(update):
            update.buffers.restore()
            return None
        update.clip()
        update.stepping = True
        self._step()
        update.stepping = False
        return outcome
