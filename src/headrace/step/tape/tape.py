"""A recorded pass, to be run for other batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...data.batch import Batch
from ...loss.base import Term
from ...loss.objective import Terms
from .program import Program

_Below = torch._C._AutoDispatchBelowAutograd


class Tape:
    """A recorded pass: what `forward` and `backward` do for batches like one that was seen."""

    def __init__(
        self, program: Program, names: Sequence[str], seeded: Sequence[str], terms: Mapping[str, Term], fills: bool
    ) -> None:
        self.program, self._names, self.seeded = program, names, seeded
        self._terms = [(name, t.weight, (t.coefficient, t.times, t.counts, t.summed)) for name, t in terms.items()]
        self._weighed = any(isinstance(weight, Tensor) for _, weight, *_ in self._terms)  # of one term, if at all
        self.fills = fills
        """Whether it writes every gradient that is stored in a vector, whatever stood there."""
        self.shows = isinstance(terms, Terms)
        """Whether it gives what the model returns."""
        outputs = outputs_of(terms)
        self._leaves, self._form = tree_flatten(outputs)
        self._single = isinstance(outputs, Tensor)
        self._kept: tuple[Any, ...] = ()  # of the last forward pass

    def forward(self, part: Batch) -> Terms:
        """The terms of a batch; their sums are overwritten by the next pass."""
        fields = part.fields
        with _Below():
            values, self._kept = self.program.forward(*[fields[name] for name in self._names])
        terms, count = Terms(), len(self._terms)
        for k, (name, weight, facts) in enumerate(self._terms):
            if self._weighed:
                weight = values[count]
            terms[name] = Term(values[k], weight, *facts)
        if self._single:
            terms.outputs = values[-1]
        else:
            left = iter(values[count + self._weighed :])
            leaves = [next(left) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
            terms.outputs = tree_unflatten(leaves, self._form)
        return terms

    def backward(self, seeds: Sequence[Tensor]) -> None:
        """Adds the gradients of the last forward pass, from what each seeded term begins with."""
        kept, self._kept = self._kept, ()
        with _Below():
            self.program.backward(seeds, *kept)


def outputs_of(terms: Mapping[str, Term]) -> Any:
    """What the model has returned, as far as its objective shows it."""
    return terms.outputs if isinstance(terms, Terms) else None
