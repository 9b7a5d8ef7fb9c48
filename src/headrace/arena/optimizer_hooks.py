"""What happens when a user steps the optimizer by hand while its parameters are homed: what the user means."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch.autograd import _profiler_enabled as profiler_enabled  # type: ignore[attr-defined]
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer


class OptimizerHooks:
    """The optimizer's `step` and `zero_grad`, which act on the vectors until `let_go`.

    `begin` and `collect` are what an update needs before and after its backward pass. Saving or loading the
    optimizer's state calls `release` first, so that it speaks of parameters.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        begin: Callable[[], Any],
        collect: Callable[[], Any],
        release: Callable[[], None],
        bare: bool,
    ) -> None:
        self._optimizer, self._begin, self._collect = optimizer, begin, collect
        self._outer = vars(optimizer).get("step")  # a schedule has put its own wrapper there
        self._patched = self._make_step()
        self._ours = False
        scheduled = self._outer is None or (
            hasattr(self._outer, "_wrapped_by_lr_sched") and self._outer.__wrapped__ is type(optimizer).step
        )
        bare = bare and scheduled and not optimizer.defaults.get("differentiable")
        self._plain = inspect.unwrap(type(optimizer).step) if bare else None
        self._listeners = (
            optimizer._optimizer_step_pre_hooks,
            optimizer._optimizer_step_post_hooks,
            torch_optimizer._global_optimizer_pre_hooks,
            torch_optimizer._global_optimizer_post_hooks,
        )
        self._handles = [
            optimizer.register_state_dict_pre_hook(lambda _: release()),
            optimizer.register_load_state_dict_pre_hook(lambda *_: release()),
        ]
        optimizer.step = self._patched  # type: ignore[method-assign]
        optimizer.zero_grad = self._zero_by_hand  # type: ignore[method-assign]

    def step(self) -> None:
        """The update of an arena: without torch's wrappers for hooks and profiling, where nobody listens there."""
        untouched = vars(self._optimizer)["step"] is self._patched
        if self._plain is not None and untouched and not any(self._listeners) and not profiler_enabled():
            self._optimizer._opt_called = True  # type: ignore[attr-defined]  # torch's schedules look at it
            with torch.no_grad():
                self._plain(self._optimizer)
            return
        with self.ours():
            self._optimizer.step()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """While this lasts, `optimizer.step()` is the library's own call."""
        self._ours = True
        try:
            yield
        finally:
            self._ours = False

    def let_go(self) -> None:
        """Gives the optimizer its own methods back."""
        for handle in self._handles:
            handle.remove()
        attributes = vars(self._optimizer)
        del attributes["zero_grad"]
        if attributes["step"] is not self._patched:
            self._ours = True  # a schedule made meanwhile has wrapped it: it only passes calls on from now
        elif self._outer is not None:
            attributes["step"] = self._outer
        else:
            del attributes["step"]

    def _make_step(self) -> MethodType:
        """A method of the optimizer, as schedules expect one that they can wrap."""

        def step(optimizer: Optimizer, *arguments: Any, **keywords: Any) -> Any:
            if not self._ours:
                self._collect()
            if self._outer is not None:
                return self._outer(*arguments, **keywords)
            return type(optimizer).step(optimizer, *arguments, **keywords)

        vars(step).update(vars(self._outer) if self._outer is not None else {})
        return MethodType(step, self._optimizer)

    def _zero_by_hand(self, set_to_none: bool = True) -> None:
        self._begin()
