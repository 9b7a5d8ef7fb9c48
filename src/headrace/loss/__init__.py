"""Loss terms: each is a sum over rows and the weight to divide it by, so that any split of a batch is exact.

A mean cannot be added up: the mean over a short microbatch counts its rows too much. A sum and a weight
can. The step adds up both over the whole update, on all workers, and divides once.
"""

from .base import Loss, Sum, Term, Weight, by_items, is_flat, pick
from .classes import CrossEntropy, Focal
from .elements import L1, MSE, BinaryCrossEntropy, Huber
from .prior import L2Prior
from .translate import RowMean, translate

__all__ = [
    "L1",
    "MSE",
    "BinaryCrossEntropy",
    "CrossEntropy",
    "Focal",
    "Huber",
    "L2Prior",
    "Loss",
    "RowMean",
    "Sum",
    "Term",
    "Weight",
    "by_items",
    "is_flat",
    "pick",
    "translate",
]
