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
from ..learners.learner import Learner, UserLearner
from ..ops.graph import Plan, ordered
from ..variables import Parameter, Variable

Run = Callable[[Mapping[str, Tensor]], list[Any]]


class Gradients:
    """Passes of a loss and a metric whose minibatches are tensors; others are left to autograd."""

    def __init__(self, loss: Variable, metric: Variable | None, counted: Variable, learners: Sequence[Learner]) -> None:
        roots = [loss] if metric is None else [loss, metric]
        plan = Plan(roots)
        self._parameters = [p for learner in learners for p in learner.parameters]
        self._names = {variable: f"x{k}" for k, variable in enumerate(plan.needed)}
        self._sizing = next((v for v in plan.needed if v.kind == 1), None)
        learnt = {node for node in ordered([*roots, counted]) if isinstance(node, Parameter)} <= set(self._parameters)
        plain = counted.kind == 1 and all(v.kind <= 1 for v in plan.needed) and self._sizing is not None
        own = any(isinstance(vars(learner).get("learner", learner), UserLearner) for learner in learners)
        self.possible = learnt and plain and not own
        """Whether the model is one of samples, all of whose parameters are learnt."""
        self._plan, self._scored = plan, metric is not None
        self._native: NativeTrainer | None = None
        self._tensors: list[nn.Parameter] = []

    def __call__(self, fed: Mapping[Variable, Any]) -> tuple[float, float, int, list[Tensor]] | None:
        """Loss and metric as sums, how many samples there are, and gradients; nothing if that is autograd's to find."""
        fields = {name: fed[variable] for variable, name in self._names.items() if variable in fed}
        if len(fields) < len(self._names) or not all(type(value) is Tensor for value in fields.values()):
            return None
        if self._native is None:
            if here().count > 1 or self._parameters[0].tensor.device.type != "cpu":
                return None  # learners add gradients up themselves; tapes are of the CPU
            self._native = self._begin()
        count = len(fed[self._sizing])  # type: ignore[index]
        try:
            terms = self._native.train_step(Batch(fields, count)).terms
        except NonFiniteError:
            return None  # it goes on, as it did
        found = [tensor.grad for tensor in self._tensors]
        if any(each is None for each in found):
            found = [torch.zeros_like(t) if g is None else g for g, t in zip(found, self._tensors, strict=True)]
        metric = float(terms["metric"].sum) if self._scored else 0.0
        return float(terms["loss"].sum), metric, count, found  # type: ignore[return-value]

    @property
    def note(self) -> str:
        """Whether passes are replayed from a tape, or why not."""
        return "" if self._native is None else self._native.tape_note

    def release(self) -> None:
        """Parameters have memory of their own again."""
        native, self._native = self._native, None
        if native is not None:
            native.release()

    def _begin(self) -> NativeTrainer:
        """A trainer of these parameters; others that had some of them let go of theirs."""
        for parameter in self._parameters:
            if parameter.user is not None and parameter.user is not self:
                parameter.user.release()
            parameter.user = self
        self._tensors = tensors = [p.tensor for p in self._parameters]
        model = _Model(tensors, self._plan, self._names)
        return NativeTrainer(model, _Sums(self._scored), _NoUpdate(tensors), device=tensors[0].device)


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

    def __init__(self, scored: bool) -> None:
        self.scored_too = scored

    def terms(self, model: nn.Module, batch: Batch) -> Terms:
        values = model(batch.fields)
        terms = Terms(loss=Term(values[0].sum(), 1.0))
        if self.scored_too:
            terms["metric"] = Term(values[1].detach().sum(), 1.0, coefficient=0.0)
        return terms


class _NoUpdate(torch.optim.Optimizer):
    """Leaves the weights as they are: learners change them."""

    elementwise = True

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""
