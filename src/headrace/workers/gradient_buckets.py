"""Sums gradients over workers: in one message, or, for large models, in parts that leave as they become ready."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..arena.arena import Arena
from ..arena.vectors import Slot, Vector
from .comm import Comm, Pending

CHUNK_BYTES = 4 << 20
OVERLAP_BYTES = 8 << 20  # smaller vectors travel whole, after the backward pass


@dataclass(slots=True)
class _Chunk:
    """A stretch of a vector that travels by itself; `left` counts its parameters that are not ready yet."""

    vector: Tensor
    slots: list[Slot]
    left: int = 0
    sent: tuple[Pending, Tensor] | None = field(default=None)


class GradientBuckets:
    """The messages of one arena. Every worker sends the same ones in the same order: the last parameters first.

    Numbers that are to be added up too travel with the first parameters, right before them, where their format is one
    for numbers.
    """

    def __init__(self, arena: Arena, comm: Comm, compressed: torch.dtype | None) -> None:
        self.arena, self._comm, self._compressed = arena, comm, compressed
        self._chunks = [chunk for vector in reversed(arena.vectors) for chunk in _cut(vector, comm.overlaps)]
        self._next, self._listening = 0, False
        overlaps = len(self._chunks) > len(arena.vectors)
        self._hooks = [
            slot.param.register_post_accumulate_grad_hook(self._hook(slot, chunk))
            for chunk in (self._chunks if overlaps else [])
            for slot in chunk.slots
            if slot.param.requires_grad
        ]
        first = arena.vectors[0] if arena.vectors else None
        carries = first is not None and first.room.dtype in (torch.float32, torch.float64) and compressed is None
        self._carrier = first if carries else None

    def listen(self) -> None:
        """What becomes ready from now on may travel at once."""
        if self._hooks and self.arena.proven:
            self._listening = True
            for chunk in self._chunks:
                chunk.left = sum(slot.param.requires_grad for slot in chunk.slots)

    def finish(self, numbers: Tensor) -> Tensor:
        """Sends what has not been sent, and waits; the sums of the numbers over all workers."""
        self._listening = False
        tail = self._before_first(numbers)
        for chunk in self._chunks[self._next :]:
            self._send(chunk, tail if chunk is self._chunks[-1] else None)
        if tail is None:
            tail = numbers.clone()
            self._comm.all_reduce(tail)
        loose = self._loose()
        for chunk in self._chunks:
            assert chunk.sent is not None
            pending, message = chunk.sent
            pending.wait()
            if message.dtype != chunk.vector.dtype:  # it was compressed
                chunk.vector.copy_(message)
            chunk.sent = None
        self._next = 0
        for params, message in loose:
            for param, part in zip(params, message.split([param.numel() for param in params]), strict=True):
                if param.grad is None:
                    param.grad = torch.empty_like(param)
                param.grad.copy_(part.view(param.shape))
        return tail.to(numbers.dtype, copy=True)

    def forget(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _send(self, chunk: _Chunk, tail: Tensor | None) -> None:
        message = chunk.vector
        if tail is not None:
            message = tail.as_strided((len(tail) + len(message),), (1,))
        elif self._compressed is not None and message.dtype in (torch.float32, torch.float64):
            message = message.to(self._compressed)
        chunk.sent = self._comm.start(message), message
        self._next += 1

    def _before_first(self, numbers: Tensor) -> Tensor | None:
        """The numbers, written right before the gradients that travel last, if there is room for them."""
        if self._carrier is None:
            return None
        start = len(self._carrier.room) - len(self._carrier.gradients)
        if len(numbers) > start:
            return None
        place = self._carrier.room[start - len(numbers) : start]
        place.copy_(numbers)
        return place

    def _hook(self, slot: Slot, chunk: _Chunk) -> Callable[[nn.Parameter], None]:
        def ready(param: nn.Parameter) -> None:
            if not self._listening:
                return
            if param.grad is not slot.gradient:  # somebody has put another there: it is copied first
                self._listening = False
                return
            chunk.left -= 1
            while self._next < len(self._chunks) - 1 and self._chunks[self._next].left == 0:
                self._send(self._chunks[self._next], None)

        return ready

    def _loose(self) -> list[tuple[list[nn.Parameter], Tensor]]:
        """Gradients that are in no vector, added up, together where they are alike."""
        alike: dict[Any, list[nn.Parameter]] = {}
        for param in self.arena.loose:
            if param.requires_grad:
                alike.setdefault((param.dtype, param.device), []).append(param)
        found = []
        for params in alike.values():
            parts = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
            message = torch.cat([part.detach().reshape(-1) for part in parts])
            self._comm.all_reduce(message)
            found.append((params, message))
        return found


def _cut(vector: Vector, overlaps: bool) -> list[_Chunk]:
    """The chunks of a vector, the last one first; the one at its end is the first that becomes ready."""
    size = vector.gradients.element_size()
    if not overlaps or len(vector.gradients) * size < OVERLAP_BYTES:
        return [_Chunk(vector.gradients, list(vector.slots))]
    found: list[_Chunk] = []
    slots: list[Slot] = []
    stop = len(vector.gradients)
    for slot in reversed(vector.slots):
        slots.append(slot)
        if (stop - slot.start) * size >= CHUNK_BYTES or slot is vector.slots[0]:
            found.append(_Chunk(vector.gradients[slot.start : stop], slots))
            slots, stop = [], slot.start
    return found
