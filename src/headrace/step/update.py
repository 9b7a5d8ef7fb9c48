"""One optimizer's update: gradients are found, looked at, clipped, and given to the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arena.arena import Arena
from ..arena.buffers import Buffers
from ..arena.gradients import clip
from ..arena.vectors import coalesced
from ..data.batch import Batch
from ..errors import ConfigError, HeadraceError, NonFiniteError, OutOfMemoryError, is_out_of_memory
from ..loss.base import Term
from ..loss.metrics import check_outputs
from ..loss.objective import Objective, Supervised, Terms, terms_of
from ..loss.outcome import Outcome
from ..store.rng import capture_torch, restore_torch
from .guard import Scalar, first_not_finite
from .parts import Parts
from .passes import Divide, Eager, Pass, Replay, ShardedPass, SharedPass, Split, Weights
from .settings import draws_random, single_row_error
from .shared_terms import SharedTerms
from .tape.tapes import Tapes

if TYPE_CHECKING:
    from .updates import Updates


SINGLE_ROW = "Expected more than 1 value per channel when training"


class Update:
    """One optimizer's update, prepared once and made for many batches.

    Whoever has called code of the user's calls `touched` before the next update: everything is looked at anew then.
    """

    def __init__(self, steps: Updates, name: str, objective: Objective, arena: Arena, buffers: Buffers) -> None:
        self.name, self.objective, self.arena, self.buffers = name, objective, arena, buffers
        self.model, self.stand_ins = steps.model, steps.stand_ins
        self.guard, self.strategy = steps.guard, steps.strategy
        self.device = next(iter(arena.params)).device
        tape, comm = steps.settings.tape, self.strategy.comm
        self.tapes = Tapes(tape, steps.model, objective, self.device, comm, arena)
        on_host = self.device.type == "cpu"
        self.draws = on_host or any(map(draws_random, steps.model.modules()))
        """Whether an update that is not made gives random numbers back; on a device, if it is known to draw some."""
        self.random_state = torch.get_rng_state if on_host else partial(capture_torch, self.device)
        self.put_random_state = torch.set_rng_state if on_host else partial(restore_torch, device=self.device)
        self.scales = steps.precision.scales
        """Whether gradients are scaled; an infinite one is then a sign that the scale is too high."""
        self.is_one_of_several = len(steps.optimizers) > 1
        """Whether other optimizers have some of the model's parameters."""
        self.is_sharing = False
        """Whether the workers have begun to add up the gradients of the update at hand."""
        self.is_stepping = False
        """Whether the optimizer has begun the step of the update at hand."""
        self.norm: Tensor | None = None
        """The norm of the gradients of the last update before they were clipped, if it was measured."""
        self.batch: Batch | None = None
        """The batch of the update at hand, or of the last one."""
        shared = self.strategy.shares_updates or self.strategy.parts or self.strategy.shards
        self.terms = SharedTerms(self.strategy, self.device) if shared else None
        """The terms of updates that workers share, or that are made of parts."""
        self.bad_workers: Callable[[], str] = (lambda: "") if self.terms is None else self.terms.bad_workers
        """Says on which workers something is not finite. All that share an update call it, after the same one."""
        self.steps, self._precision = steps, steps.precision
        self._context = steps.precision.context if steps.precision.halves else None
        self._getters = steps.getters if steps.scored == name else ()
        self._seeds: dict[tuple[float, torch.dtype], Tensor] = {}
        self._only_pass = self._only()
        self._made: Made | None = None

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
        self.arena.look_at_groups()
        return Made(self, batch, self._only_pass or self.of(batch))

    # --- how gradients are found ----------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """Names the update at hand: the trainer's seed, the key of the optimizer, and how many were made before."""
        return f"{self.steps.settings.seed} {self.name} {self.steps.count}"

    def of(self, batch: Batch) -> Pass:
        """How the gradients of a batch are found."""
        rows, ahead = self.steps.microbatch, dict[str, Scalar]()
        if (rows is not None and batch.rows > rows) or batch.pieces:
            own: Pass = Split(self, rows or batch.rows)
        else:
            ahead = self.ahead(batch)
            self.tapes.divided = self.terms is not None and not ahead
            own = self.one_pass(batch, first=True) if batch.rows else Eager(self)
        return own if self.terms is None else SharedPass(self, own, self.terms, ahead)

    def ahead(self, batch: Batch) -> dict[str, Scalar]:
        """For workers that take turns, the weights of a batch that they share, where they are known before its pass."""
        if self.terms is None or self.strategy.comm.turns is None or not batch.rows:
            return {}
        weights = dict(self.objective.weights(batch))
        if None in weights.values():
            return {}
        return {name: self.guard.read(weight) for name, weight in weights.items() if weight is not None}

    def one_pass(self, part: Batch, first: bool) -> Pass:
        """How a microbatch, the `first` of an update or not, passes the model: a replay, or a pass by torch."""
        kind = self.tapes.kind_of(part, first)
        tape = None if kind is None else self.tapes.ready(kind)
        return Eager(self, kind, first) if tape is None or kind is None else Replay(self, kind, tape)

    def has_no_weight(self, outcome: Outcome) -> bool:
        """Whether the host knows that there is nothing to learn from a batch."""
        for term in outcome.terms.values():
            weight = term.weight
            if term.counts and term.coefficient and (isinstance(weight, Tensor) or weight):
                return False
        return True

    def forward(self, part: Batch) -> Mapping[str, Term]:
        """The terms of a microbatch."""
        try:
            if self._context is None:
                terms = terms_of(self.objective, self.model, part)
            else:
                with self._context():
                    terms = terms_of(self.objective, self.model, part)
        except ValueError as error:
            if SINGLE_ROW in str(error):
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
            self._check_names(terms, divisors)
        for name, term in terms.items():
            weight = divisors[name]
            if term.coefficient and (isinstance(weight, Tensor) or weight) and name in trained:
                seeds[name] = self._seed(term, 1.0 if term.summed else weight)
            total = read(term.sum.detach()) * term.times
            if name in sums:
                sums[name].sum = sums[name].sum + total
            else:
                sums[name] = Term(total, weight, term.coefficient, counts=term.counts, summed=term.summed)
        return seeds

    def _check_names(self, terms: Mapping[str, Term], weights: Weights) -> None:
        """Raises unless terms and weights have the same names. Ours leave priors out if the model is in eval mode."""
        known = isinstance(self.objective, Supervised) and terms.keys() <= weights.keys()
        if terms.keys() != weights.keys() and not known:
            raise ConfigError(
                f"{type(self.objective).__name__}.weights() gives {', '.join(weights)}, and terms() gives "
                f"{', '.join(terms)}. They must have the same names; where only the forward pass can tell, leave "
                "weights() out."
            )

    def _seed(self, term: Term, weight: Scalar) -> Tensor:
        """What the backward pass of a term starts from: its part in the loss, over the weight of the update."""
        factor = term.coefficient * term.times
        if isinstance(weight, Tensor):
            weight = weight.to(term.sum.dtype)
            return self._precision.scale(torch.where(weight > 0, factor / weight, torch.zeros_like(weight)))
        key = (factor / weight, term.sum.dtype)
        seed = self._seeds.get(key)
        if seed is None:
            if len(self._seeds) > 256:
                self._seeds.clear()
            seed = self._seeds[key] = torch.full_like(term.sum.detach(), key[0])
        return self._precision.scale(seed) if self.scales else seed

    def totals(self, parts: Sequence[Batch]) -> dict[str, Scalar]:
        """The weights of all microbatches, added up."""
        found = self.weights(parts)
        return {name: sum(weights[name] for weights in found) for name in found[0]}

    def weights(self, parts: Sequence[Batch]) -> list[dict[str, Scalar]]:
        """The weights of each microbatch; by a forward pass that leaves no trace where nothing else can tell."""
        found = [dict(self.objective.weights(part)) for part in parts]
        if not found[0] or any(weight is None for weights in found for weight in weights.values()):
            with torch.no_grad(), self.buffers.unchanged(self.device):
                found = [{name: term.weight for name, term in self.forward(part).items()} for part in parts]
        read = self.guard.read
        return [{name: read(weight) for name, weight in weights.items()} for weights in found]  # type: ignore[arg-type]

    def _only(self) -> Pass | None:
        """How every batch is passed, under strategies that leave no choice."""
        if self.terms is None or not (self.strategy.parts or self.strategy.shards):
            return None
        return (Parts if self.strategy.parts else ShardedPass)(self, self.terms)

    # --- the optimizer ------------------------------------------------------------------------------------

    def clip(self, gradients: Sequence[Tensor]) -> None:
        """Clips gradients as the settings say, and measures their norm if somebody wants it."""
        settings = self.steps.settings
        if self.scales:
            self._precision.unscale(self.arena, gradients)
        if settings.clip_norm is not None or settings.clip_value is not None or self.steps.measures_norm:
            gradients = coalesced(self.arena.loose, gradients)
            most = math.inf if settings.clip_norm is None and self.steps.measures_norm else settings.clip_norm
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
            self.steps.failed_step = f"{self.describe()}: {type(error).__name__} while the optimizer stepped"

    def diagnose(self, error: NonFiniteError, batch: Batch) -> None:
        """Adds to the message which module made the first number that is not finite, by one more forward pass."""
        if self.terms is not None:  # a forward pass may wait for other workers
            return
        random: Any = self.random_state()
        with suppress(Exception):  # the error at hand is worth more
            for part in batch.split(self.steps.microbatch or batch.rows):
                if cause := first_not_finite(self.steps.model, partial(self.forward, part)):
                    error.args = (f"{error} {cause}",)
                    break
        self.put_random_state(random)
        self.buffers.restore()

    def shrink(self, batch: Batch, complaint: str) -> None:
        """Memory has run out: the next try is made with smaller microbatches; raises if there is none."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.is_stepping or self.is_sharing or not self.steps.halve(batch.rows):
            raise OutOfMemoryError(self._no_room(batch, complaint))

    def describe(self) -> str:
        """Where this update stands, for a message."""
        batch = self.batch
        assert batch is not None
        cursor = batch.cursor or {}
        place = f", up to row {cursor['position']} of epoch {cursor['epoch']}" if cursor.get("position") else ""
        rates = ", ".join(f"{float(group['lr']):g}" for group in self.arena.optimizer.param_groups)
        key = f" of {self.name!r}" if self.name else ""
        return f"step {self.steps.count + 1}{key} (rate {rates}, {batch.rows} rows{place})"

    @property
    def untouched(self) -> str:
        """What a failure leaves as it was, for a message."""
        if len(self.steps.optimizers) == 1:
            return "The weights are as they were before this step."
        return f"The weights of {self.name!r} are as they were before this step; updates of keys before it were made."

    def _no_room(self, batch: Batch, complaint: str) -> str:
        where = self.describe()
        if self.is_stepping:
            return (
                f"{where}: memory ran out while the optimizer stepped ({complaint}). The weights may be those of half "
                "an update: go on from the last checkpoint."
            )
        if self.is_sharing:
            return (
                f"{where}: memory ran out once workers had begun to add up their gradients ({complaint}), "
                f"too late for one of them to try again with fewer rows. {self.untouched} Others may have made it: go "
                "on from the last checkpoint, with a smaller batch_size, or with more memory."
            )
        at_once = min(batch.rows, self.steps.microbatch or batch.rows)
        advice = f"Use microbatch={-(-at_once // 2)}, or 'auto': the update stays that of the whole batch."
        if not self.objective.splits:
            advice = "The loss does not declare splits = True, so it needs whole batches: use a smaller batch_size."
        elif at_once == 1:
            advice = "Nothing smaller than a row can be tried."
        return f"{where}: the memory does not hold {at_once} rows at once ({complaint}). {self.untouched} {advice}"

    def begin(self, batch: Batch) -> None:
        """An update of this batch begins."""
        self.batch, self.is_stepping, self.is_sharing = batch, False, False
        if self.buffers.exist:
            self.buffers.save()


class Made:
    """An update that is prepared: what the user may have changed has been looked at."""

    def __init__(self, update: Update, batch: Batch, how: Pass) -> None:
        self._update, self._pass = update, how
        self._rows, self._total, self._macrobatch = batch.rows, batch.total, batch.macrobatch
        self._turns, self._touches = update.tapes.turns, update.tapes.turns.touches
        self._draws = how.draws and (update.draws or update.steps.adapts)
        self._step: Callable[[], Any] | None = None  # the optimizer's, as long as only rates and gradients change

    def fits(self, batch: Batch) -> bool:
        """Whether it is prepared for this batch, too: one of as many rows from the same macrobatch.

        And no worker that takes turns with this one has called code of the user's meanwhile.
        """
        same = batch.rows == self._rows and batch.total == self._total and batch.macrobatch is self._macrobatch
        is_untouched = batch.macrobatch is not None and self._turns.touches == self._touches
        return same and is_untouched and self._pass.fits(batch)

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
        update, how = self._update, self._pass
        gradients = how(batch, outcome)
        if gradients is None:
            update.buffers.restore()
            update.arena.discard()
            update.touched()
            outcome.applied = False
            return
        seen = () if update.scales else gradients  # an overflow of scaled ones is the scaler's affair
        outcome.applied = update.guard.sound(update, outcome, seen, how.doubts)
        if outcome.applied is False:
            return
        try:
            update.clip(gradients)
            update.optimizer_step(gradients, self._step)
        finally:
            if outcome.applied is not True:
                update.guard.done(update)
        if how.calls_no_user_code and not update.scales and self._step is None:
            self._step = update.arena.hooks.prepared()
            if self._step is None:  # the optimizer's step calls code of the user's
                update.steps.touched()
