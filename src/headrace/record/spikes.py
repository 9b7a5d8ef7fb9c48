"""Watches the loss of every update, and notes or leaves out those that are far above the ones before them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.orders import MixOrder
from ..data.reader import Reader
from ..errors import ConfigError, unknown
from ..length import as_count
from ..loss.outcome import Outcome
from ..watch.callback import Callback
from ..watch.info import Info
from .places import rows_between
from .without import weight_streams, weightless

ACTIONS = ("note", "skip", "rewind")


class SpikeGuard(Callback):
    """Notes an update whose loss is more than `factor` times the median of the last `window` losses, and acts.

    The first `window` updates are not judged. Losses of spikes count in the median, so that it follows a loss that
    stays high. What is noted is part of checkpoints. Losses are read where `fit` waits for the device anyway.

    Args:
        factor: how many times the median a loss may be at most
        window: of how many losses the median is taken
        action: "note" only notes a spike, for `Record.spikes` and `headrace why`; "skip" leaves the update out;
            "rewind" also counts its rows at weight 0 from then on (needs a table, and a stream of weights in all terms)
    """

    only = "SpikeGuard"
    each_step = False
    _looks_on = True
    _losses: list[float] | Tensor
    """The last ones, in a ring; on a device as a vector."""

    def __init__(self, factor: float = 5.0, window: int = 64, action: str = "note") -> None:
        if not isinstance(factor, int | float) or not 1 < factor < math.inf:
            raise ConfigError(f"factor= is a number above 1, got {factor!r}.", argument="factor")
        if (as_count(window) or 0) < 2:
            raise ConfigError(f"window= is a number of updates, at least 2, got {window!r}.", argument="window")
        if action not in ACTIONS:
            raise ConfigError(unknown("action", action, ACTIONS), argument="action")
        self.factor, self.window, self.action = float(factor), int(window), action
        self._weights: list[str] = []
        self._info: Info
        self._places = range(0)  # where the rows of the update at hand are in the data
        self._reads_each = True  # whether a row may come again before a device is waited for
        self.forget()

    @property
    def spikes(self) -> list[tuple[int, float, float]]:
        """Step, loss and median of each spike so far."""
        self._settle()
        return [(int(step), float(loss), float(median)) for step, loss, median in self._noted]

    @property
    def rows(self) -> list[int]:
        """The rows that are at weight 0 now."""
        self._settle()
        return sorted(self._rows)

    # --- as a callback --------------------------------------------------------------------------------------

    def _check(self, info: Info) -> None:
        trainer = info.trainer
        if len(trainer.optimizers) > 1 or trainer.has_own_train_step:
            raise ConfigError("SpikeGuard looks at the loss of one optimizer, and this trainer updates in its own way.")
        if trainer.workers.comm.count > 1 and not trainer.strategy.shares_updates:
            raise ConfigError("SpikeGuard looks at the loss of all workers, which only hr.Synchronous() shares.")
        if self.action == "rewind":
            self._weights = weight_streams(trainer)
            source = info.train
            if not isinstance(source, Reader) or source.sized_by != "rows":
                raise ConfigError(
                    "SpikeGuard(action='rewind') needs to know rows: train on a table, in batches of rows."
                )

    def on_fit_start(self, info: Info) -> None:
        self._info, device = info, info.trainer.device
        if device.type != "cpu":
            self._losses = torch.tensor(self._losses, device=device)
        if isinstance(info.train, Reader):
            is_mix = isinstance(info.train.order, MixOrder)
            self._reads_each = device.type == "cpu" or info.train.crosses or is_mix
        info.trainer.updates.guard.allows = self._allows

    def _change(self, info: Info, batch: Batch) -> Batch:
        if self.action != "rewind":
            return batch
        assert batch.cursor is not None
        order = info.train.order
        end = int(batch.cursor["epoch"]) * order.n + int(batch.cursor["position"])
        self._places = range(end - batch.total, end)
        if self._reads_each or info.counters.ends_epoch:
            self._settle()
        if not self._rows:
            return batch
        start, stop = info.trainer.workers.shard.of(batch.total)
        mine = self._places[start:stop]
        hits = np.flatnonzero(np.isin(rows_between(order, mine.start, mine.stop), list(self._rows)))
        return batch if not len(hits) else weightless(batch, self._weights, hits)

    def on_macrobatch_end(self, info: Info) -> None:
        self._settle()

    def on_fit_end(self, info: Info) -> None:
        if self.spikes and info.trainer.workers.comm.leader:
            steps = ", ".join(str(step) for step, _, _ in self.spikes[:10])
            warnings.warn(
                f"SpikeGuard ({self.action}): at step {steps} the loss was more than {self.factor:g} times the median "
                "of those before. record.why(step, trainer, train) says more.",
                stacklevel=2,
            )

    def forget(self) -> None:
        self._losses, self._count = [0.0] * self.window, 0
        self._noted: list[list[Any]] = []
        self._pending: list[tuple[int, Any, Any, Any, range]] = []
        self._rows: set[int] = set()

    def state_dict(self) -> dict[str, Any]:
        self._settle()
        losses = self._losses.tolist() if isinstance(self._losses, Tensor) else [*self._losses]
        return {"losses": losses, "count": self._count, "spikes": [*self._noted], "rows": sorted(self._rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["losses"]) != self.window:
            raise ConfigError(f"the run has SpikeGuard(window={len(state['losses'])}), and here it is {self.window}.")
        self._losses, self._count = [*state["losses"]], int(state["count"])
        self._noted, self._rows = list(state["spikes"]), set(state["rows"])

    # --- what is decided ------------------------------------------------------------------------------------

    def _allows(self, outcome: Outcome) -> bool | Tensor:
        """Whether the update may be made, before it is."""
        loss, losses = outcome.losses["total_loss"], self._losses
        is_read, is_full = not isinstance(loss, Tensor), self._count >= self.window
        median: Any = losses.nanmedian() if isinstance(losses, Tensor) else sorted(losses)[(self.window - 1) // 2]
        is_spike: Any = is_full and loss - median > (self.factor - 1) * abs(median)
        losses[self._count % self.window] = loss
        self._count += 1
        if is_full and (not is_read or is_spike):
            self._pending.append((self._info.step + 1, is_spike, loss, median, self._places))
        if self.action == "note" or not is_full:
            return True
        return not is_spike if is_read else ~is_spike

    def _settle(self) -> None:
        """Learns which updates were spikes."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        found = [is_spike for _, is_spike, _, _, _ in pending]
        flags = torch.stack(found).tolist() if isinstance(found[0], Tensor) else found
        for is_spike, (step, _, loss, median, places) in zip(flags, pending, strict=True):
            if is_spike:
                self._noted.append([step, float(loss), float(median)])
                if self.action == "rewind":
                    self._rows.update(rows_between(self._info.train.order, places.start, places.stop))
