"""A while in which a trainer may be tried out: afterwards everything is as it was, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import plan as plans
from .. import rng
from ..comm import here
from ..data.reader import rewound
from ..data.source import Source
from ..data.torch.iterables import generators_of
from ..errors import ConfigError
from ..metric import Metrics

if TYPE_CHECKING:
    from ..info import Info
    from ..trainer import Trainer


@contextmanager
def untouched(trainer: Trainer, data: Any) -> Iterator[Source]:
    """The train data as a source, for a while that leaves no trace, however it ends.

    Put back are weights and buffers, modes and attributes of modules, optimizers with what they remember, gradients,
    the random numbers of torch, NumPy and Python, the place in the data, and the trainer's history and settings. There
    is neither a schedule nor a metric meanwhile. Copies are on the host, so that the device's memory is free.
    """
    if here().count > 1:
        raise ConfigError(f"a finder tries things out in one process, and there are {here().count}. Call it in one.")
    trainer.release()
    with ExitStack() as stack:
        stack.callback(rng.restore, rng.capture(trainer.device), trainer.device)
        source = plans.source_on(data, trainer.device, "train", trainer.order, trainer.seed)
        for generator in generators_of(data):
            stack.callback(generator.set_state, generator.get_state())
        if source.state_dict() is None:
            warnings.warn(
                f"{source.title} has no state_dict: what is read to try things out is not read again.", stacklevel=4
            )
        stack.enter_context(rewound(source))
        stack.callback(_kept(trainer).restore)
        stack.callback(trainer.precision.load_state_dict, trainer.precision.state_dict())
        stack.callback(trainer.release)  # first of all
        vars(trainer).update(schedule=None, metrics=Metrics())
        trainer._step.adapts = False  # memory that runs out is something to be told of
        yield source


@contextmanager
def updates(trainer: Trainer, source: Source, steps: int) -> Iterator[Iterator[Info]]:
    """Up to so many updates of a training on this source, which may be left."""
    found = trainer.steps(source, steps=steps, log_every=f"{steps} steps")
    with closing(found):  # type: ignore[type-var]
        yield found


def _kept(trainer: Trainer) -> _Kept:
    """What a trainer holds, and what it works on."""
    kept = _Kept()
    step = trainer._step
    objectives = [*trainer.objectives.values(), *trainer.eval_objectives.values()]
    for holder in [trainer, trainer._crew, trainer.strategy, step, step.guard, *objectives]:
        kept.keep(vars(holder), deep=False)
    for root in trainer._modules:
        for module in root.modules():
            kept.keep(vars(module))
    for optimizer in trainer.optimizers.values():
        kept.keep(vars(optimizer))
    return kept


class _Kept:
    """Things by identity and by what they hold, which is put back in place."""

    def __init__(self) -> None:
        self._things: dict[int, tuple[Any, Callable[[], Any]]] = {}

    def keep(self, thing: Any, deep: bool = True) -> None:
        """A container, and with `deep` all that is in it; other objects are taken to stay what they are."""
        if id(thing) in self._things:
            return
        parts: list[Any] = []
        if isinstance(thing, dict):
            self._things[id(thing)] = (thing, _refill(thing, dict(thing)))
            parts = list(thing.values())
        elif isinstance(thing, list):
            self._things[id(thing)] = (thing, _relist(thing, list(thing)))
            parts = thing
        elif isinstance(thing, tuple):
            parts = list(thing)
        elif isinstance(thing, Tensor):
            self._things[id(thing)] = (thing, _rewrite(thing))
        elif isinstance(thing, torch.Generator):
            self._things[id(thing)] = (thing, _reseed(thing, thing.get_state()))
        for part in parts if deep else []:
            self.keep(part)

    def restore(self) -> None:
        """Everything is what it was; one that cannot be put back keeps no other from it."""
        with ExitStack() as stack:
            for _, put in self._things.values():
                stack.callback(put)


def _refill(held: dict[Any, Any], items: dict[Any, Any]) -> Callable[[], None]:
    def put() -> None:
        for key in [key for key in held if key not in items]:
            del held[key]
        if list(held) != list(items):
            held.clear()
        held.update(items)

    return put


def _relist(held: list[Any], items: list[Any]) -> Callable[[], None]:
    def put() -> None:
        held[:] = items

    return put


def _reseed(generator: torch.Generator, state: Tensor) -> Callable[[], Any]:
    return lambda: generator.set_state(state)


def _rewrite(tensor: Tensor) -> Callable[[], None]:
    """Its values and its gradient; what is spread out from fewer numbers cannot be written by anybody."""
    spread = any(step == 0 and size > 1 for size, step in zip(tensor.shape, _strides(tensor), strict=False))
    values = None if spread or tensor.is_meta else tensor.detach().to("cpu", copy=True)
    leaf = isinstance(tensor, nn.Parameter)
    gradient = tensor.grad if leaf else None
    if gradient is not None:
        tensor.grad = None  # theirs, and nobody adds to it now

    def put() -> None:
        if values is not None:
            with torch.no_grad():
                tensor.copy_(values)
        if leaf:
            tensor.grad = gradient

    return put


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout == torch.strided else ()
