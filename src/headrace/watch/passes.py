"""Calls callbacks along a `validate` or a `predict`, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..length import Counters
from .callback import Callbacks
from .history import History
from .info import Info

if TYPE_CHECKING:
    from ..data.batch import Batch
    from ..data.feed import Feed


class PassCallbacks:
    """Calls `on_step_end` after every batch of a pass over data and `on_macrobatch_end` after every macrobatch."""

    def __init__(self, trainer: Any, callbacks: Callbacks) -> None:
        self._trainer, self._callbacks = trainer, callbacks

    def __call__(self, feed: Feed, batches: Iterable[Batch]) -> Iterator[Batch]:
        info = Info(self._trainer, Counters(), [], History(), ())
        info.batches, info.macrobatches = feed.batches, feed.macrobatches
        for batch in batches:
            yield batch
            counters = info.counters
            counters.batch, counters.rows = counters.batch + 1, batch.samples
            counters.samples, counters.ends_epoch = counters.samples + batch.samples, batch.ends_epoch
            info.macrobatch = feed.macrobatch
            self._callbacks.call("on_step_end", info)
            if feed.ends_macrobatch:
                self._callbacks.call("on_macrobatch_end", info)
            self._refuse_requests(info)

    def _refuse_requests(self, info: Info) -> None:
        if info.asked or info.stopping or info.extra_numbers or info.marks:
            raise ConfigError(
                "a callback asks for a change of the training, and validate and predict make none. There it can look "
                "at where the pass stands: info.batch, info.batches, info.macrobatch, info.macrobatches, info.samples."
            )
