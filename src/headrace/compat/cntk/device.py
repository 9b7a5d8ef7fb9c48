"""Devices by CNTK's names; a descriptor is a torch device."""

from enum import Enum

import torch

from ...errors import ConfigError


class DeviceKind(Enum):
    """Kinds of devices."""

    CPU = 0
    GPU = 1


class DeviceDescriptor:
    """A device: where values lie, and where a model is computed."""

    def __init__(self, kind: DeviceKind, number: int = 0) -> None:
        self._kind, self._number = kind, number
        self.torch = torch.device("cpu") if kind is DeviceKind.CPU else torch.device("cuda", number)

    def type(self) -> DeviceKind:
        return self._kind

    def id(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceDescriptor) and self.torch == other.torch

    def __hash__(self) -> int:
        return hash(self.torch)

    def __repr__(self) -> str:
        return "CPU" if self._kind is DeviceKind.CPU else f"GPU[{self._number}]"


_default: list[DeviceDescriptor] = []


def cpu() -> DeviceDescriptor:
    """The processor."""
    return DeviceDescriptor(DeviceKind.CPU)


def gpu(device_id: int) -> DeviceDescriptor:
    """The GPU of this number."""
    if device_id >= torch.cuda.device_count():
        raise ConfigError(f"GPU {device_id} is not there: torch sees {torch.cuda.device_count()}. Use cpu().")
    return DeviceDescriptor(DeviceKind.GPU, device_id)


def all_devices() -> tuple[DeviceDescriptor, ...]:
    """Every device, the GPUs first."""
    return (*(DeviceDescriptor(DeviceKind.GPU, k) for k in range(torch.cuda.device_count())), cpu())


def use_default_device() -> DeviceDescriptor:
    """The device that is used where none is named: the first GPU, or the processor."""
    if not _default:
        _default.append(all_devices()[0])
    return _default[0]


def chosen(device: DeviceDescriptor | None) -> torch.device:
    """The torch device of a descriptor, or the default."""
    return (device or use_default_device()).torch
