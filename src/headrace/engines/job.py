"""The function that every worker is to call, its result, and the models among its arguments."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..arena.sharding import is_sharded
from ..errors import CheckpointError
from ..store.codec import Tensors, decode, encode

if TYPE_CHECKING:
    from .network import Network


@dataclass(frozen=True, slots=True)
class Job:
    """A function for every worker to call, and how many workers there are."""

    main: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    workers: int = 1
    nodes: int = 1
    """How many machines of a Ray cluster workers are spread over."""
    devices: Sequence[int] | None = None
    """The accelerators of a node that workers use, one each; `None`: all of them, or none."""
    restarts: int = 0
    """How often all workers may be started again after a failure."""
    timeout_s: float = 600.0
    """How long the others wait for a worker before they give it up."""
    address: str | None = None
    """That of a Ray cluster, as in "10.0.0.1:6379"."""
    network: "Network | None" = None
    """What a virtual cluster is like."""


@dataclass(slots=True)
class Result:
    """What a launch returns: the value of worker 0's call, and the weights of the caller's models."""

    value: Any
    weights: list[dict[str, Any]]
    """The state of every model among the arguments, in order."""


def work(main: Callable[..., Any], arguments: Sequence[Any]) -> Result:
    """Calls the function in a worker, with arguments that are the worker's own."""
    value = main(*arguments)
    return Result(value, [_state(model) for model in models_of(main, arguments)])


def take_back(main: Callable[..., Any], arguments: Sequence[Any], weights: Sequence[dict[str, Any]]) -> None:
    """Gives the caller's models the weights that the workers have agreed on."""
    for model, state in zip(models_of(main, arguments), weights, strict=True):
        model.load_state_dict({**model.state_dict(), **state})  # what cannot be sent stays as it is


def models_of(main: Callable[..., Any], arguments: Sequence[Any]) -> list[nn.Module]:
    """The models among a function's arguments, and that of a trainer, whose method the function may be."""
    models: list[nn.Module] = []
    for value in (getattr(main, "__self__", None), *arguments):
        model = value if isinstance(value, nn.Module) else getattr(value, "model", None)
        if isinstance(model, nn.Module) and not any(model is known for known in models):
            models.append(model)
    return models


def _state(model: nn.Module) -> dict[str, Any]:
    """The state of a model on the host: tensors, and what `get_extra_state` gives if it is made of plain values."""
    state: dict[str, Any] = {}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and is_sharded(value):
            warnings.warn("the caller's model keeps its own weights: the workers have shards of theirs.", stacklevel=2)
            return {}
        tensors: Tensors = {}
        try:
            state[name] = decode(encode(value, tensors, name), {key: each.cpu() for key, each in tensors.items()})
        except CheckpointError as error:
            warnings.warn(f"the caller's model keeps its own {name!r}, which cannot be sent: {error}", stacklevel=2)
    return state
