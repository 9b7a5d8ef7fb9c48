"""The hooks of a training, in the order in which they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..info import Info

HOOKS = (
    "on_fit_start",
    "on_epoch_start",
    "on_step_end",
    "on_macrobatch_end",
    "on_validation_end",
    "on_epoch_end",
    "on_error",
    "on_fit_end",
)


class Callback:
    """Override the hooks you need; the others cost nothing.

    Every hook gets the `Info` of the loop: counters, position, losses. `info.stop(why)` asks the loop to end.
    """

    def on_fit_start(self, info: Info) -> None:
        """Everything has been checked; nothing has been trained yet."""

    def on_epoch_start(self, info: Info) -> None:
        """The first batch of a pass over the data is next."""

    def on_step_end(self, info: Info) -> None:
        """An update has been made."""

    def on_macrobatch_end(self, info: Info) -> None:
        """The last batch of a macrobatch has been used."""

    def on_validation_end(self, info: Info, scores: dict[str, Any]) -> None:
        """A validation or a test has been made; `scores` by key, as in `val/loss`."""

    def on_epoch_end(self, info: Info, row: dict[str, Any]) -> None:
        """A pass over the data is over; `row` is its report."""

    def on_error(self, info: Info, error: BaseException) -> None:
        """The training ends because of this."""

    def on_fit_end(self, info: Info) -> None:
        """The training has ended; the model is still at work."""


class Callbacks:
    """Several callbacks as one: each hook is a tuple of the methods that somebody has overridden."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        for callback in callbacks:
            if not isinstance(callback, Callback):
                got = callback.__name__ if isinstance(callback, type) else type(callback).__name__
                raise ConfigError(f"callbacks= takes Callback objects, got a {got}. Pass an instance of a Callback.")
        self._methods = {
            hook: tuple(getattr(c, hook) for c in callbacks if getattr(type(c), hook) is not getattr(Callback, hook))
            for hook in HOOKS
        }
        self.on_step_end = self._methods["on_step_end"]
        """Called once per update, hence at hand."""

    def call(self, hook: str, *arguments: Any) -> None:
        for method in self._methods[hook]:
            method(*arguments)
