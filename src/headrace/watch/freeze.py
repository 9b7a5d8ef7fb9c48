"""Parameters that are left as they are until a part of the training is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..length import Length, interval
from ..step.frozen import matching
from .callback import Callback

if TYPE_CHECKING:
    from .info import Info


class Freeze(Callback):
    """Leaves the parameters whose names match as they are, `until` some length of the training, or to its end.

    `Freeze("features.*", until="3 epochs")`; with `after` they are frozen from there on. A layer all of whose
    parameters are frozen, as a batch normalisation, measures nothing meanwhile. At the end of the training they are
    what they were before it: parameters that can be trained.
    """

    def __init__(self, *patterns: str, after: str | Length | None = None, until: str | Length | None = None) -> None:
        if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
            raise ConfigError('Freeze takes names of parameters or patterns, as in Freeze("features.*").')
        self.patterns = patterns
        self.after = None if after is None else interval(after, "after")
        self.until = None if until is None else interval(until, "until")
        if self.after and self.until and self.after.unit == self.until.unit and self.after.count >= self.until.count:
            raise ConfigError(f"Freeze: after={str(self.after)!r} is not before until={str(self.until)!r}.")
        self._frozen = False

    def _check(self, info: Info) -> None:
        matching(info.trainer.model, self.patterns)

    def on_fit_start(self, info: Info) -> None:
        self._ask(info)

    def on_step_end(self, info: Info) -> None:
        if self._frozen != self._wants(info):
            self._ask(info)

    def _wants(self, info: Info) -> bool:
        begun = self.after is None or self.after.reached(info.counters)
        return begun and not (self.until is not None and self.until.reached(info.counters))

    def _ask(self, info: Info) -> None:
        self._frozen = self._wants(info)
        (info.freeze if self._frozen else info.thaw)(*self.patterns, owner=f"Freeze {' '.join(self.patterns)}")
