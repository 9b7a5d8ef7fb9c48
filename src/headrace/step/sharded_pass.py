"""The passes of an update whose parameters are sharded: all workers make equally many, as each needs all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..loss.outcome import Outcome
from .passes import Divide, Eager, Last, SharedPass
from .shared_terms import SharedTerms

if TYPE_CHECKING:
    from .update import Update


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
    with unchanged(update.model, update.device):
        found = update.forward(part)
        divisors = divide({})
        sums = [
            term.sum
            for name, term in found.items()
            if term.coefficient and term.sum.requires_grad and divisors.get(name)
        ]
        if sums:
            torch.autograd.backward(sums, [torch.zeros_like(each) for each in sums])


@contextmanager
def unchanged(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Buffers and random state afterwards as before."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, value in before:
            buffer.copy_(value)
