"""Rounds: every worker trains separately for a while, then all continue with their mean, or after an outer step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..arena.optimizer import by_name, check_state, load_state
from ..arena.replica import Replica
from ..errors import CheckpointError, ConfigError, unknown
from ..length import Counters, Length, interval
from .comm import largest, mean
from .strategy import State, Strategy

Weights = Literal["rows", "equal"]
_WEIGHTS = ("rows", "equal")
MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
"""Makes an optimizer of parameters, as `lambda params: torch.optim.SGD(params, lr=0.7)` does."""
Means = Callable[[Sequence[Tensor]], list[Tensor]]
"""Of tensors of one worker, the mean over all; all workers call it together."""


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
        """Sets θ₀ to the weights as they are now."""
        now = replica.tensors
        if self._fits(now):
            torch._foreach_copy_(self._tensors, now)
        else:
            self.load(replica.by_name(now))

    def load(self, named: Mapping[str, Tensor]) -> None:
        """Sets θ₀ to what was saved of it."""
        for name, place in self.named.items():
            place.copy_(named[name])

    def changed(self, replica: Replica) -> Tensor:
        """For each name 1 if it is trained or differs from θ₀, else 0."""
        now, resting = replica.by_name(replica.tensors), replica.resting
        flags = torch.ones(len(now), device=replica.tensors[0].device)
        for k, (name, start) in enumerate(self.named.items()):
            if name in resting:
                flags[k] = (now[name] != start).any()
        return flags

    def keep(self, replica: Replica, found: Sequence[Tensor], changed: Tensor) -> list[Tensor]:
        """Tensors like `replica.tensors`, with θ₀ for what no worker has changed: a mean of equal numbers may round."""
        named, resting = replica.by_name(found), replica.resting
        for flag, (name, start) in zip(changed, self.named.items(), strict=True):
            if name in resting:
                named[name].copy_(torch.where(flag > 0, named[name], start))
        return list(found)

    def _fits(self, tensors: list[Tensor]) -> bool:
        return [own.shape for own in self._tensors] == [other.shape for other in tensors]


class OuterStep(Protocol):
    """Computes the weights with which all workers go on when a round ends."""

    def step(self, replica: Replica, start: RoundStart, means: Means) -> list[Tensor]:
        """Where all workers go on, like `replica.tensors`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What is remembered from round to round, by names of parameters."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Averaging:
    """θ ← mean of θᵢ: taken directly, as θ₀ − (θ₀ − θ) need not be θ."""

    def step(self, replica: Replica, start: RoundStart, means: Means) -> list[Tensor]:
        return mean_of(replica, start, means)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class Outer:
    """θ₀ ← Outer(θ₀, grad=Δ̄) for the parameters; floating-point buffers become their mean."""

    def __init__(self, make: MakeOptimizer, start: RoundStart) -> None:
        self._params = {name: nn.Parameter(value) for name, value in start.parameters.items()}
        self.optimizer = make(list(self._params.values()))
        if not isinstance(self.optimizer, Optimizer):
            raise ConfigError(
                "outer= is a function that makes a torch optimizer of a list of parameters, as in "
                f"lambda params: torch.optim.SGD(params, lr=0.7); it gave a {type(self.optimizer).__name__}."
            )

    def step(self, replica: Replica, start: RoundStart, means: Means) -> list[Tensor]:
        now, values = replica.tensors, len(replica.values)
        changes = torch._foreach_sub(start.like(replica)[:values], now[:values])
        *found, changed = means([*changes, *now[values:], start.changed(replica)])
        trained = dict(zip(start.named, changed.tolist(), strict=True))
        for name, change in replica.by_name(found[:values]).items():
            self._params[name].grad = change if trained[name] else None  # momentum moves nothing that is frozen
        self.optimizer.step()
        self.optimizer.zero_grad()
        return start.keep(replica, [*start.like(replica)[:values], *found[values:]], changed)

    def state_dict(self) -> dict[str, Any]:
        optimizer = self.optimizer
        groups = [group["params"] for group in optimizer.param_groups]
        states = ((param, optimizer.state[param]) for group in groups for param in group if param in optimizer.state)
        state = by_name(optimizer, groups, states, self._names)
        settings = [{key: _listed(value) for key, value in group.items()} for group in state["groups"]]
        return {**state, "groups": settings}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state:
            raise CheckpointError("the strategy had no outer optimizer and has one now. Use the strategy of the run.")
        check_state(self.optimizer, self._names, state, "outer")
        load_state(self.optimizer, self._names, state, settings=False)  # it is set as the strategy is now

    @property
    def _names(self) -> dict[nn.Parameter, str]:
        return {param: name for name, param in self._params.items()}


