"""Operations along sequences, by CNTK's names."""

from ._native import lookup
from .ops import sequence

__getattr__ = lookup("sequence", sequence)
