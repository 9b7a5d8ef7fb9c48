"""One update of one model: forward and backward by microbatch, then reduce, check, clip, step."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .arena import Arena, Buffers, by_name, check_state, is_plain, load_state, names_of, owners
from .arena.gradients import clip
from .batch import Batch
from .errors import CheckpointError, ConfigError, ModelError, OutOfMemoryError
from .guard import Guard, Scalar
from .loss import Term
from .memory import is_out_of_memory
from .objective import Objective, Terms
from .outcome import Outcome, detached, merged
from .precision import Precision
from .rng import capture_torch, restore_torch
from .strategy import Strategy

_ROWS_MEET = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)


@dataclass(frozen=True, slots=True)
class Settings:
    """How every update of a training is made. `microbatch="auto"`: as large as the memory allows."""

    microbatch: int | Literal["auto"] | None = None
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
        self.adapts = settings.microbatch == "auto"
        """Whether the microbatch is made smaller when memory runs out."""
        self.microbatch = None if settings.microbatch == "auto" else settings.microbatch
        """Rows that pass the model at once; `None`: all of a batch."""
        self._parts: list[_Update] = []
        if self.microbatch is not None:
            _warn_where_splits_differ(model)

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

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next update depends on but the model's own state and random numbers."""
        return {
            "updates": self.updates,
            "skipped": self.guard.skipped,
            "microbatch": self.microbatch,
            "scaler": self.precision.state_dict(),
            "optimizers": dict(zip(self.optimizers, self._optimizer_states(), strict=True)),
        }

    @property
    def nbytes(self) -> int:
        """About how large a checkpoint is: the weights, and as much again for each thing an optimizer remembers."""
        weights = sum(tensor.nbytes for tensor in [*self.model.parameters(), *self.model.buffers()])
        return weights + sum(map(_remembered, self.optimizers.values()))

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises unless a state belongs to optimizers like these."""
        names = owners(self.model)
        if state["optimizers"].keys() != self.optimizers.keys():
            raise CheckpointError(
                f"the optimizers were {list(state['optimizers'])} and are {list(self.optimizers)}. Name them as before."
            )
        for key, optimizer in self.optimizers.items():
            check_state(optimizer, names_of(optimizer, names), state["optimizers"][key], key)

    def load_state_dict(self, state: Mapping[str, Any], overridden: bool = False) -> None:
        """Goes back to a state that has been checked; `overridden`: hyperparameters stay as they are now."""
        self.release()
        names = owners(self.model)
        for key, optimizer in self.optimizers.items():
            load_state(optimizer, names_of(optimizer, names), state["optimizers"][key], settings=not overridden)
        self.precision.load_state_dict(state["scaler"])
        self.updates, self.guard.skipped = state["updates"], state["skipped"]
        if self.adapts:
            self.microbatch = state["microbatch"]

    def halve(self, rows: int) -> bool:
        """Makes the microbatch half of what did not fit; says whether it may and can."""
        at_once = min(rows, self.microbatch or rows)
        if not self.adapts or at_once == 1 or not all(objective.splits for objective in self.objectives.values()):
            return False
        self.microbatch = -(-at_once // 2)
        warnings.warn(
            f"memory ran out with {at_once} rows at once: going on with microbatch={self.microbatch}.", stacklevel=2
        )
        _warn_where_splits_differ(self.model)
        return True

    def _optimizer_states(self) -> Iterator[dict[str, Any]]:
        if self._parts:
            yield from (part.arena.state_dict() for part in self._parts)
            return
        names = owners(self.model)
        for optimizer in self.optimizers.values():
            groups = [group["params"] for group in optimizer.param_groups]
            states = [(p, optimizer.state[p]) for group in groups for p in group if p in optimizer.state]
            yield by_name(optimizer, groups, states, names_of(optimizer, names))

    def __call__(self, batch: Batch) -> Outcome:
        self.home()
        if len(self._parts) == 1:
            outcome = self._parts[0](batch)
        else:
            outcome = merged([(part.name, part(batch)) for part in self._parts])
        self.updates += 1
        return outcome


class _Update:
    """One optimizer's update."""

    def __init__(self, step: Step, name: str, objective: Objective, arena: Arena, buffers: Buffers) -> None:
        self.name, self.objective, self.arena, self.buffers = name, objective, arena, buffers
        self._step, self._model = step, step.model
        self._precision, self._guard, self._strategy = step.precision, step.guard, step.strategy
        self._seeds: dict[tuple[float, torch.dtype], Tensor] = {}
        self._several = len(step.optimizers) > 1
        self._device = next(iter(arena.params)).device
        self._batch: Batch | None = None
        self._found: Sequence[Tensor] = ()
        self._stepping = False
        self._random = step.adapts or any(map(_draws, step.model.modules()))
        """Whether a forward pass is known to draw random numbers, which a step that is not made gives back."""
        self._first = not arena.optimizer.state
        self._fresh: list[int] = []
        self.sums: dict[str, Scalar] = {}
        self.weights: list[Scalar] = []
        self.gradients: Sequence[Tensor] = ()

    def __call__(self, batch: Batch) -> Outcome:
        self._batch = batch
        self.buffers.save()
        while True:
            random = capture_torch(self._device) if self._random else None
            outcome, complaint = self._attempt(batch)
            if outcome is not None:
                return outcome
            if random is not None:
                restore_torch(random, self._device)
            if self._stepping or not self._step.halve(batch.rows):
                raise OutOfMemoryError(self._no_room(complaint))

    def apply(self) -> None:
        """Clips and steps."""
        settings = self._step.settings
        self._precision.unscale(self.arena.optimizer)
        if settings.clip_norm is not None or settings.clip_value is not None:
            clip(self._found, settings.clip_norm, settings.clip_value)
        if self._first:
            self._fresh = [tensor._version for tensor in self.arena.live_tensors()]
        self._stepping = True
        self._precision.step(self.arena)
        self._stepping = self._first = False

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

    def _attempt(self, batch: Batch) -> tuple[Outcome | None, str]:
        """The outcome, or what the system said when memory ran out; what had been computed by then is let go."""
        self._stepping = False
        try:
            return self._update(batch), ""
        except BaseException as error:
            self.arena.discard()
            self.buffers.restore()
            if not is_out_of_memory(error):
                raise
            complaint = str(error).partition("\n")[0]
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return None, complaint

    def _after_half(self) -> str:
        """What an optimizer that ran out of memory has left; what it had just begun to remember is taken back."""
        if self._device.type != "cpu":
            return self.untouched
        weights = [tensor._version for tensor in self.arena.live_tensors()][: len(self._fresh)]
        if self._first and weights == self._fresh:
            self.arena.optimizer.state.clear()
            return self.untouched
        return "The weights may be those of half an update: go on from the last checkpoint."

    def _no_room(self, complaint: str) -> str:
        assert self._batch is not None
        if self._stepping:
            said = f"memory ran out while the optimizer stepped ({complaint})"
            return f"{self.describe()}: {said}. {self._after_half()}"
        at_once = min(self._batch.rows, self._step.microbatch or self._batch.rows)
        advice = f"Use microbatch={-(-at_once // 2)}, or 'auto': the update stays that of the whole batch."
        if not self.objective.splits:
            advice = "The loss needs the batch whole: use a smaller batch_size."
        elif at_once == 1:
            advice = "Nothing smaller than a row can be tried."
        said = f"the memory does not hold {at_once} rows at once ({complaint})"
        return f"{self.describe()}: {said}. {self.untouched} {advice}"

    def _update(self, batch: Batch) -> Outcome:
        self.arena.begin()
        outcome = Outcome({})
        microbatch = self._step.microbatch
        if microbatch is None or batch.rows <= microbatch:
            self._pass(batch, None, outcome)
        else:
            parts = batch.split(microbatch)
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
            outcome.outputs.append((detached(found.outputs), part))

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


def _draws(module: nn.Module) -> bool:
    """Whether a module draws random numbers in training: dropout, by itself or inside a layer."""
    rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0)
    return isinstance(module, nn.RReLU) or (isinstance(module, _RANDOM) and bool(rate))


def _warn_where_splits_differ(model: nn.Module) -> None:
    kinds = {type(m).__name__ for m in model.modules() if m.training and (isinstance(m, _ROWS_MEET) or _draws(m))}
    if kinds:
        warnings.warn(
            f"the model has {', '.join(sorted(kinds))}: with microbatches its statistics or random numbers are "
            "those of each microbatch, so the update is close to that of the whole batch, not equal to it.",
            stacklevel=4,
        )


def _remembered(optimizer: Optimizer) -> int:
    """Bytes of what an optimizer remembers, or is going to: most keep two numbers for each weight, plain SGD none."""
    if optimizer.state:
        return sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))
    return 0 if is_plain(optimizer) else 2 * sum(p.nbytes for group in optimizer.param_groups for p in group["params"])
