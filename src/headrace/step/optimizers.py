"""The optimizers of a trainer: made, checked against the model, and given their learning rates."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import ConfigError, ModelError
from ..loss.objective import Objective, as_objective

OptimizerLike = Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer]


def by_key(
    loss: Any, optimizer: OptimizerLike | Mapping[str, Optimizer], model: nn.Module
) -> tuple[dict[str, Objective], dict[str, Optimizer]]:
    """Objectives and optimizers by key; a single one has the key ""."""
    if isinstance(loss, Mapping) != isinstance(optimizer, Mapping):
        raise ConfigError("loss= and optimizer= must both be dicts, with equal keys, or neither.")
    if isinstance(loss, Mapping) and isinstance(optimizer, Mapping):
        if loss.keys() != optimizer.keys() or not loss:
            raise ConfigError(f"loss= has the keys {list(loss)}, optimizer= {list(optimizer)}. They must be equal.")
        return {k: as_objective(v) for k, v in loss.items()}, {k: _optimizer(optimizer[k], model, k) for k in loss}
    return {"": as_objective(loss)}, {"": _optimizer(optimizer, model, "")}


def _optimizer(optimizer: Any, model: nn.Module, key: str) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        return optimizer
    if callable(optimizer) and not key:
        made = optimizer(model.parameters())
        if isinstance(made, Optimizer):
            return made
        raise ConfigError(
            f"optimizer= made a {type(made).__name__}. A factory takes parameters and returns an optimizer."
        )
    raise ConfigError(
        f"optimizer{f'[{key!r}]' if key else ''}= takes a torch optimizer"
        f"{'' if key else ', or a function that makes one of the parameters'}; got a {type(optimizer).__name__}."
    )


def check_optimizers(model: nn.Module, optimizers: Mapping[str, Optimizer], objectives: Mapping[str, Any]) -> None:
    """Raises unless every optimizer holds parameters of this model (or of its objective), and none twice."""
    known = {id(p) for p in model.parameters()}
    for objective in objectives.values():
        if isinstance(objective, nn.Module):
            known |= {id(p) for p in objective.parameters()}
    seen: dict[int, str] = {}
    for name, optimizer in optimizers.items():
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ModelError(
                "LBFGS asks for the loss again within a step, by a closure; headrace makes one pass a step."
            )
        params = [p for group in optimizer.param_groups for p in group["params"]]
        strange = sum(id(p) not in known for p in params)
        if strange:
            raise ModelError(
                f"{type(optimizer).__name__} holds {strange} of {len(params)} parameters that are not in the model. "
                "Make the optimizer from this model's parameters, after the model is complete; if another trainer "
                "has the model at work, call its release() first."
            )
        for p in params:
            if seen.setdefault(id(p), name) != name:
                raise ModelError(f"optimizers {seen[id(p)]!r} and {name!r} hold the same parameter. Give each its own.")


def groups_of(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """The groups of parameters of all optimizers."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def shares_of(groups: Sequence[dict[str, Any]]) -> list[float]:
    """What each group's rate is of the first one's; nothing where that is 0."""
    first = float(groups[0]["lr"])
    return [float(group["lr"]) / first for group in groups] if first else []


def put_rate(group: dict[str, Any], rate: float) -> None:
    """Gives a group of an optimizer its learning rate, which may be a tensor."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
