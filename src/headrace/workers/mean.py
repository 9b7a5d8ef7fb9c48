"""What all workers have, as one: means of what they measure, maxima of what they count."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .comm import Comm


def mean(comm: Comm, tensors: Sequence[Tensor], weight: float) -> list[Tensor]:
    """Σ weightᵢ·tensorᵢ / Σ weightᵢ over the workers, for each tensor; where all weights are 0, they stay as they are.

    One message for all tensors of a device; those of half precision are added up in single precision. A worker
    alone is given its own tensors, to the bit; otherwise nothing that is given shares memory with what came.
    """
    found = list(tensors)
    if comm.count == 1:
        return found
    for places in _alike(tensors):
        message, parts = _packed([tensors[k] for k in places])
        message.mul_(weight)
        comm.all_reduce(message)
        total = float(message[-1])
        if total:
            message.div_(total)
            for k, part in zip(places, parts, strict=True):
                found[k] = _like(tensors[k], part)
        else:
            for k in places:
                found[k] = tensors[k].clone()
    return found


def largest(comm: Comm, tensors: Sequence[Tensor]) -> None:
    """Every element becomes the largest that any worker has, in place: counters, flags."""
    for device in {tensor.device for tensor in tensors} if comm.count > 1 else ():
        here = [tensor for tensor in tensors if tensor.device == device]
        message = torch.cat([tensor.reshape(-1).to(torch.int64) for tensor in here])
        comm.all_reduce(message, "max")
        for tensor, part in zip(here, message.split([tensor.numel() for tensor in here]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def _alike(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Which tensors go into one message."""
    found: dict[tuple[torch.device, bool], list[int]] = {}
    for k, tensor in enumerate(tensors):
        found.setdefault((tensor.device, _is_double(tensor)), []).append(k)
    return list(found.values())


def _packed(tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """One vector of all of them and a 1, which becomes the sum of the weights; and the tensors' places in it."""
    real = [_real(tensor) for tensor in tensors]
    sizes = [tensor.numel() for tensor in real]
    dtype = torch.float64 if _is_double(tensors[0]) else torch.float32
    message = torch.empty(sum(sizes) + 1, dtype=dtype, device=tensors[0].device)
    message[-1] = 1
    parts = [part.view(tensor.shape) for part, tensor in zip(message[:-1].split(sizes), real, strict=True)]
    torch._foreach_copy_(parts, real)
    return message, parts


def _is_double(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float64, torch.complex128)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _like(tensor: Tensor, part: Tensor) -> Tensor:
    """A tensor's place in a message, as one of its kind."""
    return (torch.view_as_complex(part.clone()) if tensor.is_complex() else part).to(tensor.dtype)
