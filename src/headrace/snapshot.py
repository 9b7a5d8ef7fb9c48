"""Tensors by value: what they are now, in memory of the host that nobody else changes."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .errors import CheckpointError

Name = TypeVar("Name", bound=Hashable)
WHOLE_SHARE = 0.5  # of a storage that has to be wanted for it to be copied in one go


class Copier:
    """Copies tensors into memory that it keeps, so that the next copy costs no page faults.

    A copy is valid until the next one is made. Tensors that lie in one storage, as those of an arena do, are
    copied together; views of it stay views of the copy.
    """

    def __init__(self) -> None:
        self._rooms: list[Tensor] = []

    def __call__(self, tensors: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
        """The same names, the same values."""
        found: dict[Name, Tensor] = {}
        rooms = self._next_rooms()
        devices = set()
        for storage, names in _by_storage(tensors).values():
            first = tensors[names[0]]
            if first.device.type != "cpu":
                devices.add(first.device)
            lazy = any(tensors[name].is_conj() or tensors[name].is_neg() for name in names)
            if not lazy and _bytes(tensors[name] for name in names) >= WHOLE_SHARE * storage.nbytes():
                room = rooms(storage.nbytes(), first)
                room.copy_(_raw(storage, first.device), non_blocking=True)
                for name in names:
                    found[name] = _same_view(room, tensors[name])
                continue
            for name in names:
                tensor = tensors[name]
                room = rooms(tensor.nbytes, tensor)
                found[name] = room.view(tensor.dtype).view(tensor.shape)
                found[name].copy_(tensor, non_blocking=True)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return {name: found[name] for name in tensors}

    def _next_rooms(self) -> "_Rooms":
        before, self._rooms = self._rooms, []
        return _Rooms(before, self._rooms)


class _Rooms:
    """Memory from the last time, where it fits; new memory where not."""

    def __init__(self, before: Sequence[Tensor], now: list[Tensor]) -> None:
        self._before: dict[tuple[int, bool], list[Tensor]] = {}
        for room in before:
            self._before.setdefault((room.numel(), room.is_pinned()), []).append(room)
        self._now = now

    def __call__(self, size: int, like: Tensor) -> Tensor:
        pinned = like.device.type == "cuda"
        known = self._before.get((size, pinned))
        room = known.pop() if known else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self._now.append(room)
        return room


def _by_storage(tensors: Mapping[Name, Tensor]) -> dict[int, tuple[torch.UntypedStorage, list[Name]]]:
    groups: dict[int, tuple[torch.UntypedStorage, list[Name]]] = {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or type(tensor.data) is not Tensor:
            raise CheckpointError(
                f"{name!r} is a {type(tensor.data).__name__} ({tensor.layout}), which cannot be saved; dense ones can."
            )
        storage = tensor.untyped_storage()
        key = storage.data_ptr() if storage.nbytes() else -id(tensor)
        groups.setdefault(key, (storage, []))[1].append(name)
    return groups


def _bytes(tensors: Iterator[Tensor]) -> int:
    """Of tensors in one storage, those that lie in the same place counted once."""
    return sum({(t.storage_offset() * t.element_size(), t.nbytes): t.nbytes for t in tensors}.values())


def _raw(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _same_view(room: Tensor, tensor: Tensor) -> Tensor:
    empty = torch.empty(0, dtype=tensor.dtype)
    return empty.set_(room.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
