"""One optimizer's update: gradients are found, looked at, clipped, and given to the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arena.arena import Arena, clip
from ..arena.buffers import Buffers
from ..data.batch import Batch
from ..errors import HeadraceError, NonFiniteError, OutOfMemoryError, is_out_of_memory
from ..loss.objective import Objective
from ..loss.outcome import Outcome
from ..store.rng import capture_torch, restore_torch
from .guard import first_not_finite
from .parts import Parts
from .passes import Pass, PassContext
from .settings import draws_random
from .sharded_pass import ShardedPass

if TYPE_CHECKING:
    from .updates import Updates


class Update:
    """One optimizer's update, prepared once and made for many batches.

    Whoever has called code of the user's calls `touched` before the next update: everything is looked at anew then.
    """

    def __init__(self, steps: Updates, name: str, objective: Objective, arena: Arena, buffers: Buffers) -> None:
        self.name, self.arena, self.buffers = name, arena, buffers
        self.passes = passes = PassContext(steps, name, objective, arena, buffers)
        self._only_pass = _only_pass(passes)
        self.tapes, self.guard, self.device = passes.tapes, steps.guard, passes.device
        self.scales, self.bad_workers = passes.scales, passes.bad_workers
        self.draws = self.device.type == "cpu" or any(map(draws_random, steps.model.modules()))
        """Whether an update that is not made gives random numbers back; on a device, if it is known to draw some."""
        on_host = self.device.type == "cpu"
        self.random_state = torch.get_rng_state if on_host else partial(capture_torch, self.device)
        self.put_random_state = torch.set_rng_state if on_host else partial(restore_torch, device=self.device)
        self.is_stepping = False
        """Whether the optimizer has begun the step of the update at hand."""
        self.norm: Tensor | None = None
        """The norm of the gradients of the last update before they were clipped, if it was measured."""
        self._steps, self._precision = steps, steps.precision
        self._made: Made | None = None
        self.batch: Batch | None = None
        """The batch of the update at hand, or of the last one."""

    def make(self, batch: Batch) -> Outcome:
        """Makes the update of a batch."""
        outcome = None
        while outcome is None:  # again with smaller microbatches, if memory has run out
            if self._made is None or not self._made.fits(batch):
                self._made = self.prepare(batch)
            outcome = self._made(batch)
        if batch.ends_epoch:
            self.tapes.end_epoch()
            self._made = None
        return outcome

    def touched(self) -> None:
        """Code of the user's has been called, and may have changed anything."""
        self._made = None

    def prepare(self, batch: Batch) -> Made:
        """How batches like this one are updated with."""
        self.batch = batch
        return Made(self, batch, self._only_pass or self.passes.of(batch))

    # --- the optimizer ------------------------------------------------------------------------------------

    def clip(self, gradients: Sequence[Tensor]) -> None:
        """Clips gradients as the settings say, and measures their norm if somebody wants it."""
        settings = self._steps.settings
        if self.scales:
            self._precision.unscale(self.arena.optimizer, gradients)
        if settings.clip_norm is not None or settings.clip_value is not None or self._steps.measures_norm:
            most = math.inf if settings.clip_norm is None and self._steps.measures_norm else settings.clip_norm
            self.norm = clip(gradients, self.arena.norm, most, settings.clip_value)

    def optimizer_step(self, gradients: Sequence[Tensor], step: Callable[[], Any] | None = None) -> None:
        """The optimizer's step; `step`: as it is known to be made."""
        self.is_stepping = True
        if step is not None:
            step()
        elif self.scales:
            self._precision.step(self.arena, gradients)
        else:
            self.arena.hooks.step()
        self.is_stepping = False

    # --- failures -----------------------------------------------------------------------------------------

    def undo(self, error: BaseException) -> None:
        """An update has failed: everything is as before it, unless the optimizer had begun to step."""
        self._made = None
        self.arena.discard()
        self.buffers.restore()
        self._precision.discard()
        if self.is_stepping and not isinstance(error, HeadraceError):
            self._steps.failed_step = f"{self.describe()}: {type(error).__name__} while the optimizer stepped"

    def diagnose(self, error: NonFiniteError, batch: Batch) -> None:
        """Adds to the message which module made the first number that is not finite, by one more forward pass."""
        if self.passes.terms is not None:  # a forward pass may wait for other workers
            return
        random: Any = self.random_state()
        with suppress(Exception):  # the error at hand is worth more
            for part in batch.split(self._steps.microbatch or batch.rows):
                if cause := first_not_finite(self._steps.model, partial(self.passes.forward, part)):
                    error.args = (f"{error} {cause}",)
                    break
        self.put_random_state(random)
        self.buffers.restore()

    def shrink(self, batch: Batch, complaint: str) -> None:
        """Memory has run out: the next try is made with smaller microbatches; raises if there is none."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.is_stepping or self.passes.is_sharing or not self._steps.halve(batch.rows):
            raise OutOfMemoryError(self._no_room(batch, complaint))

    def describe(self) -> str:
        """Where this update stands, for a message."""
        batch = self.batch
        assert batch is not None
        cursor = batch.cursor or {}
        place = f", up to row {cursor['position']} of epoch {cursor['epoch']}" if cursor.get("position") else ""
        rates = ", ".join(f"{float(group['lr']):g}" for group in self.arena.optimizer.param_groups)
        key = f" of {self.name!r}" if self.name else ""
        return f"step {self._steps.count + 1}{key} (rate {rates}, {batch.rows} rows{place})"

    @property
    def untouched(self) -> str:
        """What a failure leaves as it was, for a message."""
        if len(self._steps.optimizers) == 1:
            return "The weights are as they were before this step."
        return f"The weights of {self.name!r} are as they were before this step; updates of keys before it were made."

    def _no_room(self, batch: Batch, complaint: str) -> str:
        where = self.describe()
        if self.is_stepping:
            return (
                f"{where}: memory ran out while the optimizer stepped ({complaint}). The weights may be those of half "
                "an update: go on from the last checkpoint."
            )
        if self.passes.is_sharing:
            return (
                f"{where}: memory ran out once workers had begun to add up their gradients ({complaint}), "
                f"too late for one of them to try again with fewer rows. {self.untouched} Others may have made it: go "
                "on from the last checkpoint, with a smaller batch_size, or with more memory."
            )
        at_once = min(batch.rows, self._steps.microbatch or batch.rows)
        advice = f"Use microbatch={-(-at_once // 2)}, or 'auto': the update stays that of the whole batch."
        if not self.passes.objective.splits:
            advice = "The loss does not declare splits = True, so it needs whole batches: use a smaller batch_size."
        elif at_once == 1:
            advice = "Nothing smaller than a row can be tried."
        return f"{where}: the memory does not hold {at_once} rows at once ({complaint}). {self.untouched} {advice}"

    def begin(self, batch: Batch) -> None:
        """An update of this batch begins."""
        self.batch, self.is_stepping, self.passes.is_sharing = batch, False, False
        if self.buffers.exist:
            self.buffers.save()


def _only_pass(passes: PassContext) -> Pass | None:
    """How every batch is passed, under strategies that leave no choice."""
    if passes.terms is None or not (passes.strategy.parts or passes.strategy.shards):
        return None
    return (Parts if passes.strategy.parts else ShardedPass)(passes, passes.terms)


class Made:
    """An update that is prepared: what the user may have changed has been looked at."""

    def __init__(self, update: Update, batch: Batch, passes: Pass) -> None:
        self._update, self._passes = update, passes
        self._rows, self._macrobatch = batch.rows, batch.whole
        self._draws = passes.draws and (update.draws or update.passes.may_retry)
        self._step: Callable[[], Any] | None = None  # the optimizer's, as long as only rates and gradients change

    def fits(self, batch: Batch) -> bool:
        """Whether it is prepared for this batch, too: one of as many rows from the same macrobatch."""
        same = batch.rows == self._rows and batch.whole is self._macrobatch is not None
        return same and self._passes.repeats

    def __call__(self, batch: Batch) -> Outcome | None:
        """Makes the update; gives nothing if memory has run out, and smaller microbatches may do."""
        update, outcome, complaint = self._update, Outcome({}), None
        update.begin(batch)
        random: Any = update.random_state() if self._draws else None
        try:
            self._make(batch, outcome)
        except BaseException as error:
            if random is not None:
                update.put_random_state(random)
            update.undo(error)
            if isinstance(error, NonFiniteError):
                update.diagnose(error, batch)
            if not is_out_of_memory(error):
                raise
            complaint = str(error).partition("\n")[0]
        if complaint is None:
            return outcome
        update.shrink(batch, complaint)  # only here: the error has let go of what the pass had made
        return None

    def _make(self, batch: Batch, outcome: Outcome) -> None:
        update, passes = self._update, self._passes
        gradients = passes(batch, outcome)
        if gradients is None:
            update.buffers.restore()
            update.arena.discard()
            update.touched()
            outcome.applied = False
            return
        seen = () if update.scales else gradients  # an overflow of scaled ones is the scaler's affair
        outcome.applied = update.guard.sound(update, outcome, seen, passes.doubts)
        if outcome.applied is False:
            return
        try:
            update.clip(gradients)
            update.optimizer_step(gradients, self._step)
        finally:
            if outcome.applied is not True:
                update.guard.done(update)
        if passes.calls_nobody and not update.scales and self._step is None:
            self._step = update.arena.hooks.prepared()
            if self._step is None:  # the optimizer's step calls code of the user's
                update.touched()
