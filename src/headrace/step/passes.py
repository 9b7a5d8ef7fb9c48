"""How the gradients of an update are found: by torch, from a tape, in microbatches, or together with other workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from ..arena.arena import Arena
from ..arena.buffers import Buffers
from ..data.batch import Batch
from ..errors import ConfigError, ModelError
from ..loss.base import Term
from ..loss.metrics import check_outputs
from ..loss.objective import Objective, Terms, terms_of
from ..loss.outcome import Outcome, detached
from .guard import Scalar
from .settings import single_row_error
from .shared_terms import SharedTerms
from .tape.recording import Recording
from .tape.tape import Tape, outputs_of
from .tape.tapes import PassKind, Tapes

if TYPE_CHECKING:
    from .updates import Updates

_SINGLE_ROW = "Expected more than 1 value per channel when training"
Weights = Mapping[str, Scalar]
Divide = Callable[[Weights], Weights]
"""From the weights of the terms of one pass, what the terms of the update are divided by."""


class PassContext:
    """The passes of one optimizer's updates: chooses how each is made, and adds up what they give."""

    def __init__(self, steps: Updates, name: str, objective: Objective, arena: Arena, buffers: Buffers) -> None:
        self.name, self.objective, self.arena, self.buffers = name, objective, arena, buffers
        self.guard, self.strategy = steps.guard, steps.strategy
        self.device = next(iter(arena.params)).device
        memory = None if self.strategy.joint else self.strategy.comm.memory  # joint ones take turns within a pass
        self.tapes = Tapes(steps.settings.tape, steps.model, objective, self.device, memory, arena)
        self.scales = steps.precision.scales
        """Whether gradients are scaled; an infinite one is then a sign that the scale is too high."""
        self.is_one_of_several = len(steps.optimizers) > 1
        """Whether other optimizers have some of the model's parameters."""
        self.is_sharing = False
        """Whether the workers have begun to add up the gradients of the update at hand."""
        self.model = steps.model
        self._steps, self._precision = steps, steps.precision
        self._context = steps.precision.context if steps.precision.halves else None
        self._getters = steps.getters if steps.scored == name else ()
        shared = self.strategy.shares_updates or self.strategy.parts or self.strategy.shards
        self.terms = SharedTerms(self.strategy, self.device) if shared else None
        """The terms of updates that workers share, or that are made of parts."""
        self.bad_workers = (lambda: "") if self.terms is None else self.terms.bad_workers
        self.stand_ins = steps.stand_ins
        self._seeds: dict[tuple[float, torch.dtype], Tensor] = {}

    @property
    def microbatch(self) -> int | None:
        """Rows that may pass the model at once; `None`: all."""
        return self._steps.microbatch

    @property
    def key(self) -> str:
        """Names the update at hand: the trainer's seed, the key of the optimizer, and how many were made before."""
        return f"{self._steps.settings.seed} {self.name} {self._steps.count}"

    @property
    def may_retry(self) -> bool:
        """Whether a pass is made again, in smaller parts, when memory runs out."""
        return self._steps.adapts

    def of(self, batch: Batch) -> Pass:
        """How the gradients of a batch are found."""
        rows = self._steps.microbatch
        if (rows is not None and batch.rows > rows) or batch.pieces:
            own: Pass = Split(self, rows or batch.rows)
        else:
            own = self.one_pass(batch, first=True) if batch.rows else Eager(self)
        return own if self.terms is None else SharedPass(self, own, self.terms)

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
            with torch.no_grad(), _untouched(self.buffers, self.device):
                found = [{name: term.weight for name, term in self.forward(part).items()} for part in parts]
        read = self.guard.read
        return [{name: read(weight) for name, weight in weights.items()} for weights in found]  # type: ignore[arg-type]


class Pass(ABC):
    """Finds the gradients of an update."""

    fills = False
    """Whether it writes every gradient, so that none has to be zero before."""
    repeats = False
    """Whether the next batch of the same macrobatch may use it again, if nobody has touched anything meanwhile."""
    calls_nobody = False
    """Whether it calls no code of the user's: the model's, the loss's."""
    draws = True
    """Whether it may draw random numbers."""

    def __init__(self, passes: PassContext) -> None:
        self._passes = passes
        self.doubts: Weights = {}
        """Numbers beside the losses and the gradients that have to be finite."""

    def __call__(self, batch: Batch, outcome: Outcome) -> Sequence[Tensor] | None:
        """The gradients of a batch, whose terms are added to the outcome; `None` if none of its rows counts."""
        self._passes.arena.begin(self.fills)
        if batch.rows:  # a worker may have none of a small batch
            self.add(batch, outcome)
        return None if self._passes.has_no_weight(outcome) else self._passes.arena.collect()

    @abstractmethod
    def add(
        self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Callable[[], None] | None = None
    ) -> None:
        """Adds the terms of a batch to the outcome, and its gradients to the arena's.

        `last` is called before the last forward pass.
        """


