"""Finds the module of a model that makes the first number that is not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def first_not_finite(model: nn.Module, forward: Callable[[], Any]) -> str:
    """A sentence on the first module whose output is not finite; nothing if all outputs are finite.

    `forward` makes one more pass. The caller restores random state and buffers.
    """
    found: list[str] = []

    def look(name: str, module: nn.Module, given: Any, output: Any) -> None:
        if not found and not _all_finite(output):
            found.append(
                f"The first module whose output is not finite is {name!r} ({type(module).__name__}): {_range(given)}"
            )

    with _hooks(model, look), torch.no_grad():
        forward()
    return "".join(found)


@contextmanager
def _hooks(model: nn.Module, look: Any) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():
        hook = lambda module, given, output, name=name or "the model": look(name, module, given, output)  # noqa: E731
        handles.append(module.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _range(given: Any) -> str:
    """Between what the numbers of a module's input lie."""
    numbers = [tensor.detach().float().flatten() for tensor in _tensors(given) if tensor.numel()]
    if not numbers:
        return "it has no numbers as input."
    values = torch.cat(numbers)
    if not bool(torch.isfinite(values).all()):
        return "its input is not finite either, so an operation between modules, or a row of the data, is the cause."
    return f"its input lies between {float(values.min()):.4g} and {float(values.max()):.4g}."


def _all_finite(value: Any) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(value))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of fractions in a value, however it is nested."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.layout == torch.strided:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
