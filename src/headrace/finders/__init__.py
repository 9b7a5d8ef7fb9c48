"""Finders try a trainer out to see which rate or batch size suits it, and leave everything as it was."""

from .rate import LrFinding, find_lr
from .size import BatchFinding, Trial, find_batch_size

__all__ = ["BatchFinding", "LrFinding", "Trial", "find_batch_size", "find_lr"]
