"""One update of one model: forward and backward by microbatch, then reduce, check, clip, step."""

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .arena import Arena, Buffers
from .arena.gradients import clip
from .batch import Batch
from .errors import ConfigError, ModelError
from .guard import Guard, Scalar
from .loss import Term
from .objective import Objective, Terms
from .precision import Precision
from .strategy import Strategy

_ROWS_MEET = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)


@dataclass(slots=True)
class Outcome:
    """What an update, or a batch of a validation, showed: every term, and what the model returned.

    The terms are those of the whole update, their sums and weights numbers where the host knows them.
    """

    terms: dict[str, Term]
    outputs: list[tuple[Any, Batch]] = field(default_factory=list)
    applied: bool | Tensor = True
    """Whether the update was made; on a device perhaps a flag that the host has not read."""

    @property
    def losses(self) -> dict[str, Any]:
        """`total_loss` and every term, as means over the batch."""
        means = {name: _mean(term) for name, term in self.terms.items()}
        total = sum((self.terms[n].coefficient * mean for n, mean in means.items() if self.terms[n].coefficient), 0.0)
        return {"total_loss": total, **means}


def as_outcome(result: Any, giver: str) -> Outcome:
    """What a `train_step` or an `evaluate_step` may return: an Outcome, or losses by name."""
    if isinstance(result, Outcome):
        return result
    if not isinstance(result, Mapping):
        raise ConfigError(f"{giver} returns an Outcome or losses by name, got a {type(result).__name__}.")
    if not result:
        raise ConfigError(f"{giver} returned no losses. Name at least one: {{'loss': loss}}.")
    terms = {name: loss for name, loss in result.items() if name != "total_loss"} or {"loss": result["total_loss"]}
    return Outcome({name: Term(_number(loss), 1.0) for name, loss in terms.items()})


@dataclass(frozen=True, slots=True)
class Settings:
    """How every update of a training is made."""

    microbatch: int | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    arena: bool = True


class Step:
    """Updates a model from a batch; with several optimizers, one update each, in order.

    Models live in an arena between `home` and `release`; `updates` counts what has been done.
    """

    def __init__(
        self,
        model: nn.Module,
        objectives: Mapping[str, Objective],
        optimizers: Mapping[str, Optimizer],
        settings: Settings,
        precision: Precision,
        guard: Guard,
        strategy: Strategy,
    ) -> None:
        self.model, self.guard, self.settings = model, guard, settings
        self.precision, self.strategy = precision, strategy
        self.objectives, self.optimizers = dict(objectives), dict(optimizers)
        self.updates = 0
        self._parts: list[_Update] = []
        _warn_where_splits_differ(model, settings.microbatch)

    @property
    def homed(self) -> bool:
        return bool(self._parts)

    def home(self) -> None:
        """Moves the model into its arenas."""
        if self.homed:
            return
        buffers = Buffers(self.model)
        parts: list[_Update] = []
        try:
            for name, optimizer in self.optimizers.items():
                arena = Arena(self.model, optimizer, packed=self.settings.arena, release=self.release)
                parts.append(_Update(self, name, self.objectives[name], arena, buffers))
        except BaseException:
            for part in parts:
                part.arena.release()
            raise
        self._parts = parts

    def release(self) -> None:
        """Makes model and optimizers ordinary again."""
        parts, self._parts = self._parts, []
        with ExitStack() as stack:  # each of them, even if one fails
            for part in parts:
                stack.callback(part.arena.release)

    def __call__(self, batch: Batch) -> Outcome:
        self.home()
        if len(self._parts) == 1:
            outcome = self._parts[0](batch)
        else:
            outcome = _merge([(part.name, part(batch)) for part in self._parts])
        self.updates += 1
        return outcome


