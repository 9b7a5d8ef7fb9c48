"""Moving parameters into vectors, and getting back those that have strayed from there."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ModelError
from .runs import Owner, Slot, Vector, view

ALIGN = 64  # bytes: every parameter starts where it would start in memory of its own, so that BLAS sees no difference

SPARE = 64  # numbers that find room before the gradients; a whole number of ALIGN


def owners(model: nn.Module) -> dict[nn.Parameter, tuple[str, list[Owner]]]:
    """For every parameter its first name and the places in the modules that hold it (several when tied)."""
    found: dict[nn.Parameter, tuple[str, list[Owner]]] = {}
    for prefix, module in model.named_modules():
        for key, param in module._parameters.items():
            if param is not None:
                name = f"{prefix}.{key}" if prefix else key
                found.setdefault(param, (plain_name(name), []))[1].append((module._parameters, key))
    return found


def plain_name(name: str) -> str:
    """A parameter's name without what `torch.compile` puts before it."""
    return name.replace("_orig_mod.", "")


def names_of(optimizer: Optimizer, places: dict[nn.Parameter, tuple[str, list[Owner]]]) -> dict[nn.Parameter, str]:
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
                f"parameter {name!r} is a DTensor. Sharded models (FSDP, tensor parallel) are not supported; "
                "pass an ordinary module."
            )


def make_vector(
    group: int,
    params: Sequence[nn.Parameter],
    names: dict[nn.Parameter, str],
    owners: dict[nn.Parameter, tuple[str, list[Owner]]],
) -> Vector:
    step = max(1, ALIGN // params[0].element_size())
    starts, end = [], 0
    for param in params:
        starts.append(end)
        end += -(-param.numel() // step) * step
    values = torch.zeros(end, dtype=params[0].dtype, device=params[0].device)
    room = values.new_zeros(end + SPARE)
    gradients = room[SPARE:]
    slots = []
    for param, start in zip(params, starts, strict=True):
        value, gradient = view(values, param, start), own_version(gradients, param, start)
        value.copy_(param.detach())
        param.grad = None
        param.data = value
        places = owners[param][1] if param in owners else []
        stop = start + param.numel()
        slots.append(Slot(names[param], param, places, start, stop, value, gradient, value.data_ptr()))
    return Vector(group, values, gradients, room, slots, [])


def own_version(gradients: Tensor, param: Tensor, start: int) -> Tensor:
    """A parameter's view of the gradients, with a version counter that no other view shares."""
    return view(gradients, param, start).data


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


def is_packable(param: nn.Parameter) -> bool:
    """Dense memory without holes, whatever the order of its dimensions, and not a single number.

    A 0-dimensional parameter cannot be told apart from an optimizer's own counters.
    """
    if type(param) is not nn.Parameter or param.layout != torch.strided or param.is_complex():
        return False
    return param.dim() > 0 and param.numel() > 0 and param.device.type != "meta" and extent(param) == param.numel()


def extent(param: Tensor) -> int:
    """Elements from the first to the last in memory; as many as there are when nothing overlaps or is left out."""
    return 1 + sum((size - 1) * stride for size, stride in zip(param.shape, param.stride(), strict=True))


def bring_home(slot: Slot, vector: Vector) -> None:
    """A parameter whose memory was exchanged: its new values move into the vector.

    What exchanges a parameter's memory, as `.half().float()` does, may have exchanged its gradient's too.
    """
    stray = slot.param.data
    if (stray.shape, stray.dtype, stray.device) != (slot.value.shape, slot.value.dtype, slot.value.device):
        raise ModelError(
            f"parameter {slot.name!r} was {describe(slot.value)} and is now {describe(stray)}. "
            "Call trainer.release() before changing the dtype, device or shape of a model in training."
        )
    slot.value.copy_(stray)
    slot.param.data = slot.value
    slot.gradient = own_version(vector.gradients, slot.param, slot.start)


def take_back(owned: dict[str, Any], key: str, slot: Slot) -> None:
    """Another parameter object stands in the module: its values are adopted, the known object put back."""
    other = owned.get(key)
    if not isinstance(other, Tensor) or describe(other) != describe(slot.value):
        came = describe(other) if isinstance(other, Tensor) else type(other).__name__
        raise ModelError(
            f"parameter {slot.name!r} was {describe(slot.value)} and was replaced by {came}. "
            "Call trainer.release() before changing the structure of a model in training."
        )
    slot.value.copy_(other.detach())
    slot.param.requires_grad_(other.requires_grad)
    owned[key] = slot.param


def describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"
