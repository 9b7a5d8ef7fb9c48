"""The metrics that a trainer is given: names, objects of torchmetrics, and objects with the same methods."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..data.ragged import Ragged
from ..errors import ConfigError
from .named import NamedMetric
from .objects import Metric, ObjectMetric

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
