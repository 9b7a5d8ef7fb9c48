"""Averages the weights along a training; the average is validated and kept instead of the weights themselves."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import ConfigError
from ..length import Length, interval
from .callback import Callback

if TYPE_CHECKING:
    from ..arena.replica import Replica
    from .info import Info


class EMA(Callback):
    """An exponential moving average: θ̄ ← decay·θ̄ + (1 − decay)·θ after every update, or `every` so many.

    Validations, the test, the best model, the weights in checkpoints and the final model are θ̄; the updates continue
    with θ, also after a resume. For the first 1/(1 − decay) updates θ̄ is a plain mean, so that the initial weights are
    soon forgotten; with `decay=1` it stays one. Statistics, such as those of batch normalisation, are averaged too.

    `EMA(1, every="1 epoch", after="15 epochs")` is stochastic weight averaging, https://arxiv.org/abs/1803.05407: the
    mean of the weights at the ends of epochs, from the 15th on. For a constant rate from then on, give the trainer a
    schedule.

    `like="torch"` gives the bits of torch's `AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))`: θ̄ begins
    with the weights after the first update, and statistics are the model's own.
    """

    only = "average of the weights"
    _average: list[Tensor]
    _saved: Mapping[str, Tensor] | None
    _replica: Replica | None

    def __init__(
        self,
        decay: float = 0.999,
        *,
        every: str | Length = "1 step",
        after: str | Length | None = None,
        like: str | None = None,
    ) -> None:
        if not isinstance(decay, int | float) or not 0 <= decay <= 1:
            raise ConfigError(f"EMA: decay= is a number from 0 to 1, got {decay!r}.")
        if like not in (None, "torch"):
            raise ConfigError(f"EMA: like= is 'torch', or left out; got {like!r}.")
        self.decay, self.like, self.every = decay, like, interval(every, "every")
        self.after = None if after is None else interval(after, "after")
        self.forget()

    def _check(self, info: Info) -> None:
        if not info.trainer.strategy.joint:
            raise ConfigError(
                f"EMA averages the weights of one model, and under {type(info.trainer.strategy).__name__} every worker "
                "has its own. Use strategy=hr.Synchronous()."
            )

    def on_fit_start(self, info: Info) -> None:
        if self._saved is not None:
            saved, now = info.replica.joined(self._saved), self._averaged(info)
            self._average = [*saved, *(tensor.clone() for tensor in now[len(saved) :])][: len(now)]  # other workers
            self._saved = None
        if self.count:
            info.evaluate_with(self._average)

    def on_step_end(self, info: Info) -> None:
        if (self.after is not None and not self.after.reached(info.counters)) or not info.fires(self.every):
            return
        now = self._averaged(info)
        if not self.count:
            self._average = [tensor.clone() for tensor in now]
            info.evaluate_with(self._average)
        share = 1 - self.decay if self.like == "torch" else max(1 - self.decay, 1 / (self.count + 1))
        torch._foreach_lerp_(self._average, now, share)
        self.count += 1

    def on_fit_end(self, info: Info) -> None:
        if not self.count and info.stopping != "left":
            begun = self.after is None or self.after.reached(info.counters)
            since = f" after {self.after}" if self.after else ""
            why = f"no interval of {self.every} ended{since}" if begun else f"it begins{since}"
            warnings.warn(f"EMA had nothing to average: {why}.", stacklevel=2)

    def on_checkpoint(self, info: Info) -> None:
        self._replica = info.replica

    def forget(self) -> None:
        self.count = 0
        """How often the average has been moved."""
        self._average = []
        self._saved, self._replica = None, None

    def state_dict(self) -> dict[str, Any]:
        if not self.count or self._replica is None:
            return {}
        return {"count": self.count, "average": self._replica.by_name(self._average)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self._saved = int(state["count"]), state["average"]

    def _averaged(self, info: Info) -> list[Tensor]:
        """The tensors that are averaged."""
        measured_alike = info.is_only_worker or info.trainer.strategy.parts  # statistics, by all workers
        return info.replica.tensors if measured_alike and self.like is None else info.replica.values
