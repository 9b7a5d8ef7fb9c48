"""Pages of mapped files, brought into memory in one sequential read before they are touched in any order."""

import ctypes
import mmap
from functools import cache
from typing import Any

from .fields import Field, tensors_of

WILL_NEED, POPULATE_READ = 3, 22  # Linux; the second since 5.14, and without it pages come as they are touched


def populate(field: Field, now: bool = True) -> None:
    """Reads what a field holds of a mapped file, now or while others work, where the system can."""
    madvise = _madvise()
    if madvise is None:
        return
    for tensor in tensors_of(field):
        if tensor.nbytes and tensor.is_contiguous():
            start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            length = tensor.data_ptr() + tensor.nbytes - start
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), POPULATE_READ if now else WILL_NEED)


@cache
def _madvise() -> Any:
    return getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
