"""What watches a training: callbacks see everything and ask for little; the loop alone acts."""

from .base import HOOKS, Callback, Callbacks
from .progress import Progress

__all__ = ["HOOKS", "Callback", "Callbacks", "Progress"]
