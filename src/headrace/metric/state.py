"""What a metric has added up so far, taken out and put back: torchmetrics', and those of one's own."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .catalogue import Complement


def keeps_state(metric: Any) -> bool:
    """Whether the state of a metric can be saved."""
    return _is_torchmetrics(metric) or (
        callable(getattr(metric, "state_dict", None)) and callable(getattr(metric, "load_state_dict", None))
    )


def state_of(metric: Any) -> dict[str, Any]:
    """Everything that its next `compute` depends on."""
    metric = metric.metric if isinstance(metric, Complement) else metric
    if not _is_torchmetrics(metric):
        return dict(metric.state_dict())
    return {"updates": metric.update_count, "values": {k: copy.copy(v) for k, v in metric.metric_state.items()}}


def set_state(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Puts back what `state_of` gave."""
    metric = metric.metric if isinstance(metric, Complement) else metric
    if not _is_torchmetrics(metric):
        metric.load_state_dict(dict(state))
        return
    for name, value in state["values"].items():
        setattr(metric, name, _moved(value, device))
    metric._update_count, metric._computed = state["updates"], None


def _is_torchmetrics(metric: Any) -> bool:
    metric = metric.metric if isinstance(metric, Complement) else metric
    return any(
        kind.__module__.startswith("torchmetrics.") and kind.__name__ == "Metric" for kind in type(metric).__mro__
    )


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return [_moved(item, device) for item in value] if isinstance(value, list) else value
