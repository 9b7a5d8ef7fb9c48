"""Tries out, before a training goes on, whether an optimizer could go on from a saved state."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CorruptError
from ..store.shape import check, like, maybe


def check_by_trial(
    optimizer: Optimizer, names: Mapping[nn.Parameter, str], saved: Mapping[str, Any], what: str
) -> None:
    """Raises unless saved hyperparameters make an update, of a small parameter, and the saved state is like its state.

    Torch's own optimizers only: what others do when they are made is not known.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return
    tried: dict[Any, tuple[Tensor, dict[str, Any]] | None] = {}
    for number, (now, before) in enumerate(zip(optimizer.param_groups, saved["groups"], strict=True)):
        check(before, {key: maybe(like(value)) for key, value in now.items()}, f"{what}, group {number}")
        for param in now["params"]:
            alike = (number, param.ndim, param.dtype, param.device)
            if alike not in tried:
                tried[alike] = _after_update(optimizer, {**now, **before}, param)
                if tried[alike] is None and _after_update(optimizer, now, param) is not None:
                    raise CorruptError(
                        f"{what} cannot go on: its saved hyperparameters, group {number}, make no update."
                    )
            name, trial = names[param], tried[alike]
            if trial is not None and (state := saved["state"].get(name)):
                for key, value in trial[1].items():
                    if key not in state or not _is_like(state[key], value, trial[0], param):
                        raise CorruptError(f"{what} cannot go on: its saved state of {name!r} has no {key!r} of use.")


def _after_update(
    optimizer: Optimizer, group: Mapping[str, Any], param: nn.Parameter
) -> tuple[Tensor, dict[str, Any]] | None:
    """A small parameter and what an optimizer like this remembers of it; `None` if it cannot make an update."""
    shape = range(2, 2 + param.ndim)  # sizes that tell dimensions apart
    small = nn.Parameter(torch.zeros(tuple(shape), dtype=param.dtype, device=param.device))
    small.grad = torch.zeros_like(small)
    try:
        make: Any = type(optimizer)
        twin = make([{**group, "params": [small]}])
        for _ in range(2):  # some hyperparameters are not used by the first one
            twin.step()
    except Exception:
        return None
    return small, dict(twin.state[small])


def _is_like(saved: Any, made: Any, small: Tensor, param: Tensor) -> bool:
    """Whether a value is to a parameter what one is to the small parameter."""
    if not isinstance(made, Tensor):
        return saved is None or isinstance(saved, type(made))
    if isinstance(saved, Mapping) and "indices" in saved:  # sparse, as momentum of sparse gradients is
        return True
    if not isinstance(saved, Tensor) or saved.is_floating_point() != made.is_floating_point():
        return False
    return made.shape != small.shape or saved.shape == param.shape
