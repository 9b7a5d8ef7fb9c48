"""The pass of a batch that is cut into parts: the same bits, however many workers share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..data.batch import Batch
from ..errors import ConfigError, ModelError
from ..loss.objective import module_of
from ..loss.outcome import Outcome
from ..store import rng
from ..workers.comm import largest
from ..workers.synchronous import Reach, refuse_sparse
from ..workers.tree import Node, WorkerTree, is_part, tree_sum
from .check import fits_parts
from .passes import Pass, Weights
from .settings import is_compiled
from .shared_terms import SharedTerms

if TYPE_CHECKING:
    from .update import Update


@dataclass(slots=True, eq=False)
class _Sum:
    """What a subtree of parts gives: gradients as the arena stores them, then the changes of buffers."""

    tensors: list[Tensor]
    may_have_signs: bool = False
    """Whether there may be zeros with a sign, which depends on how a pass was made."""


class Parts(Pass):
    """One pass for each of this worker's parts. Sums, weights, gradients and buffers are added up in a fixed tree."""

    def __init__(self, update: Update, terms: SharedTerms) -> None:
        super().__init__(update)
        self._terms, self._comm, self._shard = terms, update.strategy.comm, update.strategy.shard
        self._arena, self._buffers, self._device = update.arena, update.buffers, update.device
        self._reach = Reach(update.arena, self._comm.count)
        self._tree = WorkerTree(self._comm, self._shard)
        self._everyone = [replace(self._shard, index=worker).mine for worker in range(self._comm.count)]
        self._buffer_names = [name for name, _ in update.model.named_buffers()]
        self._objective = module_of(update.objective)
        check_can_be_cut(update.model, self._objective)
        self._spare: list[list[Tensor]] = []  # memory for sums, from update to update
        self._live: _Sum | None = None  # the one whose gradients are in the arena's own memory
        self._last = 0  # the last part of this worker that has rows
        self._each: dict[int, Outcome] = {}
        self._reached: list[bool] = []  # which parameters the parts of this worker have reached
        self._random: dict[str, Any] | None = None  # where the generators stood, once a part has moved them
        self._counted: Tensor | None = None  # by how much they have moved the counters among the buffers, at most

    def __call__(self, batch: Batch, outcome: Outcome) -> Sequence[Tensor] | None:
        parts = {part.part: part for part in self._shard.parts_of(batch)}
        fits_parts(self._update.steps.microbatch, batch.total, self._shard.parts)
        cuts = self._shard.cuts(batch.total)
        self._terms.begin(batch)
        divisors = self._divisors(parts, cuts)
        self._live, self._counted, self._each, self._reached = None, None, {}, []
        self._last = max(parts, default=0)

        def computed(node: Node) -> _Sum | None:
            return self._compute(parts[node[0]], divisors) if node[0] in parts else None

        self._random, versions = None, self._versions()
        try:
            found = {node: tree_sum(node, computed, is_part, self._add) for node in self._tree.nodes}
        finally:
            if self._random is not None:
                rng.restore(self._random, self._device)
        if self._live is not None and self._live.may_have_signs:
            torch._foreach_add_(self._live.tensors, 0.0)
        sums = {node: each.tensors for node, each in found.items() if each is not None}
        self._check_objective(versions)
        if self._comm.count > 1:
            self._comm.worked(batch.rows)
        reached = self._add_terms(outcome, cuts)
        gradients = self._add_vectors(sums, cuts)
        return None if self._update.has_no_weight(outcome) else self._arena.settle(gradients, reached)

    def add(self, batch: Batch, outcome: Outcome, divide: Any = None, last: Any = None) -> None:
        raise NotImplementedError("a batch that is cut into parts is no part of another")

    def _versions(self) -> dict[str, int]:
        return {} if self._objective is None else {n: b._version for n, b in self._objective.named_buffers()}

    def _check_objective(self, versions: Mapping[str, int]) -> None:
        """Raises if the parts of a batch have changed buffers of the loss, which are not added up."""
        if changed := [name for name, version in self._versions().items() if version != versions.get(name)]:
            raise ModelError(
                f"the loss changes its buffer {changed[0]!r} in every update. Where a batch is cut into parts, only "
                "buffers of the model may change: make the loss a part of the model, or leave parts= out."
            )

    # --- what this worker computes ------------------------------------------------------------------------

    def _compute(self, part: Batch, divisors: Weights) -> _Sum:
        """The pass of one part."""
        update, arena = self._update, self._arena
        if self._live is not None:
            self._live.tensors = self._copy(self._live.tensors)
        one = update.one_pass(part, first=True)
        if one.draws:
            self._random = self._random or rng.capture(self._device)
            rng.seed(f"{update.key} {part.part}", self._device)
        outcome = self._each[part.part] = Outcome({})
        arena.begin(one.fills)
        before = None if one.calls_no_user_code else self._parameter_versions()
        one.add(part, outcome, lambda _: divisors)
        if before is not None:
            self._check_model(before)
            refuse_sparse(arena)
        reached = arena.reached()
        self._reached = [a or b for a, b in zip(self._reached or reached, reached, strict=True)]
        self._live = _Sum(arena.gradients(), may_have_signs=True)
        if self._buffers.exist:
            growth, counted = self._buffers.take_growth()
            self._live.tensors.append(growth * part.rows)
            self._counted = counted if self._counted is None else torch.maximum(self._counted, counted)
        return self._live

    def _parameter_versions(self) -> list[int]:
        objective = [] if self._objective is None else self._objective.parameters()
        return [param._version for param in [*self._update.model.parameters(), *objective]]

    def _check_model(self, versions: list[int]) -> None:
        """Raises if a pass has changed parameters, or made buffers: the next part would begin with them."""
        if self._parameter_versions() != versions:
            raise ModelError(
                "the forward pass changes parameters of the model or the loss. Where a batch is cut into parts, only "
                "the optimizer may: keep what is measured in buffers, or leave parts= out."
            )
        names = [name for name, _ in self._update.model.named_buffers()]
        if names != self._buffer_names:
            changed = sorted({*names} ^ {*self._buffer_names})[0]
            raise ModelError(
                f"the forward pass makes or removes the buffer {changed!r}. Where a batch is cut into parts, all have "
                "to be there before: call the model once, or register them in __init__."
            )

    def _add(self, left: _Sum, right: _Sum) -> _Sum:
        """The sum, where `left` is, or in the arena's memory if no other part needs that."""
        in_arena = right is self._live
        into, other = (right, left) if in_arena and self._last in self._each else (left, right)
        torch._foreach_add_(into.tensors, other.tensors)  # a zero on the left has no sign, nor has their sum then
        into.may_have_signs = False
        if other is self._live:
            self._live = None
        else:
            self._spare.append(other.tensors)
        return into

    def _copy(self, tensors: list[Tensor]) -> list[Tensor]:
        copy = self._spare.pop() if self._spare else []
        if [tensor.shape for tensor in copy] != [tensor.shape for tensor in tensors]:
            copy = [torch.empty_like(tensor) for tensor in tensors]
        for here, there in zip(tensors, copy, strict=True):
            torch.add(here, 0.0, out=there)
        return copy

    # --- what all workers have computed -------------------------------------------------------------------

    def _divisors(self, parts: Mapping[int, Batch], cuts: Sequence[int]) -> Weights:
        """What the terms are divided by: the weights of all parts of all workers."""

        def add_up(rows: Mapping[int, Weights]) -> dict[str, Any]:
            names = self._terms.names
            numbers = {part: [weights[name] for name in names] for part, weights in rows.items()}
            return dict(zip(names, self._tree.numbers(numbers, len(names), cuts, self._device), strict=True))

        weights: dict[int, Weights] = {}
        standing = None
        for number, part in parts.items():
            known = self._update.objective.weights(part)
            if (
                not known or None in known.values()
            ):  # a forward pass tells them, which draws what that of the part draws
                standing = standing or rng.capture(self._device)
                rng.seed(f"{self._update.key} {number}", self._device)
            weights[number] = self._update.totals([part])
        if standing is not None:
            rng.restore(standing, self._device)
        return self._terms.divide_parts(weights, add_up)

    def _add_terms(self, outcome: Outcome, cuts: Sequence[int]) -> list[bool]:
        """The terms of the outcome become those of the whole batch; its outputs stay those of this worker.

        Which parameters any part of any worker has reached travels in the same message.
        """
        terms, count = self._terms, len(self._terms.names)
        rows = {number: terms.sums(each, 0.0) for number, each in self._each.items()}
        for each in self._each.values():
            outcome.terms = outcome.terms or each.terms
            outcome.outputs += each.outputs
        everyone = all(cuts[each.start] < cuts[each.stop] for each in self._everyone)
        reached = self._reached or [False] * len(self._arena.names)
        flags = None
        if self._comm.count > 1:
            self._update.is_sharing = True  # from here on the others count on this pass
            flags = self._reach.flags(reached, torch.empty(0, dtype=torch.float64)).clone()
        terms.settle(outcome, self._tree.numbers(rows, count, cuts, self._device, flags), everyone)
        return reached if flags is None else self._reach.anywhere(flags)

    def _add_vectors(self, sums: Mapping[Node, list[Tensor]], cuts: Sequence[int]) -> list[Tensor]:
        """Gradients become those of the whole batch, which are returned, and buffers what all parts make of them."""
        gradients = self._arena.gradients()
        if not self._buffers.exist:
            self._tree.vectors(sums, gradients, cuts)
        else:
            growth, none = self._buffers.take_growth()  # of nothing: this gives their forms
            counted = torch.full_like(none, torch.iinfo(none.dtype).min) if self._counted is None else self._counted
            self._tree.vectors(sums, [*gradients, growth], cuts)
            largest(self._comm, [counted])
            self._buffers.grow(growth / cuts[-1], counted)
        self._spare += [each for each in sums.values() if self._live is None or each is not self._live.tensors]
        return gradients


def check_can_be_cut(model: nn.Module, objective: nn.Module | None) -> None:
    """Raises if the bits of a pass are known to depend on more than its rows, the weights and the random numbers."""
    if any(map(is_compiled, model.modules())):
        raise ConfigError(
            "a compiled model chooses its kernels by the shapes that it has met before, which differ from worker to "
            "worker: parts= cannot give the same bits. Leave compile= out, or parts=.",
            argument="parts",
        )
    for name, module in objective.named_modules() if objective is not None and objective is not model else ():
        if isinstance(module, _NormBase) and module.track_running_stats:
            raise ConfigError(
                f"the loss measures statistics of its rows, in {name or type(module).__name__!r}. Where a batch is cut "
                "into parts, only the model may: make the loss a part of the model, or leave parts= out.",
                argument="parts",
            )
