"""Checkpoints: directories that are there whole and verified, or not at all.

`contents` is one in memory, and its files; `manifest` says which files make a checkpoint and what their bytes are,
`store` holds the checkpoints of a run, and `saver` writes one while the training goes on.
"""

from .contents import Contents
from .saver import Saver
from .store import Keep, Store

__all__ = ["Contents", "Keep", "Saver", "Store"]
