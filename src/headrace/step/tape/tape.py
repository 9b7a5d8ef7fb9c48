"""A recorded pass, to be run for other batches, and what a pass changes, to compare two passes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...arena.arena import Arena
from ...data.batch import Batch
from ...loss.base import Term
from ...loss.objective import Terms
from ...store.rng import capture_torch, restore_torch
from .program import Program
from .state import PassState

_Below = torch._C._AutoDispatchBelowAutograd


class Tape:
    """A recorded pass: what `forward` and `backward` do for batches like one that was seen."""

    def __init__(
        self,
        program: Program,
        state: PassState,
        names: Sequence[str],
        seeded: Sequence[str],
        terms: Mapping[str, Term],
        fills: bool,
    ) -> None:
        self.program, self.state, self._names, self.seeded = program, state, names, seeded
        self.seeds: Sequence[Tensor] | None = None
        """What the backward pass begins with, if all batches have the same."""
        self._terms = [(name, t.weight, (t.coefficient, t.times, t.counts, t.summed)) for name, t in terms.items()]
        self.weighed = any(isinstance(weight, Tensor) for _, weight, *_ in self._terms)
        """Whether a batch has to be looked at for the weight of a term: of one, if at all."""
        self.draws = program.random
        """Whether it draws random numbers."""
        self.fills = fills
        """Whether it writes every gradient that is stored in a vector, whatever stood there."""
        self.shows = isinstance(terms, Terms)
        """Whether it gives what the model returns."""
        outputs = outputs_of(terms)
        leaves, self._form = tree_flatten(outputs)
        self._leaves = [Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves]  # itself it has a graph
        self._single = isinstance(outputs, Tensor)
        self._kept: tuple[Any, ...] = ()  # of the last forward pass

    def forward(self, part: Batch) -> Terms:
        """The terms of a batch; their sums are overwritten by the next pass."""
        values, self._kept = self._values(part)
        return self._shown(values)

    def backward(self, seeds: Sequence[Tensor]) -> None:
        """Adds the gradients of the last forward pass, from what each seeded term begins with."""
        kept, self._kept = self._kept, ()
        with _Below():
            self.program.backward(seeds, *kept)

    def outputs(self, batch: Batch) -> Any:
        """What the model returns for a batch."""
        return self._outputs(self._values(batch)[0])

    def update(self, part: Batch, seeds: Sequence[Tensor]) -> tuple[dict[str, Term], Any]:
        """Forward and backward at once, where the batch changes no seed: the terms as numbers, and the outputs."""
        fields = part.fields
        with _Below():
            values = self.program.update(seeds, *[fields[name] for name in self._names])
        terms = {
            name: Term(float(value) * times, weight, coefficient, counts=counts, summed=summed)
            for (name, weight, (coefficient, times, counts, summed)), value in zip(self._terms, values, strict=False)
        }
        return terms, self._outputs(values)

    def _values(self, part: Batch) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What the forward pass gives, and what the backward pass needs of it."""
        fields = part.fields
        with _Below():
            return self.program.forward(*[fields[name] for name in self._names])

    def _shown(self, values: Sequence[Any]) -> Terms:
        """What a forward pass gives, by name."""
        terms, count = Terms(), len(self._terms)
        for k, (name, weight, facts) in enumerate(self._terms):
            if self.weighed:
                weight = values[count]
            terms[name] = Term(values[k], weight, *facts)
        terms.outputs = self._outputs(values)
        return terms

    def _outputs(self, values: Sequence[Any]) -> Any:
        """What the model returns, as its objective shows it."""
        if self._single:
            return values[-1]
        left = iter(values[len(self._terms) + self.weighed :])
        return tree_unflatten([next(left) if leaf is Tensor else leaf for leaf in self._leaves], self._form)


@dataclass(eq=False, slots=True)
class PassKind:
    """Passes alike: those of batches with the same streams and shapes."""

    seen: int = 0
    tape: Tape | None = None
    refused: bool = False
    due: bool = True
    """Whether a replay is to be compared with a pass by torch before the next one counts."""
    replays: int = 0
    rests: bool = False
    """Whether the next pass is torch's: the only one of an epoch would be compared each time, and never replayed."""
    seen_before: int = 0
    """How many passes were seen before this epoch."""
    eager_s: float = math.inf
    replay_s: float = math.inf

    def forget(self) -> None:
        """The recording is of no use any more."""
        self.tape, self.due, self.rests = None, True, False
        self.seen = self.seen_before = self.replays = 0
        self.eager_s = self.replay_s = math.inf


def outputs_of(terms: Mapping[str, Term]) -> Any:
    """What the model has returned, as far as its objective shows it."""
    return terms.outputs if isinstance(terms, Terms) else None


class Snapshot:
    """What a pass changes, as it is now: gradients, buffers and random numbers; and what it must not change."""

    def __init__(
        self, model: nn.Module, arena: Arena | None, device: torch.device, others: Sequence[Tensor] = ()
    ) -> None:
        self._device = device
        self._others = [(tensor, tensor.detach().clone()) for tensor in others]
        self._tensors = [vector.gradients for vector in arena.vectors] if arena is not None else []
        if arena is not None:
            own = set(map(id, arena.params))
            self._tensors += [p.grad for p in model.parameters() if p.grad is not None and id(p) not in own]
        self._tensors += [buffer for buffer in model.buffers() if torch._debug_has_internal_overlap(buffer) != 1]
        self._copies = [tensor.detach().clone() for tensor in self._tensors]
        self._random = capture_torch(device)

    def restore(self, random: bool) -> None:
        """Everything is again as it was; random numbers only if a pass draws them: other threads draw them, too."""
        for tensor, copy in self._others:
            if not same_bits(tensor, copy):
                tensor.data.copy_(copy)
        with torch.no_grad():
            for tensor, copy in zip(self._tensors, self._copies, strict=True):
                tensor.copy_(copy)
        if random:
            restore_torch(self._random, self._device)

    def equals(self, other: "Snapshot") -> bool:
        """Whether gradients and buffers are the same to the bit."""
        return all(map(same_bits, self._copies, other._copies))

    def drew_as(self, other: "Snapshot") -> bool:
        """Whether the next random number is the same."""
        return all(torch.equal(state, other._random[name]) for name, state in self._random.items())


def same_terms(terms: Mapping[str, Term], again: Mapping[str, Term]) -> bool:
    """Whether two passes have given the same."""
    if terms.keys() != again.keys():
        return False
    numbers = [(a.sum, b.sum) for a, b in zip(terms.values(), again.values(), strict=True)]
    numbers += [(a.weight, b.weight) for a, b in zip(terms.values(), again.values(), strict=True)]
    outputs = zip(tree_flatten(outputs_of(terms))[0], tree_flatten(outputs_of(again))[0], strict=True)
    return all(same_bits(a, b) if isinstance(a, Tensor) else a == b for a, b in [*numbers, *outputs])


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors hold the same, NaN included."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a, b) or (
        a.is_floating_point() and torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())
    )
