"""Makes one update of a run again, and says what its loss was made of."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..data.reader import Reader
from ..loss.objective import Objective, Supervised, terms_of
from ..store import disk, rng
from ..store.named import run_path, url_of
from ..store.place import WHY
from ..train.plan import train_source
from ..train.trainer import Trainer
from ..workers.here import here
from .replay import advance, replaying

if TYPE_CHECKING:
    from .record import Record

MOST = 5  # rows that are called the worst
SHARE = 0.8  # of the loss that these make at most


@dataclass(slots=True)
class Row:
    """A row of an update: its number, its part of the loss, and its terms."""

    row: int
    share: float
    terms: dict[str, float]


@dataclass(slots=True)
class Why:
    """What an update was made of: `print(record.why(236, trainer, train))`.

    `exact`: whether the recorded loss came out bit for bit; `None` where no report is of this update alone. `rows`: all
    rows, those that make most of the loss first. `worst`: those that make four fifths of it, five at most. `norms`: of
    the gradient of each parameter, as it was given to the optimizer. `losses`: of this update and the next ones, with
    the worst rows and without them; `norm` alike.
    """

    step: int
    loss: float
    recorded: float | None
    rows: list[Row]
    norms: dict[str, float]
    worst: list[int] = field(default_factory=list)
    losses: dict[str, list[float]] = field(default_factory=dict)
    norm: dict[str, float] = field(default_factory=dict)

    @property
    def exact(self) -> bool | None:
        return None if self.recorded is None else self.recorded == self.loss

    def __str__(self) -> str:
        told = {None: "no report is of this update alone", True: "as recorded, bit for bit", False: "NOT as recorded"}
        lines = [f"step {self.step}: loss {self.loss:.6g}, {told[self.exact]}", "", "   row   share of the loss  terms"]
        for each in self.rows[: max(MOST, len(self.worst))]:
            terms = ", ".join(f"{name} {value:.6g}" for name, value in each.terms.items())
            lines.append(f"{each.row:>6}  {each.share:>16.1%}  {terms}")
        lines += ["", "gradient norm by parameter"]
        largest = sorted(self.norms.items(), key=lambda pair: -pair[1])[:8]
        lines += [f"{norm:>14.6g}  {name}" for name, norm in largest]
        if self.losses:
            lines += ["", f"the losses from here on, with rows {', '.join(map(str, self.worst))} and without them"]
            lines += [f"{name:>9}: " + " ".join(f"{x:.5g}" for x in losses) for name, losses in self.losses.items()]
            lines.append(f"gradient norm {self.norm['with']:.6g} with them, {self.norm['without']:.6g} without")
        return "\n".join(lines)

    def write(self, run: str | Path) -> None:
        """Adds this to a run as `why/STEP.txt`, which its report shows."""
        path = run_path(run) / WHY / f"{self.step}.txt"
        with disk.failing(f"writing {path}", path):
            disk.make_dirs(path.parent)
            disk.write_file(path, f"{self}\n".encode())
        if (url := url_of(run)) is not None:
            from ..store.mirror import send  # which needs fsspec

            send(url, path)


def explain(record: Record, step: int, trainer: Trainer, train: Any, ahead: int, fit: Mapping[str, Any]) -> Why:
    """See `Record.why`."""
    numbers = record.rows(step, train)
    trainer.updates.change(tape=False)  # the same bits, and every output can be looked at
    before = _Before(record.at(step - 1, trainer, train, **fit)) if step - 1 in record.checkpoints else None
    with replaying(record, step - 1, trainer, train, fit) as (loop, _):
        if before is None:
            advance(loop, step - 1)
            before = _Before(trainer)
        info = advance(loop, step)
        assert info.outcome is not None
        norms = {n: float(p.grad.norm()) for n, p in trainer.model.named_parameters() if p.grad is not None}
        recorded, loss = record.loss(step), info.losses["total_loss"]
        if not trainer.strategy.joint:  # every worker has a loss of its own
            loss = next((row["train/loss"] for row in trainer.history if row["step"] == step), loss)
        rows = _rows(numbers, trainer, info.outcome.outputs, before)
    found = Why(step, float(loss), recorded, rows, norms, _worst(rows))
    if found.worst and len(trainer.optimizers) == 1 and trainer.strategy.joint and here().leader:
        _look_ahead(found, record, before, trainer, train, ahead)
    return found


class _Before:
    """Copies of a model and its optimizer, and where the generators stood."""

    def __init__(self, trainer: Trainer) -> None:
        trainer.updates.release()
        self.model, self.optimizer = copy.deepcopy((trainer.model, trainer.optimizer))
        self.random = rng.capture(trainer.device)

    def alone(self, objective: Objective, batches: Sequence[Batch]) -> list[Any]:
        """What the model returned in a validation, in which no row has a part in what becomes of another."""
        self.model.eval()
        with torch.no_grad():
            return [objective.outputs(self.model, batch) for batch in batches]


def _rows(numbers: Sequence[int], trainer: Trainer, outputs: Sequence[tuple[Any, Batch]], before: _Before) -> list[Row]:
    """The terms of every row by itself; none where outputs have no rows.

    A row may make others bad, as by the statistics of batch normalisation: its share is the largest one of those in the
    update and in a validation. Of several losses, the update has the outputs of one, and the others are validated.
    """
    comm, batches = here(), [batch for _, batch in outputs]
    shares, terms = [0.0] * len(numbers), [dict[str, float]() for _ in numbers]
    for key, objective in trainer.objectives.items():
        if not isinstance(objective, Supervised):
            return []
        found = [_terms_of_rows(objective, trainer.model, before.alone(objective, batches), batches)]
        if key == trainer.updates.scored:
            found.append(_terms_of_rows(objective, trainer.model, [output for output, _ in outputs], batches))
        found = [list(chain(*comm.all_gather(each))) for each in found]  # of all workers
        for each in found:
            shares = [*map(max, shares, _shares(each))]
        for row, of_row in zip(terms, found[-1], strict=True):
            row |= {f"{key}/{name}" if key and len(of_row) > 1 else key or name: x for name, x in of_row.items()}
    rows = [Row(int(number), share, each) for number, share, each in zip(numbers, shares, terms, strict=True)]
    return sorted(rows, key=lambda row: -row.share)


def _terms_of_rows(
    objective: Supervised, model: nn.Module, outputs: Sequence[Any], batches: Sequence[Batch]
) -> list[dict[str, float]]:
    found = []
    with torch.no_grad():
        for output, batch in zip(outputs, batches, strict=True):
            for k in range(batch.rows):
                one = Batch({name: value[k : k + 1] for name, value in batch.fields.items()}, 1)
                terms = objective.terms(model, one, _part(output, k, batch.rows))
                trained = {n: t for n, t in terms.items() if t.counts and t.coefficient}
                found.append({n: float(t.sum) * t.times * t.coefficient for n, t in trained.items()})
    return found


def _shares(terms: Sequence[Mapping[str, float]]) -> list[float]:
    """The part of the sum that each row makes; all of it is what is not finite."""
    sizes = [math.fsum(map(abs, row.values())) for row in terms]
    total = math.fsum(sizes)
    if not math.isfinite(total):
        return [float(not math.isfinite(size)) for size in sizes]
    return [size / (total or 1.0) for size in sizes]


def _part(output: Any, k: int, rows: int) -> Any:
    if isinstance(output, Tensor):
        return output[k : k + 1] if output.dim() and len(output) == rows else output
    if isinstance(output, Mapping):
        return {name: _part(value, k, rows) for name, value in output.items()}
    if isinstance(output, tuple | list):
        return tuple(_part(value, k, rows) for value in output)
    return output[k : k + 1]


def _worst(rows: Sequence[Row]) -> list[int]:
    """The rows that make most of the loss, if few do: each more than three and a half times an average row's part."""
    found, share = [], 0.0
    for row in rows[:MOST]:
        if share >= SHARE or row.share * len(rows) <= 3.5:
            break
        found.append(row.row)
        share += row.share
    return found


