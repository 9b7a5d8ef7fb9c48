"""What watches a training: callbacks see everything and ask for little; the loop alone acts."""

from .base import HOOKS, Callback, Callbacks
from .best import BestModel, EarlyStopping
from .progress import Progress

__all__ = ["HOOKS", "BestModel", "Callback", "Callbacks", "EarlyStopping", "Progress"]
