"""Runs: neighbouring parameters that behave alike and are one parameter to the optimizer.

A run's optimizer state is one flat state; it is joined from the parameters' states and split again exactly,
because every tensor in it lies in memory as the parameters do.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Owner = tuple[dict[str, Any], str]
"""A place in a module that holds a parameter: the module's dictionary, and the key in it."""


@dataclass(eq=False, slots=True)
class Slot:
    """One parameter's place in a vector."""

    name: str
    param: nn.Parameter
    owners: list[Owner]
    start: int
    stop: int
    value: Tensor
    gradient: Tensor
    address: int


@dataclass(eq=False, slots=True)
class Run:
    """Neighbouring parameters that behave alike; to the optimizer they are one parameter."""

    slots: list[Slot]
    handle: nn.Parameter
    gradient: Tensor


@dataclass(eq=False, slots=True)
class Vector:
    """One stretch of memory: the values and gradients of an optimizer group's parameters of one dtype.

    `room` is the memory of the gradients and of a few numbers before them, which travel with them between workers.
    """

    group: int
    values: Tensor
    gradients: Tensor
    room: Tensor
    slots: list[Slot]
    runs: list[Run]


def make_run(vector: Vector, slots: list[Slot], optimizer: Optimizer) -> Run:
    start, stop = slots[0].start, slots[-1].stop
    handle = nn.Parameter(vector.values[start:stop])
    run = Run(slots, handle, vector.gradients[start:stop])
    pack_state(run, optimizer)
    return run


def alike(slots: Sequence[Slot], optimizer: Optimizer) -> Iterator[list[Slot]]:
    """Neighbours with the same kind of optimizer state, counters included."""
    for _, group in groupby(slots, key=lambda slot: _kind(slot, optimizer)):
        yield list(group)


def _kind(slot: Slot, optimizer: Optimizer) -> tuple[Any, ...]:
    state = optimizer.state.get(slot.param) or {}
    return tuple(
        (key, value.dtype if _is_elementwise(value, slot.param) else float(value))
        for key, value in sorted(state.items())
        if value is not None
    )


def _is_elementwise(value: Any, param: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == param.shape


def pack_state(run: Run, optimizer: Optimizer) -> None:
    """Joins the optimizer states of a run's parameters into one."""
    states = [optimizer.state.pop(slot.param, {}) for slot in run.slots]
    if not states[0]:
        return
    first, packed = run.slots[0], {}
    for key, value in states[0].items():
        if not _is_elementwise(value, first.param):
            packed[key] = value.clone() if isinstance(value, Tensor) else value
            continue
        joined = torch.zeros(len(run.handle), dtype=value.dtype, device=value.device)
        for slot, state in zip(run.slots, states, strict=True):
            view(joined, slot.value, slot.start - first.start).copy_(state[key])
        packed[key] = joined
    optimizer.state[run.handle] = packed


def unpack_state(run: Run, optimizer: Optimizer) -> None:
    """Gives every parameter of a run its own optimizer state again, one kind of it after the other."""
    state = optimizer.state.pop(run.handle, None) or {}
    first = run.slots[0].start
    for key in list(state):
        value = state.pop(key)
        for slot in run.slots:
            optimizer.state[slot.param][key] = _own(value, run.handle, slot, slot.start - first)


def state_of(run: Run, slot: Slot, optimizer: Optimizer) -> dict[str, Any]:
    """What a run's state is for one of its parameters, as views."""
    offset = slot.start - run.slots[0].start
    state = optimizer.state[run.handle].items()
    return {k: view(v, slot.value, offset) if _is_elementwise(v, run.handle) else v for k, v in state}


def _own(value: Any, handle: Tensor, slot: Slot, offset: int) -> Any:
    if _is_elementwise(value, handle):
        return view(value, slot.value, offset).clone()
    return value.clone() if isinstance(value, Tensor) else value


def split(vector: Vector, run: Run, optimizer: Optimizer, apart: Set[Slot]) -> list[Run]:
    """Cuts a run where some of its parameters go separate ways; the state is split exactly."""
    pieces = [list(slots) for _, slots in groupby(run.slots, key=lambda slot: slot in apart)]
    if len(pieces) == 1:
        return [run]
    unpack_state(run, optimizer)
    return [make_run(vector, slots, optimizer) for slots in pieces]


def view(vector: Tensor, param: Tensor, start: int) -> Tensor:
    return vector.as_strided(param.shape, param.stride(), vector.storage_offset() + start)
