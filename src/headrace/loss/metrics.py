"""Metrics of one output, fed a block of rows at a time: names, and objects of torchmetrics or of one's own."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..data.ragged import Ragged
from ..errors import ConfigError, DataError, HeadraceError
from .named import NamedMetric, Sums, check_reads
from .task import Task

BLOCK_BYTES = 16 << 20


@runtime_checkable
class Metric(Protocol):
    """The methods that a metric has."""

    def update(self, outputs: Any, target: Any, /) -> Any: ...
    def compute(self) -> Any: ...
    def reset(self) -> Any: ...


OfOne = str | Metric | Sequence[str | Metric] | Mapping[str, str | Metric]


@dataclass(frozen=True, slots=True)
class Compared:
    """What metrics look at: an output, the stream that it is compared with, and what the loss knows of the two."""

    target: str
    output: Callable[[Any], Any]
    """Takes the output out of all that the model returned."""
    reads: str | None = None
    """What the output is: "classes", "logits" or "probabilities"."""
    ignores: int | None = None
    """The label that does not count."""
    dense: Callable[[Any], Any] | None = None
    """Makes a tensor of the target; without it, sequences are compared item by item."""


class Metrics:
    """Several metrics of one output, fed together: blocks are gathered on the device and handed over whole.

    `reads` says what the outputs are, where the loss knows: one of `headrace.loss.task.READS`; `ignore`
    which label does not count.
    """

    def __init__(self, metrics: OfOne = (), reads: str | None = None, ignore: int | None = None) -> None:
        self.wanted = _by_name(metrics)
        """The metrics by their names here."""
        self._reads, self._ignore = reads, ignore
        self.compared: Compared | None = None
        """What they look at; unknown until they are made for a training."""
        self._task: Task | None = None
        self._sums: dict[str, Sums] = {}  # by quantity
        self._live: dict[str, Any] = {}
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []
        self._bytes = 0
        self._holds = False

    def __bool__(self) -> bool:
        return bool(self.wanted)

    @property
    def names(self) -> list[str]:
        return list(self.wanted)

    def fresh(self, reads: str | None = None, ignore: int | None = None) -> "Metrics":
        """The same metrics, empty."""
        twin = Metrics((), reads, ignore)
        twin.wanted = copy.deepcopy(self.wanted)
        for metric in twin._objects.values():
            metric.reset()
        return twin

    def add(self, outputs: Any, target: Tensor) -> None:
        """One batch. Nothing is computed until a block is full, or until batches are padded to another length."""
        if not isinstance(outputs, Tensor):
            check_outputs(outputs, Tensor)
        if self._task is None and not self._outputs:
            check_reads(self._named.values(), outputs, target, self._reads)
        if self._outputs and not self._holds:
            alike = self._outputs[-1].shape[1:] == outputs.shape[1:] and self._targets[-1].shape[1:] == target.shape[1:]
            if not alike:  # so that the batches cannot be joined
                self._feed()
        self._outputs.append(outputs)
        self._targets.append(target)
        self._bytes += outputs.nbytes + target.nbytes
        if self._bytes >= BLOCK_BYTES and not self._holds:
            self._feed()

    def compute(self) -> dict[str, Any]:
        """Every metric over all that was added; plain numbers, or lists for matrices."""
        self._feed()
        found = {}
        for name, metric in self.wanted.items():
            with _naming(name):
                if not isinstance(metric, NamedMetric):
                    if name in self._live:
                        found[name] = _plain(self._live[name].compute())
                elif self._task is not None and metric.quantity in self._sums:
                    found[name] = _plain(metric.value(self._task, self._sums[metric.quantity]))
        return found

    def reset(self) -> None:
        self._outputs, self._targets, self._bytes, self._sums = [], [], 0, {}
        for metric in self._live.values():
            metric.reset()

    @property
    def forgetful(self) -> list[str]:
        """The metrics whose state cannot be saved: they have no `state_dict` and `load_state_dict`."""
        return [name for name, metric in self._objects.items() if not _keeps_state(metric)]

    def state_dict(self) -> dict[str, Any]:
        """What has been added since the last report, the block that is not full yet included."""
        block = [part for pair in self._joined() for part in pair]
        return {
            "task": None if self._task is None else asdict(self._task),
            "block": block,
            "sums": {quantity: list(sums) for quantity, sums in self._sums.items()},
            "live": {name: _state_of(metric) for name, metric in self._live.items() if _keeps_state(metric)},
        }

    def hold(self) -> None:
        """Several workers feed twins of this: what has no state that can be added up keeps all that it is fed."""
        self._holds = any(not _adds_up(metric) for metric in self._objects.values())

    def join(self, states: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        """Becomes what was fed to metrics that gave these states: itself once, or its twins on other workers."""
        self.reset()
        tasks = [Task(**state["task"]) for state in states if state["task"] is not None]
        if any(task != tasks[0] for task in tasks) and any(state["sums"] or state["live"] for state in states):
            raise DataError(f"workers see different things: {' and '.join(map(str, tasks))}. Say reads= in the loss.")
        self._task = tasks[0] if tasks else self._task
        for metric in {metric.quantity: metric for metric in self._named.values()}.values():
            for state in states:
                if more := state["sums"].get(metric.quantity):
                    self._add_up(metric, _moved(more, device))
        fed: set[str] = set()
        for name, saved in (item for state in states for item in state["live"].items()):
            if name in fed:
                _add_state(self._live[name], saved, device)
            elif name in self._objects:  # the metrics of a run may change
                self._live.pop(name, None)
                _set_state(self._made(name, device), saved, device)
                fed.add(name)
        for state in states:
            for outputs, target in zip(state["block"][::2], state["block"][1::2], strict=True):
                self.add(outputs.to(device), target.to(device))

    def _made(self, name: str, device: torch.device) -> Any:
        """The object that is fed, which is here once rows have been."""
        if name not in self._live:
            metric: Any = self.wanted[name]
            if _is_torchmetrics(metric):  # asked on one worker, which knows all; it would ask the others, too
                metric.sync_on_compute, metric.distributed_available_fn = False, bool  # bool() is False
            self._live[name] = metric.to(device) if callable(getattr(metric, "to", None)) else metric
        return self._live[name]

    def _feed(self) -> None:
        block = self._joined()
        self._outputs, self._targets, self._bytes = [], [], 0
        for outputs, targets in block:
            if self._task is None:
                self._task = Task.of(outputs, targets, self._reads, self._ignore)
            for metric in {metric.quantity: metric for metric in self._named.values()}.values():
                with _naming(metric.text):
                    self._add_up(metric, metric.measure(self._task, outputs, targets))
            for name in self._objects:
                with _naming(name):
                    self._made(name, outputs.device).update(outputs, targets)

    def _add_up(self, metric: NamedMetric, more: Sums) -> None:
        self._sums[metric.quantity] = metric.merge(self._sums.get(metric.quantity), more)

    @property
    def _named(self) -> dict[str, NamedMetric]:
        return {name: metric for name, metric in self.wanted.items() if isinstance(metric, NamedMetric)}

    @property
    def _objects(self) -> dict[str, Metric]:
        return {name: metric for name, metric in self.wanted.items() if not isinstance(metric, NamedMetric)}

    def _joined(self) -> list[tuple[Tensor, Tensor]]:
        """What waits to be fed: the batches one after the other are joined whose rows have the same shapes."""
        if self._outputs and not self._holds:  # `add` has compared their rows
            return [(torch.cat(self._outputs), torch.cat(self._targets))]
        runs: list[tuple[list[Tensor], list[Tensor]]] = []
        for outputs, target in zip(self._outputs, self._targets, strict=True):
            if not (runs and _are_alike(runs[-1][0][-1], outputs, runs[-1][1][-1], target)):
                runs.append(([], []))
            runs[-1][0].append(outputs)
            runs[-1][1].append(target)
        return [(torch.cat(outputs), torch.cat(targets)) for outputs, targets in runs]


def check_outputs(outputs: Any, kinds: Any = Tensor | Ragged) -> None:
    """Raises unless metrics can compare this with a target; sequences are laid out for them first."""
    if not isinstance(outputs, kinds):
        raise ConfigError(
            f"metrics need one tensor per batch, the model returned a {type(outputs).__name__}. Say which one is "
            "meant with output= in the loss; in an Objective of your own, override scored(outputs)."
        )


def _are_alike(outputs: Tensor, more_outputs: Tensor, targets: Tensor, more_targets: Tensor) -> bool:
    """Whether the rows of two batches have the same shapes, so that the batches can be joined."""
    return outputs.shape[1:] == more_outputs.shape[1:] and targets.shape[1:] == more_targets.shape[1:]


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Adds the name of the metric to an error."""
    try:
        yield
    except HeadraceError:
        raise
    except (ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
        raise DataError(f"metric {name!r} cannot be computed from these outputs and targets: {error}") from error


def _by_name(metrics: Any) -> dict[str, NamedMetric | Metric]:
    if isinstance(metrics, str | Metric):
        metrics = [metrics]
    pairs: Iterable[tuple[str, Any]] = (
        metrics.items()
        if isinstance(metrics, Mapping)
        else [(m if isinstance(m, str) else type(m).__name__.lower(), m) for m in metrics]
    )
    named: dict[str, NamedMetric | Metric] = {}
    for name, metric in pairs:
        if name in named:
            raise ConfigError(f"metric {name!r} is given twice. Name them: metrics={{'a': ..., 'b': ...}}.")
        if isinstance(metric, str):
            metric = NamedMetric.parse(metric)
        elif isinstance(metric, type):
            raise ConfigError(f"metrics= got the class {metric.__name__}. Pass an instance: {metric.__name__}().")
        elif not isinstance(metric, Metric):
            raise ConfigError(f"a metric is a name or has update, compute and reset; got a {type(metric).__name__}.")
        named[name] = metric
    return named


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _keeps_state(metric: Any) -> bool:
    """Whether the state of a metric can be saved."""
    return all(callable(getattr(metric, method, None)) for method in ("state_dict", "load_state_dict"))


def _state_of(metric: Any) -> dict[str, Any]:
    """Everything that its next `compute` depends on."""
    if not _is_torchmetrics(metric):
        return dict(metric.state_dict())
    return {"updates": metric.update_count, "values": {k: copy.copy(v) for k, v in metric.metric_state.items()}}


def _set_state(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Puts back what `_state_of` gave."""
    if not _is_torchmetrics(metric):
        metric.load_state_dict(dict(state))
        return
    for name, value in state["values"].items():
        if not _is_like(value, metric._defaults[name]):
            raise TypeError(f"{name!r} of {type(metric).__name__} is a {type(value).__name__}")
        setattr(metric, name, _moved(copy.copy(value), device))
    metric._update_count, metric._computed = state["updates"], None


def _adds_up(metric: Any) -> bool:
    """Whether the states of several copies of this metric can be added up."""
    if not _is_torchmetrics(metric) or metric.full_state_update is not False or metric.dist_sync_on_step:
        return False
    ways = {getattr(way, "__name__", None) for way in metric._reductions.values()}
    return ways <= {"dim_zero_sum", "dim_zero_cat", "dim_zero_max", "dim_zero_min"}


def _add_state(metric: Any, state: Mapping[str, Any], device: torch.device) -> None:
    """Adds the state of another copy of this metric, which was fed other rows."""
    metric._update_count += state["updates"]
    metric.merge_state({name: _moved(value, device) for name, value in state["values"].items()})
    metric._computed = None


def _is_torchmetrics(metric: Any) -> bool:
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
