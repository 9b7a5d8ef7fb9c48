"""Checkpoints: directories that are there whole and verified, or not at all.

`contents` is one in memory, and its files, and `texts` the history in it; `manifest` says which files make a checkpoint
and what their bytes are, `store` holds the checkpoints of a run, and `saver` writes one while the training goes on.
"""

from .contents import Contents
from .saver import Saver
from .store import Keep, Store
from .texts import Texts

__all__ = ["Contents", "Keep", "Saver", "Store", "Texts"]
