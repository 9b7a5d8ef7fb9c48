"""Notices optimizers that a `train_step` steps and that its trainer does not have."""

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..arena.optimizer import is_plain


class Strangers:
    """Optimizers that are stepped beside a trainer's own: what they remember is not saved with the run."""

    def __init__(self, own: Iterable[Optimizer], modules: Sequence[nn.Module]) -> None:
        self._known: WeakSet[Optimizer] = WeakSet(own)
        self._modules = modules
        self._said: set[str] = set()
        self._found: list[str] = []

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """For a while, optimizers that this thread steps are noticed."""
        thread = threading.get_ident()

        def look(optimizer: Optimizer, *_: object) -> None:
            if optimizer not in self._known and threading.get_ident() == thread:
                self._known.add(optimizer)
                message = self._describe(optimizer)
                if message and message not in self._said:
                    self._said.add(message)
                    self._found.append(message)

        handle = register_optimizer_step_post_hook(look)
        try:
            yield
        finally:
            handle.remove()

    def tell(self, log: Callable[[str], None]) -> None:
        """Warns of those that have been noticed since, and logs it."""
        while self._found:
            message = self._found.pop()
            log(message)
            warnings.warn(message, stacklevel=2)

    def _describe(self, optimizer: Optimizer) -> str:
        """What is lost of an optimizer when a run is resumed; nothing if it is stateless and its weights are saved."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        names = {param: name for module in self._modules for name, param in module.named_parameters()}
        outside, kind = sum(param not in names for param in params), type(optimizer).__name__
        scheduled = any("initial_lr" in group for group in optimizer.param_groups)
        if not outside and not scheduled and is_plain(optimizer):
            return ""
        if outside:
            whose, lost = (
                f"{outside} parameters that are not in the model",
                f"neither these nor the state of {kind} are",
            )
            remedy = "Make them part of the model, and give"
        else:
            whose, lost, remedy = repr(names[params[0]]), f"the state of {kind} is not", "Give"
            whose += f" and {len(params) - 1} more" if len(params) > 1 else ""
        return (
            f"train_step steps an optimizer that the trainer does not have: {kind} of {whose}. The run can be resumed, "
            f"but not exactly: {lost} saved with it. {remedy} the optimizer to the trainer, as in optimizer={{'a': "
            "first, 'b': second}; in train_step it is self.optimizers['b']."
        )
