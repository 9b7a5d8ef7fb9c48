"""Metrics of one output, fed a block of rows at a time: names, and objects of torchmetrics or of one's own."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ..data.ragged import Ragged
from ..errors import ConfigError, DataError, HeadraceError
from .named import Key, NamedMetric, check_reads
from .objects import Metric, ObjectMetric
from .task import Task

BLOCK_BYTES = 16 << 20


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
    """Several metrics of one output, fed together: blocks of batches are joined on the device.

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
        self._sums: dict[Key, Any] = {}
        self._block: list[tuple[Tensor, Tensor]] = []
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
        twin.reset()
        return twin

    def add(self, outputs: Any, target: Tensor) -> None:
        """One batch. Nothing is computed until a block is full."""
        if not isinstance(outputs, Tensor):
            check_outputs(outputs, Tensor)
        if self._task is None and not self._block:
            check_reads((m for m in self.wanted.values() if isinstance(m, NamedMetric)), outputs, target, self._reads)
        self._block.append((outputs, target))
        self._bytes += outputs.nbytes + target.nbytes
        if self._bytes >= BLOCK_BYTES and not self._holds:
            self._feed()

    def compute(self) -> dict[str, Any]:
        """Every metric over all that was added; plain numbers, or lists for matrices."""
        self._feed()
        found = {}
        for name, metric in self.wanted.items():
            if self._task is not None and metric.key in self._sums:
                with _naming(name):
                    found[name] = _plain(metric.value(self._task, self._sums[metric.key]))
        return found

    def reset(self) -> None:
        self._block, self._bytes, self._sums = [], 0, {}
        for metric in self.wanted.values():
            metric.reset()

    @property
    def forgetful(self) -> list[str]:
        """The metrics whose state cannot be saved: they have no `state_dict` and `load_state_dict`."""
        return [name for name, metric in self.wanted.items() if not metric.keeps_state]

    def state_dict(self) -> dict[str, Any]:
        """What has been added since the last report, the block that is not full yet included."""
        states: dict[str, dict[str, Any]] = {"sums": {}, "live": {}}
        for key, metric in self._by_key.items():
            if key in self._sums and metric.keeps_state:
                part, name = key
                states[part][name] = metric.state(self._sums[key])
        block = [part for pair in self._joined() for part in pair]
        return {"task": None if self._task is None else asdict(self._task), "block": block, **states}

    def hold(self) -> None:
        """Several workers feed twins of this: what has no state that can be added up keeps all that it is fed."""
        self._holds = not all(metric.adds_up for metric in self.wanted.values())

    def join(self, states: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        """Becomes what was fed to metrics that gave these states: itself once, or its twins on other workers."""
        self.reset()
        tasks = [Task(**state["task"]) for state in states if state["task"] is not None]
        if any(task != tasks[0] for task in tasks) and any(state["sums"] or state["live"] for state in states):
            raise DataError(f"workers see different things: {' and '.join(map(str, tasks))}. Say reads= in the loss.")
        self._task = tasks[0] if tasks else self._task
        for state in states:
            for (part, name), metric in self._by_key.items():  # the metrics of a run may change
                more = state[part].get(name)
                if more is not None and more != []:
                    self._sums[part, name] = metric.join(self._sums.get((part, name)), more, device)
            for outputs, target in zip(state["block"][::2], state["block"][1::2], strict=True):
                self.add(outputs.to(device), target.to(device))

    def _feed(self) -> None:
        block = self._joined()
        self._block, self._bytes = [], 0
        for outputs, targets in block:
            if self._task is None:
                self._task = Task.of(outputs, targets, self._reads, self._ignore)
            for key, metric in self._by_key.items():
                with _naming(metric.text):
                    self._sums[key] = metric.add(self._sums.get(key), self._task, outputs, targets)

    @property
    def _by_key(self) -> dict[Key, NamedMetric | ObjectMetric]:
        """Of the metrics that need the same sums one, which adds them up."""
        return {metric.key: metric for metric in self.wanted.values()}

    def _joined(self) -> list[tuple[Tensor, Tensor]]:
        """What waits to be fed: the batches one after the other are joined whose rows have the same shapes."""
        if len(self._block) == 1:
            return self._block
        runs = groupby(self._block, lambda pair: (pair[0].shape[1:], pair[1].shape[1:]))
        pairs = [tuple(zip(*run, strict=True)) for _, run in runs]
        return [(torch.cat(outputs), torch.cat(targets)) for outputs, targets in pairs]


def check_outputs(outputs: Any, kinds: Any = Tensor | Ragged) -> None:
    """Raises unless metrics can compare this with a target; sequences are laid out for them first."""
    if not isinstance(outputs, kinds):
        raise ConfigError(
            f"metrics need one tensor per batch, the model returned a {type(outputs).__name__}. Say which one is "
            "meant with output= in the loss; in an Objective of your own, override scored(outputs)."
        )


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Adds the name of the metric to an error."""
    try:
        yield
    except HeadraceError:
        raise
    except (ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
        raise DataError(f"metric {name!r} cannot be computed from these outputs and targets: {error}") from error


def _by_name(metrics: Any) -> dict[str, NamedMetric | ObjectMetric]:
    if isinstance(metrics, str | Metric):
        metrics = [metrics]
    pairs: Iterable[tuple[str, Any]] = (
        metrics.items()
        if isinstance(metrics, Mapping)
        else [(m if isinstance(m, str) else type(m).__name__.lower(), m) for m in metrics]
    )
    named: dict[str, NamedMetric | ObjectMetric] = {}
    for name, metric in pairs:
        if name in named:
            raise ConfigError(f"metric {name!r} is given twice. Name them: metrics={{'a': ..., 'b': ...}}.")
        if isinstance(metric, type):
            raise ConfigError(f"metrics= got the class {metric.__name__}. Pass an instance: {metric.__name__}().")
        if not isinstance(metric, str | Metric):
            raise ConfigError(f"a metric is a name or has update, compute and reset; got a {type(metric).__name__}.")
        named[name] = NamedMetric.parse(metric) if isinstance(metric, str) else ObjectMetric(name, metric)
    return named


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
