"""What the model that is kept answers to data it was not trained on, written into the run for its report."""

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
from ..loss.likely import likeliest, yes_or_no
from ..loss.objective import Objective, Supervised
from ..store import disk, rng
from .callback import Callback

if TYPE_CHECKING:
    from ..data.source import Source
    from .info import Info

ANSWERS = "answers.safetensors"
PIECE = 512  # rows that are read at once; the model gets them in batches as ever
COLUMNS = 1024  # of values or labels: what has more is no table but a picture


class Answers(Callback):
    """Writes what the model answers to the test data, else the validation's, at the end of a training with a run.

    At most `rows` rows: target, answer and, of classes, the probability that the model gives it. Only what fits a
    report is written: one answer to one target, both dense. Whatever goes wrong here is told and hurts nothing.
    """

    everywhere = False

    def __init__(self, rows: int = 10_000) -> None:
        if not (found := whole(rows)):
            raise ConfigError(f"rows= is a number of rows, at least 1, got {rows!r}.")
        self.rows = found

    def on_fit_end(self, info: Info) -> None:
        name = next((name for name in ("test", "val") if name in info.scored), None)
        hurries = info.stopping == "left" or info.trainer._signals.why
        if info.run is None or name is None or not info.alone or not info.step or hurries:
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
        found = None if others else self._asked(info, source, objective)
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

    def _asked(self, info: Info, source: Source, objective: Objective) -> _Found | None:
        """Answers to the first rows, a piece after the other; `None` where they are nothing for a report."""
        compared = isinstance(objective, Supervised) or bool(info.trainer.metrics)  # what is predicted, with the target
        if (
            not compared or objective.unclear() or source.state_dict() is None
        ):  # or it could not be put back to where it stood
            return None
        trainer, rows = info.trainer, 0
        pieces: list[_Found] = []
        with rewound(source):
            while rows < self.rows and (batch := source.next_batch(min(PIECE, self.rows - rows))) is not None:
                target = batch[trainer.target] if trainer.target in batch.fields else None
                if type(target) is not Tensor or not batch.rows:
                    return None
                answer = objective.scored(trainer.predict(batch.fields))
                if type(answer) is not Tensor or not len(answer) == len(target) == batch.rows:
                    return None
                judged = _judged(target.cpu(), answer.cpu(), objective.reads, objective.ignores)
                if judged is None or (pieces and (judged.kind, judged.count) != (pieces[0].kind, pieces[0].count)):
                    return None
                pieces.append(judged)
                rows += batch.rows
                if batch.ends_epoch:
                    break
        return _joined(pieces, self.rows) if pieces else None


@dataclass(slots=True)
class _Found:
    """Answers as they are written."""

    kind: str
    count: int
    """Classes, labels, or columns of values."""
    tensors: dict[str, Tensor]


def _joined(pieces: Sequence[_Found], rows: int) -> _Found:
    """All pieces as one, of no more rows than are wanted."""
    first = pieces[0]
    tensors = {name: torch.cat([piece.tensors[name] for piece in pieces])[:rows] for name in first.tensors}
    return _Found(first.kind, first.count, tensors)


def _judged(target: Tensor, outputs: Tensor, reads: str | None, ignored: int | None) -> _Found | None:
    """What outputs say, where they and the target have forms that fit."""
    outputs = outputs.float()
    if outputs.dim() == 2 and outputs.shape[1] > 1 and not target.is_floating_point():
        if target.dim() == 1:
            return _classes(target, outputs, reads, ignored)
        if reads == "classes" and target.shape == outputs.shape:
            return _classes(target.argmax(dim=1), outputs, reads, None)
    if reads == "classes" or outputs.dim() > 2 or target.numel() != outputs.numel() or not target.numel():
        return None
    wanted, came = target.reshape(len(target), -1), outputs.reshape(len(target), -1)
    if wanted.shape[1] > COLUMNS:
        return None
    if reads is None:
        return _Found("values", wanted.shape[1], {"target": wanted.float(), "answer": came})
    if not bool(((wanted == 0) | (wanted == 1)).all()):
        return None
    said, probability = yes_or_no(came, reads)
    tensors = {"target": wanted.int(), "answer": said.int(), "probability": probability}
    if wanted.shape[1] > 1:
        return _Found("labels", wanted.shape[1], tensors)
    return _Found("classes", 2, {key: part[:, 0] for key, part in tensors.items()})


def _classes(target: Tensor, outputs: Tensor, reads: str | None, ignored: int | None) -> _Found | None:
    """One of several classes for each row; those whose target does not count are left out."""
    counts = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    target, outputs = target[counts], outputs[counts]
    if bool((target < 0).any()) or bool((target >= outputs.shape[1]).any()):
        return None
    said, probability = likeliest(outputs, reads)
    tensors = {"target": target.int(), "answer": said.int(), "probability": probability}
    return _Found("classes", outputs.shape[1], tensors)
