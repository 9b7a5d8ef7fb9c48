"""Rounds: every worker trains separately for a while, then all continue with their mean, or after an outer step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

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


class Rounds(Strategy):
    """Every worker updates its own model from θ₀ on; at the end of a round θ₀ becomes the mean of the models.

    With an outer optimizer, θ₀ ← Outer(θ₀, grad=Δ̄) for the parameters, Δ̄ being their mean change. A round ends
    whenever `every` is due, by counters that are the same on all workers; with "end" there is only one. A subclass may
    override `combine`, to take something else than the mean.

    Parameters and floating-point buffers are averaged, weighted by the rows that each worker has used in the round
    (`weights="rows"`), or equally ("equal"). Of other buffers, such as counters, the largest counts. The state of an
    optimizer stays on its worker; `reset_inner` clears it at the end of each round.

    A training that was saved in the middle of a round resumes exactly with as many workers. With another number, the
    round begins again from θ₀. A worker that is lost ends the others.
    """

    def __init__(
        self, every: str | Length = "1 epoch", *, weights: Weights = "rows", reset_inner: bool = False
    ) -> None:
        if weights not in _WEIGHTS:
            raise ConfigError(unknown("weights", weights, _WEIGHTS))
        self.every = None if every == "end" else interval(every, "every")
        self.weights, self.reset_inner = weights, reset_inner
        self._rows, self._total = 0, 0
        """Rows of this round: of this worker, of all."""
        self._saved: tuple[Mapping[str, Any], Mapping[str, Any] | None] | None = None

    def combine(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One tensor for each of this worker's, element by element and the same on all workers: their mean."""
        return mean(self.comm, tensors, self._rows if self.weights == "rows" else 1)

    def make_outer(self, params: list[nn.Parameter]) -> Optimizer | None:
        """The optimizer of the step that ends a round, if there is one."""
        return None

    def begin(self, replica: Replica) -> None:
        self._rows, self._total = 0, 0
        self._start = {name: now.detach().clone() for name, now in replica.by_name(replica.tensors).items()}
        """θ₀ by name, in memory of its own: parameters, and floating-point buffers."""
        self._params = {name: nn.Parameter(self._start[name]) for name in replica.by_name(replica.values)}
        self._outer = self.make_outer(list(self._params.values()))
        if self._saved is not None:
            self._go_back(*self._saved)

    def after(self, replica: Replica, counters: Counters, rows: int, total: int, ends_epoch: bool) -> bool:
        self._saved = None
        self._rows, self._total = self._rows + rows, self._total + total
        if self.every is None or not self.every.fires(replace(counters, rows=total, ends_epoch=ends_epoch)):
            return False
        if self._total:
            self._end_round(replica)
        self._rows, self._total = 0, 0
        return True

    def consensus(self, replica: Replica) -> list[Tensor]:
        if not self._total:
            return replica.tensors
        return replica.joined(self._start | self._means(replica, replica.by_name(replica.tensors)))

    def state_dict(self, replica: Replica) -> State:
        return {"start": self._start, "outer": {} if self._outer is None else self._outer_state(self._outer)}

    def own_state(self) -> State:
        return {"rows": self._rows, "total": self._total}

    def load_state_dict(self, replica: Replica, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        self._saved = state, own  # a training may still begin with it
        self.begin(replica)

    def leave(self) -> None:
        self._saved = None

    def _end_round(self, replica: Replica) -> None:
        now = replica.by_name(replica.tensors)
        tensors = dict(now)
        if self._outer is not None:
            changes = torch._foreach_sub([self._start[name] for name in self._params], [now[n] for n in self._params])
            tensors.update(zip(self._params, changes, strict=True))
        means = self._means(replica, tensors)
        if self._outer is not None:
            for name, param in self._params.items():
                param.grad = means.pop(name, None)  # momentum moves nothing that is frozen
            self._outer.step()
            self._outer.zero_grad()
        for name, value in means.items():  # of weights directly, as θ₀ − (θ₀ − θ) need not be θ
            self._start[name].copy_(value)
        torch._foreach_copy_([now[name] for name in self._start], list(self._start.values()))
        largest(self.comm, replica.counts)
        if self.reset_inner:
            replica.reset_optimizer()

    def _means(self, replica: Replica, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The means over all workers of tensors by name, without those whose weights no worker has changed.

        They are frozen parameters and buffers that are equal to θ₀ everywhere: a mean of equal numbers may round.
        """
        now, resting = replica.by_name(replica.tensors), replica.resting
        flags = torch.ones(len(now), device=replica.tensors[0].device)
        for k, (name, start) in enumerate(self._start.items()):
            if name in resting:
                flags[k] = (now[name] != start).any()
        *combined, flags = self.combine([*(tensors[name] for name in self._start), flags])
        return {name: value for name, value, flag in zip(self._start, combined, flags.tolist(), strict=True) if flag}

    def _outer_state(self, outer: Optimizer) -> State:
        """What the outer optimizer remembers, by names of parameters, as plain values and tensors."""
        groups = [group["params"] for group in outer.param_groups]
        states = ((param, outer.state[param]) for group in groups for param in group if param in outer.state)
        state = by_name(outer, groups, states, self._names)
        settings = [{key: _listed(value) for key, value in group.items()} for group in state["groups"]]
        return {**state, "groups": settings}

    def _go_back(self, state: Mapping[str, Any], own: Mapping[str, Any] | None) -> None:
        if self._outer is not None:
            if not state["outer"]:
                raise CheckpointError(
                    "the strategy had no outer optimizer and has one now. Use the strategy of the run."
                )
            check_state(self._outer, self._names, state["outer"], "outer")
            load_state(self._outer, self._names, state["outer"], settings=False)  # it is set as the strategy is now
        if own is not None:
            for name, place in self._start.items():
                place.copy_(state["start"][name])
            self._rows, self._total = int(own["rows"]), int(own["total"])

    @property
    def _names(self) -> dict[nn.Parameter, str]:
        return {param: name for name, param in self._params.items()}


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
        super().__init__(every, weights=weights, reset_inner=reset_inner)
        if outer is not None and not callable(outer):
            raise ConfigError(
                "outer= is a function that makes a torch optimizer of a list of parameters, as in "
                f"lambda params: torch.optim.SGD(params, lr=0.7), got a {type(outer).__name__}."
            )
        if outer is not None:
            of_rounds(every)
        self.outer = outer

    def make_outer(self, params: list[nn.Parameter]) -> Optimizer | None:
        made = None if self.outer is None else self.outer(params)
        if self.outer is not None and not isinstance(made, Optimizer):
            raise ConfigError(
                "outer= is a function that makes a torch optimizer of a list of parameters, as in "
                f"lambda params: torch.optim.SGD(params, lr=0.7); it gave a {type(made).__name__}."
            )
        return made


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

    def make_outer(self, params: list[nn.Parameter]) -> Optimizer:
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

    def make_outer(self, params: list[nn.Parameter]) -> Optimizer:
        return SGD(params, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0)


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
