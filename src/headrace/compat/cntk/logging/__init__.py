"""Logging by CNTK's names: writers of progress, and how much is told."""

from enum import IntEnum
from typing import Any

from .._native import lookup
from .progress import ProgressWriter as ProgressWriter
from .progress_print import ProgressPrinter as ProgressPrinter
from .progress_print import log_number_of_parameters as log_number_of_parameters


class TraceLevel(IntEnum):
    """How much is told."""

    Error = 0
    Warning = 1
    Info = 2


_level = [TraceLevel.Warning]


def get_trace_level() -> TraceLevel:
    """How much is told."""
    return _level[0]


def set_trace_level(value: Any) -> None:
    """Sets how much is told."""
    _level[0] = value if isinstance(value, TraceLevel) else TraceLevel(value)


__getattr__ = lookup("logging")
