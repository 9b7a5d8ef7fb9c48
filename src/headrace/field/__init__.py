"""What a batch holds of a stream: a tensor with a row for each sample, sequences, or sparse rows.

Order is import order: `offsets rows sparse ragged`.
"""

from .ragged import Ragged
from .rows import Field, Opaque, Rows, cat, has_rows, map_tensors, nbytes_of, split_fields, take, tensors_of, unmasked
from .sparse import Sparse

__all__ = [
    "Field",
    "Opaque",
    "Ragged",
    "Rows",
    "Sparse",
    "cat",
    "has_rows",
    "map_tensors",
    "nbytes_of",
    "split_fields",
    "take",
    "tensors_of",
    "unmasked",
]
