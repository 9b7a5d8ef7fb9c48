"""Loss, metric and gradients of minibatches, found by `hr.Trainer`: a small model's from a tape."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ....data.batch import Batch
from ....errors import NonFiniteError
from ....loss.base import Term
from ....loss.objective import Objective, Terms
from ....train.trainer import Trainer as NativeTrainer
from ....workers.here import here
from ..learners.learner import Learner, OfVectors, UserLearner
from ..ops.graph import Plan, ordered
from ..variables import Parameter, Variable

Run = Callable[[Mapping[str, Tensor]], list[Any]]
Found = dict[Learner, list[Tensor]]
"""Gradients by learner."""


class Gradients:
    """Passes of a loss and a metric whose minibatches are tensors; others are left to autograd.

    Meanwhile the parameters are stored in long vectors, and learners that can update these.
    """

    def __init__(self, loss: Variable, metric: Variable | None, counted: Variable, learners: Sequence[Learner]) -> None:
        roots = [loss] if metric is None else [loss, metric]
        alone = loss is not metric and all(loss not in node.inputs for node in ordered(roots))
        plan = Plan(roots, summed=loss if alone else None)
        self._learners = list(learners)
        self._parameters = [p for learner in learners for p in learner.parameters]
        self._names = {variable: f"x{k}" for k, variable in enumerate(plan.needed)}
        self._sizing = next((name for v, name in self._names.items() if v.kind == 1), None)
        learnt = {node for node in ordered([*roots, counted]) if isinstance(node, Parameter)} <= set(self._parameters)
        plain = counted.kind == 1 and all(v.kind <= 1 for v in plan.needed) and self._sizing is not None
        self._rules: list[Learner] = [vars(learner).get("learner", learner) for learner in learners]
        own = any(isinstance(rule, UserLearner) for rule in self._rules)
        self.possible = learnt and plain and not own
        """Whether the model is one of samples, all of whose parameters are learnt."""
        self._plan, self._scored = plan, metric is not None
        self._native: NativeTrainer | None = None
        self._tensors: list[nn.Parameter] = []
        self._joins = [rule.joins for rule in self._rules]
        self._vectors: list[Any] = []  # of each learner, as they were last seen
        self._layouts: list[Any] = []  # of the last minibatch
        self._alike: dict[str, Tensor] = {}  # stands for all that have these

    def __call__(self, fed: Mapping[Variable, Any], untouched: bool = False) -> tuple[float, float, int, Found] | None:
        """Loss and metric as sums, how many samples there are, and gradients; nothing if that is autograd's to find.

        `untouched`: since the last time nothing was changed but by learners.
        """
        fields: dict[str, Tensor] = {}
        for variable, name in self._names.items():
            value = fed.get(variable)
            if type(value) is not Tensor:
                return None
            fields[name] = value
        if self._native is None:
            if here().count > 1 or self._parameters[0].tensor.device.type != "cpu":
                return None  # learners add gradients up themselves; tapes are of the CPU
            self._native = self._begin()
        count = len(fields[self._sizing])  # type: ignore[index]
        batch = Batch(fields, count)
        if untouched:
            layouts = [(field.shape, field.dtype, field.stride()) for field in fields.values()]
            if layouts != self._layouts:
                self._layouts, self._alike = layouts, dict(fields)
            batch.whole = self._alike
        try:
            terms = (self._native.updates.make if untouched else self._native.train_step)(batch).terms
        except NonFiniteError:
            return None  # it goes on, as it did
        metric = terms["metric"].sum if self._scored else 0.0
        return terms["loss"].sum, metric, count, self._found()

    def placed(self, found: Sequence[Tensor]) -> Found:
        """Gradients that autograd has found, by learner; where parameters are in vectors, so are they."""
        if self._native is not None and all(tensor.grad is not None for tensor in self._tensors):
            for tensor, gradient in zip(self._tensors, found, strict=True):
                tensor.grad.copy_(gradient)  # type: ignore[union-attr]
            return self._found()
        left = iter(found)
        return {learner: [next(left) for _ in learner.parameters] for learner in self._learners}

    @property
    def note(self) -> str:
        """Whether passes are replayed from a tape, or why not."""
        return "" if self._native is None else self._native.tape_note

    def kept_by(self, rule: Learner) -> dict[str, list[Tensor]]:
        """What a learner remembers of each parameter, as views of what it remembers of vectors."""
        k = self._rules.index(rule)
        return {
            name: [_part(p.tensor, self._vectors[k], kept) for p in rule.parameters] for name, kept in rule.kept.items()
        }

    def release(self) -> None:
        """Parameters have memory of their own again, and learners remember something of each."""
        native, self._native = self._native, None
        if native is None:
            return
        native.release()
        for rule in self._rules:
            if rule.home is self:
                weights = [p.tensor for p in rule.parameters]
                rule.home, rule.kept = None, _kept(weights, rule, self._optimizer.state)
        self._vectors = []

    def _begin(self) -> NativeTrainer:
        """A trainer of these parameters; others that had some of them let go of theirs."""
        for parameter in self._parameters:
            if parameter.user is not None and parameter.user is not self:
                parameter.user.release()
            parameter.user = self
        self._tensors = tensors = [p.tensor for p in self._parameters]
        model = _Model(tensors, self._plan, self._names)
        self._optimizer = optimizer = _NoUpdate(self._rules)
        for rule, joins in zip(self._rules, self._joins, strict=True):
            for name, kept in rule.kept.items() if joins else ():
                for parameter, tensor in zip(rule.parameters, kept, strict=True):
                    optimizer.state[parameter.tensor][name] = tensor
        self._vectors = [None] * len(self._rules)
        return NativeTrainer(model, _Sums(self._scored), optimizer, device=tensors[0].device)

    def _found(self) -> Found:
        """The gradients at hand: of vectors, for learners that update these."""
        optimizer, found = self._optimizer, {}
        for k, (learner, group) in enumerate(zip(self._learners, optimizer.param_groups, strict=True)):
            if not self._joins[k]:
                found[learner] = [_present(p.tensor) for p in learner.parameters]
                continue
            vectors, rule = group["params"], self._rules[k]
            if vectors is not self._vectors[k]:  # they are new, or cut otherwise
                self._vectors[k], rule.home = vectors, self
                rule.kept = _kept(vectors, rule, optimizer.state)
            given = [vector.grad for vector in vectors if vector.grad is not None]
            if len(given) < len(vectors):  # a parameter has none, which is 0 to a learner
                return self._alone()
            found[learner] = OfVectors(given, vectors)
        return found

    def _alone(self) -> Found:
        """The gradients at hand, one for each parameter; so they are from now on."""
        found = [_present(tensor).clone() for tensor in self._tensors]
        self.release()
        self._joins = [False] * len(self._rules)
        return self.placed(found)


def _kept(weights: Sequence[Tensor], rule: Learner, state: Mapping[Any, dict[str, Any]]) -> dict[str, list[Tensor]]:
    """What a learner remembers of weights, zeros at first."""
    return {name: [state[w].setdefault(name, torch.zeros_like(w)) for w in weights] for name in rule.keeps}


def _part(tensor: Tensor, vectors: Sequence[Tensor], kept: Sequence[Tensor]) -> Tensor:
    """The part of what is remembered of vectors that belongs to a parameter stored in one of them."""
    for vector, held in zip(vectors, kept, strict=True):
        start = (tensor.data_ptr() - vector.data_ptr()) // tensor.element_size()
        if vector.dtype == tensor.dtype and 0 <= start < vector.numel():
            return held.as_strided(tensor.shape, tensor.stride(), held.storage_offset() + start)
    raise AssertionError("a parameter of a learner is in none of its vectors")


def _present(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


class _Model(nn.Module):
    """A graph as a module: called with what is fed, by name, it returns the values of its roots."""

    def __init__(self, tensors: Sequence[nn.Parameter], plan: Plan, names: Mapping[Variable, str]) -> None:
        super().__init__()
        for k, tensor in enumerate(tensors):
            self.register_parameter(f"p{k}", tensor)
        fixed = [leaf for _, leaf in plan.leaves if leaf not in names and not isinstance(leaf, Parameter)]
        self.fixed = [leaf.tensor for leaf in fixed]  # type: ignore[attr-defined]
        self.run = _run(plan, names)

    def forward(self, fields: Mapping[str, Tensor]) -> list[Any]:
        return self.run(fields)


def _run(plan: Plan, names: Mapping[Variable, str]) -> Run:
    def run(fields: Mapping[str, Tensor]) -> list[Any]:
        return plan({variable: fields[name] for variable, name in names.items()}, training=True)

    return run


class _Sums(Objective):
    """Loss and metric, summed over the samples; gradients are those of the loss's sum."""

    splits = True

    def __init__(self, scored: bool) -> None:
        self.scored_too = scored

    def terms(self, model: nn.Module, batch: Batch) -> Terms:
        values = model(batch.fields)
        terms = Terms(loss=Term(values[0].sum() if values[0].dim() else values[0], 1.0))
        if self.scored_too:
            terms["metric"] = Term(values[1].detach().sum(), 1.0, coefficient=0.0)
        return terms


class _NoUpdate(torch.optim.Optimizer):
    """Leaves the weights as they are: learners, each with a group, change them."""

    elementwise = True

    def __init__(self, learners: Sequence[Learner]) -> None:
        super().__init__([{"params": [p.tensor for p in learner.parameters]} for learner in learners], {"lr": 0.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""
