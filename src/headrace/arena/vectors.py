"""Parameters in long vectors: where each of them is, which of them an optimizer steps as one, and the way back.

Neighbouring parameters that behave alike form a segment, which is one parameter to the optimizer. Its state is joined
from the parameters' states and split again exactly, because every tensor in it lies in memory as the parameters do.
"""

from collections.abc import Container, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ModelError
from .own_optimizers import MasterWeights

ALIGN = 64  # bytes: every parameter starts where it would start in memory of its own, so that BLAS sees no difference

SPARE = 1024  # numbers that find room before the gradients; a whole number of ALIGN

Owner = tuple[dict[str, Any], str]
"""A place in a module that holds a parameter: the module's dictionary, and the key in it."""

Places = dict[nn.Parameter, tuple[str, list[Owner]]]
"""Of every parameter its name in the model, and where the modules hold it (several places when tied)."""


@dataclass(eq=False, slots=True)
class Slot:
    """One parameter's place in a vector. `version` is the gradient's before the backward pass."""

    name: str
    param: nn.Parameter
    owners: list[Owner]
    start: int
    stop: int
    value: Tensor
    gradient: Tensor
    address: int
    version: int


@dataclass(eq=False, slots=True)
class Segment:
    """Neighbouring parameters that behave alike; to the optimizer they are one parameter, the handle."""

    slots: list[Slot]
    handle: nn.Parameter
    gradient: Tensor
    optimizer: Optimizer


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
    segments: list[Segment]


def owners(model: nn.Module) -> Places:
    """For every parameter its first name and the places in the modules that hold it."""
    found: Places = {}
    for prefix, module in model.named_modules():
        for key, param in module._parameters.items():
            if param is not None:
                name = f"{prefix}.{key}" if prefix else key
                found.setdefault(param, (plain_name(name), []))[1].append((module._parameters, key))
    return found


def plain_name(name: str) -> str:
    """A parameter's name without what `torch.compile` puts before it."""
    return name.replace("_orig_mod.", "")


def names_of(optimizer: Optimizer, places: Places) -> dict[nn.Parameter, str]:
    """What every parameter of an optimizer is called: by the model, or by its place in the optimizer."""
    return {
        p: places[p][0] if p in places else f"optimizer[{g}][{k}]"
        for g, group in enumerate(optimizer.param_groups)
        for k, p in enumerate(group["params"])
    }


def refuse_sharded(names: dict[nn.Parameter, str]) -> None:
    for param, name in names.items():
        if type(param.data).__name__ == "DTensor":
            raise ModelError(
                f"parameter {name!r} is a DTensor: the model is sharded already. Pass an ordinary module, with "
                "strategy=hr.Sharded(...), which shards it."
            )


def make_vector(
    group: int,
    params: Sequence[nn.Parameter],
    names: dict[nn.Parameter, str],
    places: Places,
    optimizer: Optimizer,
    shaped: bool = False,
) -> Vector:
    """Moves parameters into a new vector, and the optimizer's state of them with them.

    `shaped`: the optimizer needs their shapes, so that each is a segment of its own, whose handle it is itself.
    """
    *starts, end = aligned(params)
    values = torch.zeros(end, dtype=params[0].dtype, device=params[0].device)
    room = values.new_zeros(end + SPARE)
    vector = Vector(group, values, room[SPARE:], room, [], [])
    for param, start in zip(params, starts, strict=True):
        value = view(values, param, start)
        gradient = view(vector.gradients, param, start).data  # with a version that no other view shares
        value.copy_(param.detach())
        param.grad = None
        param.data = value
        places_of = places[param][1] if param in places else []
        stop, address, version = start + param.numel(), value.data_ptr(), gradient._version
        vector.slots.append(Slot(names[param], param, places_of, start, stop, value, gradient, address, version))
    if shaped:
        vector.segments = [Segment([slot], slot.param, slot.gradient, optimizer) for slot in vector.slots]
        return vector
    alike = groupby(vector.slots, key=lambda slot: _kind(slot, optimizer))
    vector.segments = [_make_segment(vector, list(slots), optimizer) for _, slots in alike]
    return vector