class _Update:
    """One optimizer's update."""

    def __init__(self, step: Step, name: str, objective: Objective, arena: Arena, buffers: Buffers) -> None:
        self.name, self.objective, self.arena, self.buffers = name, objective, arena, buffers
        self._step, self._model = step, step.model
        self._microbatch = step.settings.microbatch or sys.maxsize
        self._precision, self._guard, self._strategy = step.precision, step.guard, step.strategy
        self._seeds: dict[tuple[float, torch.dtype], Tensor] = {}
        self._several = len(step.optimizers) > 1
        self._device = next(iter(arena.params)).device
        self._batch: Batch | None = None
        self._found: Sequence[Tensor] = ()
        self.sums: dict[str, Scalar] = {}
        self.weights: list[Scalar] = []
        self.gradients: Sequence[Tensor] = ()

    def __call__(self, batch: Batch) -> Outcome:
        self._batch = batch
        self.buffers.save()
        try:
            return self._update(batch)
        except BaseException:
            self.arena.discard()
            self.buffers.restore()
            raise

    def apply(self) -> None:
        """Clips and steps."""
        settings = self._step.settings
        self._precision.unscale(self.arena.optimizer)
        if settings.clip_norm is not None or settings.clip_value is not None:
            clip(self._found, settings.clip_norm, settings.clip_value)
        self._precision.step(self.arena)

    def describe(self) -> str:
        """Where this update stands, for a message."""
        assert self._batch is not None
        cursor = self._batch.cursor or {}
        place = f", up to row {cursor['position']} of epoch {cursor['epoch']}" if cursor.get("position") else ""
        rates = ", ".join(f"{float(group['lr']):g}" for group in self.arena.optimizer.param_groups)
        key = f" of {self.name!r}" if self.name else ""
        return f"step {self._step.updates + 1}{key} (rate {rates}, {self._batch.rows} rows{place})"

    @property
    def untouched(self) -> str:
        """What a failure leaves as it was, for a message."""
        if len(self._step.optimizers) == 1:
            return "The weights are as they were before this step."
        return f"The weights of {self.name!r} are as they were before this step; updates of keys before it were made."

    def _update(self, batch: Batch) -> Outcome:
        self.arena.begin()
        outcome = Outcome({})
        if batch.rows <= self._microbatch:
            self._pass(batch, None, outcome)
        else:
            parts = batch.split(self._microbatch)
            totals = self._totals(parts)
            for part in parts:
                self._pass(part, totals, outcome)
        self.weights = [term.weight for term in outcome.terms.values() if term.counts and term.coefficient]
        if self._guard.idle(self.weights):
            self.buffers.restore()
            outcome.applied = False
            return outcome
        self._found = self.arena.collect()
        self._strategy.reduce(self.arena)
        self.gradients = () if self._precision.scales else self._found  # an overflow there is the scaler's affair
        self.sums = {name: term.sum for name, term in outcome.terms.items() if term.coefficient}
        outcome.applied = self._guard.update(self)
        return outcome

    def _pass(self, part: Batch, totals: Mapping[str, Scalar] | None, outcome: Outcome) -> None:
        """Forward and backward. Each term's gradient is scaled by what the term is divided by: no mean is taken."""
        read, terms = self._guard.read, outcome.terms
        found = self._forward(part)
        roots, seeds = [], []
        for name, term in found.items():
            weight = read(term.weight) if totals is None else totals[name]
            if term.coefficient and (isinstance(weight, Tensor) or weight) and term.sum.requires_grad:
                roots.append(term.sum)
                seeds.append(self._seed(term, weight))
            total = read(term.sum.detach()) * term.times
            if name in terms:
                terms[name].sum = terms[name].sum + total
            else:
                terms[name] = Term(total, weight, term.coefficient, counts=term.counts)
        if roots:
            inputs = [p for p in self.arena.params if p.requires_grad] if self._several else None
            torch.autograd.backward(roots, seeds, inputs=inputs)
        elif not any(term.sum.requires_grad for term in found.values()):
            raise ModelError(
                f"no loss term ({', '.join(found)}) depends on a trainable parameter. "
                "Check requires_grad, and that the loss does not detach the outputs."
            )
        if isinstance(found, Terms):
            outcome.outputs.append((_detached(found.outputs), part))

    def _forward(self, part: Batch) -> Mapping[str, Term]:
        with self._precision.context():
            terms = self.objective.terms(self._model, part)
        for name, term in terms.items():
            if term.sum.dim():
                raise ConfigError(f"term {name!r}: sum must be a single number, got shape {list(term.sum.shape)}.")
        return terms

    def _seed(self, term: Term, weight: Scalar) -> Tensor:
        """What the backward pass of a term starts from: its part in the loss, over the weight of the update."""
        factor = term.coefficient * term.times
        if isinstance(weight, Tensor):
            weight = weight.to(term.sum.dtype)
            return self._precision.scale(torch.where(weight > 0, factor / weight, torch.zeros_like(weight)))
        key = (factor / weight, term.sum.dtype)
        seed = self._seeds.get(key)
        if seed is None:
            if len(self._seeds) > 256:
                self._seeds.clear()
            seed = self._seeds[key] = torch.full_like(term.sum.detach(), key[0])
        return self._precision.scale(seed) if self._precision.scales else seed

    def _totals(self, parts: Sequence[Batch]) -> dict[str, Scalar]:
        """The weights of the whole batch; by a forward pass that leaves no trace where nothing else can tell."""
        found = [dict(self.objective.weights(part)) for part in parts]
        if not found[0] or any(weight is None for weights in found for weight in weights.values()):
            with torch.no_grad(), _untouched(self.buffers, self._device):
                found = [{name: term.weight for name, term in self._forward(part).items()} for part in parts]
        read = self._guard.read
        return {name: sum(read(weights[name]) for weights in found) for name in found[0]}  # type: ignore[arg-type, misc]