class Eager(Pass):
    """Forward and backward by torch; a pass of a `kind` is looked at, and may be recorded on a tape."""

    def __init__(self, passes: PassContext, kind: PassKind | None = None, first: bool = True) -> None:
        super().__init__(passes)
        self._kind, self._first = kind, first
        self.repeats = not passes.tapes.possible

    def add(
        self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Callable[[], None] | None = None
    ) -> None:
        if last is not None:
            last()
        if self._kind is None:
            self._pass(batch, outcome, divide)
            return
        self._passes.tapes.learn(
            self._kind,
            batch,
            self._first,
            lambda batch, tape, counts: self._pass(batch, outcome if counts else Outcome({}), divide, tape),
            lambda tape, batch: _replayed(self._passes, tape, batch, Outcome({}), divide)[0],
        )

    def _pass(
        self, part: Batch, outcome: Outcome, divide: Divide | None, recording: Recording | None = None
    ) -> Mapping[str, Term]:
        passes = self._passes
        with recording or nullcontext():
            terms = passes.forward(part)
            if recording is not None:
                recording.end_forward(terms, outputs_of(terms))
        seeds = passes.account(terms, [name for name, t in terms.items() if t.sum.requires_grad], outcome, divide)
        inputs = [p for p in passes.arena.params if p.requires_grad] if passes.is_one_of_several else None
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

    repeats = calls_nobody = True

    def __init__(self, passes: PassContext, kind: PassKind, tape: Tape) -> None:
        super().__init__(passes)
        self._kind, self._tape = kind, tape
        self.fills, self.draws = tape.fills, tape.random
        self._gradients: Sequence[Tensor] | None = None  # where all of them are, once that is known

    def __call__(self, batch: Batch, outcome: Outcome) -> Sequence[Tensor] | None:
        passes, seeds = self._passes, self._kind.seeds
        if self._gradients is None:
            passes.arena.begin(self.fills)
        elif not self.fills:
            for vector in passes.arena.vectors:
                vector.gradients.zero_()
        if seeds is None:
            self.add(batch, outcome)
        else:
            self._kind.replays += 1
            outcome.terms, outputs = self._tape.update(batch, seeds)
            if self._tape.shows:
                outcome.outputs.append((outputs, batch))
        if passes.has_no_weight(outcome):
            return None
        if self._gradients is None:
            self._gradients = passes.arena.collect()
        return self._gradients

    def add(
        self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Callable[[], None] | None = None
    ) -> None:
        if last is not None:
            last()
        self._kind.replays += 1
        _, seeds = _replayed(self._passes, self._tape, batch, outcome, divide)
        if not seeds and self.fills:
            self._passes.arena.begin()  # the gradients that the tape was to write are zero
        elif divide is None and not self._tape.weighed and not self._passes.scales:
            self._kind.seeds = seeds


def _replayed(
    passes: PassContext, tape: Tape, batch: Batch, outcome: Outcome, divide: Divide | None
) -> tuple[Mapping[str, Term], Sequence[Tensor]]:
    """Forward and backward from a tape: the terms, and what the backward pass began with."""
    terms = tape.forward(batch)
    seeds = list(passes.account(terms, tape.seeded, outcome, divide).values())
    if seeds:
        tape.backward(seeds)
    if tape.shows:
        outcome.outputs.append((terms.outputs, batch))
    return terms, seeds


class Split(Pass):
    """One pass for each microbatch, of at most so many rows. Their gradients add up."""

    def __init__(self, passes: PassContext, rows: int) -> None:
        super().__init__(passes)
        self._rows = rows

    def add(
        self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Callable[[], None] | None = None
    ) -> None:
        parts = batch.split(self._rows)
        totals = self._passes.totals(parts)
        divisors = totals if divide is None else divide(totals)
        for part in parts:
            one = self._passes.one_pass(part, first=not outcome.terms)
            one.add(part, outcome, lambda _: divisors, last if part is parts[-1] else None)


class SharedPass(Pass):
    """A pass over this worker's part of a batch; sums, weights and gradients become those of the whole batch."""

    def __init__(self, passes: PassContext, own: Pass, terms: SharedTerms) -> None:
        super().__init__(passes)
        self._own, self._terms = own, terms
        self.fills = own.fills

    def __call__(self, batch: Batch, outcome: Outcome) -> Sequence[Tensor] | None:
        passes, terms = self._passes, self._terms
        passes.arena.begin(self.fills and bool(batch.rows))
        self.add(batch, outcome)
        passes.strategy.comm.worked(batch.rows)
        numbers = terms.numbers(outcome, passes.guard.buffers(passes.buffers))

        def reduce(arena: Arena, reached: Sequence[bool]) -> Sequence[bool]:
            nonlocal numbers
            passes.is_sharing = True  # from here on the others count on this pass
            reached, numbers = passes.strategy.reduce(arena, reached, numbers)
            return reached

        gradients = passes.arena.collect(reduce)
        self.doubts = terms.settle(
            outcome, list(numbers) if numbers.is_cuda else numbers.tolist(), batch.total >= passes.strategy.comm.count
        )
        return None if passes.has_no_weight(outcome) else gradients

    def add(
        self, batch: Batch, outcome: Outcome, divide: Divide | None = None, last: Callable[[], None] | None = None
    ) -> None:
        self._terms.begin(batch)
        if not batch.rows:
            self._terms.divide({})
            return
        self._own.add(batch, outcome, self._terms.divide, None if self._passes.may_retry else self._listen)

    def _listen(self) -> None:
        """Gradients may travel as they become ready. A pass that may be made again keeps all to itself."""
        self._passes.strategy.listen(self._passes.arena)


def _backward(roots: Sequence[Tensor], seeds: Sequence[Tensor], inputs: Sequence[nn.Parameter] | None) -> None:
    """As `torch.autograd.backward`, whose look at seeds that are known to fit takes longer than a small layer."""
    if set(map(type, roots)) != {Tensor}:
        torch.autograd.backward(roots, seeds, inputs=inputs)
        return
    _engine_run_backward(
        tuple(roots), tuple(seeds), False, False, tuple(inputs or ()), allow_unreachable=True, accumulate_grad=True
    )


@contextmanager
def _untouched(buffers: Buffers, device: torch.device) -> Iterator[None]:
    """Random state and buffers afterwards as before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    buffers.restore()
