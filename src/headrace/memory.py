"""Whether memory has run out."""

import torch

from .errors import WorkerError

_SAYINGS = ("out of memory", "not enough memory", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is how torch says so; on a CPU it is a RuntimeError like any other."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError) or isinstance(error, WorkerError):  # which may speak of another's memory
        return False
    return any(text in str(error).lower() for text in _SAYINGS)
