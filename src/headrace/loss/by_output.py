"""Metrics of several outputs: which belong to which, and what each looks at."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ConfigError
from .metrics import Compared, Metrics, OfOne
from .named import NamedMetric
from .objects import Metric, ObjectMetric

Wanted = OfOne | Mapping[str, str | Metric | Sequence[str | Metric] | Mapping[str, str | Metric]]


class MetricsByOutput:
    """All metrics of a training: those of the output that is compared with the target, and others by name.

    In a dict, a list belongs to an output or a target of this name: `{"digit": ["accuracy"], "ink": ["mae"]}`.
    """

    def __init__(self, metrics: Wanted = ()) -> None:
        self.parts = {name: Metrics(wanted) for name, wanted in _by_output(metrics).items()}
        """By the name of an output or a target; those of the trainer's target by ""."""
        self.missed = False
        """Whether a batch came without outputs since the last report."""
        self.by_part: dict[int, MetricsByOutput] = {}
        """What is added for each part of a batch, where batches are cut into parts."""

    @property
    def has_objects(self) -> bool:
        """Whether there are metric objects of the user's, which are called when a block is full."""
        return any(not isinstance(metric, NamedMetric) for metric in self._wanted.values())

    def __bool__(self) -> bool:
        return any(map(bool, self.parts.values()))

    @property
    def names(self) -> list[str]:
        return list(self._wanted)

    def output_getters(self, compared: Callable[[str], Compared]) -> list[Callable[[Any], Any]]:
        """Functions that take the outputs of the metrics from what the model returns."""
        return [compared(name).output for name, part in self.parts.items() if part.names]

    @property
    def targets(self) -> list[str]:
        """The streams that they compare with, once that is known."""
        return [part.compared.target for part in self.parts.values() if part.names and part.compared is not None]

    def mode(self, name: str) -> str:
        """Whether a metric should be small ("min") or large ("max"), where the object says so; else nothing."""
        wanted = self._wanted.get(name)
        metric = wanted.metric if isinstance(wanted, ObjectMetric) else None
        higher = getattr(metric, "higher_is_better", None)  # torchmetrics' word for it
        return "" if higher is None else "max" if higher else "min"

    def kind(self, name: str) -> str:
        """The catalogue's name for a metric that is called otherwise here; else its own."""
        wanted = self._wanted.get(name)
        return wanted.text if isinstance(wanted, NamedMetric) else name

    def fresh(self, compared: Callable[[str], Compared]) -> "MetricsByOutput":
        """The same metrics, empty; `compared` tells what those of a name look at."""
        twin = MetricsByOutput()
        twin.parts.clear()
        for name, part in self.parts.items():
            if not part:
                continue
            looks_at = compared(name)
            twin.parts[name] = part.fresh(looks_at.reads, looks_at.ignores)
            twin.parts[name].compared = looks_at
        return twin

    def split(self, parts: Iterable[int]) -> None:
        """Keeps what is added for each of these parts of a batch apart, until all are computed in their order."""
        self.by_part = {part: self._twin() for part in parts}

    def _twin(self) -> "MetricsByOutput":
        compared = {name: part.compared for name, part in self.parts.items()}
        return self.fresh(lambda name: compared[name])  # type: ignore[arg-type, return-value]

    def compute_of(self, states: Sequence[Mapping[str, Any]], device: torch.device) -> dict[str, Any]:
        """Every metric over what was added to this and its twins on other workers, which gave these states."""
        if not self.by_part:
            self.join(states, device)
            return self.compute()
        total, every = self._twin(), {key: state for each in states for key, state in each.items()}
        numbers = sorted({int(key.partition(" ")[0]) for key in every})
        total.join([_of_part(every, number) for number in numbers], device)
        return total.compute()

    def compute(self) -> dict[str, Any]:
        """Every metric over all that was added; plain numbers, or lists for matrices."""
        return {_joint(of, name): value for of, part in self.parts.items() for name, value in part.compute().items()}

    def reset(self) -> None:
        self.missed = False
        for part in self.parts.values():
            part.reset()
        for twin in self.by_part.values():
            twin.reset()

    @property
    def forgetful(self) -> list[str]:
        """The metrics whose state cannot be saved: they have no `state_dict` and `load_state_dict`."""
        return [_joint(of, name) for of, part in self.parts.items() for name in part.forgetful]

    def state_dict(self) -> dict[str, Any]:
        """What has been added since the last report, the blocks that are not full yet included."""
        if self.by_part:
            states = {number: twin.state_dict() for number, twin in self.by_part.items()}
            return {f"{number} {name}": state for number, each in states.items() for name, state in each.items()}
        return {name: part.state_dict() for name, part in self.parts.items()}

    def hold(self) -> None:
        """Several workers feed twins of this: what has no state that can be added up keeps all that it is fed."""
        for part in self.parts.values():
            part.hold()
        for twin in self.by_part.values():
            twin.hold()

    def join(self, states: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        """Becomes what was fed to metrics that gave these states: itself once, or its twins on other workers."""
        self.missed = False
        for number, twin in self.by_part.items():
            twin.join([_of_part(state, number) for state in states], device)
        for name, part in self.parts.items() if not self.by_part else ():
            part.join([state[name] for state in states if name in state], device)

    @property
    def _wanted(self) -> dict[str, NamedMetric | ObjectMetric]:
        """All metrics by their names in reports."""
        return {_joint(of, name): metric for of, part in self.parts.items() for name, metric in part.wanted.items()}


def _of_part(state: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Of a state, what belongs to one part of a batch."""
    head = f"{number} "
    return {key.removeprefix(head): value for key, value in state.items() if key.startswith(head)}


def _joint(of: str, name: str) -> str:
    return f"{of}/{name}" if of else name


def _by_output(metrics: Any) -> dict[str, Any]:
    """What is wanted of each output that is named, and of the one that is compared with the trainer's target."""
    found: dict[str, Any] = {}
    if isinstance(metrics, Mapping):
        found = {name: wanted for name, wanted in metrics.items() if isinstance(wanted, list | tuple | Mapping)}
        metrics = {name: wanted for name, wanted in metrics.items() if name not in found}
    if wrong := [name for name in found if not isinstance(name, str) or not name or name == "loss"]:
        raise ConfigError(f"metrics= has the key {wrong[0]!r}, which cannot be the name of an output or a target.")
    return found if found and not metrics else {"": metrics, **found}
