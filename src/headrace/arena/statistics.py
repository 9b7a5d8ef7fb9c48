"""The statistics of a model's batch normalisation, stored in flat vectors, so that one copy saves them all."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .homes import ALIGN, extent
from .runs import view


@dataclass(eq=False, slots=True)
class Place:
    """One buffer: its place in a module, and its parts of the vector (`value`) and of the copy (`before`)."""

    name: str
    owned: dict[str, Any]
    key: str
    tensor: Tensor
    value: Tensor
    before: Tensor
    address: int


class Statistics:
    """Buffers of one dtype on one device, which are views of one vector until `release`, and a copy of it."""

    def __init__(self, found: Sequence[tuple[str, dict[str, Any], str]]) -> None:
        tensors = [owned[key] for _, owned, key in found]
        step = max(1, ALIGN // tensors[0].element_size())
        starts, end = [], 0
        for tensor in tensors:
            starts.append(end)
            end += -(-tensor.numel() // step) * step
        self.values = torch.zeros(end, dtype=tensors[0].dtype, device=tensors[0].device)
        self.copy = torch.zeros_like(self.values)
        self.measured = self.values.is_floating_point()
        self.places = []
        for (name, owned, key), tensor, start in zip(found, tensors, starts, strict=True):
            value = view(self.values, tensor, start)
            value.copy_(tensor)
            tensor.data = value
            before = view(self.copy, tensor, start)
            self.places.append(Place(name, owned, key, tensor, value, before, value.data_ptr()))

    def strays(self) -> list[Place]:
        """The places at which another tensor stands, or whose tensor has got other memory."""
        return [p for p in self.places if p.owned.get(p.key) is not p.tensor or p.tensor.data_ptr() != p.address]

    def replaced(self) -> list[tuple[Tensor, Tensor]]:
        """What was before the step, and what stands there now, of the places with other tensors or other memory."""
        now = [(place.before, place.owned.get(place.key)) for place in self.strays()]
        return [(before, tensor) for before, tensor in now if isinstance(tensor, Tensor)]

    def save(self) -> None:
        self.copy.copy_(self.values)

    def restore(self) -> None:
        self.values.copy_(self.copy)
        for place in self.strays():
            place.owned[place.key] = place.tensor
            place.tensor.copy_(place.before)

    def drop(self, place: Place) -> None:
        """A buffer leaves the vector, with memory of its own."""
        self.places.remove(place)
        _move_out(place)
        place.value.zero_()
        place.before.zero_()

    def release(self) -> None:
        for place in self.places:
            _move_out(place)


def gather(model: nn.Module) -> list[Statistics]:
    """Moves the statistics of a model's batch normalisation into vectors, one for each dtype and device."""
    groups: dict[tuple[torch.dtype, torch.device], list[tuple[str, dict[str, Any], str]]] = {}
    holders = Counter(id(buffer) for module in model.modules() for buffer in module._buffers.values())
    for name, owned, key in _places(model):
        tensor = owned[key]
        if holders[id(tensor)] == 1:
            groups.setdefault((tensor.dtype, tensor.device), []).append((name, owned, key))
    return [Statistics(places) for places in groups.values()]


def _places(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    for prefix, module in model.named_modules():
        for key, buffer in module._buffers.items() if isinstance(module, _NormBase) else ():
            if buffer is not None and _is_packable(buffer):
                yield f"{prefix}.{key}" if prefix else key, module._buffers, key


def _is_packable(buffer: Tensor) -> bool:
    """Dense memory that is its own: no part of other memory that somebody may hold."""
    if type(buffer) is not Tensor or buffer.layout != torch.strided or buffer.is_meta or buffer.requires_grad:
        return False
    shared = buffer._base is not None or (not buffer.is_cuda and buffer.is_shared())
    if shared or buffer.untyped_storage().nbytes() != buffer.nbytes:
        return False
    return buffer.numel() > 0 and extent(buffer) == buffer.numel()


def _move_out(place: Place) -> None:
    """What has strayed keeps what it has become."""
    if place.tensor.data_ptr() == place.address:
        place.tensor.data = place.value.clone()
