"""Metrics that are objects: of torchmetrics, or of a user's own."""

import copy
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .task import Task


@runtime_checkable
class Metric(Protocol):
    """The methods that a metric has."""

    def update(self, outputs: Any, target: Any, /) -> Any: ...
    def compute(self) -> Any: ...
    def reset(self) -> Any: ...


class ObjectMetric:
    """A metric object with the interface of a `NamedMetric`; its sums are the object itself."""

    def __init__(self, name: str, metric: Any) -> None:
        self.text, self.metric = name, metric
        self.key = "live", name
        self._is_of_torchmetrics = any(
            kind.__module__.startswith("torchmetrics.") and kind.__name__ == "Metric" for kind in type(metric).__mro__
        )

    def reset(self) -> None:
        self.metric.reset()

    def add(self, sums: Any, task: Task, outputs: Tensor, targets: Tensor) -> Any:
        """Feeds one block of rows to the object."""
        if sums is None:
            sums = self._moved_to(outputs.device)
        sums.update(outputs, targets)
        return sums

    def value(self, task: Task, sums: Any) -> Any:
        """The metric of the rows that the object was fed."""
        return sums.compute()

    @property
    def keeps_state(self) -> bool:
        """Whether the state of the object can be saved."""
        return all(callable(getattr(self.metric, method, None)) for method in ("state_dict", "load_state_dict"))

    @property
    def adds_up(self) -> bool:
        """Whether the states of several copies of the object can be added up."""
        metric = self.metric
        if not self._is_of_torchmetrics or metric.full_state_update is not False or metric.dist_sync_on_step:
            return False
        ways = {getattr(way, "__name__", None) for way in metric._reductions.values()}
        return ways <= {"dim_zero_sum", "dim_zero_cat", "dim_zero_max", "dim_zero_min"}

    def state(self, sums: Any) -> dict[str, Any]:
        """Everything that the object's next `compute` depends on."""
        if not self._is_of_torchmetrics:
            return dict(sums.state_dict())
        return {"updates": sums.update_count, "values": {k: copy.copy(v) for k, v in sums.metric_state.items()}}

    def join(self, sums: Any, state: Mapping[str, Any], device: torch.device) -> Any:
        """Puts a state back into the object, or adds that of a copy which was fed other rows."""
        metric = self._moved_to(device) if sums is None else sums
        if not self._is_of_torchmetrics:
            metric.load_state_dict(dict(state))
            return metric
        if sums is not None:
            metric._update_count += state["updates"]
            metric.merge_state({name: moved(value, device) for name, value in state["values"].items()})
        else:
            for name, value in state["values"].items():
                if not _is_like(value, metric._defaults[name]):
                    raise TypeError(f"{name!r} of {type(metric).__name__} is a {type(value).__name__}")
                setattr(metric, name, moved(copy.copy(value), device))
            metric._update_count = state["updates"]
        metric._computed = None
        return metric

    def _moved_to(self, device: torch.device) -> Any:
        metric = self.metric
        if self._is_of_torchmetrics:  # asked on one worker, which knows all; it would ask the others, too
            metric.sync_on_compute, metric.distributed_available_fn = False, bool  # bool() is False
        self.metric = metric.to(device) if callable(getattr(metric, "to", None)) else metric
        return self.metric


def _is_like(value: Any, begun: Any) -> bool:
    """Whether a saved value is of the kind of a metric's initial value: a tensor, or a list of tensors for a list."""
    return isinstance(value, Tensor) or (
        isinstance(begun, list) and isinstance(value, list) and all(isinstance(item, Tensor) for item in value)
    )


def moved(value: Any, device: torch.device) -> Any:
    """A tensor, or a list of them, on a device; other values as they are."""
    if isinstance(value, Tensor):
        return value.to(device)
    return [moved(item, device) for item in value] if isinstance(value, list) else value
