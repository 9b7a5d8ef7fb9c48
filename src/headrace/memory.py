"""What is done when memory runs out: telling that it has, and going back to before."""

import torch
from torch import Tensor

_SAYINGS = ("out of memory", "not enough memory", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is how torch says so; on a CPU it is a RuntimeError like any other."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _SAYINGS)


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """What a forward pass may draw from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(state: tuple[Tensor, Tensor | None] | None, device: torch.device) -> None:
    if state is not None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)
