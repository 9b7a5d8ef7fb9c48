"""Averages the weights along a training; the averages are validated and kept instead of the weights themselves."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
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


class Average(Callback):
    """What averages have in common: a second set of weights, moved towards the model's at an interval."""

    only = "average of the weights"
    _average: list[Tensor]
    _saved: Mapping[str, Tensor] | None
    _replica: Replica | None

    def __init__(self, every: str | Length, after: str | Length | None) -> None:
        self.every = interval(every, "every")
        self.after = None if after is None else interval(after, "after")
        self.forget()

    @abstractmethod
    def share(self) -> float:
        """How far the average moves towards the weights now, from 0 to 1."""

    def _check(self, info: Info) -> None:
        if not info.trainer.strategy.joint:
            raise ConfigError(
                f"{type(self).__name__} averages the weights of one model, and under "
                f"{type(info.trainer.strategy).__name__} every worker has its own. Use strategy=hr.Synchronous()."
            )

    def on_fit_start(self, info: Info) -> None:
        if self._saved is not None:
            saved, now = info.replica.joined(self._saved), self._averaged(info)
            self._average = [*saved, *(tensor.clone() for tensor in now[len(saved) :])][: len(now)]  # other workers
            self._saved = None
        if self.count:
            info.evaluate_with(self._average)

    def on_step_end(self, info: Info) -> None:
        begun = self.after is None or self.after.reached(info.counters)
        if begun and info.fires(self.every):
            self._move(info)

    def on_fit_end(self, info: Info) -> None:
        if not self.count and info.stopping != "left":
            warnings.warn(f"{type(self).__name__} had nothing to average: {self._missed(info)}.", stacklevel=2)

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

    def _missed(self, info: Info) -> str:
        """Why nothing has been averaged."""
        if self.after is None:
            return f"no interval of {self.every} ended"
        if self.after.reached(info.counters):
            return f"no interval of {self.every} ended after {self.after}"
        return f"it begins after {self.after}"

    def _averaged(self, info: Info) -> list[Tensor]:
        """The tensors that are averaged."""
        measured_alike = info.is_only_worker or info.trainer.strategy.parts  # statistics, by all workers
        return info.replica.tensors if measured_alike else info.replica.values

    def _move(self, info: Info) -> None:
        now = self._averaged(info)
        if not self.count:
            self._average = [tensor.clone() for tensor in now]
            info.evaluate_with(self._average)
        torch._foreach_lerp_(self._average, now, self.share())
        self.count += 1


class EMA(Average):
    """An exponential moving average: θ̄ ← decay·θ̄ + (1 − decay)·θ after every update, or `every` so many.

    Validations, the test, the best model, the weights in checkpoints and the final model are θ̄; the updates continue
    with θ, also after a resume. For the first 1/(1 − decay) updates θ̄ is a plain mean, so that the initial weights are
    soon forgotten. Statistics, such as those of batch normalisation, are averaged too.

    `like="torch"` gives the bits of torch's `AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))`: θ̄ begins
    with the weights after the first update, and statistics are the model's own.
    """

    def __init__(self, decay: float = 0.999, *, every: str | Length = "1 step", like: str | None = None) -> None:
        super().__init__(every, None)
        if like not in (None, "torch"):
            raise ConfigError(f"EMA: like= is 'torch', or left out; got {like!r}.")
        self.like = like
        if not isinstance(decay, int | float) or not 0 <= decay < 1:
            raise ConfigError(f"decay= is a number from 0 to less than 1, got {decay!r}.")
        self.decay = decay

    def share(self) -> float:
        return 1 - self.decay if self.like == "torch" else max(1 - self.decay, 1 / (self.count + 1))

    def _averaged(self, info: Info) -> list[Tensor]:
        return info.replica.values if self.like == "torch" else super()._averaged(info)


class SWA(Average):
    """Stochastic weight averaging, https://arxiv.org/abs/1803.05407: the mean of the weights at the ends of epochs.

    It begins `after` some epochs, as in `SWA("15 epochs")`; from then on the mean is validated, tested and kept, and is
    the final model. `rate`: the constant learning rate from then on. Statistics are averaged as in `EMA`.
    """

    def __init__(self, after: str | Length, *, every: str | Length = "1 epoch", rate: float | None = None) -> None:
        super().__init__(every, after)
        if rate is not None and (not isinstance(rate, int | float) or not 0 <= rate < math.inf):
            raise ConfigError(f"SWA: rate= is a number of 0 or more, got {rate!r}.")
        self.rate = rate

    def share(self) -> float:
        return 1 / (self.count + 1)

    def _check(self, info: Info) -> None:
        super()._check(info)
        if self.rate is not None and info.trainer.schedule is not None:
            raise ConfigError(
                "SWA(rate=) sets the learning rate, and so does the trainer's schedule. Drop one of them."
            )

    def _move(self, info: Info) -> None:
        if self.rate is not None and not self.count:
            info.set_rate(self.rate)
        super()._move(info)