def mean_of(replica: Replica, start: RoundStart, means: Means) -> list[Tensor]:
    """The mean of the weights over the workers."""
    *found, changed = means([*replica.tensors, start.changed(replica)])
    return start.keep(replica, found, changed)


def of_rounds(every: str | Length) -> Length:
    """How long rounds are that an outer step follows: nothing follows the end of a training."""
    if every == "end":
        raise ConfigError(
            'every="end" has no rounds for an outer step to follow. Use every="1 epoch", for example, or '
            'hr.Periodic("end"), which takes the mean of the weights at the end.'
        )
    return interval(every, "every")


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


# --- strategies ------------------------------------------------------------------------------------------


class Rounds(Strategy, ABC):
    """Every worker updates its own model from θ₀ on; at the end of a round all go on with what `ending` computes.

    A round ends whenever `every` is due, by counters that are the same on all workers; with `None` there is only one.
    Parameters and floating-point buffers are averaged, each worker weighing as many rows as it has used in the round
    (`weights="rows"`) or as much as any other ("equal"); of other buffers, such as counters, all take the largest.
    What the workers' optimizers remember stays their own, or is forgotten at the end of a round (`reset_inner`).

    Saved in the middle of a round, it goes on exactly with as many workers; another number of them begins the round
    anew from θ₀. A worker that is lost ends the others.
    """

    def __init__(
        self,
        every: Length | None,
        *,
        weights: Weights = "rows",
        reset_inner: bool = False,
    ) -> None:
        super().__init__()
        if weights not in _WEIGHTS:
            raise ConfigError(unknown("weights", weights, _WEIGHTS))
        self.every, self.weights, self.reset_inner = every, weights, reset_inner
        self._rows, self._total = 0, 0
        """Rows of this round: of this worker, of all."""
        self._saved: tuple[Mapping[str, Any], Mapping[str, Any] | None] | None = None

    @abstractmethod
    def ending(self, start: RoundStart) -> OuterStep:
        """How rounds end that begin there."""

    def due(self, counters: Counters, total: int, ends_epoch: bool) -> bool:
        """Whether the update just counted, of `total` rows on all workers, ends a round."""
        return self.every is not None and self.every.fires(replace(counters, rows=total, ends_epoch=ends_epoch))

    def begin(self, replica: Replica) -> None:
        self._rows, self._total = 0, 0
        self._start = RoundStart(replica)
        self._outer_step = self.ending(self._start)
        if self._saved is not None:
            self._go_back(*self._saved)

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        self._saved = None
        self._rows, self._total = self._rows + rows, self._total + total
        if not self.due(counters, total, ends_epoch):
            return False
        if self._total:
            replica.write(self._outer_step.step(replica, self._start, self._means))
            largest(self.comm, replica.counts)
            self._start.take(replica)
            if self.reset_inner:
                replica.reset_optimizer()
        self._rows, self._total = 0, 0
        return True

    def consensus(self, replica: Replica) -> list[Tensor]:
        return mean_of(replica, self._start, self._means) if self._total else replica.tensors

    def state_dict(self, replica: Replica) -> State:
        return {"start": self._start.named, "outer": self._outer_step.state_dict()}

    def own_state(self) -> State:
        return {"rows": self._rows, "total": self._total}

    def load_state_dict(self, replica: Replica, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        self._saved = state, own  # a training may still begin with it
        self.begin(replica)

    def leave(self) -> None:
        self._saved = None

    def _go_back(self, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        self._outer_step.load_state_dict(state["outer"])
        if own is not None:
            self._start.load(state["start"])
            self._rows, self._total = int(own["rows"]), int(own["total"])

    def _means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return mean(self.comm, tensors, self._rows if self.weights == "rows" else 1)


class Periodic(Rounds):
    """θ ← Σ nᵢθᵢ / Σ nᵢ over the workers, n being the rows that each has used since the last time.

    `every` is "1 epoch", "16 steps", "4096 samples" (of all workers), or "end", once at the end of the training.
    `outer` makes a torch optimizer from parameters; then θ₀ ← Outer(θ₀, grad=Δ̄) with Δ̄ = Σ nᵢ(θ₀ − θᵢ) / Σ nᵢ, the
    mean change.

    A single worker trains as if there were no strategy, bit for bit. Averaging after every update is the same as
    `Synchronous` for SGD, also with momentum, but not for Adam. https://arxiv.org/abs/1808.07217
    """

    def __init__(
        self,
        every: str | Length = "1 epoch",
        *,
        weights: Weights = "rows",
        outer: MakeOptimizer | None = None,
        reset_inner: bool = False,
    ) -> None:
        length = None if every == "end" else interval(every, "every")
        super().__init__(length, weights=weights, reset_inner=reset_inner)
        if outer is not None and not callable(outer):
            raise ConfigError(
                "outer= is a function that makes a torch optimizer of a list of parameters, as in "
                f"lambda params: torch.optim.SGD(params, lr=0.7), got a {type(outer).__name__}."
            )
        if outer is not None and length is None:
            of_rounds(every)
        self.outer = outer

    def ending(self, start: RoundStart) -> OuterStep:
        return Averaging() if self.outer is None else Outer(self.outer, start)


class BlockMomentum(Rounds):
    """v ← ηv + ζΔ̄; θ₀ ← θ₀ − v, with Δ̄ = Σ nᵢ(θ₀ − θᵢ) / Σ nᵢ, the mean change of the round that ends.

    η is `momentum`, by default 1 − 1/W for W workers, so that the changes of each worker count in full over time. ζ is
    `lr`. `nesterov` is as in torch. With `reset_inner`, the momentum of the workers' optimizers begins at zero in every
    round. K. Chen and Q. Huo, "Scalable training of deep learning machines by incremental block training", ICASSP 2016.
    """

    def __init__(
        self,
        every: str | Length = "16 steps",
        *,
        momentum: float | None = None,
        lr: float = 1.0,
        nesterov: bool = False,
        reset_inner: bool = True,
    ) -> None:
        super().__init__(of_rounds(every), reset_inner=reset_inner)
        check_settings(lr, 0.0 if momentum is None else momentum)
        self.momentum, self.lr, self.nesterov = momentum, lr, nesterov

    def ending(self, start: RoundStart) -> OuterStep:
        return Outer(self._outer, start)

    def _outer(self, params: list[nn.Parameter]) -> Optimizer:
        eta = 1 - 1 / self.comm.count if self.momentum is None else self.momentum
        return SGD(params, lr=self.lr, momentum=eta, nesterov=self.nesterov and eta > 0)


class DiLoCo(Rounds):
    """θ₀ ← Outer(θ₀, grad=Δ̄), where Outer is SGD with Nesterov momentum and Δ̄ = Σ nᵢ(θ₀ − θᵢ) / Σ nᵢ.

    It is made for rounds of hundreds of steps with AdamW, which keeps its state. A steady change moves the weights lr /
    (1 − momentum) times as far, seven times by default. https://arxiv.org/abs/2311.08105
    """

    def __init__(
        self,
        every: str | Length = "500 steps",
        *,
        lr: float = 0.7,
        momentum: float = 0.9,
        weights: Weights = "rows",
    ) -> None:
        super().__init__(of_rounds(every), weights=weights)
        check_settings(lr, momentum)
        self.lr, self.momentum = lr, momentum

    def ending(self, start: RoundStart) -> OuterStep:
        return Outer(self._outer, start)

    def _outer(self, params: list[nn.Parameter]) -> Optimizer:
        return SGD(params, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0)
