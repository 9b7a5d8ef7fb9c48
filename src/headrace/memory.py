"""Whether memory has run out."""

import torch

_SAYINGS = ("out of memory", "not enough memory", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is how torch says so; on a CPU it is a RuntimeError like any other."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _SAYINGS)