def _look_ahead(found: Why, record: Record, before: _Before, trainer: Trainer, train: Any, ahead: int) -> None:
    """The losses of the update and of those after it, by a plain loop on copies, with the worst rows and without."""
    source = train_source(trainer, train)
    if not isinstance(source, Reader) or source.augment is not None:  # updates had other rows than the table
        return
    objective, places = next(iter(trainer.objectives.values())), record.places(train)
    device, standing = trainer.device, rng.capture(trainer.device)
    batches = [(step, places.rows_of(step)) for step in range(found.step, found.step + 1 + ahead)]
    for name in ("with", "without"):
        model, optimizer = copy.deepcopy((before.model, before.optimizer))
        model.train()
        rng.restore(before.random, device)
        losses = []
        for step, numbers in batches:
            kept = [row for row in numbers if name == "with" or step != found.step or row not in found.worst]
            batch = source.table.take(torch.tensor(kept)).to(device)
            with trainer.precision.context():
                terms = terms_of(objective, model, batch)
            loss: Any = sum(t.coefficient * t.sum * t.times / (1.0 if t.summed else t.weight) for t in terms.values())
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            params = [p for p in model.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
            if step == found.step:
                found.norm[name] = float(norm)
            if trainer.clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(params, trainer.clip_norm, norm)
            optimizer.step()
        found.losses[name] = losses
    rng.restore(standing, device)
