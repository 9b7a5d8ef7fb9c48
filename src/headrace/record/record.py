"""A run as a record: its steps, reports and checkpoints, and what can be found out from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import torch

from ..data.reader import Reader
from ..data.views import origin
from ..errors import CheckpointError, RunError
from ..step.arguments import source_on
from ..store.checkpoints import Store
from ..store.named import run_path
from ..store.parents import open_fork, parents_of
from ..store.run import CHECKPOINTS, rows_in, run_id
from ..train.checkpoint import Checkpoint, decode
from ..train.trainer import Trainer
from ..watch.history import History
from ..workers.here import here
from .places import Places
from .replay import advance, in_workers, load_state, replaying
from .verify import Certificate, certify
from .why import Why, explain
from .without import train_without


class Record:
    """Answers questions about a run, and never changes it: `record = hr.Record("runs/a")`.

    Methods that train again take `trainer`, made like that of the run, `train`, the data of the run, and `**fit`, the
    other arguments of its `fit`. They leave the trainer in another state.
    """

    def __init__(self, run: str | Path) -> None:
        self.path = run_path(run)
        self.id = run_id(self.path)
        self._store = Store(self.path / CHECKPOINTS, self.id)

    # --- what is there ------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> list[int]:
        """The steps that have a checkpoint."""
        return self._store.steps()

    @cached_property
    def reports(self) -> list[dict[str, Any]]:
        """What was reported, a row for each report."""
        return rows_in(self.path)

    @property
    def steps(self) -> int:
        """How many updates are known to have been made."""
        return max([*self.checkpoints, *(row["step"] for row in self.reports)], default=0)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the training, as plain values."""
        return dict(self._last.common["config"])

    @property
    def parents(self) -> list[dict[str, Any]]:
        """What this run goes on from, the nearest first: `run`, `id` and `step` of each."""
        return parents_of(self.path)

    def checkpoint(self, step: int) -> Checkpoint:
        """The state of a step that has a checkpoint, verified."""
        return decode(self._store.load(step))

    def before(self, step: int) -> int:
        """The last step with a checkpoint, up to and including this one."""
        if not (known := [each for each in self.checkpoints if each <= step]):
            first = f"the first checkpoint is of step {self.checkpoints[0]}" if self.checkpoints else "it has none"
            raise RunError(
                f"{self.path} cannot go back to step {step}: {first}. Keep more of them: "
                "hr.Run(path, keep='all', every='100 steps')."
            )
        return known[-1]

    def loss(self, step: int) -> float | None:
        """The loss that was reported of this update alone; `None` where a report is of several."""
        losses = {row["step"]: row["train/loss"] for row in self.reports if "train/loss" in row}
        if step in losses and (step == 1 or step - 1 in losses):
            return float(losses[step])
        return next((loss for spike, loss, _ in self.spikes if spike == step), None)

    @property
    def spikes(self) -> list[tuple[int, float, float]]:
        """What an `hr.SpikeGuard` has noted: step, loss, and the median of the losses before."""
        noted = self._last.common["callbacks"].get("SpikeGuard", {"spikes": []})["spikes"]
        return [(int(step), float(loss), float(median)) for step, loss, median in noted]

    # --- rows -------------------------------------------------------------------------------------------------

    def rows(self, step: int, train: Any = None) -> list[int]:
        """The rows that an update used, in their order. Nothing is trained.

        If a NaN ended the training before an update within the limits of the run, these are the rows that the update
        would have used. They are numbers of rows in the table that was trained on, which may be a split. Pass `train`
        if it is a mix of tables.
        """
        places, limits = self.places(train), self._last.common["limits"]
        is_to_come = self.steps < step <= limits.get("steps", inf) and places.span(step)[0] < places.end(limits)
        return places.rows_of(step if is_to_come else self._known(step))

    def when(self, row: int, train: Any = None) -> list[int]:
        """The updates that used a row."""
        return self.places(train).steps_of(row, self.steps)

    def origin(self, row: int, train: Any) -> tuple[int, int]:
        """Where a row comes from, below splits, filters and maps: the table of a mix, and its number there."""
        source = source_on(train, torch.device("cpu"), "train", *self._order)
        if not isinstance(source, Reader) or not 0 <= row < len(source.table):
            known = f"rows 0 to {len(source.table) - 1}" if isinstance(source, Reader) else "batches, without numbers"
            raise RunError(f"there is no row {row}: these data are {known}.")
        return origin(source.table, row)

    def places(self, train: Any = None) -> Places:
        """The places of updates in the order of the rows."""
        source = None if train is None else source_on(train, torch.device("cpu"), "train", *self._order)
        reader = source if isinstance(source, Reader) else None
        return Places(self._last.common, len(self._last.workers), reader)

    @property
    def _order(self) -> tuple[str, int]:
        return self.settings["order"], self.settings["seed"]

    @cached_property
    def _last(self) -> Checkpoint:
        contents = self._store.newest()
        if contents is None:
            raise CheckpointError(f"{self.path} has no checkpoint.")
        return decode(contents)

    def _known(self, step: int) -> int:
        if not 1 <= step <= self.steps:
            raise RunError(f"{self.path} has made the updates 1 to {self.steps}; there is no update {step!r}.")
        return step

    # --- what is trained again ----------------------------------------------------------------------------

    def at(self, step: int, trainer: Trainer, train: Any, **fit: Any) -> Trainer:
        """The trainer as it was after an update: weights, optimizer, buffers, random state."""
        if step in self.checkpoints:
            load_state(self, step, trainer, train, fit)
            return trainer
        with replaying(self, step, trainer, train, fit) as (loop, _):
            advance(loop, step)
        return trainer

    def why(self, step: int, trainer: Trainer, train: Any, *, ahead: int = 5, **fit: Any) -> Why:
        """Repeats an update and `ahead` further ones, and explains its loss: see `Why`."""
        self._known(step)
        return in_workers(self, step - 1, trainer, explain, self, step, trainer, train, ahead, fit)

    def verify(
        self,
        trainer: Trainer | None = None,
        train: Any = None,
        *,
        segments: int = 3,
        seed: int = 0,
        key: str | Path | None = None,
        **fit: Any,
    ) -> Certificate:
        """Checks every hash, and trains stretches between checkpoints again: see `Certificate`.

        Args:
            segments: how many stretches are trained again; 0 needs neither trainer nor data.
            seed: chooses the stretches.
            key: a private key of ssh, which signs the certificate.
        """
        return certify(self, trainer, train, segments, seed, key, fit)

    def fork(self, run: str | Path, at: int, trainer: Trainer | None = None, train: Any = None, **fit: Any) -> Record:
        """Begins another run with the state of a step. If the step has no checkpoint, it trains up to it first."""
        path = run_path(run)
        if path.exists() and any(path.iterdir()):
            raise RunError(f"{path} is there already. Name a run that does not exist.")
        if at in self.checkpoints or trainer is None:
            open_fork(path, self.path, at).close()
            return Record(path)
        in_workers(self, at, trainer, self._fork_between, path, at, trainer, train, fit)
        return Record(path)

    def _fork_between(self, path: Path, at: int, trainer: Trainer, train: Any, fit: Mapping[str, Any]) -> None:
        with replaying(self, at, trainer, train, fit) as (loop, place):
            advance(loop, at)
            loop.close()
            if here().leader:
                open_fork(path, self.path, at, place).close()

    def without(self, rows: Collection[int], trainer: Trainer, train: Any, *, run: str | Path, **fit: Any) -> History:
        """Trains again without the rows of these numbers, from before they were first used, as the run `run`."""
        numbers, path = sorted(set(rows)), run_path(run)
        return in_workers(self, self.steps, trainer, train_without, self, numbers, trainer, train, path, fit)
