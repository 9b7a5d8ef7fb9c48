"""The hooks of a training, in the order in which they are called."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from ..data.batch import Batch
    from .info import Info

HOOKS = (
    "on_fit_start",
    "on_epoch_start",
    "on_step_end",
    "on_macrobatch_end",
    "on_validation_end",
    "on_epoch_end",
    "on_report",
    "on_checkpoint",
    "on_error",
    "on_fit_end",
)


class Callback:
    """Override the hooks you need; the others cost nothing.

    Every hook gets the `Info` of the loop: counters, position, losses. A callback requests changes by its
    methods `stop`, `mark_best`, `set_rate`, `freeze`, `thaw` and `evaluate_with`; `log` adds numbers to the report.
    `with info.evaluating() as model` gives the model as it is validated. A run saves what `state_dict` returns, and
    passes it to `load_state_dict` when it is resumed.

    With several workers a callback is called on each of them, with the same numbers, and has to make the same requests.
    """

    everywhere = True
    """Whether it is called on every worker; whoever prints or writes says no, and is called on worker 0 alone."""

    each_step = True
    """Whether `on_step_end` and `on_macrobatch_end` are called each time. If not, `fit` may skip these calls for up to
    50 ms at a time, and takes less time; a display needs no more."""

    _looks_on = False
    """Whether this very class changes nothing of a training, so that updates stay prepared when it is called."""

    only = ""
    """What there can be one of in a training, if this is one."""
    _owner = ""
    """The name under which its requests are kept in a training: its class, and its number among those of its class."""

    def _check(self, info: Info) -> None:
        """Before anything is loaded: raises on what cannot work."""

    def _change(self, info: Info, batch: Batch) -> Batch:
        """The batch that an update is made of, instead of this one."""
        return batch

    def forget(self) -> None:
        """Resets the state before another training; `load_state_dict` follows if it resumes one."""

    def state_dict(self) -> dict[str, Any]:
        """What this callback has to remember: plain values and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to a state that `state_dict` gave."""

    def on_fit_start(self, info: Info) -> None:
        """Everything has been checked; nothing has been trained yet."""

    def on_epoch_start(self, info: Info) -> None:
        """The first batch of a pass over the data is next."""

    def on_step_end(self, info: Info) -> None:
        """An update has been made, or a batch of the `validate` or `predict` that was given this callback is done."""

    def on_macrobatch_end(self, info: Info) -> None:
        """The last batch of a macrobatch has been used."""

    def on_validation_end(self, info: Info, scores: dict[str, Any]) -> None:
        """A validation or a test has been made; `scores` by key, as in `val/loss`."""

    def on_epoch_end(self, info: Info, row: dict[str, Any]) -> None:
        """A pass over the data is over; `row` is its report."""

    def on_report(self, info: Info, row: dict[str, Any]) -> None:
        """A row of the history is complete. Test scores have a row of their own."""

    def on_checkpoint(self, info: Info) -> None:
        """A checkpoint of this step is about to be written, with what `state_dict` returns now."""

    def on_error(self, info: Info, error: BaseException) -> None:
        """The training ends because of this."""

    def on_fit_end(self, info: Info) -> None:
        """The training has ended; the model is still at work."""


class Callbacks:
    """Several callbacks as one: each hook is a tuple of the methods that somebody has overridden."""

    def __init__(self, callbacks: Sequence[Callback], leader: bool = True) -> None:
        for callback in callbacks:
            if not isinstance(callback, Callback):
                got = callback.__name__ if isinstance(callback, type) else type(callback).__name__
                raise ConfigError(f"callbacks= takes Callback objects, got a {got}. Pass an instance of a Callback.")
        for what in {callback.only for callback in callbacks if callback.only}:
            if len(kinds := [type(callback).__name__ for callback in callbacks if callback.only == what]) > 1:
                raise ConfigError(f"callbacks= has {' and '.join(kinds)}; there can be one {what}.")
        callbacks = [callback for callback in callbacks if leader or callback.everywhere]
        self._callbacks = callbacks
        self._methods = {hook: tuple(getattr(c, hook) for c in callbacks if _overrides(c, hook)) for hook in HOOKS}
        self.on_step_end = self._methods["on_step_end"]
        """Called once per update, hence at hand."""
        self.changes = tuple(callback._change for callback in callbacks if _overrides(callback, "_change"))
        """What changes a batch before its update."""
        self.acting = {hook for hook in HOOKS if any(not _only_looks_on(c) and _overrides(c, hook) for c in callbacks)}
        """The hooks at which somebody is called who may change the model: all but our own logs and displays."""
        hooks = "on_step_end", "on_macrobatch_end"
        self.each_update = any(c.each_step for c in callbacks for hook in hooks if _overrides(c, hook))
        """Whether somebody has to be called after every update."""

    def state_dict(self) -> dict[str, Any]:
        """The state of each by its kind, and by its number among those of its kind."""
        return {name: state for name, callback in self._named() if (state := callback.state_dict())}

    def check(self, info: Info) -> None:
        """Before anything is loaded: raises on what cannot work."""
        for name, callback in self._named():
            callback._owner = name
            callback._check(info)

    def forget(self) -> None:
        """Another training begins."""
        for callback in self._callbacks:
            callback.forget()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores states by name; warns of a state whose callback is missing."""
        named = dict(self._named())
        for name, saved in state.items():
            if name in named:
                try:
                    named[name].load_state_dict(saved)
                except Exception as error:
                    raise CheckpointError(
                        f"the callback {name} cannot take back the state that it saved: {type(error).__name__}: {error}"
                    ) from error
            else:
                warnings.warn(f"the run was saved with a callback {name} that is not there now.", stacklevel=2)

    def _named(self) -> list[tuple[str, Callback]]:
        kinds = [type(callback).__name__ for callback in self._callbacks]
        numbers = [kinds[:k].count(kind) + 1 for k, kind in enumerate(kinds)]
        names = [kind if number == 1 else f"{kind} {number}" for kind, number in zip(kinds, numbers, strict=True)]
        return list(zip(names, self._callbacks, strict=True))

    def report_error(self, info: Info, error: BaseException) -> None:
        """Calls every `on_error`, also after one that fails."""
        for method in self._methods["on_error"]:
            try:
                method(info, error)
            except Exception as other:
                error.add_note(f"And on_error failed: {type(other).__name__}: {other}")

    def those_before(self, hooks: Collection[str]) -> list[Callable[..., Any]]:
        """The methods for all other hooks than these, which come last."""
        return [method for hook, methods in self._methods.items() if hook not in hooks for method in methods]

    def call(self, hook: str, *arguments: Any) -> None:
        for method in self._methods[hook]:
            method(*arguments)


def _only_looks_on(callback: Callback) -> bool:
    """Whether a callback is a log or a display of ours. A subclass of one is somebody else's."""
    return bool(vars(type(callback)).get("_looks_on")) and vars(callback).keys().isdisjoint(HOOKS)


def _overrides(callback: Callback, hook: str) -> bool:
    """Whether a callback has a hook of its own: in its class, or in itself, as a `Lambda`."""
    return getattr(type(callback), hook) is not getattr(Callback, hook) or hook in vars(callback)
