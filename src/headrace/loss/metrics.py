"""The metrics that a trainer is given: names, objects of torchmetrics, and objects with the same methods."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..data.ragged import Ragged
from ..errors import ConfigError
from .named import NamedMetric
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
            metric.merge_state({name: _moved(value, device) for name, value in state["values"].items()})
        else:
            for name, value in state["values"].items():
                if not _is_like(value, metric._defaults[name]):
                    raise TypeError(f"{name!r} of {type(metric).__name__} is a {type(value).__name__}")
                setattr(metric, name, _moved(copy.copy(value), device))
            metric._update_count = state["updates"]
        metric._computed = None
        return metric

    def _moved_to(self, device: torch.device) -> Any:
        metric = self.metric
        if self._is_of_torchmetrics:  # asked on one worker, which knows all; it would ask the others, too
            metric.sync_on_compute, metric.distributed_available_fn = False, bool  # bool() is False
        self.metric = metric.to(device) if callable(getattr(metric, "to", None)) else metric
        return self.metric


OfOneOutput = str | Metric | Sequence[str | Metric] | Mapping[str, str | Metric]
Wanted = OfOneOutput | Mapping[str, str | Metric | Sequence[str | Metric] | Mapping[str, str | Metric]]
ByName = dict[str, NamedMetric | ObjectMetric]


@dataclass(frozen=True, slots=True)
class Compared:
    """An output of the model, the stream that metrics compare it with, and what the loss declares about both."""

    target: str
    output: Callable[[Any], Any]
    """Takes the output out of everything that the model returned."""
    reads: str | None = None
    """The kind of the output: one of `headrace.loss.task.READS`."""
    ignores: int | None = None
    """The label that does not count."""
    dense: Callable[[Any], Any] | None = None
    """Makes a tensor of the target; without it, sequences are compared item by item."""
    mask: str | None = None
    """The stream of weights; if it is of true and false, only what is true counts."""


class Metrics:
    """The metrics of a training, by output.

    In a dict, a list belongs to an output or a target of this name: `{"digit": ["accuracy"], "ink": ["mae"]}`. All
    others belong to the output that the loss compares with the trainer's target; it has the name "" here.
    """

    def __init__(self, metrics: Wanted = ()) -> None:
        self.by_output = {output: named for output, some in _by_output(metrics).items() if (named := _by_name(some))}
        self.by_name = {
            full_name(output, name): metric
            for output, metrics in self.by_output.items()
            for name, metric in metrics.items()
        }
        """All metrics by their names in reports."""

    def __bool__(self) -> bool:
        return bool(self.by_name)

    @property
    def names(self) -> list[str]:
        return list(self.by_name)

    @property
    def has_objects(self) -> bool:
        """Whether some metrics are objects of the user, whose code is called when a block of rows is complete."""
        return any(isinstance(metric, ObjectMetric) for metric in self.by_name.values())

    @property
    def without_state(self) -> list[str]:
        """The metrics whose state cannot be saved: they have no `state_dict` and `load_state_dict`."""
        return [name for name, metric in self.by_name.items() if not metric.keeps_state]

    def output_getters(self, compared: Callable[[str], Compared]) -> list[Callable[[Any], Any]]:
        """Functions that take the outputs of the metrics out of what the model returns."""
        return [compared(output).output for output in self.by_output]

    def mode(self, name: str) -> str:
        """Whether a metric should be small ("min") or large ("max"), if the object declares it; else ""."""
        metric = self.by_name.get(name)
        higher = getattr(metric.metric, "higher_is_better", None) if isinstance(metric, ObjectMetric) else None
        return "" if higher is None else "max" if higher else "min"

    def kind(self, name: str) -> str:
        """The name under which the library knows a metric that the user has renamed; else the name itself."""
        metric = self.by_name.get(name)
        return metric.text if isinstance(metric, NamedMetric) else name


def full_name(output: str, name: str) -> str:
    """The name of a metric in reports."""
    return f"{output}/{name}" if output else name


def check_outputs(outputs: Any, kinds: Any = Tensor | Ragged) -> None:
    """Raises unless outputs are of a kind that metrics can compare with a target."""
    if not isinstance(outputs, kinds):
        raise ConfigError(
            f"metrics need one tensor per batch, the model returned a {type(outputs).__name__}. Say which one is "
            "meant with output= in the loss; in an Objective of your own, override scored(outputs)."
        )


def _by_output(metrics: Any) -> dict[str, Any]:
    """The metrics of each output that is named, and those of the one that has the name ""."""
    of_outputs: dict[str, Any] = {}
    if isinstance(metrics, Mapping):
        of_outputs = {name: some for name, some in metrics.items() if isinstance(some, list | tuple | Mapping)}
        metrics = {name: some for name, some in metrics.items() if name not in of_outputs}
    if wrong := [name for name in of_outputs if not isinstance(name, str) or not name or name == "loss"]:
        raise ConfigError(f"metrics= has the key {wrong[0]!r}, which cannot be the name of an output or a target.")
    return {"": metrics, **of_outputs}


def _by_name(metrics: Any) -> ByName:
    if isinstance(metrics, str | Metric) or not isinstance(metrics, Iterable):
        metrics = [metrics]
    pairs: Iterable[tuple[str, Any]] = (
        metrics.items()
        if isinstance(metrics, Mapping)
        else [(m if isinstance(m, str) else type(m).__name__.lower(), m) for m in metrics]
    )
    named: ByName = {}
    for name, metric in pairs:
        if name in named:
            raise ConfigError(f"metric {name!r} is given twice. Name them: metrics={{'a': ..., 'b': ...}}.")
        if isinstance(metric, type):
            raise ConfigError(f"metrics= got the class {metric.__name__}. Pass an instance: {metric.__name__}().")
        if not isinstance(metric, str | Metric):
            raise ConfigError(f"a metric is a name or has update, compute and reset; got a {type(metric).__name__}.")
        named[name] = NamedMetric.parse(metric) if isinstance(metric, str) else ObjectMetric(name, metric)
    return named


def _is_like(value: Any, begun: Any) -> bool:
    """Whether a saved value is of the kind of a metric's initial value: a tensor, or a list of tensors for a list."""
    return isinstance(value, Tensor) or (
        isinstance(begun, list) and isinstance(value, list) and all(isinstance(item, Tensor) for item in value)
    )


def _moved(value: Any, device: torch.device) -> Any:
    """A tensor, or a list of them, on a device; other values as they are."""
    if isinstance(value, Tensor):
        return value.to(device)
    return [_moved(item, device) for item in value] if isinstance(value, list) else value