@contextmanager
def _untouched(buffers: Buffers, device: torch.device) -> Iterator[None]:
    """Random state and buffers afterwards as before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    buffers.restore()


def _merge(outcomes: Iterable[tuple[str, Outcome]]) -> Outcome:
    """Several updates as one outcome: a key's only term goes by the key, several by key and name."""
    merged = Outcome({})
    for key, outcome in outcomes:
        for name, term in outcome.terms.items():
            merged.terms[key if len(outcome.terms) == 1 else f"{key}/{name}"] = term
        merged.applied = merged.applied & outcome.applied
    return merged


def _detached(outputs: Any) -> Any:
    """Outputs without the graph that made them; `detach` of what is no tensor is its own affair."""
    if isinstance(outputs, Tensor):
        return outputs.detach()
    if isinstance(outputs, Mapping):
        return {key: _detached(value) for key, value in outputs.items()}
    return tuple(map(_detached, outputs)) if isinstance(outputs, tuple | list) else outputs


def _mean(term: Term) -> Any:
    if isinstance(term.weight, Tensor):
        return torch.where(term.weight > 0, term.sum / term.weight, torch.zeros_like(term.weight, dtype=torch.float32))
    return term.sum / term.weight if term.weight else 0.0


def _draws(module: nn.Module) -> bool:
    """Whether a module draws random numbers in training: dropout, by itself or inside a layer."""
    rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0)
    return isinstance(module, nn.RReLU) or (isinstance(module, _RANDOM) and bool(rate))


def _warn_where_splits_differ(model: nn.Module, microbatch: int | None) -> None:
    kinds = {type(m).__name__ for m in model.modules() if m.training and (isinstance(m, _ROWS_MEET) or _draws(m))}
    if microbatch is not None and kinds:
        warnings.warn(
            f"the model has {', '.join(sorted(kinds))}: with microbatches its statistics or random numbers are "
            "those of each microbatch, so the update is close to that of the whole batch, not equal to it.",
            stacklevel=4,
        )


def _number(loss: Any) -> float | Tensor:
    return loss.detach() if isinstance(loss, Tensor) else float(loss)
