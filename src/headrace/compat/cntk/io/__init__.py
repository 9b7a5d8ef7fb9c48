"""Data by CNTK's names: sources, deserializers, streams."""

from .._native import lookup
from . import deserializers, memory, sources, streams
from .streams import _is_tensor as _is_tensor

__getattr__ = lookup("io", deserializers, memory, sources, streams)
