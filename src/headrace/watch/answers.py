"""Writes the best model's predictions for test or validation data into the run, for its report."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data.reader import rewound
from ..errors import ConfigError
from ..length import whole
from ..loss.base import OF_CLASSES
from ..loss.objective import Objective, Supervised
from ..loss.task import likeliest, yes_or_no
from ..store import disk, rng
from .callback import Callback

if TYPE_CHECKING:
    from ..data.source import Source
    from .info import Info

ANSWERS = "answers.safetensors"
PIECE = 512  # rows that are read at once; the model gets them in batches as ever
COLUMNS = 1024  # of values or labels: what has more is no table but a picture


class Answers(Callback):
    """Writes the predictions for the test data, else the validation data, at the end of a training with a run.

    At most `rows` rows: target, answer and, for classes, the probability that the model gives it, if the loss says what
    the outputs are. Only what fits a report is written: one answer to one target, both dense. A failure here gives a
    warning and stops nothing.
    """

    everywhere = False

    def __init__(self, rows: int = 10_000) -> None:
        if not (found := whole(rows)):
            raise ConfigError(f"rows= is a number of rows, at least 1, got {rows!r}.")
        self.rows = found

    def on_fit_end(self, info: Info) -> None:
        name = next((name for of in ("test", "val") for name in info.scored if name.partition("/")[0] == of), None)
        ends_soon = info.stopping == "left" or info.trainer.signals.why
        if info.run is None or name is None or not info.alone or not info.step or ends_soon:
            return
        try:
            before = rng.capture(info.trainer.device)
            try:
                self._write(info, name)
            finally:
                rng.restore(before, info.trainer.device)
        except Exception as error:
            why = (str(error).splitlines() or [""])[0]
            warnings.warn(f"{ANSWERS} was not written: {type(error).__name__}: {why}", stacklevel=2)

    def _write(self, info: Info, name: str) -> None:
        from safetensors.torch import save

        trainer, source = info.trainer, info.scored[name]
        objective, *others = trainer.eval_objectives.values()
        found = None if others else self._predict(info, source, objective)
        if found is None or info.run is None or not len(found.tensors["target"]):
            return
        names = (source.read_by or {}).get(trainer.target)
        best = info.best
        facts = {
            "kind": found.kind,
            "of": name,
            "classes": [str(each) for each in names or ()],
            "count": found.count,
            "step": best.step if best is not None and best.restore else info.step,
        }
        tensors = {key: part.contiguous() for key, part in found.tensors.items()}
        data = save(tensors, {key: json.dumps(value) for key, value in facts.items()})
        disk.write_file(info.run / ANSWERS, data)

    def _predict(self, info: Info, source: Source, objective: Objective) -> _Found | None:
        """The predictions for the first rows, some at a time; `None` where they do not fit a report."""
        trainer, rows = info.trainer, 0
        compares = isinstance(objective, Supervised) or bool(trainer.metrics)  # what is predicted, with the target
        returns = source.state_dict() is not None  # to where it stands
        if not compares or not returns or objective.unclear():
            return None
        pieces: list[_Found] = []
        with rewound(source):
            while rows < self.rows and (batch := source.next_batch(min(PIECE, self.rows - rows))) is not None:
                target = batch[trainer.target] if trainer.target in batch.fields else None
                if type(target) is not Tensor or not batch.rows:
                    return None
                answer = objective.scored(trainer.predict(batch.fields))
                if type(answer) is not Tensor or not len(answer) == len(target) == batch.rows:
                    return None
                read = _read(target.cpu(), answer.cpu(), objective.reads, objective.ignores)
                if read is None or (pieces and (read.kind, read.count) != (pieces[0].kind, pieces[0].count)):
                    return None
                pieces.append(read)
                rows += batch.rows
                if batch.ends_epoch:
                    break
        return _joined(pieces, self.rows) if pieces else None


@dataclass(slots=True)
class _Found:
    """Predictions as they are written."""

    kind: str
    count: int
    """Classes, labels, or columns of values."""
    tensors: dict[str, Tensor]


def _joined(pieces: Sequence[_Found], rows: int) -> _Found:
    """Joins the pieces, and cuts them to so many rows."""
    first = pieces[0]
    tensors = {name: torch.cat([piece.tensors[name] for piece in pieces])[:rows] for name in first.tensors}
    return _Found(first.kind, first.count, tensors)


def _read(target: Tensor, outputs: Tensor, reads: str | None, ignored: int | None) -> _Found | None:
    """The predictions that outputs stand for; `None` where they and the target do not fit each other."""
    outputs = outputs.float()
    if outputs.dim() == 2 and outputs.shape[1] > 1 and not target.is_floating_point():
        if target.dim() == 1:
            return _classes(target, outputs, reads, ignored)
        if reads in OF_CLASSES and target.shape == outputs.shape:
            return _classes(target.argmax(dim=1), outputs, reads, None)
    if reads in OF_CLASSES or outputs.dim() > 2 or target.numel() != outputs.numel() or not target.numel():
        return None
    wanted, came = target.reshape(len(target), -1), outputs.reshape(len(target), -1)
    if wanted.shape[1] > COLUMNS:
        return None
    if reads in (None, "numbers"):
        return _Found("values", wanted.shape[1], {"target": wanted.float(), "answer": came})
    if not bool(((wanted == 0) | (wanted == 1)).all()):
        return None
    answer, probability = yes_or_no(came, reads)
    tensors = {"target": wanted.int(), "answer": answer.int(), "probability": probability}
    if wanted.shape[1] > 1:
        return _Found("labels", wanted.shape[1], tensors)
    return _Found("classes", 2, {key: part[:, 0] for key, part in tensors.items()})


def _classes(target: Tensor, outputs: Tensor, reads: str | None, ignored: int | None) -> _Found | None:
    """One of several classes for each row; rows whose target is ignored are left out."""
    counts = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    target, outputs = target[counts], outputs[counts]
    if bool((target < 0).any()) or bool((target >= outputs.shape[1]).any()):
        return None
    answer, probability = likeliest(outputs, reads)
    tensors = {"target": target.int(), "answer": answer.int()}
    if reads is not None:
        tensors["probability"] = probability
    return _Found("classes", outputs.shape[1], tensors)
