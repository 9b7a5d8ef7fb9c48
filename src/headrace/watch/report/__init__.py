"""The report of a run: one page that needs nothing else, and pictures for a paper."""

from .write import write

__all__ = ["write"]
