"""How many workers make one model: what happens to the gradients before an update, and to the weights after."""

from .base import Single, Strategy

__all__ = ["Single", "Strategy"]
