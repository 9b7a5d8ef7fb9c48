"""How the gradients of an update are found: by torch, from a tape, in microbatches, or together with other workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from ..arena.arena import Arena
from ..arena.buffers import Buffers
from ..data.batch import Batch
from ..errors import ModelError
from ..loss.base import Term
from ..loss.objective import Terms
from ..loss.outcome import Outcome, detached
from .guard import Scalar
from .shared_terms import SharedTerms
from .tape.recording import Recording
from .tape.tape import PassKind, Tape, outputs_of

if TYPE_CHECKING:
    from .update import Update

Weights = Mapping[str, Scalar]
Divide = Callable[[Weights], Weights]
"""From the weights of the terms of one pass, what the terms of the update are divided by."""
Last = Callable[[], None] | None
"""What is called before the last forward pass of an update, if anything is."""


class Pass(ABC):
    """Finds the gradients of an update."""

    fills = False
    """Whether it writes every gradient, so that none has to be zero before."""
    repeats = False
    """Whether the next batch of the same macrobatch may use it again, if nobody has touched anything meanwhile."""
    calls_no_user_code = False
    """Whether it calls no code of the user: neither the model nor the loss."""
    draws = True
    """Whether it may draw random numbers."""

    def __init__(self, update: Update) -> None:
        self._update = update
        self.doubts: Weights = {}
        """Numbers beside the losses and the gradients that have to be finite."""

    def fits(self, batch: Batch) -> bool:
        """Whether it may be used again for this batch, of as many rows from the same macrobatch."""
        return self.repeats

    def __call__(self, batch: Batch, outcome: Outcome) -> Sequence[Tensor] | None:
        """The gradients of a batch, whose terms are added to the outcome; `None` if none of its rows counts."""
        self._update.arena.begin(self.fills)
        if batch.rows:  # a worker may have none of a small batch
            self.add(batch, outcome)
        return None if self._update.has_no_weight(outcome) else self._update.arena.collect()

    @abstractmethod
    def add(self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Last = None) -> None:
        """Adds the terms of a batch to the outcome, and its gradients to the arena's."""


class Eager(Pass):
    """Forward and backward by torch; a pass of a `kind` is looked at, and may be recorded on a tape."""

    def __init__(self, update: Update, kind: PassKind | None = None, first: bool = True) -> None:
        super().__init__(update)
        self._kind, self._first = kind, first
        self.repeats = not update.tapes.possible

    def add(self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Last = None) -> None:
        if last is not None:
            last()
        if self._kind is None:
            self._pass(batch, outcome, divide)
            return
        self._update.tapes.learn(
            self._kind,
            batch,
            self._first,
            lambda batch, tape, counts: self._pass(batch, outcome if counts else Outcome({}), divide, tape),
            lambda tape, batch: _replayed(self._update, tape, batch, Outcome({}), divide)[0],
        )

    def _pass(
        self, part: Batch, outcome: Outcome, divide: Divide | None, recording: Recording | None = None
    ) -> Mapping[str, Term]:
        update = self._update
        with recording or nullcontext():
            terms = update.forward(part)
            if recording is not None:
                recording.end_forward(terms, outputs_of(terms))
        seeds = update.account(terms, [name for name, t in terms.items() if t.sum.requires_grad], outcome, divide)
        inputs = [p for p in update.arena.params if p.requires_grad] if update.is_one_of_several else None
        if inputs == []:
            pass  # all of this optimizer's parameters are frozen
        elif seeds:
            with recording or nullcontext():
                if recording is not None:
                    recording.begin_backward(list(seeds), list(seeds.values()))
                _backward([terms[name].sum for name in seeds], list(seeds.values()), inputs)
        elif not any(term.sum.requires_grad for term in terms.values()):
            raise ModelError(
                f"no loss term ({', '.join(terms)}) depends on a trainable parameter. "
                "Check requires_grad, and that the loss does not detach the outputs."
            )
        if isinstance(terms, Terms):
            outcome.outputs.append((detached(terms.outputs), part))
        return terms


class Replay(Pass):
    """Forward and backward from a tape. From its second update on it does nothing beside."""

    repeats = calls_no_user_code = True

    def __init__(self, update: Update, kind: PassKind, tape: Tape) -> None:
        super().__init__(update)
        self._kind, self._tape = kind, tape
        self.fills, self.draws = tape.fills, tape.draws
        self._gradients: Sequence[Tensor] | None = None  # where all of them are, once that is known

    def __call__(self, batch: Batch, outcome: Outcome) -> Sequence[Tensor] | None:
        update, seeds = self._update, self._tape.seeds
        if self._gradients is None:
            update.arena.begin(self.fills)
        elif not self.fills:
            for vector in update.arena.vectors:
                vector.gradients.zero_()
        if seeds is None:
            self.add(batch, outcome)
        else:
            self._kind.replays += 1
            outcome.terms, outputs = self._tape.update(batch, seeds)
            if self._tape.shows:
                outcome.outputs.append((outputs, batch))
        if update.has_no_weight(outcome):
            return None
        if self._gradients is None:
            self._gradients = update.arena.collect()
        return self._gradients

    def add(self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Last = None) -> None:
        if last is not None:
            last()
        self._kind.replays += 1
        _, seeds = _replayed(self._update, self._tape, batch, outcome, divide)
        if not seeds and self.fills:
            self._update.arena.begin()  # the gradients that the tape was to write are zero
        elif divide is None and not self._tape.weighed and not self._update.scales:
            self._tape.seeds = seeds


