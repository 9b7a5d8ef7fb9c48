"""One optimizer's update: forward and backward by microbatch, then reduce, check, clip, step."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from ..arena.arena import Arena
from ..arena.buffers import Buffers
from ..arena.gradients import backward, clip
from ..data.batch import Batch
from ..errors import ConfigError, HeadraceError, ModelError, OutOfMemoryError, is_out_of_memory
from ..loss.base import Term
from ..loss.metrics import check_outputs
from ..loss.objective import Objective, Terms, terms_of
from ..loss.outcome import Outcome, detached
from ..store.rng import capture_torch, restore_torch
from .guard import Scalar
from .settings import Updates, alone, draws_random
from .shared_terms import SharedTerms
from .tape.recording import Recording
from .tape.tape import Tape, outputs_of
from .tape.tapes import PassKind, Tapes

_ALONE = "Expected more than 1 value per channel when training"
_A_BUFFER = "(a buffer of some worker)"


class Update:
    """One optimizer's update."""

    def __init__(self, step: Updates, name: str, objective: Objective, arena: Arena, buffers: Buffers) -> None:
        self.name, self.objective, self.arena, self.buffers = name, objective, arena, buffers
        self._step, self._model = step, step.model
        self._precision, self.guard, self._strategy = step.precision, step.guard, step.strategy
        self.device = next(iter(arena.params)).device
        self.tapes = Tapes(step.settings.tape, step.model, objective, self.device, step.strategy.comm.memory, arena)
        self._seeds: dict[tuple[float, torch.dtype], Tensor] = {}
        self._several, self._looks = len(step.optimizers) > 1, step.looks if step.scored == name else ()
        self._together = SharedTerms(step.strategy, self.device) if step.strategy.shares_updates else None
        self.bad_workers = (lambda: "") if self._together is None else self._together.bad_workers
        self.batch: Batch | None = None
        self._divisors: Mapping[str, Scalar] | None = None
        self._kind: PassKind | None = None
        self._tape: Tape | None = None
        self.found: Sequence[Tensor] = ()
        self.tape_seeds: Sequence[Tensor] = ()
        """What the backward pass of the last replay began with."""
        self._summing = self.stepping = False
        self._random = self.device.type == "cpu" or any(map(draws_random, step.model.modules()))
        """Whether a step that is not made gives its random numbers back; on a device, if it is known to draw some."""
        self._first, self._fresh = not arena.optimizer.state, list[int]()
        self.sums: dict[str, Scalar] = {}
        self.weights: list[Scalar] = []
        self.gradients: Sequence[Tensor] = ()
        self.norm: Tensor | None = None
        """The norm of the gradients of the last update before they were clipped, if it was measured."""

    def __call__(self, batch: Batch) -> Outcome:
        self.batch, self._divisors = batch, None
        self.buffers.save()
        while True:
            self._kind = self._tape = None
            if batch.rows and (self._step.microbatch is None or batch.rows <= self._step.microbatch):
                self._find_tape(batch)
            draws = (self._random or self._step.adapts) and (self._tape is None or self._tape.random)
            random = capture_torch(self.device) if draws else None
            outcome, complaint = None, ""
            try:
                outcome, complaint = self._attempt(batch)
            finally:
                if outcome is None and random is not None:
                    restore_torch(random, self.device)
            if outcome is not None:
                if batch.ends_epoch:
                    self.tapes.end_epoch()
                return outcome
            if self._summing or self.stepping or not self._step.halve(batch.rows):
                raise OutOfMemoryError(self.no_room(complaint))

    def apply(self) -> None:
        """Clips and steps."""
        self.clip()
        if self._first:
            self._fresh = [tensor._version for tensor in self.arena.live_tensors()]
        self.stepping = True
        self._precision.step(self.arena, self.found)
        self.stepping = self._first = False

    def clip(self) -> None:
        """Brings gradients to what the optimizer is to be given."""
        settings = self._step.settings
        self._precision.unscale(self.arena.optimizer, self.found)
        if settings.clip_norm is not None or settings.clip_value is not None or self._step.measures_norm:
            most = math.inf if settings.clip_norm is None and self._step.measures_norm else settings.clip_norm
            self.norm = clip(self.found, self.arena.pieces(), most, settings.clip_value)

    def repeated(self, filling: bool) -> PassKind | None:
        """The kind of the last pass if the next batch can replay it as it is; `filling`: if it writes all gradients."""
        tape, kind, batch, microbatch = self._tape, self._kind, self.batch, self._step.microbatch
        if tape is None or kind is None or batch is None or (microbatch is not None and batch.rows > microbatch):
            return None
        shared = self._together is not None or self._precision.scales
        if shared or not (self.tape_seeds or tape.weighed) or (filling and not tape.fills):
            return None
        return kind if self.tapes.ready(kind) is tape else None

    def is_alike(self, batch: Batch) -> bool:
        """Whether a batch has a pass like that of the last update."""
        return self.tapes.kind_of(batch, first=True) is self._kind

    def describe(self) -> str:
        """Where this update stands, for a message."""
        assert self.batch is not None
        cursor = self.batch.cursor or {}
        place = f", up to row {cursor['position']} of epoch {cursor['epoch']}" if cursor.get("position") else ""
        rates = ", ".join(f"{float(group['lr']):g}" for group in self.arena.optimizer.param_groups)
        key = f" of {self.name!r}" if self.name else ""
        return f"step {self._step.updates + 1}{key} (rate {rates}, {self.batch.rows} rows{place})"

    @property
    def untouched(self) -> str:
        """What a failure leaves as it was, for a message."""
        if len(self._step.optimizers) == 1:
            return "The weights are as they were before this step."
        return f"The weights of {self.name!r} are as they were before this step; updates of keys before it were made."

    def _attempt(self, batch: Batch) -> tuple[Outcome | None, str]:
        """The outcome, or what the system said when memory ran out; what had been computed by then is let go."""
        self._summing = self.stepping = False
        try:
            return self._update(batch), ""
        except BaseException as error:
            self.undo(error)
            if not is_out_of_memory(error):
                raise
            complaint = str(error).partition("\n")[0]
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None, complaint

    def undo(self, error: BaseException) -> None:
        """An update has failed: everything is as before it, unless the optimizer had begun to step."""
        self.arena.discard()
        self.buffers.restore()
        self._precision.discard()
        if self.stepping and not isinstance(error, HeadraceError) and self._after_half() != self.untouched:
            self._step.torn = f"{self.describe()}: {type(error).__name__} while the optimizer stepped"

    def _after_half(self) -> str:
        """What an optimizer that ran out of memory has left; what it had just begun to remember is taken back."""
        if self.device.type != "cpu":
            return self.untouched
        weights = [tensor._version for tensor in self.arena.live_tensors()][: len(self._fresh)]
        if self._first and weights == self._fresh:
            self.arena.optimizer.state.clear()
            return self.untouched
        return "The weights may be those of half an update: go on from the last checkpoint."

    def no_room(self, complaint: str) -> str:
        assert self.batch is not None
        where = self.describe()
        if self.stepping:
            return f"{where}: memory ran out while the optimizer stepped ({complaint}). {self._after_half()}"
        if self._summing:
            return (
                f"{where}: memory ran out once workers had begun to add up their gradients ({complaint}), "
                f"too late for one of them to try again with fewer rows. {self.untouched} Others may have made it: go "
                "on from the last checkpoint, with a smaller batch_size, or with more memory."
            )
        at_once = min(self.batch.rows, self._step.microbatch or self.batch.rows)
        advice = f"Use microbatch={-(-at_once // 2)}, or 'auto': the update stays that of the whole batch."
        if not self.objective.splits:
            advice = "The loss does not declare splits = True, so it needs whole batches: use a smaller batch_size."
        elif at_once == 1:
            advice = "Nothing smaller than a row can be tried."
        return f"{where}: the memory does not hold {at_once} rows at once ({complaint}). {self.untouched} {advice}"

    def _update(self, batch: Batch) -> Outcome:
        self.arena.begin(self._tape is not None and self._tape.fills)
        outcome = Outcome({})
        microbatch = self._step.microbatch
        parts = [batch] if microbatch is None or batch.rows <= microbatch else batch.split(microbatch)
        if self._together is not None:
            return self._update_together(self._together, batch, parts, outcome)
        totals = None if len(parts) == 1 else self._totals(parts)
        for part in parts if batch.rows else ():
            self._pass(part, totals, outcome)
        self.weigh(outcome)
        if self.guard.idle(self.weights):
            return self._left_out(outcome)
        self.found = self.arena.collect()
        return self._applied(outcome)

    def _update_together(
        self, together: SharedTerms, batch: Batch, parts: Sequence[Batch], outcome: Outcome
    ) -> Outcome:
        """As one worker's, but that what all of them have found is added up between backward pass and update."""
        whole = self.objective.whole(batch) if batch.rows else {}
        if self._divisors is None:  # workers ask each other once, however often a pass is made
            self._divisors = together.divisors(batch, whole, lambda: self._totals(parts))
        divisors = self._divisors
        together.begin()
        for part in parts if batch.rows else ():
            if part is parts[-1] and not self._step.adapts:  # a pass that may be made again keeps all to itself
                self._strategy.listen(self.arena)
            self._pass(part, divisors, outcome)
        self._strategy.comm.worked(batch.rows)
        numbers = together.numbers(outcome, self.guard.buffers(self.buffers))

        def reduce(arena: Arena, reached: Sequence[bool]) -> Sequence[bool]:
            nonlocal numbers
            self._summing = True  # from here on the others count on this pass
            reached, numbers = self._strategy.reduce(arena, reached, numbers)
            return reached

        self.found = self.arena.collect(reduce)
        factor = together.settle(outcome, numbers, divisors)
        self.weigh(outcome)
        if self.guard.idle(self.weights):
            return self._left_out(outcome)
        if isinstance(factor, Tensor) or factor != 1:
            torch._foreach_mul_(list(self.found), factor)
        doubt = together.doubt(numbers)
        if isinstance(doubt, Tensor) or not math.isfinite(doubt):
            outcome.terms[_A_BUFFER] = Term(doubt, 1.0)
        outcome = self._applied(outcome)
        outcome.terms.pop(_A_BUFFER, None)
        return outcome

    def weigh(self, outcome: Outcome) -> None:
        self.weights = [term.weight for term in outcome.terms.values() if term.counts and term.coefficient]

    def _left_out(self, outcome: Outcome) -> Outcome:
        """There is nothing to learn from this batch."""
        self.buffers.restore()
        self.arena.discard()
        outcome.applied = False
        return outcome

    def _applied(self, outcome: Outcome) -> Outcome:
        """The update is made if everything that has been found is sound."""
        self.gradients = () if self._precision.scales else self.found  # an overflow there is the scaler's affair
        self.sums = {name: term.sum for name, term in outcome.terms.items() if term.coefficient}
        outcome.applied = self.guard.update(self)
        return outcome

    def _pass(self, part: Batch, totals: Mapping[str, Scalar] | None, outcome: Outcome) -> None:
        """Forward and backward, by torch or from a tape."""
        first = not outcome.terms
        if not first or part is not self.batch:
            self._find_tape(part, first)
        if self._kind is None:
            found = self._eager(part, totals, outcome)
        elif self._tape is not None:
            self._kind.replays += 1
            found = self.replay(self._tape, part, totals, outcome)
        else:
            found = self.tapes.learn(
                self._kind,
                part,
                first,
                lambda part, tape, counts: self._eager(part, totals, outcome if counts else Outcome({}), tape),
                lambda tape, part: self.replay(tape, part, totals, Outcome({})),
            )
        if self._together is not None:
            for name, term in found.items():
                self._together.add(name, self.guard.read(term.weight))

    def _find_tape(self, part: Batch, first: bool = True) -> None:
        """What the next pass is: a replay, one of a kind that may become one, or torch's alone."""
        self._kind = self.tapes.kind_of(part, first)
        self._tape = None if self._kind is None else self.tapes.ready(self._kind)

    def _eager(
        self,
        part: Batch,
        totals: Mapping[str, Scalar] | None,
        outcome: Outcome,
        recording: Recording | None = None,
    ) -> Mapping[str, Term]:
        """Forward and backward by torch."""
        with recording or nullcontext():
            found = self._forward(part)
            if recording is not None:
                recording.end_forward(found, outputs_of(found))
        seeds = self._account(found, [n for n, t in found.items() if t.sum.requires_grad], totals, outcome)
        inputs = [p for p in self.arena.params if p.requires_grad] if self._several else None
        if inputs == []:
            pass  # all of this optimizer's parameters are frozen
        elif seeds:
            with recording or nullcontext():
                if recording is not None:
                    recording.begin_backward(list(seeds), list(seeds.values()))
                backward([found[name].sum for name in seeds], list(seeds.values()), inputs)
        elif not any(term.sum.requires_grad for term in found.values()):
            raise ModelError(
                f"no loss term ({', '.join(found)}) depends on a trainable parameter. "
                "Check requires_grad, and that the loss does not detach the outputs."
            )
        if isinstance(found, Terms):
            outcome.outputs.append((detached(found.outputs), part))
        return found

    def replay(
        self, tape: Tape, part: Batch, totals: Mapping[str, Scalar] | None, outcome: Outcome
    ) -> Mapping[str, Term]:
        """Forward and backward from a tape."""
        found = tape.forward(part)
        seeds = self._account(found, tape.seeded, totals, outcome)
        self.tape_seeds = list(seeds.values())
        if seeds:
            tape.backward(self.tape_seeds)
        elif tape is self._tape:
            self.arena.begin()  # the gradients that the tape was to write are zero
        if tape.shows:
            outcome.outputs.append((found.outputs, part))
        return found

    def _account(
        self,
        found: Mapping[str, Term],
        trained: Container[str],
        totals: Mapping[str, Scalar] | None,
        outcome: Outcome,
    ) -> dict[str, Tensor]:
        """Adds terms to the outcome; what the backward pass of each term that is trained begins with.

        Each term's gradient is scaled by what the term is divided by: no mean is taken.
        """
        read, terms = self.guard.read, outcome.terms
        seeds = {}
        for name, term in found.items():
            if totals is not None and name not in totals:
                raise ConfigError(
                    f"{type(self.objective).__name__}.weights() gives {', '.join(totals)}, and terms() {name!r}, too. "
                    "They must have the same names; where only the forward pass can tell, leave weights() out."
                )
            weight = read(term.weight) if totals is None else totals[name]
            if term.coefficient and (isinstance(weight, Tensor) or weight) and name in trained:
                seeds[name] = self._seed(term, 1.0 if term.summed else weight)
            total = read(term.sum.detach()) * term.times
            if name in terms:
                terms[name].sum = terms[name].sum + total
            else:
                terms[name] = Term(total, weight, term.coefficient, counts=term.counts, summed=term.summed)
        return seeds

    def _forward(self, part: Batch) -> Mapping[str, Term]:
        try:
            with self._precision.context():
                terms = terms_of(self.objective, self._model, part)
        except ValueError as error:
            if _ALONE in str(error):
                raise alone("this batch, or the part of it in a microbatch or on a worker,") from error
            raise
        for name, term in terms.items():
            if not isinstance(term.sum, Tensor):
                came = type(term.sum).__name__
                raise ConfigError(f"term {name!r}: sum must be a single number, got a {came}. Return it as a tensor.")
        if self._looks and isinstance(terms, Terms):
            for look in self._looks:
                check_outputs(look(terms.outputs))
        return terms

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
        return self._precision.scale(seed) if self._precision.scales else seed

    def _totals(self, parts: Sequence[Batch]) -> dict[str, Scalar]:
        """The weights of the whole batch; by a forward pass that leaves no trace where nothing else can tell."""
        found = [dict(self.objective.weights(part)) for part in parts]
        if not found[0] or any(weight is None for weights in found for weight in weights.values()):
            with torch.no_grad(), _untouched(self.buffers, self.device):
                found = [{name: term.weight for name, term in self._forward(part).items()} for part in parts]
        read = self.guard.read
        return {name: sum(read(weights[name]) for weights in found) for name in found[0]}  # type: ignore[arg-type, misc]


@contextmanager
def _untouched(buffers: Buffers, device: torch.device) -> Iterator[None]:
    """Random state and buffers afterwards as before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    buffers.restore()
