"""What a metric has added up so far, taken out and put back: torchmetrics', and those of one's own."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .metric_names import Derived


def keeps_state(metric: Any) -> bool:
    """Whether the state of a metric can be saved."""
    return _is_torchmetrics(metric) or (
        callable(getattr(metric, "state_dict", None)) and callable(getattr(metric, "load_state_dict", None))
    )


def state_of(metric: Any) -> dict[str, Any]:
    """Everything that its next `compute` depends on."""
    metric = metric.metric if isinstance(metric, Derived) else metric
    if not _is_torchmetrics(metric):
        return dict(metric.state_dict())
    return {"updates": metric.update_count, "values": {k: copy.copy(v) for k, v in metric.metric_state.items()}}


def set_state(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Puts back what `state_of` gave."""
    metric = metric.metric if isinstance(metric, Derived) else metric
    if not _is_torchmetrics(metric):
        metric.load_state_dict(dict(state))
        return
    for name, value in state["values"].items():
        if not _is_like(value, metric._defaults[name]):
            raise TypeError(f"{name!r} of {type(metric).__name__} is a {type(value).__name__}")
        setattr(metric, name, _moved(copy.copy(value), device))
    metric._update_count, metric._computed = state["updates"], None


def by_itself(metric: Any) -> None:
    """A metric of torchmetrics would ask all workers at each `compute`; here it is asked on one, which knows all."""
    metric = metric.metric if isinstance(metric, Derived) else metric
    if _is_torchmetrics(metric):
        metric.sync_on_compute, metric.distributed_available_fn = False, bool  # bool() is False


def adds_up(metric: Any) -> bool:
    """Whether the states of twins of this metric can be added up."""
    metric = metric.metric if isinstance(metric, Derived) else metric
    if not _is_torchmetrics(metric) or metric.full_state_update is not False or metric.dist_sync_on_step:
        return False
    ways = {getattr(way, "__name__", None) for way in metric._reductions.values()}
    return ways <= {"dim_zero_sum", "dim_zero_cat", "dim_zero_max", "dim_zero_min"}


def add_state(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Adds what `state_of` gave of a twin that was fed other rows."""
    metric = metric.metric if isinstance(metric, Derived) else metric
    metric._update_count += state["updates"]
    metric.merge_state({name: _moved(value, device) for name, value in state["values"].items()})
    metric._computed = None


def _is_torchmetrics(metric: Any) -> bool:
    metric = metric.metric if isinstance(metric, Derived) else metric
    return any(
        kind.__module__.startswith("torchmetrics.") and kind.__name__ == "Metric" for kind in type(metric).__mro__
    )


def _is_like(value: Any, begun: Any) -> bool:
    """Whether a value may have become of what a metric has begun with: a tensor of one, or a list of such of a list."""
    return isinstance(value, Tensor) or (
        isinstance(begun, list) and isinstance(value, list) and all(isinstance(item, Tensor) for item in value)
    )


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return [_moved(item, device) for item in value] if isinstance(value, list) else value
