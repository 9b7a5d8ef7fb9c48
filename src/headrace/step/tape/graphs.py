"""A pass on a GPU, captured as two CUDA graphs: the forward pass, and the backward pass."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ...data.batch import Batch
from ...loss.base import Term
from ...loss.objective import Terms
from .tape import Tape, outputs_of


def captures(device: torch.device) -> bool:
    """Whether passes on a device are captured as CUDA graphs, where they are recorded elsewhere."""
    return device.type == "cuda"


def capture(work: Callable[[], None], pool: Any) -> tuple[Callable[[], None], Any]:
    """What makes the same kernels run again on the same memory, and the pool of memory that they share.

    Nothing is computed by the capture itself.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads copy batches meanwhile
        work()
    return graph.replay, graph.pool()


class GraphTape(Tape):
    """A pass of a model on a GPU: a batch is copied to where the captured one was, and its kernels run again.

    `run` makes the forward pass. `params` are those whose gradients the backward pass adds up, of `seeded` terms.
    """

    fills, random = False, True

    def __init__(
        self,
        part: Batch,
        run: Callable[[Batch], Mapping[str, Term]],
        seeded: Sequence[str],
        params: Sequence[nn.Parameter],
    ) -> None:
        self._fields = {name: field.clone() for name, field in part.fields.items() if isinstance(field, Tensor)}
        self._batch = Batch(self._fields, part.rows, total=part.total, share=part._share)
        self._batch.whole = part.whole
        self._run, self._params, self.seeded = run, params, seeded
        self._found: Sequence[Tensor | None] = ()
        self._replay, pool = capture(self._run_forward, None)
        self.shows = isinstance(self._made, Terms)
        self.weighed = any(isinstance(term.weight, Tensor) for term in self._made.values())
        self._seeds = [torch.zeros_like(self._made[name].sum) for name in seeded]
        if seeded:
            self._replay_backward, _ = capture(self._run_backward, pool)

    def _run_forward(self) -> None:
        self._made = self._run(self._batch)

    def _run_backward(self) -> None:
        sums = [self._made[name].sum for name in self.seeded]
        self._found = torch.autograd.grad(sums, self._params, self._seeds, allow_unused=True)

    def forward(self, part: Batch) -> Terms:
        for name, field in self._fields.items():
            field.copy_(part[name])
        self._replay()
        terms = Terms()
        for name, term in self._made.items():
            terms[name] = replace(term, sum=term.sum.detach(), weight=_copied(term.weight))
        terms.outputs = tree_map(_copied, outputs_of(self._made))
        return terms

    def backward(self, seeds: Sequence[Tensor]) -> None:
        for given, seed in zip(self._seeds, seeds, strict=True):
            given.copy_(seed)
        self._replay_backward()
        held, added = [], []
        for param, found in zip(self._params, self._found, strict=True):
            if param.grad is not None and found is not None:
                held.append(param.grad)
                added.append(found)
        with torch.no_grad():
            torch._foreach_add_(held, added)

    def outputs(self, batch: Batch) -> Any:
        return self.forward(batch).outputs


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
