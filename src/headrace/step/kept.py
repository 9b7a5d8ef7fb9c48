"""Saves containers and tensors, and restores them in place."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn


class Kept:
    """Things by identity and by what they hold, which is put back in place."""

    def __init__(self) -> None:
        self._things: dict[int, tuple[Any, Callable[[], Any]]] = {}

    @classmethod
    def of(cls, roots: Iterable[nn.Module], others: Iterable[Any]) -> "Kept":
        """What modules and other objects hold."""
        kept = cls()
        for holder in (*(module for root in roots for module in root.modules()), *others):
            kept.keep(vars(holder))
        return kept

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
        tensor.grad = None  # the next backward pass makes one of its own

    def put() -> None:
        if values is not None:
            with torch.no_grad():
                tensor.copy_(values)
        if leaf:
            tensor.grad = gradient

    return put


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tensor.stride() if tensor.layout == torch.strided else ()
