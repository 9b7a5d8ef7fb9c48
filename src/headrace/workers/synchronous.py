"""Synchronous training: the workers share one batch, add up their gradients and make the same update."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..arena.arena import Arena
from ..arena.replica import Replica
from ..arena.vectors import Slot, Vector
from ..errors import ConfigError, ModelError, unknown
from ..length import as_count
from .comm import Comm, mean
from .here import here
from .strategy import Single, Strategy

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Synchronous(Strategy):
    """g = Σᵢ gᵢ: any number of workers makes the update that one worker would make from the complete batch.

    Gradients of large models are sent in chunks while the backward pass still computes others. `compress`, "bf16" or
    "fp16", halves the number of bytes: gradients are rounded to this format.

    `parts` divides every batch into this many consecutive parts. Each part is computed separately, like a microbatch,
    and the sums are added up in one fixed tree. Any number of workers up to `parts` then makes the same update, bit for
    bit, on processors of one kind with equally many threads. Each part begins with the buffers from before the update,
    and its random numbers are keyed by the trainer's seed, the step and the part.

    If a worker is lost, the others end. The training can be resumed from the last checkpoint.
    """

    joint: ClassVar[bool] = True

    def __init__(self, *, compress: Literal["bf16", "fp16"] | None = None, parts: int | None = None) -> None:
        if parts is not None and not (as_count(parts) or 0) >= 2:
            raise ConfigError(f"parts= is a whole number from 2 on, as in parts=8; got {parts!r}.", argument="parts")
        if parts is not None and compress is not None:
            raise ConfigError(
                "compress= rounds what each worker sends, so that the bits depend on the number of workers: it does "
                "not go with parts=. Leave one of them out.",
                argument="compress",
            )
        self.parts = parts or 0
        if compress is not None and compress not in _FORMATS:
            raise ConfigError(unknown("compress", compress, _FORMATS))
        self.compress = compress
        self._format = None if compress is None else _FORMATS[compress]
        self._chunks: dict[int, GradientBuckets] = {}

    def join(self, comm: Comm) -> None:
        super().join(comm)
        self._chunks = {}
        if self.parts and comm.count > self.parts:
            raise ConfigError(
                f"{comm.count} workers cannot share {self.parts} parts: each needs one at least. Start at most "
                f"{self.parts} workers, or train with parts={comm.count} or more from the beginning: the bits of a "
                "training belong to its number of parts.",
                argument="parts",
            )

    def release(self) -> None:
        for chunks in self._chunks.values():
            chunks.forget()
        self._chunks = {}

    def listen(self, arena: Arena) -> None:
        self._of(arena).listen()

    def reduce(self, arena: Arena, reached: Sequence[bool], numbers: Tensor) -> tuple[Sequence[bool], Tensor]:
        refuse_sparse(arena)
        buckets = self._of(arena)
        sums = buckets.finish(torch.cat([numbers, buckets.reach.flags(reached, numbers)]))
        reached_anywhere = buckets.reach.anywhere(sums[len(numbers) :])
        for param, hit in zip(arena.loose, reached_anywhere[len(reached_anywhere) - len(arena.loose) :], strict=True):
            param.grad = param.grad if hit else None
        return reached_anywhere, sums[: len(numbers)]

    def consensus(self, replica: Replica) -> list[Tensor]:
        """Weights are the same everywhere; of what the workers have measured of their rows, the mean."""
        if self.parts:  # what they have measured is the same, too
            return replica.tensors
        return [*replica.values, *mean(self.comm, replica.statistics, 1)]

    def _of(self, arena: Arena) -> "GradientBuckets":
        """The messages of an arena; those of arenas that are no more are forgotten."""
        buckets = self._chunks.get(id(arena))
        if buckets is None or buckets.arena is not arena:
            for key in [key for key, other in self._chunks.items() if other.arena.optimizer is arena.optimizer]:
                self._chunks.pop(key).forget()
            buckets = self._chunks[id(arena)] = GradientBuckets(arena, self.comm, self._format)
        return buckets


def join(strategy: Strategy | None) -> Strategy:
    """The strategy, on this worker; without one, several workers share every update."""
    comm = here()
    if strategy is None:
        strategy = Single() if comm.count == 1 else Synchronous()
    if not isinstance(strategy, Strategy):
        what = f"the class {strategy.__name__}" if isinstance(strategy, type) else f"a {type(strategy).__name__}"
        raise ConfigError(
            f"strategy= takes a Strategy, as in hr.Periodic(every='1 epoch'), got {what}.", argument="strategy"
        )
    other = strategy.comm
    if comm.turns is not None and comm.turns is other.turns and comm is not other:
        who = f"virtual workers {other.shard.index} and {comm.shard.index}"
        raise ConfigError(
            f"{who} have the same {type(strategy).__name__} object, and each needs its own: make it in the "
            "function that launch calls, or pass it to launch as an argument, which is copied for every worker.",
            argument="strategy",
        )
    strategy.join(comm)
    return strategy


def refuse_sparse(arena: Arena) -> None:
    """Raises after a backward pass that has given sparse gradients."""
    for param in arena.params:
        if param.grad is not None and param.grad.is_sparse:
            raise ModelError(
                f"{arena.names[param]!r} has sparse gradients, which workers cannot add up. Make it with "
                "sparse=False, or use a strategy of local updates, as Periodic."
            )


CHUNK_BYTES = 4 << 20
OVERLAP_BYTES = 8 << 20  # smaller vectors travel whole, after the backward pass


@dataclass(slots=True)
class _Chunk:
    """A stretch of a vector that travels by itself; `not_ready` counts its parameters that have no gradient yet."""

    vector: Tensor
    slots: list[Slot]
    not_ready: int = 0
    sent: tuple[Callable[[], object], Tensor] | None = field(default=None)


class Reach:
    """Finds out which parameters of an arena have gradients on any worker: the others are not updated.

    In each update the workers add up one number for each parameter. Reading the sums waits for the device, so a worker
    reads them only if it has to: if a parameter that is not frozen has no gradient on it, or if it has frozen or thawed
    a parameter since it read them last. Then it also finds out whether the other workers have done the same.
    """

    def __init__(self, arena: Arena, workers: int) -> None:
        self._arena, self._workers = arena, workers
        self._here: list[bool] = []
        self._frozen: list[bool] = []  # not reached, as it needs no gradient
        self._compared: list[bool] = []  # what was frozen when the sums were last looked at
        self._flags = torch.empty(0)

    def flags(self, reached: Sequence[bool], numbers: Tensor) -> Tensor:
        """The numbers that the workers add up, of the type and on the device of `numbers`.

        1 for a parameter that has a gradient, else 0; for a frozen one, more than the ones of all workers together.
        """
        here, frozen = list(reached), [False] * len(reached)
        if not all(here):
            frozen = [not (hit or param.requires_grad) for hit, param in zip(here, self._params(), strict=True)]
        if (here, frozen) != (self._here, self._frozen):
            self._here, self._frozen = here, frozen
            flags = [1 + self._workers if rests else int(hit) for hit, rests in zip(here, frozen, strict=True)]
            self._flags = torch.tensor(flags, dtype=numbers.dtype, device=numbers.device)
        return self._flags.to(numbers)

    def anywhere(self, sums: Tensor) -> list[bool]:
        """For each parameter, whether it has a gradient on any worker, by the sums of the flags."""
        if self._frozen == self._compared and all(map(operator.or_, self._here, self._frozen)):
            return self._here
        self._compared, reached = self._frozen, []
        for param, total in zip(self._params(), sums.tolist(), strict=True):
            frozen, hits = divmod(int(total), 1 + self._workers)
            if 0 < frozen < self._workers:
                raise ModelError(
                    f"{self._arena.names[param]!r} is frozen on {frozen} of {self._workers} workers. Freeze and thaw "
                    "parameters on all of them at the same step: with hr.Freeze, or in a callback without "
                    "everywhere = False."
                )
            reached.append(hits > 0)
        return reached

    def _params(self) -> list[nn.Parameter]:
        return [*(slot.param for vector in self._arena.vectors for slot in vector.slots), *self._arena.loose]


class GradientBuckets:
    """The messages of one arena. Every worker sends the same ones in the same order: the last parameters first.

    Numbers that are to be added up too travel with the first parameters, right before them, where their format is one
    for numbers.
    """

    def __init__(self, arena: Arena, comm: Comm, compressed: torch.dtype | None) -> None:
        self.arena, self._comm, self._compressed = arena, comm, compressed
        self.reach = Reach(arena, comm.count)
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
        """Lets gradients travel as soon as they are ready, from now on."""
        if self._hooks and self.arena.proven:
            self._listening = True
            for chunk in self._chunks:
                chunk.not_ready = sum(slot.param.requires_grad for slot in chunk.slots)

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
            wait, message = chunk.sent
            wait()
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
            chunk.not_ready -= 1
            while self._next < len(self._chunks) - 1 and self._chunks[self._next].not_ready == 0:
                self._send(self._chunks[self._next], None)

        return ready

    def _loose(self) -> list[tuple[list[nn.Parameter], Tensor]]:
        """Gradients that are in no vector, added up, together where they are alike."""
        alike: dict[Any, list[nn.Parameter]] = {}
        for param in self.arena.loose:
            if param.requires_grad:
                alike.setdefault((param.dtype, param.device), []).append(param)
        messages = []
        for params in alike.values():
            parts = [torch.zeros_like(param) if param.grad is None else param.grad for param in params]
            message = torch.cat([part.detach().reshape(-1) for part in parts])
            self._comm.all_reduce(message)
            messages.append((params, message))
        return messages


def _cut(vector: Vector, overlaps: bool) -> list[_Chunk]:
    """The chunks of a vector, the last one first; the one at its end is the first that becomes ready."""
    size = vector.gradients.element_size()
    if not overlaps or len(vector.gradients) * size < OVERLAP_BYTES:
        return [_Chunk(vector.gradients, list(vector.slots))]
    chunks: list[_Chunk] = []
    slots: list[Slot] = []
    stop = len(vector.gradients)
    for slot in reversed(vector.slots):
        slots.append(slot)
        if (stop - slot.start) * size >= CHUNK_BYTES or slot is vector.slots[0]:
            chunks.append(_Chunk(vector.gradients[slot.start : stop], slots))
            slots, stop = [], slot.start
    return chunks