def aligned(tensors: Sequence[Tensor]) -> list[int]:
    """Where each of these tensors starts in a vector of all of them, and where the vector ends."""
    step = max(1, ALIGN // tensors[0].element_size())
    return list(accumulate((-(-tensor.numel() // step) * step for tensor in tensors), initial=0))


def view(vector: Tensor, param: Tensor, start: int) -> Tensor:
    return vector.as_strided(param.shape, param.stride(), vector.storage_offset() + start)


def overlapping(params: Iterable[nn.Parameter]) -> set[nn.Parameter]:
    """Parameters that share memory with another: moving one would tear them apart."""
    found: set[nn.Parameter] = set()
    spans = sorted(
        ((p.data_ptr(), p.data_ptr() + p.element_size() * extent(p), p) for p in params if is_packable(p)),
        key=lambda span: span[:2],
    )
    end, last = 0, None
    for start, stop, param in spans:
        if start < end and last is not None:
            found |= {param, last}
        if stop > end:
            end, last = stop, param
    return found


def sparse_parameters(model: nn.Module) -> set[nn.Parameter]:
    """The parameters of modules with sparse gradients, as of `nn.Embedding(sparse=True)`."""
    modules = [module for module in model.modules() if getattr(module, "sparse", None) is True]
    return {param for module in modules for param in module.parameters(recurse=False)}


def coalesced(params: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """These gradients, sparse ones of which have each row once: only so their numbers are those of the gradient."""
    joined = []
    for param in params:
        if param.grad is not None and param.grad.is_sparse:
            param.grad = param.grad.coalesce()
            joined.append(param.grad)
    return [*(each for each in gradients if not each.is_sparse), *joined] if joined else gradients


def is_packable(param: nn.Parameter) -> bool:
    """Dense memory without holes, whatever the order of its dimensions, and not a single number.

    A 0-dimensional parameter cannot be told apart from an optimizer's own counters.
    """
    if type(param) is not nn.Parameter or param.layout != torch.strided or param.is_complex():
        return False
    return param.dim() > 0 and param.numel() > 0 and param.device.type != "meta" and extent(param) == param.numel()


def can_be_packed(param: nn.Parameter, optimizer: Optimizer) -> bool:
    """Whether it can be in a vector, where an update of each of its elements has the bits that it has elsewhere.

    In half precision a CPU rounds once where it computes several elements together, and more often at the end of a
    tensor, where it computes them one by one. Copies in single precision are rounded alike.
    """
    alike = param.device.type != "cpu" or param.dtype.itemsize >= 4 or isinstance(optimizer, MasterWeights)
    return alike and is_packable(param)


def extent(param: Tensor) -> int:
    """Elements from the first to the last in memory; as many as there are when nothing overlaps or is left out."""
    return 1 + sum((size - 1) * stride for size, stride in zip(param.shape, param.stride(), strict=True))


def bring_home(slot: Slot, vector: Vector) -> None:
    """Moves the values of a parameter whose memory was exchanged back into the vector.

    What exchanges a parameter's memory, as `.half().float()` does, may have exchanged its gradient's too.
    """
    _adopt(slot, slot.param.data, "is now")
    slot.param.data = slot.value
    slot.gradient = view(vector.gradients, slot.param, slot.start).data
    for segment in vector.segments:
        if segment.handle is slot.param:
            segment.gradient = slot.gradient


def take_back(slot: Slot, known: Container[nn.Parameter]) -> None:
    """Puts a parameter back that was replaced in its modules, with the values of the object that replaced it.

    Raises if that is itself one that is `known`, or if not all modules that share the parameter have lost it.
    """
    others: list[Any] = [owned.get(key) for owned, key in slot.owners]
    if any(other in known or other is not others[0] for other in others):
        raise ModelError(
            f"parameter {slot.name!r} was tied to another one, or untied, during a training. Call trainer.release() "
            "before."
        )
    _adopt(slot, others[-1], "was replaced by")
    slot.param.requires_grad_(others[-1].requires_grad)
    for owned, key in slot.owners:
        owned[key] = slot.param


def _adopt(slot: Slot, other: Any, verb: str) -> None:
    """Copies another tensor's values into the vector, if they fit there."""
    before, now = _describe(slot.value), _describe(other)
    if now != before:
        raise ModelError(
            f"parameter {slot.name!r} was {before} and {verb} {now}. Call trainer.release() before changing the "
            "dtype, device, shape or structure of a model in training."
        )
    slot.value.copy_(other.detach())


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} on {value.device}"


def _make_segment(vector: Vector, slots: list[Slot], optimizer: Optimizer) -> Segment:
    """Makes one parameter of neighbours, and joins the optimizer's states of them into one."""
    first, stop = slots[0], slots[-1].stop
    handle = nn.Parameter(vector.values[first.start : stop])
    states, packed = [optimizer.state.pop(slot.param, {}) for slot in slots], {}
    for key, value in states[0].items():
        if _is_elementwise(value, first.param):
            packed[key] = torch.zeros(len(handle), dtype=value.dtype, device=value.device)
            for slot, state in zip(slots, states, strict=True):
                view(packed[key], slot.value, slot.start - first.start).copy_(state[key])
        else:
            packed[key] = _copy(value)
    if packed:
        optimizer.state[handle] = packed
    return Segment(slots, handle, vector.gradients[first.start : stop], optimizer)


def _kind(slot: Slot, optimizer: Optimizer) -> tuple[Any, ...]:
    """The kind of optimizer state that a parameter has, counters included: neighbours of one kind form a segment."""
    state = optimizer.state.get(slot.param) or {}
    return tuple(
        (key, value.dtype if _is_elementwise(value, slot.param) else _content(value))
        for key, value in sorted(state.items())
        if value is not None
    )


def _is_elementwise(value: Any, param: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == param.shape


def _content(value: Any) -> Any:
    """What tells a value from others: its numbers, or that it is this object."""
    if isinstance(value, Tensor) and value.numel() != 1:
        return value.dtype, value.shape, tuple(value.flatten().tolist())
    return float(value) if isinstance(value, Tensor | int | float) else id(value)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def states_of(segment: Segment) -> list[tuple[nn.Parameter, dict[str, Any]]]:
    """The parameters of a segment, each with its state as views; none where the optimizer has no state yet."""
    state = segment.optimizer.state.get(segment.handle)
    if state is None:
        return []
    return [(slot.param, {k: _part(value, segment, slot) for k, value in state.items()}) for slot in segment.slots]


def unpack_state(segment: Segment) -> None:
    """Gives every parameter of a segment its own optimizer state again, one kind of it after the other."""
    states = segment.optimizer.state
    state = states.pop(segment.handle, None) or {}
    for key in list(state):
        value = state.pop(key)
        for slot in segment.slots:
            states[slot.param][key] = _copy(_part(value, segment, slot))


def _part(value: Any, segment: Segment, slot: Slot) -> Any:
    """A parameter's part of something in its segment's state."""
    if not _is_elementwise(value, segment.handle):
        return value
    return view(value, slot.value, slot.start - segment.slots[0].start)


def split(vector: Vector, apart: Set[Slot]) -> None:
    """Cuts segments between these parameters and the others; the optimizer's state is split exactly."""
    segments: list[Segment] = []
    for segment in vector.segments:
        pieces = [list(slots) for _, slots in groupby(segment.slots, key=apart.__contains__)]
        if len(pieces) > 1:
            unpack_state(segment)
            segments += [_make_segment(vector, slots, segment.optimizer) for slots in pieces]
        else:
            segments.append(segment)
    vector.segments = segments
