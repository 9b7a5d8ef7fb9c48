"""Logging by CNTK's names: writers of progress, and how much is told."""

from enum import IntEnum

from .._native import lookup
from .progress import ProgressWriter as ProgressWriter
from .progress_print import ProgressPrinter as ProgressPrinter
from .progress_print import log_number_of_parameters as log_number_of_parameters


class TraceLevel(IntEnum):
    """How much is told."""

    Error = 0
    Warning = 1
    Info = 2


__getattr__ = lookup("logging")
