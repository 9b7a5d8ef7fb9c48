"""The first thing in which two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..step import config
from ..store.document import read_document
from ..store.run import RUN
from ..train.trainer import Trainer
from .record import Record
from .replay import replaying
from .verify import differences, digest_of


@dataclass(slots=True)
class Difference:
    """In what two runs differ: settings, data, machine and versions, by sentences; the steps of the first report and
    the first checkpoint that differ, and the names of what differs there; the first update, and its first tensor."""

    about: list[str] = field(default_factory=list)
    report: int | None = None
    checkpoint: int | None = None
    state: list[str] = field(default_factory=list)
    update: int | None = None
    tensor: str = ""

    def __bool__(self) -> bool:
        return bool(self.about or self.report or self.checkpoint is not None or self.update)

    def __str__(self) -> str:
        if not self:
            return "no difference"
        lines = list(self.about)
        if self.report is not None:
            lines.append(f"the first report that differs: step {self.report}")
        if self.checkpoint is not None:
            lines.append(f"the first checkpoint that differs: step {self.checkpoint}, in {', '.join(self.state[:3])}")
        if self.update is not None:
            lines.append(f"the first update that differs: {self.update}, in {self.tensor}")
        return "\n".join(lines)


def diff(
    one: str | Path,
    other: str | Path,
    trainers: tuple[Trainer, Trainer] | None = None,
    trains: tuple[Any, Any] | None = None,
    **fit: Any,
) -> Difference:
    """Finds the first differences between two runs.

    With a trainer and the data of each, it also finds the first update that differs, and in it the first tensor: the
    output of a layer, or the gradient or the weight of a parameter.
    """
    a, b = Record(one), Record(other)
    found = Difference(_about(a, b))
    rows = {row["step"]: row for row in b.reports}
    for row in a.reports:
        theirs = rows.get(row["step"], {})
        if any(theirs[key] != value for key, value in row.items() if key in theirs):
            found.report = row["step"]
            break
    same = None
    for step in sorted(set(a.checkpoints) & set(b.checkpoints)):
        if state := differences(a.path, b.path, step):
            found.checkpoint, found.state = step, state
            break
        same = step
    if trainers is not None and trains is not None and same is not None and found:
        last = found.checkpoint or min(a.steps, b.steps)
        _first_update(found, (a, b), same, last, trainers, trains, fit)
    return found


def _about(a: Record, b: Record) -> list[str]:
    """Differences of settings, data, machines and versions."""
    found = [f"settings: {each}" for each in config.differences(a.settings, b.settings)]
    states = [record.checkpoint(record.checkpoints[-1]).common for record in (a, b)]
    cursors = [state["source"]["cursor"] or {} for state in states]
    prints = [cursor.get("fingerprint") for cursor in cursors if isinstance(cursor, Mapping)]
    if len(set(prints)) > 1:
        found.append(f"data: their fingerprints are {' and '.join(map(str, prints))}")
    found += [f"machine: {each}" for each in _unlike(states[0]["machine"], states[1]["machine"])]
    facts = [read_document(record.path / RUN) for record in (a, b)]
    found += [f"versions: {each}" for each in _unlike(facts[0].get("versions", {}), facts[1].get("versions", {}))]
    return found


def _unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [f"{key}: {a.get(key)} and {b.get(key)}" for key in {**a, **b} if a.get(key) != b.get(key)]


def _first_update(
    found: Difference,
    records: tuple[Record, Record],
    start: int,
    last: int,
    trainers: tuple[Trainer, Trainer],
    trains: tuple[Any, Any],
    fit: Mapping[str, Any],
) -> None:
    """Trains both again from where they were the same, and compares what their updates made."""
    made = [_digests(*each, start, last, fit, 0) for each in zip(records, trainers, trains, strict=True)]
    step = next((step for step in made[0] if made[0][step] != made[1].get(step)), None)
    if step is None:
        return
    found.update = step
    seen = [_digests(*each, start, step, fit, step)[step] for each in zip(records, trainers, trains, strict=True)]
    names = list(dict.fromkeys([*seen[0], *seen[1]]))
    found.tensor = next((name for name in names if seen[0].get(name) != seen[1].get(name)), "")


def _digests(
    record: Record, trainer: Trainer, train: Any, start: int, last: int, fit: Mapping[str, Any], look_at: int
) -> dict[int, dict[str, str]]:
    """Hashes of the weights after every update; of outputs and gradients, too, of the update to `look_at`."""
    found: dict[int, dict[str, str]] = {}
    trainer.updates.change(tape=False)
    seen: dict[str, str] = {}
    handles = [
        module.register_forward_hook(_hook(f"the output of {name or 'the model'}", seen))
        for name, module in trainer.model.named_modules()
        if look_at and not list(module.children())
    ]
    try:
        with replaying(record, start, trainer, train, fit, override=bool(record.parents)) as (loop, _):
            for info in loop:
                if look_at in (0, info.step):
                    found[info.step] = dict(seen) | _of_parameters(trainer.model, bool(look_at))
                seen.clear()
                if info.step >= last:
                    break
    finally:
        for handle in handles:
            handle.remove()
    return found


def _of_parameters(model: nn.Module, gradients: bool) -> dict[str, str]:
    params = dict(model.named_parameters())
    found = {f"the gradient of {n}": digest_of(p.grad) for n, p in params.items() if gradients and p.grad is not None}
    return found | {name: digest_of(tensor.detach()) for name, tensor in [*params.items(), *model.named_buffers()]}


def _hook(name: str, seen: dict[str, str]) -> Any:
    def look(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            key, k = name, 1
            while key in seen:
                k += 1
                key = f"{name} (call {k})"
            seen[key] = digest_of(output.detach())

    return look
