"""An optimizer's state by the names of its parameters, whether they are homed or not."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..errors import CheckpointError
from .trial import check_by_trial

_BY_VALUE = (float, int, bool, str, type(None))
Named = Mapping[nn.Parameter, str]


def by_name(
    optimizer: Optimizer,
    groups: Sequence[Sequence[nn.Parameter]],
    states: Iterable[tuple[nn.Parameter, Mapping[str, Any]]],
    names: Named,
) -> dict[str, Any]:
    """Hyperparameters and names of every group, and every parameter's state by its name.

    `elsewhere` lists what is not on its parameter's device, as torch's step counters are not.
    """
    settings = [{k: _apart(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    found: dict[str, Any] = {}
    elsewhere: set[str] = set()
    for param, state in states:
        found[names[param]] = {key: _apart(value) for key, value in state.items()}
        elsewhere |= {k for k, v in state.items() if isinstance(v, Tensor) and v.device != param.device}
    return {
        "kind": type(optimizer).__name__,
        "groups": settings,
        "names": [[names[param] for param in group] for group in groups],
        "state": found,
        "elsewhere": sorted(elsewhere),
    }


def check_state(optimizer: Optimizer, names: Named, saved: Mapping[str, Any], key: str) -> None:
    """Raises unless a saved state is one of an optimizer like this, over the same parameters."""
    own = [[names[param] for param in group["params"]] for group in optimizer.param_groups]
    what = f"the optimizer{f' {key!r}' if key else ''}"
    if saved["kind"] != type(optimizer).__name__:
        raise CheckpointError(f"{what} was {saved['kind']} and is {type(optimizer).__name__}.")
    if saved["names"] != own:
        before = {name for group in saved["names"] for name in group}
        now = {name for group in own for name in group}
        listed = [f"no longer in it: {sorted(before - now)[:5]}"] if before - now else []
        listed += [f"new in it: {sorted(now - before)[:5]}"] if now - before else []
        raise CheckpointError(f"{what} has other parameters: {'; '.join(listed) or 'its groups differ'}.")
    check_by_trial(optimizer, names, saved, what)


def load_state(optimizer: Optimizer, names: Named, saved: Mapping[str, Any], *, settings: bool = True) -> None:
    """Gives an optimizer, whose parameters are not homed, a state that `check_state` has approved.

    `settings`: its hyperparameters too; without, they stay as they are.
    """
    optimizer.state.clear()
    for group, hyperparameters in zip(optimizer.param_groups, saved["groups"], strict=True):
        if settings:
            group.update(hyperparameters)
        for param in group["params"]:
            for key, value in saved["state"].get(names[param], {}).items():
                optimizer.state[param][key] = _own(value, param, key in saved["elsewhere"])


def is_plain(optimizer: Optimizer) -> bool:
    """Whether an optimizer is known to remember nothing: SGD without momentum."""
    return isinstance(optimizer, SGD) and not any(group["momentum"] for group in optimizer.param_groups)


def _apart(value: Any) -> Any:
    """A value that its owner cannot change any more; a tensor stays, for whoever saves it to copy.

    A sparse tensor, as momentum of sparse gradients is, becomes dense ones.
    """
    if not isinstance(value, Tensor):
        return value if isinstance(value, _BY_VALUE) else copy.deepcopy(value)
    if not value.is_sparse:
        return value.detach() if value.requires_grad else value
    return {
        "indices": value._indices(),
        "values": value._values(),
        "size": list(value.shape),
        "coalesced": value.is_coalesced(),
    }


def _own(value: Any, param: Tensor, elsewhere: bool) -> Any:
    """A tensor of the optimizer's own; one for every element lies in memory as the parameter does."""
    if isinstance(value, Mapping) and value.keys() == {"indices", "values", "size", "coalesced"}:
        indices, values = value["indices"].to(param.device, copy=True), value["values"].to(param.device, copy=True)
        return torch.sparse_coo_tensor(indices, values, value["size"], is_coalesced=value["coalesced"])
    if not isinstance(value, Tensor):
        return value
    if value.shape == param.shape and not elsewhere:
        return torch.empty_like(param, dtype=value.dtype, requires_grad=False).copy_(value)
    return value.clone() if elsewhere else value.to(param.device, copy=True)
