"""How many workers make one model: what happens to the gradients before an update, and to the weights after."""

from .asynchronous import Asynchronous
from .base import Single, Strategy
from .block_momentum import BlockMomentum
from .diloco import DiLoCo
from .elastic import Elastic
from .periodic import Periodic
from .synchronous import Synchronous

__all__ = [
    "Asynchronous",
    "BlockMomentum",
    "DiLoCo",
    "Elastic",
    "Periodic",
    "Single",
    "Strategy",
    "Synchronous",
]
