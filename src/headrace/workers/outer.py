"""The end of a round: all workers go on with their mean, or where an outer optimizer steps from it."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..arena.optimizer import by_name, check_state, load_state
from ..arena.replica import Replica
from ..errors import CheckpointError, ConfigError

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
"""Makes an optimizer of parameters, as `lambda params: torch.optim.SGD(params, lr=0.7)` does."""
Means = Callable[[Sequence[Tensor]], list[Tensor]]
"""Of tensors of one worker, the mean over all; all workers call it together."""
Settings = dict[str, Any]


class RoundStart:
    """θ₀ in memory of its own, which stays the same however often the weights are copied there.

    `parameters` and `named` are views of it by name; `named` has the floating-point buffers too.
    """

    def __init__(self, replica: Replica) -> None:
        self._tensors = [tensor.detach().clone() for tensor in replica.tensors]
        self.named = replica.by_name(self._tensors)
        self.parameters = replica.by_name(self._tensors[: len(replica.values)])

    def like(self, replica: Replica) -> list[Tensor]:
        """θ₀ as tensors like `replica.tensors`: its own memory, or a copy if parameters have left their vector."""
        return self._tensors if self._fits(replica.tensors) else replica.joined(self.named)

    def take(self, replica: Replica) -> None:
        """θ₀ becomes what the weights are now."""
        now = replica.tensors
        if self._fits(now):
            torch._foreach_copy_(self._tensors, now)
        else:
            self.load(replica.by_name(now))

    def load(self, named: Mapping[str, Tensor]) -> None:
        """θ₀ becomes what was saved of it."""
        for name, place in self.named.items():
            place.copy_(named[name])

    def _fits(self, tensors: list[Tensor]) -> bool:
        return [own.shape for own in self._tensors] == [other.shape for other in tensors]


class OuterStep(Protocol):
    """What becomes of the weights when a round ends."""

    def step(self, replica: Replica, start: RoundStart, means: Means, rows: int) -> list[Tensor]:
        """Where all workers go on, like `replica.tensors`; `rows`: used by all of them in this round."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What is remembered from round to round, by names of parameters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Averaging:
    """θ ← mean of θᵢ: taken directly, as θ₀ − (θ₀ − θ) need not be θ."""

    def step(self, replica: Replica, start: RoundStart, means: Means, rows: int) -> list[Tensor]:
        return means(replica.tensors)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class Outer:
    """θ₀ ← Outer(θ₀, grad=Δ̄) for the parameters; floating-point buffers become their mean.

    `adapt` is asked before each step, with the rows of the round: it may change the settings of a parameter group,
    and gives the factor of Δ̄.
    """

    def __init__(
        self, make: MakeOptimizer, start: RoundStart, adapt: Callable[[Settings, int], float] = lambda group, rows: 1.0
    ) -> None:
        self._params = {name: nn.Parameter(value) for name, value in start.parameters.items()}
        self._optimizer = make(list(self._params.values()))
        if not isinstance(self._optimizer, Optimizer):
            raise ConfigError(
                "outer= is a function that makes a torch optimizer of a list of parameters, as in "
                f"lambda params: torch.optim.SGD(params, lr=0.7); it gave a {type(self._optimizer).__name__}."
            )
        self._adapt = adapt

    def step(self, replica: Replica, start: RoundStart, means: Means, rows: int) -> list[Tensor]:
        now, values = replica.tensors, len(replica.values)
        changes = torch._foreach_sub(start.like(replica)[:values], now[:values])
        found = means([*changes, *now[values:]])
        for group in self._optimizer.param_groups:
            factor = self._adapt(group, rows)
        if factor != 1:
            torch._foreach_mul_(found[:values], factor)
        for name, change in replica.by_name(found[:values]).items():
            self._params[name].grad = change
        self._optimizer.step()
        self._optimizer.zero_grad()
        return [*start.like(replica)[:values], *found[values:]]

    def state_dict(self) -> dict[str, Any]:
        optimizer = self._optimizer
        groups = [group["params"] for group in optimizer.param_groups]
        states = ((param, optimizer.state[param]) for group in groups for param in group if param in optimizer.state)
        state = by_name(optimizer, groups, states, self._names)
        settings = [{key: _listed(value) for key, value in group.items()} for group in state["groups"]]
        return {**state, "groups": settings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state:
            raise CheckpointError("the strategy had no outer optimizer and has one now. Use the strategy of the run.")
        check_state(self._optimizer, self._names, state, "outer")
        settings = [
            {key: tuple(value) if isinstance(now.get(key), tuple) else value for key, value in saved.items()}
            for now, saved in zip(self._optimizer.param_groups, state["groups"], strict=True)
        ]
        load_state(self._optimizer, self._names, {**state, "groups": settings})

    @property
    def _names(self) -> dict[nn.Parameter, str]:
        return {param: name for name, param in self._params.items()}


def check_settings(lr: float, momentum: float) -> None:
    """Raises unless they are a rate and a momentum."""
    if not is_number(lr) or not 0 < lr < float("inf"):
        raise ConfigError(f"lr= is greater than 0, got {lr!r}.")
    if not is_number(momentum) or not 0 <= momentum < 1:
        raise ConfigError(f"momentum= is at least 0 and less than 1, got {momentum!r}.")


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _listed(value: Any) -> Any:
    """Pairs, as the betas of Adam are, as lists: state of strategies is plain."""
    return list(value) if isinstance(value, tuple) else value
