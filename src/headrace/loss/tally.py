"""Adds up the losses and the metrics of batches for a report: by term and by output, here and on other workers."""

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from typing import Any, Self

import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.ragged import Ragged
from ..data.sparse import Sparse
from ..errors import DataError, HeadraceError
from .base import Weight, is_flat, weights_of_items
from .masks import counted_by
from .metrics import ByName, Compared, Metrics, check_outputs, full_name
from .named import Key, NamedMetric, check_reads
from .outcome import Outcome
from .task import Task

BLOCK_BYTES = 16 << 20
"""Outputs and targets are collected up to this size before metrics are computed from them."""
HOST = torch.device("cpu")
WAITING = 1024
"""Numbers on a device are collected up to this many before the host reads their sum."""


class Tally:
    """Losses and metrics of all batches that were added since the last report.

    What belongs to a part of a batch is added up separately, and all parts in their order for a report. With `shared`,
    other workers have tallies like this one: metrics that cannot be added up then keep outputs and targets until the
    report, for which one worker loads the states of all.
    """

    def __init__(
        self,
        metrics: Metrics | None = None,
        compared: Callable[[str], Compared] | None = None,
        *,
        device: torch.device = HOST,
        shared: bool = False,
    ) -> None:
        self.losses: dict[int, LossSums] = defaultdict(LossSums, {0: LossSums()})
        """The sums of the loss terms, by part."""
        self.lacks_outputs = False
        """Whether a batch came without outputs since the last report."""
        by_output = {} if metrics is None else metrics.by_output
        self._compared = {name: compared(name) for name in by_output} if compared is not None else {}
        self.metrics = [] if metrics is None else metrics.names
        self._by_output, self._device, self._shared = by_output, device, shared
        self._metrics = {0: self._new_sums()}

    @property
    def targets(self) -> list[str]:
        """The streams that metrics compare outputs with."""
        return [compared.target for compared in self._compared.values()]

    def add(self, outcome: Outcome) -> None:
        """Adds one batch, if it counts."""
        counts = self.losses[outcome.part].add_outcome(outcome)
        if counts and self._compared:
            self.lacks_outputs |= not outcome.outputs
            for outputs, batch in outcome.outputs:
                by_output = self._metrics.get(batch.part) or self._metrics.setdefault(batch.part, self._new_sums())
                for sums in by_output.values():
                    sums.add(outputs, batch)

    def compute(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Losses by term, with their sum by "", and metrics by name. If there are parts, a reset has to follow."""
        by_output = self._metrics[0]
        if len(self._metrics) > 1:
            parts = sorted(self._metrics.items())
            for name, sums in by_output.items():
                sums.join([each[name].state_dict() for _, each in parts])
        values = {full_name(of, name): v for of, sums in by_output.items() for name, v in sums.compute().items()}
        return self._together().read(), values

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every loss term."""
        return {name: weight for name, (_, _, weight) in self._together().totals().items()}

    def reset(self) -> None:
        self.lacks_outputs = False
        for losses in self.losses.values():
            losses.reset()
        for by_output in self._metrics.values():
            for sums in by_output.values():
                sums.reset()

    def state_dict(self, losses: bool = True) -> dict[str, Any]:
        """What was added since the last report; without `losses`, only what the metrics have of it."""
        each = ((f"{part} {name}", sums) for part, some in self._metrics.items() for name, sums in some.items())
        return {
            "losses": {str(part): sums.state_dict() for part, sums in self.losses.items() if losses},
            "metrics": {key: sums.state_dict() for key, sums in each},
        }

    def load(self, states: Sequence[Mapping[str, Any]], parts: Container[int] | None = None) -> None:
        """Continues from the state of one tally, or of those of several workers; with metrics of these `parts` only."""
        self.reset()
        for key, losses in _collected(states, "losses").items():
            self.losses[int(key)].load(losses)
        for key, metrics in _collected(states, "metrics").items():
            part, _, name = key.partition(" ")
            if name in self._compared and (parts is None or int(part) in parts):
                by_output = self._metrics.setdefault(int(part), self._new_sums())
                by_output[name].join(metrics)
        if late := self._late(states):
            warnings.warn(
                f"{', '.join(late)}: not measured when the run was saved. The first report of it counts only the rows "
                "after that.",
                stacklevel=4,
            )

    def _late(self, states: Sequence[Mapping[str, Any]]) -> list[str]:
        """The metrics that rows before these states are missing in."""
        found: dict[str, None] = {}
        for state in states:
            rows = any(losses["terms"] for losses in state["losses"].values())
            known = {key.partition(" ")[2]: sums for key, sums in state["metrics"].items()}
            for name, wanted in self._by_output.items() if rows else ():
                sums = known.get(name)
                for text, metric in wanted.items():
                    kind, key = metric.key
                    if sums is None or (
                        (sums["sums"] or sums["live"]) and metric.keeps_state and key not in sums[kind]
                    ):
                        found[full_name(name, text)] = None
        return [*found]

    def _new_sums(self) -> dict[str, "MetricSums"]:
        wanted, device, shared = self._by_output, self._device, self._shared
        return {name: MetricSums(wanted[name], each, device, shared) for name, each in self._compared.items()}

    def _together(self) -> "LossSums":
        return LossSums.of([losses.totals() for _, losses in sorted(self.losses.items())])


def _collected(states: Sequence[Mapping[str, Any]], kind: str) -> dict[str, list[Any]]:
    """The states of one kind by their keys, each from all workers that have it."""
    found: dict[str, list[Any]] = defaultdict(list)
    for state in states:
        for key, each in state[kind].items():
            found[key].append(each)
    return found


class LossSums:
    """The sums and weights of loss terms over many batches. Their quotients are computed for a report."""

    def __init__(self) -> None:
        self._terms: dict[str, list[float]] = {}  # of each its coefficient, sum and weight
        self._waiting: dict[str, list[tuple[Weight, Weight]]] = {}

    def add_outcome(self, outcome: Outcome) -> bool:
        """Adds the terms of one batch, and returns whether it counts: an update that was left out does not."""
        applied = outcome.applied
        if applied is False:
            return False
        for name, term in outcome.terms.items():
            total, weight, coefficient = term.sum, term.weight, term.coefficient
            if not term.counts:  # a prior is reported times its coefficient
                total, coefficient = total * coefficient, 1.0
            if applied is not True:
                total = torch.where(applied, torch.as_tensor(total, device=applied.device), 0.0)  # a NaN times 0 is NaN
                weight = weight * applied
            self.add(name, total, weight, coefficient)
        return True

    def add_totals(self, totals: Mapping[str, Sequence[float]]) -> None:
        """Adds what `totals` of other sums has given."""
        for name, (coefficient, total, weight) in totals.items():
            self.add(name, total, weight, coefficient)

    def add(self, name: str, total: float | Tensor, weight: Weight, coefficient: float) -> None:
        """Adds one batch's term. Numbers on a device are not read at once."""
        term = self._terms.setdefault(name, [coefficient, 0.0, 0.0])
        term[0] = coefficient
        if type(total) is float and type(weight) is float:
            term[1] += total
            term[2] += weight
            return
        waiting = self._waiting.setdefault(name, [])
        waiting.append((total, weight))
        if len(waiting) >= WAITING:
            self._read(name)

    def read(self) -> dict[str, float]:
        """The mean of every term, and by "" their sum, each times its coefficient.

        The mean of a term for which no row counted is NaN. It is left out of the sum, unless all are NaN.
        """
        totals = self.totals()
        means = {name: total / weight if weight else math.nan for name, (_, total, weight) in totals.items()}
        parts = [c * means[name] for name, (c, _, weight) in totals.items() if c and weight]
        joint = math.fsum(parts) if parts or not any(c for c, _, _ in totals.values()) else math.nan
        return {"": joint, **means} if means else {}

    def totals(self) -> dict[str, list[float]]:
        """Coefficient, sum and weight of every term."""
        for name in list(self._waiting):
            self._read(name)
        return {name: [*term] for name, term in self._terms.items()}

    @classmethod
    def of(cls, totals: Sequence[Mapping[str, Sequence[float]]]) -> "LossSums":
        """The sums of several parts or workers, added up."""
        together = cls()
        for terms in totals:
            together.add_totals(terms)
        return together

    def reset(self) -> None:
        self._terms, self._waiting = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """What was added. Numbers that wait on a device are not added up for it, which would round differently."""
        waiting = {name: [_column(part) for part in zip(*pairs, strict=True)] for name, pairs in self._waiting.items()}
        terms = {name: [*term] for name, term in self._terms.items()}
        return {"terms": terms, "waiting": {name: columns for name, columns in waiting.items() if columns}}

    def load(self, states: Sequence[Mapping[str, Any]]) -> Self:
        """Continues from one state, to the bit, or from the sums of several."""
        if len(states) != 1:
            self._terms, self._waiting = LossSums.of([LossSums().load([state]).totals() for state in states])._terms, {}
            return self
        (state,) = states
        self._terms = {name: [*term] for name, term in state["terms"].items()}
        self._waiting = {name: list(zip(*map(list, each), strict=True)) for name, each in state["waiting"].items()}
        return self

    def _read(self, name: str) -> None:
        waiting, term = self._waiting.pop(name, []), self._terms[name]
        term[1] += _sum([total for total, _ in waiting])
        term[2] += _sum([weight for _, weight in waiting])


def _column(numbers: Sequence[float | Tensor]) -> Any:
    """Numbers as one tensor, if all of them are on a device."""
    tensors = [number for number in numbers if isinstance(number, Tensor)]
    return torch.stack(tensors) if len(tensors) == len(numbers) else list(numbers)


def _sum(numbers: Sequence[float | Tensor]) -> float:
    """The sum of numbers of the host and of a device; those of the device are read at once."""
    on_device = [number for number in numbers if isinstance(number, Tensor)]
    here = math.fsum(number for number in numbers if not isinstance(number, Tensor))
    return here + (float(torch.stack(on_device).double().sum()) if on_device else 0.0)


class MetricSums:
    """The metrics of one output, over the rows that were added, a block of batches at a time.

    Metrics that need the same quantity share it. With `shared`, metrics that other workers' sums cannot be added to
    get no block before they are computed.
    """

    def __init__(self, metrics: ByName, compared: Compared, device: torch.device = HOST, shared: bool = False) -> None:
        self._metrics, self._compared, self._device = copy.deepcopy(metrics), compared, device
        self._by_key = {metric.key: metric for metric in self._metrics.values()}
        self._keeps_rows = shared and not all(metric.adds_up for metric in metrics.values())
        self._task: Task | None = None
        self.reset()

    def reset(self) -> None:
        self._block: list[tuple[Tensor, Tensor]] = []
        self._bytes = 0
        self._sums: dict[Key, Any] = {}
        for metric in self._metrics.values():
            metric.reset()

    def add(self, outputs: Any, batch: Batch) -> None:
        """Adds what the model returned for a batch."""
        compared = self._compared
        outputs, target = compared.output(outputs), batch.fields.get(compared.target)
        if compared.dense is not None:
            target = compared.dense(batch[compared.target])
        elif type(target) is not Tensor:
            outputs, target = _dense(outputs, batch[compared.target], compared.reads)
        if not isinstance(outputs, Tensor):
            check_outputs(outputs, Tensor)
        mask = None if compared.mask is None else batch.fields.get(compared.mask)
        if mask is not None and isinstance(items := batch[compared.target], Ragged):
            mask = weights_of_items(str(compared.mask), mask, items)
        if isinstance(mask, Tensor) and mask.dtype == torch.bool:
            outputs, target = counted_by(outputs, target, mask, compared.reads)
        if len(target):
            self.add_rows(outputs.detach(), target)

    def add_rows(self, outputs: Tensor, target: Tensor) -> None:
        """Adds outputs and their targets. Nothing is computed until a block is complete."""
        if self._task is None and not self._block:
            named = (metric for metric in self._metrics.values() if isinstance(metric, NamedMetric))
            check_reads(named, outputs, target, self._compared.reads)
        self._block.append((outputs, target))
        self._bytes += outputs.nbytes + target.nbytes
        if self._bytes >= BLOCK_BYTES and not self._keeps_rows:
            self._add_block()

    def compute(self) -> dict[str, Any]:
        """Every metric over all rows; plain numbers, or lists for matrices."""
        self._add_block()
        values = {}
        for name, metric in self._metrics.items():
            if self._task is not None and metric.key in self._sums:
                with _naming(name):
                    values[name] = _plain(metric.value(self._task, self._sums[metric.key]))
        return values

    def state_dict(self) -> dict[str, Any]:
        """What has been added up, and the block that is not complete."""
        states: dict[str, dict[str, Any]] = {"sums": {}, "live": {}}
        for (kind, name), metric in self._by_key.items():
            if (kind, name) in self._sums and metric.keeps_state:
                states[kind][name] = metric.state(self._sums[kind, name])
        block = [part for pair in self._joined_block() for part in pair]
        return {"task": None if self._task is None else asdict(self._task), "block": block, **states}

    def join(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continues from one state, or from those of several parts or workers, in their order."""
        self.reset()
        tasks = [Task(**state["task"]) for state in states if state["task"] is not None]
        if any(task != tasks[0] for task in tasks) and any(state["sums"] or state["live"] for state in states):
            raise DataError(f"workers see different things: {' and '.join(map(str, tasks))}. Say reads= in the loss.")
        self._task = tasks[0] if tasks else self._task
        for state in states:
            for (kind, name), metric in self._by_key.items():  # the metrics of a run may change
                more = state[kind].get(name)
                if more is not None and more != []:
                    self._sums[kind, name] = metric.join(self._sums.get((kind, name)), more, self._device)
            for outputs, target in zip(state["block"][::2], state["block"][1::2], strict=True):
                self.add_rows(outputs.to(self._device), target.to(self._device))

    def _add_block(self) -> None:
        pairs = self._joined_block()
        self._block, self._bytes = [], 0
        for outputs, targets in pairs:
            if self._task is None:
                self._task = Task.of(outputs, targets, self._compared.reads, self._compared.ignores)
            for key, metric in self._by_key.items():
                with _naming(metric.text):
                    self._sums[key] = metric.add(self._sums.get(key), self._task, outputs, targets)

    def _joined_block(self) -> list[tuple[Tensor, Tensor]]:
        """The batches of the block; consecutive ones with rows of the same shapes are joined."""
        if len(self._block) == 1:
            return self._block
        runs = groupby(self._block, lambda pair: (pair[0].shape[1:], pair[1].shape[1:]))
        pairs = [tuple(zip(*run, strict=True)) for _, run in runs]
        return [(torch.cat(outputs), torch.cat(targets)) for outputs, targets in pairs]


def _dense(outputs: Any, target: Any, reads: str | None) -> tuple[Any, Any]:
    """Outputs and target as tensors; of sequences, a row for each item."""
    if isinstance(target, Ragged):
        items = target.dense()
        return target.items_of(outputs, is_flat(outputs, items, reads)), items
    return outputs, target.to_dense() if isinstance(target, Sparse) else target


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Adds the name of the metric to an error."""
    try:
        yield
    except HeadraceError:
        raise
    except (ValueError, TypeError, RuntimeError, LookupError, AttributeError) as error:
        raise DataError(f"metric {name!r} cannot be computed from these outputs and targets: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value
