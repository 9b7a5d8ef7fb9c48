"""The trainer: minibatches in, updated parameters and sums of loss and metric out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import CheckpointError, ConfigError
from ....store.rng import capture, restore
from ..device import DeviceDescriptor, chosen
from ..io.streams import MinibatchData
from ..learners.learner import Learner
from ..ops.functions import Combined, Function
from ..ops.graph import Plan, by_input, feed, numbers_of, ordered, shown
from ..state import load_weights, read_state, weights_of, write_state
from ..variables import Parameter, Variable
from .distributed import DistributedLearner


class Trainer:
    """Updates the parameters of a model, and measures it.

    The criterion is a loss, or a loss and a metric. A sample is one value of the loss: an item of a sequence, where the
    loss has one for each item. Gradients are sums over samples.
    """

    def __init__(
        self, model: Any, criterion: Any, parameter_learners: Any = None, progress_writers: Any = None
    ) -> None:
        self.model = None if model is None else _function(model)
        self.loss_function, self.evaluation_function = _criterion(criterion)
        self.parameter_learners = _listed(parameter_learners)
        self.progress_writers = _listed(progress_writers)
        self._check()
        for learner in self.parameter_learners:
            learner.writers.extend(self.progress_writers)
        self._counted = _counted(self.loss_function)
        roots = [self.loss_function, self.evaluation_function or self.loss_function, self._counted]
        self._roots: list[Variable] = [*roots]
        self._plan = Plan(self._roots)
        self._shared = [each for each in self.parameter_learners if isinstance(each, DistributedLearner)]
        self._loss = self._metric = self._tested = 0.0
        self._previous, self._previous_count = (0.0, 0.0), -1
        self.minibatches = self.sweeps = 0

    def _check(self) -> None:
        wrong = [each for each in self.parameter_learners if not isinstance(each, Learner | DistributedLearner)]
        if wrong or not self.parameter_learners:
            raise ConfigError(
                f"parameter_learners= are learners such as C.sgd(z.parameters, lr), got {wrong or 'none'}."
            )
        shared = [isinstance(each, DistributedLearner) for each in self.parameter_learners]
        if any(shared) and not all(shared):
            raise ConfigError("either all learners are distributed or none is. Make each of them distributed.")
        self._parameters = parameters = [p for learner in self.parameter_learners for p in learner.parameters]
        if len(set(parameters)) < len(parameters):
            raise ConfigError("a parameter is updated by one learner, got one that belongs to several.")
        known = {v for v in ordered([self.loss_function]) if isinstance(v, Parameter)}
        if foreign := [p for p in parameters if p not in known]:
            raise ConfigError(
                f"parameter {foreign[0].name or foreign[0].uid} is not in the loss: a learner updates parameters of "
                "the model that the loss is made of, as in C.sgd(z.parameters, lr)."
            )

    # --- what it does --------------------------------------------------------------------------------------

    def train_minibatch(
        self,
        arguments: Any,
        outputs: Sequence[Any] | None = None,
        device: DeviceDescriptor | None = None,
        is_sweep_end: bool | None = None,
    ) -> Any:
        """One update; whether learning goes on, and the values of `outputs`, if any are asked for."""
        arguments = by_input(self._plan.needed, arguments)
        ends = bool(is_sweep_end)
        for each in arguments.values() if is_sweep_end is None else ():
            ends |= isinstance(each, MinibatchData) and each.end_of_sweep
        for learner in self._shared:
            learner.spread()
        asked = [getattr(each, "output", each) for each in outputs or ()]
        plan = Plan([*self._roots, *asked]) if asked else self._plan
        numbers, gradients, values = self._passed(plan, arguments, device, ends)
        shared = [each for each in self._shared if each.active]
        own = list(numbers)
        for each in shared:
            numbers = each.exchange(gradients[each], own)
        going = self._updated(numbers, gradients)
        for each in shared:
            each.agree(finished=not going)
        if not outputs:
            return going
        if not arguments:
            return going, {}
        return going, {
            each: shown(root, _detached(v))
            for each, root, v in zip(outputs, asked, values[len(self._roots) :], strict=True)
        }

    def _passed(
        self, plan: Plan, arguments: Mapping[Any, Any], device: Any, ends: bool
    ) -> tuple[list[float], dict[Any, list[Tensor]], list[Any]]:
        """Loss, metric, samples and sweep ends of a minibatch as numbers, and the gradients of its loss."""
        if not arguments:
            zeros = [torch.zeros_like(p.tensor) for p in self._parameters]
            return [0.0] * 4, self._by_learner(zeros), [None] * len(plan.roots)
        ends = ends and (not self._shared or self._shared[0].communicator().is_main())
        values = plan(feed(plan, arguments, device), training=True)
        loss, metric = numbers_of(values[0]), numbers_of(values[1])
        count = _count(values[2])
        total, weights = loss.sum(), [p.tensor for p in self._parameters]
        found = torch.autograd.grad(total, weights, allow_unused=True)
        if any(each is None for each in found):
            found = tuple(torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True))
        evaluated = float(metric.detach().sum()) if self.evaluation_function else 0.0
        return [float(total.detach()), evaluated, count, ends], self._by_learner(found), values

    def _by_learner(self, gradients: Sequence[Tensor]) -> dict[Any, list[Tensor]]:
        remaining = iter(gradients)
        return {learner: [next(remaining) for _ in learner.parameters] for learner in self.parameter_learners}

    def _updated(self, numbers: Sequence[float], gradients: dict[Any, list[Tensor]]) -> bool:
        loss, metric, samples, ends = numbers
        count = int(samples)
        self._previous_count = count
        if not count:
            return False
        self._previous = (loss / count, metric / count)
        going = [learner.apply(gradients[learner], count, ends > 0) for learner in self.parameter_learners]
        if any(going):
            self.minibatches += 1
            self.sweeps += ends > 0
        self._loss += loss
        self._metric += metric
        for writer in self.progress_writers:
            writer.update_training(count, self._loss, self._metric)
        return any(going)

    def test_minibatch(self, arguments: Any, device: DeviceDescriptor | None = None) -> float:
        total, count = self.measured(arguments, device)
        self.add_test(total, count)
        return total / count if count else 0.0

    def measured(self, arguments: Any, device: DeviceDescriptor | None = None) -> tuple[float, int]:
        """The sum of the metric over a minibatch, and its samples; writers are not told."""
        if self.evaluation_function is None:
            raise ConfigError("there is no metric to test with. Make the Trainer with (loss, metric).")
        arguments = by_input(self._plan.needed, arguments)
        if not arguments:
            return 0.0, 0
        return measure(self.evaluation_function, arguments, device)

    def add_test(self, total: float, count: int) -> None:
        self._tested += total
        for writer in self.progress_writers:
            writer.update_test(count, self._tested)

    def summarize_training_progress(self) -> None:
        for writer in self.progress_writers:
            writer.write_training_summary(self._loss, self._metric)
        self._loss = self._metric = 0.0

    def summarize_test_progress(self) -> None:
        for writer in self.progress_writers:
            writer.write_test_summary(self._tested)
        self._tested = 0.0

    # --- what it has done ----------------------------------------------------------------------------------

    @property
    def previous_minibatch_loss_average(self) -> float:
        """The mean of the loss over the last minibatch that had samples, before its update."""
        return self._last(0)

    @property
    def previous_minibatch_evaluation_average(self) -> float:
        """The mean of the metric over the last minibatch that had samples, before its update."""
        return self._last(1)

    @property
    def previous_minibatch_sample_count(self) -> int:
        return max(0, self._previous_count)

    @property
    def total_number_of_samples_seen(self) -> int:
        return int(self.parameter_learners[0].total_number_of_samples_seen)

    def total_number_of_units_seen(self, unit: Any) -> int:
        """How many samples, minibatches or sweeps have been learnt from."""
        name = getattr(unit, "value", unit)
        if name == "sample":
            return self.total_number_of_samples_seen
        return {"minibatch": self.minibatches, "sweep": self.sweeps}[name]

    def _last(self, which: int) -> float:
        if self._previous_count < 0:
            raise ConfigError("no minibatch has been trained on yet. Call train_minibatch first.")
        return self._previous[which]

    # --- checkpoints ---------------------------------------------------------------------------------------

    def save_checkpoint(self, filename: Any, external_state: Mapping[str, Any] | None = None) -> None:
        """Writes the model into a file, and beside it, in `filename`.ckp, all that the training goes on from."""
        for learner in self._shared:
            learner.agree(finished=True)
        own = {
            "learners": [learner.state_dict() for learner in self.parameter_learners],
            "random": capture(chosen(None)),
            "external": dict(external_state or {}),
        }
        comm = self._comm
        workers = [own] if comm is None else comm.gather(own)
        if workers is not None:
            (self.model or self.loss_function).save(filename)
            state = {"weights": self._weights(), "counts": [self.minibatches, self.sweeps], "workers": workers}
            write_state(Path(f"{filename}.ckp"), state)
        if comm is not None:
            comm.share(None)  # nobody goes on before it is written

    def restore_from_checkpoint(self, filename: Any) -> dict[str, Any]:
        """Goes back to a checkpoint; returns the state of others that was written with it.

        Each of as many workers as then goes on with its own state; with more or fewer, all go on with worker 0's.
        """
        state = read_state(Path(f"{filename}.ckp"))
        workers = state["workers"]
        comm = self._comm
        own = workers[comm.shard.index if comm is not None and len(workers) == comm.count else 0]
        learners = own["learners"]
        if len(learners) != (count := len(self.parameter_learners)):
            raise CheckpointError(f"{filename} is of {len(learners)} learners, and this trainer has {count}.")
        load_weights(self._weights(), state["weights"], Path(filename))
        for learner, each in zip(self.parameter_learners, learners, strict=True):
            learner.load_state_dict(each)
        self.minibatches, self.sweeps = state["counts"]
        restore(own["random"], chosen(None))
        external: dict[str, Any] = own["external"]
        return external

    @property
    def _comm(self) -> Any:
        """How this worker exchanges tensors with the others; `None` if the learners are not distributed."""
        return self._shared[0].communicator().comm if self._shared else None

    def _weights(self) -> dict[str, Tensor]:
        model = self.model.outputs if self.model else ()
        return weights_of(ordered([self.loss_function, *model]))


def measure(function: Function, arguments: Any, device: DeviceDescriptor | None = None) -> tuple[float, int]:
    """The sum of a function over a minibatch, and its samples."""
    roots: list[Variable] = [function, _counted(function)]
    with torch.no_grad():
        plan = Plan(roots)
        found, counted = plan(feed(plan, arguments, device))
    return float(numbers_of(found).sum()), _count(counted)


def _function(given: Any) -> Function:
    return given if isinstance(given, Function) else Combined([given])


def _criterion(given: Any) -> tuple[Function, Function | None]:
    """The loss, and the metric if there is one."""
    listed = list(given) if isinstance(given, tuple | list) else list(given.outputs)
    if not 1 <= len(listed) <= 2:
        raise ValueError(f"criterion= is a loss, or a loss and a metric, got {len(listed)} functions.")
    outputs = [None if each is None else each.outputs[0] for each in listed]
    if outputs[0] is None:
        raise ValueError("criterion= has no loss. Pass (loss, metric) or a loss.")
    return outputs[0], outputs[1] if len(outputs) > 1 else None


def _listed(given: Any) -> list[Any]:
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


def _counted(function: Variable) -> Variable:
    """The node whose values are the samples: the function itself, or what it is the sum of."""
    while not function.kind:
        deeper = next((each for each in function.inputs if each.kind or each.inputs), None)
        if deeper is None:
            raise ConfigError(f"{function!r} does not depend on any input, so that it has no samples.")
        function = deeper
    return function


def _count(value: Any) -> int:
    return value.items if isinstance(value, Ragged) else len(value)


def _detached(value: Any) -> Any:
    if isinstance(value, Ragged):
        return value.with_values(value.values.detach()) if isinstance(value.values, Tensor) else value
    return value if isinstance(value, Sparse) else value.detach()
