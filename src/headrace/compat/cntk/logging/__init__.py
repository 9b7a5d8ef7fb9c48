"""Logging by CNTK's names: writers of progress, and how much is told."""

from enum import Enum
from typing import Any

from .._native import lookup
from ..ops.graph import ordered
from .progress import ProgressWriter as ProgressWriter
from .progress_print import ProgressPrinter as ProgressPrinter
from .progress_print import TensorBoardProgressWriter as TensorBoardProgressWriter
from .progress_print import TrainingSummaryProgressCallback as TrainingSummaryProgressCallback
from .progress_print import log_number_of_parameters as log_number_of_parameters


class TraceLevel(Enum):
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


def depth_first_search(root: Any, visitor: Any, depth: int = 0) -> list[Any]:
    """The nodes of a graph for which a function is true."""
    return [node for node in ordered([root]) if visitor(node)]


def find_all_with_name(node: Any, node_name: str, depth: int = 0) -> list[Any]:
    """The nodes of this name."""
    return list(node.find_all_with_name(node_name))


def find_by_name(node: Any, node_name: str, depth: int = 0) -> Any:
    """The only node of this name."""
    return node.find_by_name(node_name)


def get_node_outputs(node: Any, depth: int = 0) -> list[Any]:
    """The functions of a graph."""
    return [each for each in ordered([node]) if each.is_output]


__getattr__ = lookup("logging")
