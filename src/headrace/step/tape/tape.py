"""A recorded pass, to be run for other batches."""

from collections.abc import Sequence
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

    def __init__(self, program: Program, names: Sequence[str], seeded: Sequence[str], terms: Terms) -> None:
        self.program, self._names, self.seeded = program, names, seeded
        self._terms = [(name, term.weight, term.coefficient, term.times, term.counts) for name, term in terms.items()]
        self._weighed = [k for k, (_, weight, *_) in enumerate(self._terms) if isinstance(weight, Tensor)]
        self._leaves, self._form = tree_flatten(terms.outputs)
        self._single = isinstance(terms.outputs, Tensor)
        self._run: Any = None

    def forward(self, part: Batch) -> Terms:
        """The terms of a batch; their sums are overwritten by the next pass."""
        fields = part.fields
        self._run = self.program.run(*[fields[name] for name in self._names])
        with _Below():
            values = next(self._run)
        sums, weighed = iter(values), dict(zip(self._weighed, values[len(self._terms) :], strict=False))
        terms = Terms()
        for k, (name, weight, *rest) in enumerate(self._terms):
            terms[name] = Term(next(sums), weighed.get(k, weight), *rest)
        outputs = values[len(self._terms) + len(weighed) :]
        if self._single:
            terms.outputs = outputs[0]
        else:
            left = iter(outputs)
            leaves = [next(left) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
            terms.outputs = tree_unflatten(leaves, self._form)
        return terms

    def backward(self, seeds: Sequence[Tensor]) -> None:
        """Adds the gradients of the last forward pass, from what each seeded term begins with."""
        with _Below():
            self._run.send(seeds)