def _replayed(
    update: Update, tape: Tape, batch: Batch, outcome: Outcome, divide: Divide | None
) -> tuple[Mapping[str, Term], Sequence[Tensor]]:
    """Forward and backward from a tape: the terms, and what the backward pass began with."""
    terms = tape.forward(batch)
    seeds = list(update.account(terms, tape.seeded, outcome, divide).values())
    if seeds:
        tape.backward(seeds)
    if tape.shows:
        outcome.outputs.append((terms.outputs, batch))
    return terms, seeds


class Split(Pass):
    """One pass for each microbatch, of at most so many rows. Their gradients add up."""

    def __init__(self, update: Update, rows: int) -> None:
        super().__init__(update)
        self._rows = rows

    def add(self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Last = None) -> None:
        parts = batch.split(self._rows)
        totals = self._update.totals(parts)
        divisors = totals if divide is None else divide(totals)
        for part in parts:
            one = self._update.one_pass(part, first=not outcome.terms)
            one.add(part, outcome, lambda _: divisors, last if part is parts[-1] else None)


class SharedPass(Pass):
    """A pass over this worker's part of a batch; sums, weights and gradients become those of the whole batch."""

    def __init__(self, update: Update, own: Pass, terms: SharedTerms, ahead: Weights | None = None) -> None:
        super().__init__(update)
        self._own, self._terms = own, terms
        self._ahead = ahead  # the weights of the batch, where they are known: workers that take turns begin with them
        self.fills = own.fills
        self.repeats = own.repeats

    def fits(self, batch: Batch) -> bool:
        """A pass is recorded either for workers that take turns within it or for those that do not."""
        if not self.repeats:
            return False
        known, self._ahead = bool(self._ahead), self._update.ahead(batch)
        return known == bool(self._ahead)

    def __call__(self, batch: Batch, outcome: Outcome) -> Sequence[Tensor] | None:
        update, terms = self._update, self._terms
        update.arena.begin(self.fills and bool(batch.rows))
        self.add(batch, outcome)
        update.strategy.comm.worked(batch.rows)
        numbers = terms.numbers(outcome, update.guard.buffers(update.buffers))

        def reduce(arena: Arena, reached: Sequence[bool]) -> Sequence[bool]:
            nonlocal numbers
            update.is_sharing = True  # from here on the others count on this pass
            reached, numbers = update.strategy.reduce(arena, reached, numbers)
            return reached

        gradients = update.arena.collect(reduce)
        self.doubts = terms.settle(
            outcome, list(numbers) if numbers.is_cuda else numbers.tolist(), batch.total >= update.strategy.comm.count
        )
        return None if update.has_no_weight(outcome) else gradients

    def add(self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Last = None) -> None:
        self._terms.begin(batch)
        if not batch.rows:
            self._terms.divide({})
            return
        if self._ahead:
            self._terms.divide(self._ahead)
        self._own.add(batch, outcome, self._terms.divide, None if self._update.steps.adapts else self._listen)

    def _listen(self) -> None:
        """Gradients may travel as they become ready. A pass that may be made again keeps all to itself."""
        self._update.strategy.listen(self._update.arena)


class ShardedPass(SharedPass):
    """A shared pass of a sharded model, which all workers use at the same time."""

    def __init__(self, update: Update, terms: SharedTerms) -> None:
        super().__init__(update, Eager(update), terms)

    def __call__(self, batch: Batch, outcome: Outcome) -> Sequence[Tensor] | None:
        with self._update.strategy.passing():
            gradients = super().__call__(batch, outcome)
        self.doubts = {**self.doubts, "a gradient": self._update.arena.norm()}
        return gradients

    def add(self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Last = None) -> None:
        """Adds the terms of a batch, in as many passes as the worker with most microbatches makes."""
        update, strategy, stand_ins = self._update, self._update.strategy, self._update.stand_ins
        self._terms.begin(batch)
        rows = update.steps.microbatch
        parts = batch.split(rows) if rows and batch.rows > rows else [batch] * bool(batch.rows)
        if parts:
            stand_ins.remember(batch)
        count = strategy.most(len(parts))
        missing = [stand_ins.rows] * (count - len(parts))
        divide = self._terms.divide if count == 1 else self._divide_by_all(parts, missing)
        for number, part in enumerate([*parts, *missing]):
            if number + 1 == count:
                strategy.listen(update.arena)
            else:
                strategy.accumulate()
            if number < len(parts):
                self._own.add(part, outcome, divide)
            else:
                _pass_for_others(update, part, divide)

    def _divide_by_all(self, parts: Sequence[Batch], missing: Sequence[Batch]) -> Divide:
        """What terms are divided by where an update has several passes, which are made after this is known."""
        weights = self._update.weights([*parts, *missing])[: len(parts)]
        names = weights[0] if weights else ()
        divisors = self._terms.divide({name: sum(each[name] for each in weights) for name in names})
        return lambda _: divisors


def _pass_for_others(update: Update, part: Batch, divide: Divide) -> None:
    """Forward and backward of rows that count for nothing: others need this worker's shards meanwhile."""
    with Buffers(update.model).unchanged(update.device):
        found = update.forward(part)
        divisors = divide({})
        sums = [
            term.sum
            for name, term in found.items()
            if term.coefficient and term.sum.requires_grad and divisors.get(name)
        ]
        if sums:
            torch.autograd.backward(sums, [torch.zeros_like(each) for each in sums])


def _backward(roots: Sequence[Tensor], seeds: Sequence[Tensor], inputs: Sequence[nn.Parameter] | None) -> None:
    """As `torch.autograd.backward`, whose look at seeds that are known to fit takes longer than a small layer."""
    if set(map(type, roots)) != {Tensor}:
        torch.autograd.backward(roots, seeds, inputs=inputs)
        return
    _engine_run_backward(
        tuple(roots), tuple(seeds), False, False, tuple(inputs or ()), allow_unreachable=True, accumulate_grad=True
    )
