"""Memory that a training frees in one batch and needs in the next, kept by the C library in between.

By default glibc hands large blocks back to the system and asks for them again: hundreds of page faults a
batch, up to a tenth of the time of a small convolutional network. Kept blocks are counted as free by the
library and used again at once. Environments that set `MALLOC_…` variables, or use another allocator, are left alone.
"""

import ctypes
import os
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
KEEP_BYTES = 256 << 20  # free memory at the top of the heap that is not given back
LARGEST_BYTES = 32 << 20  # the largest block that may come from the heap; glibc allows no more


@cache
def keep_freed_memory() -> None:
    """Tells the C library, once, to keep freed memory, where it is glibc and nobody has told it otherwise."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEEP_BYTES)
