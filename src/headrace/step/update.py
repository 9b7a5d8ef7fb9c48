"""One optimizer's update: gradients are found, looked at, clipped, and given to the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arena.arena import Arena, clip
from ..arena.buffers import Buffers
from ..data.batch import Batch
from ..errors import ConfigError, HeadraceError, OutOfMemoryError, is_out_of_memory
from ..loss.base import Term
from ..loss.metrics import check_outputs
from ..loss.objective import Objective, Terms, terms_of
from ..loss.outcome import Outcome
from ..store.rng import capture_torch, restore_torch
from .guard import Scalar
from .passes import Divide, Eager, Pass, Replay, Shared, Split, Weights
from .settings import draws_random, single_row_error
from .shared_terms import SharedTerms
from .tape.tapes import PassKind, Tapes

if TYPE_CHECKING:
    from .updates import Updates

_SINGLE_ROW = "Expected more than 1 value per channel when training"


class Update:
    """One optimizer's update, prepared once and made for many batches.

    Whoever has called code of the user's calls `touched` before the next update: everything is looked at anew then.
    """

    def __init__(self, updates: Updates, name: str, objective: Objective, arena: Arena, buffers: Buffers) -> None:
        self.name, self.objective, self.arena, self.buffers = name, objective, arena, buffers
        self.guard, self.strategy, self.precision = updates.guard, updates.strategy, updates.precision
        self._updates, self._model = updates, updates.model
        self.device = next(iter(arena.params)).device
        self.tapes = Tapes(
            updates.settings.tape, updates.model, objective, self.device, self.strategy.comm.memory, arena
        )
        self.scales = updates.precision.scales
        """Whether gradients are scaled; an infinite one is then a sign that the scale is too high."""
        self.draws = self.device.type == "cpu" or any(map(draws_random, updates.model.modules()))
        """Whether an update that is not made gives random numbers back; on a device, if it is known to draw some."""
        on_host = self.device.type == "cpu"
        self.random_state = torch.get_rng_state if on_host else partial(capture_torch, self.device)
        self.put_random_state = torch.set_rng_state if on_host else partial(restore_torch, device=self.device)
        self.stage = ""
        """How far the update at hand has come: "", "sharing" with other workers, or "stepping"."""
        self.norm: Tensor | None = None
        """The norm of the gradients of the last update before they were clipped, if it was measured."""
        self._getters = updates.getters if updates.scored == name else ()
        self._context = None if updates.precision.is_plain else updates.precision.context
        self._shared = SharedTerms(self.strategy, self.device) if self.strategy.shares_updates else None
        self.bad_workers = (lambda: "") if self._shared is None else self._shared.bad_workers
        self.is_one_of_several = len(updates.optimizers) > 1
        self._seeds: dict[tuple[float, torch.dtype], Tensor] = {}
        self._made: Made | None = None
        self._batch: Batch | None = None

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
        self._batch = batch
        microbatch = self._updates.microbatch
        splits = microbatch is not None and batch.rows > microbatch
        kind = None if splits or not batch.rows else self.tapes.kind_of(batch, first=True)
        way = Split(self, microbatch) if splits and microbatch else self._way(kind, first=True)
        return Made(self, batch, way if self._shared is None else Shared(self, way, self._shared))

    def one_pass(self, part: Batch, first: bool) -> Pass:
        """How a microbatch passes the model, the `first` of an update or not."""
        return self._way(self.tapes.kind_of(part, first), first)

    def _way(self, kind: PassKind | None, first: bool) -> Pass:
        """A replay, or a pass by torch."""
        tape = None if kind is None else self.tapes.ready(kind)
        return Eager(self, kind, first) if tape is None or kind is None else Replay(self, kind, tape)

    @property
    def may_retry(self) -> bool:
        """Whether a pass is made again, in smaller parts, when memory runs out."""
        return self._updates.adapts

    def has_no_weight(self, outcome: Outcome) -> bool:
        """Whether the host knows that there is nothing to learn from a batch."""
        for term in outcome.terms.values():
            weight = term.weight
            if term.counts and term.coefficient and (isinstance(weight, Tensor) or weight):
                return False
        return True

    # --- forward and backward -----------------------------------------------------------------------------

    def forward(self, part: Batch) -> Mapping[str, Term]:
        """The terms of a microbatch."""
        try:
            if self._context is None:
                terms = terms_of(self.objective, self._model, part)
            else:
                with self._context():
                    terms = terms_of(self.objective, self._model, part)
        except ValueError as error:
            if _SINGLE_ROW in str(error):
                raise single_row_error() from error
            raise
        for name, term in terms.items():
            if not isinstance(term.sum, Tensor):
                came = type(term.sum).__name__
                raise ConfigError(f"term {name!r}: sum must be a single number, got a {came}. Return it as a tensor.")
        if self._getters and isinstance(terms, Terms):
            for output in self._getters:
                if not isinstance(found := output(terms.outputs), Tensor):
                    check_outputs(found)
        return terms

    def account(
        self, terms: Mapping[str, Term], trained: Container[str], outcome: Outcome, divide: Divide | None
    ) -> dict[str, Tensor]:
        """Adds terms to the outcome; what the backward pass of each term that is trained begins with.

        Each term's gradient is scaled by what the term is divided by: no mean is taken.
        """
        read, sums, seeds = self.guard.read, outcome.terms, dict[str, Tensor]()
        divisors: Weights = {name: read(term.weight) for name, term in terms.items()}
        if divide is not None:
            divisors = divide(divisors)
        for name, term in terms.items():
            if name not in divisors:
                raise ConfigError(
                    f"{type(self.objective).__name__}.weights() gives {', '.join(divisors)}, and terms() {name!r}, "
                    "too. They must have the same names; where only the forward pass can tell, leave weights() out."
                )
            weight = divisors[name]
            if term.coefficient and (isinstance(weight, Tensor) or weight) and name in trained:
                seeds[name] = self._seed(term, 1.0 if term.summed else weight)
            total = read(term.sum.detach()) * term.times
            if name in sums:
                sums[name].sum = sums[name].sum + total
            else:
                sums[name] = Term(total, weight, term.coefficient, counts=term.counts, summed=term.summed)
        return seeds

    def _seed(self, term: Term, weight: Scalar) -> Tensor:
        """What the backward pass of a term starts from: its part in the loss, over the weight of the update."""
        factor = term.coefficient * term.times
        if isinstance(weight, Tensor):
            weight = weight.to(term.sum.dtype)
            return self.precision.scale(torch.where(weight > 0, factor / weight, torch.zeros_like(weight)))
        key = (factor / weight, term.sum.dtype)
        seed = self._seeds.get(key)
        if seed is None:
            if len(self._seeds) > 256:
                self._seeds.clear()
            seed = self._seeds[key] = torch.full_like(term.sum.detach(), key[0])
        return self.precision.scale(seed) if self.scales else seed

    def totals(self, parts: Sequence[Batch]) -> dict[str, Scalar]:
        """The weights of all microbatches; by a forward pass that leaves no trace where nothing else can tell."""
        found = [dict(self.objective.weights(part)) for part in parts]
        if not found[0] or any(weight is None for weights in found for weight in weights.values()):
            with torch.no_grad(), _untouched(self.buffers, self.device):
                found = [{name: term.weight for name, term in self.forward(part).items()} for part in parts]
        read = self.guard.read
        return {name: sum(read(weights[name]) for weights in found) for name in found[0]}  # type: ignore[arg-type, misc]

    # --- the optimizer ------------------------------------------------------------------------------------

    def clip(self, gradients: Sequence[Tensor]) -> None:
        """Clips gradients as the settings say, and measures their norm if somebody wants it."""
        settings = self._updates.settings
        if self.scales:
            self.precision.unscale(self.arena.optimizer, gradients)
        if settings.clip_norm is not None or settings.clip_value is not None or self._updates.measures_norm:
            most = math.inf if settings.clip_norm is None and self._updates.measures_norm else settings.clip_norm
            self.norm = clip(gradients, self.arena.pieces(), most, settings.clip_value)

    def optimizer_step(self, gradients: Sequence[Tensor], step: Callable[[], Any] | None = None) -> None:
        """The optimizer's step; `step`: as it is known to be made."""
        self.stage = "stepping"
        if step is not None:
            step()
        elif self.scales:
            self.precision.step(self.arena, gradients)
        else:
            self.arena.hooks.step()
        self.stage = ""

    # --- failures -----------------------------------------------------------------------------------------

    def undo(self, error: BaseException) -> None:
        """An update has failed: everything is as before it, unless the optimizer had begun to step."""
        self._made = None
        self.arena.discard()
        self.buffers.restore()
        self.precision.discard()
        if self.stage == "stepping" and not isinstance(error, HeadraceError):
            self._updates.failed_step = f"{self.describe()}: {type(error).__name__} while the optimizer stepped"

    def shrink(self, batch: Batch, complaint: str) -> None:
        """Memory has run out: the next try is made with smaller microbatches; raises if there is none."""
        stage, self.stage = self.stage, ""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if stage or not self._updates.halve(batch.rows):
            raise OutOfMemoryError(self._no_room(batch, stage, complaint))

    def describe(self) -> str:
        """Where this update stands, for a message."""
        batch = self._batch
        assert batch is not None
        cursor = batch.cursor or {}
        place = f", up to row {cursor['position']} of epoch {cursor['epoch']}" if cursor.get("position") else ""
        rates = ", ".join(f"{float(group['lr']):g}" for group in self.arena.optimizer.param_groups)
        key = f" of {self.name!r}" if self.name else ""
        return f"step {self._updates.count + 1}{key} (rate {rates}, {batch.rows} rows{place})"

    @property
    def untouched(self) -> str:
        """What a failure leaves as it was, for a message."""
        if len(self._updates.optimizers) == 1:
            return "The weights are as they were before this step."
        return f"The weights of {self.name!r} are as they were before this step; updates of keys before it were made."

    def _no_room(self, batch: Batch, stage: str, complaint: str) -> str:
        where = self.describe()
        if stage == "stepping":
            return (
                f"{where}: memory ran out while the optimizer stepped ({complaint}). The weights may be those of half "
                "an update: go on from the last checkpoint."
            )
        if stage == "sharing":
            return (
                f"{where}: memory ran out once workers had begun to add up their gradients ({complaint}), "
                f"too late for one of them to try again with fewer rows. {self.untouched} Others may have made it: go "
                "on from the last checkpoint, with a smaller batch_size, or with more memory."
            )
        at_once = min(batch.rows, self._updates.microbatch or batch.rows)
        advice = f"Use microbatch={-(-at_once // 2)}, or 'auto': the update stays that of the whole batch."
        if not self.objective.splits:
            advice = "The loss does not declare splits = True, so it needs whole batches: use a smaller batch_size."
        elif at_once == 1:
            advice = "Nothing smaller than a row can be tried."
        return f"{where}: the memory does not hold {at_once} rows at once ({complaint}). {self.untouched} {advice}"

    def begin(self, batch: Batch) -> None:
        """An update of this batch begins."""
        self._batch, self.stage = batch, ""
        if self.buffers.exist:
            self.buffers.save()


class Made:
    """An update that is prepared: what the user may have changed has been looked at."""

    def __init__(self, update: Update, batch: Batch, passes: Pass) -> None:
        self._update, self._passes = update, passes
        self._rows, self._macrobatch = batch.rows, batch.whole
        self._draws = passes.draws and (update.draws or update.may_retry)
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


@contextmanager
def _untouched(buffers: Buffers, device: torch.device) -> Iterator[None]:
    """Random state and buffers afterwards as before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    buffers.restore()
