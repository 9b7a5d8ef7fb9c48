"""Handlers: data in macrobatches and batches through a module, to train it, validate it or let it compute."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...data.batch import Batch
from ...errors import ConfigError, DataError
from ...length import as_count
from ...loss.base import Term
from ...loss.objective import Objective, Terms
from ...train.trainer import Trainer as NativeTrainer
from . import costs, optimizers
from .costs import REMEMBERED, Cost, Multi
from .optimizers import Optimizer

Finish = Callable[[Any], Any]


class Handler:
    """Leads data through a module, batch by batch.

    `random` permutes the order of macrobatches, and that of the batches in each, by NumPy's global generator; a batch
    has the same samples every time. Callbacks get the handler: `currBatch` and `currMacroBatch` count from 1.
    """

    def __init__(self, mod: nn.Module, onBatchFinish: Finish | None = None, batchsize: int = 128) -> None:
        self.module, self.onBatchFinish, self.batchsize = mod, onBatchFinish, batchsize
        self._together: dict[str, Any] | None = None
        """The data whose batches follow one another without a call of the user's code between them."""
        self.currBatch = self.totalBatches = self.currMacroBatch = self.totalMacroBatches = 0

    def handleFromHost(
        self,
        data: Any,
        state: Any = None,
        macroBatchSize: int = 10000,
        onMacroBatchFinish: Finish | None = None,
        random: bool = True,
    ) -> None:
        """Macrobatches of the host's data go to the device, and there batch by batch through `handle`."""
        self.totalMacroBatches = self._blocks_of(data, macroBatchSize, "macroBatchSize")
        for k, n in enumerate(_order(self.totalMacroBatches, random)):
            macrobatch = self.sliceData(data, n, macroBatchSize, self._to_device)
            self.currMacroBatch = k + 1
            self.onMacroBatchStart(n, macroBatchSize, state)
            self.handle(macrobatch, state, random=random)
            self.onMacroBatchFinish(n, macroBatchSize, state)
            if onMacroBatchFinish:
                onMacroBatchFinish(self)

    def handle(self, data: Any, state: Any = None, random: bool = True) -> None:
        """Batches of data that are on the device go through `handleBatch`."""
        self.totalBatches = self._blocks_of(data, self.batchsize, "batchsize")
        data = self.sliceData(data, 0, self.getDataSize(data), self._to_device)
        reset = getattr(self.module, "reset", None)
        own = type(self).__module__ != __name__ or "handleBatch" in vars(self)
        self._together = None if own or self.onBatchFinish or callable(reset) else {"data": data}
        for k, n in enumerate(_order(self.totalBatches, random)):
            self.currBatch = k + 1
            self.handleBatch(self.sliceData(data, n, self.batchsize, lambda part: part), n, state)
            if callable(reset):
                reset()
            if self.onBatchFinish:
                self.onBatchFinish(self)
        self._together = None

    def handleBatch(self, batch: Any, idx: int, state: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} is to say what it does with a batch: handleBatch.")

    def onMacroBatchStart(self, idx: int, macroBatchSize: int, state: Any) -> None:
        pass

    def onMacroBatchFinish(self, idx: int, macroBatchSize: int, state: Any) -> None:
        pass

    @staticmethod
    def getDataSize(data: Any) -> int:
        """How many samples there are: the first dimension of the first array."""
        return len(costs._first(data))

    @classmethod
    def sliceData(cls, data: Any, idx: int, batchsize: int, postSlice: Callable[[Any], Any]) -> Any:
        """Block `idx` of every array in nested lists."""
        if isinstance(data, list | tuple):
            return [cls.sliceData(each, idx, batchsize, postSlice) for each in data]
        return postSlice(data[idx * batchsize : (idx + 1) * batchsize])

    def _blocks_of(self, data: Any, size: int, name: str) -> int:
        """The number of blocks of this size; raises unless all arrays have the same number of samples, at least one."""
        if as_count(size) is None:
            raise ConfigError(f"{name}= is a whole number, at least 1, got {size!r}.")
        leaves = tree_leaves(data)
        if any(leaf is None for leaf in leaves):
            raise DataError(
                f"{type(self).__name__}: None was given for data or target. Give arrays or tensors with a sample in "
                "each row."
            )
        sizes = [len(leaf) for leaf in leaves]
        if len(set(sizes)) != 1 or not sizes[0]:
            raise DataError(
                f"{type(self).__name__}: data and target have {' and '.join(map(str, sizes))} samples. Give as many of "
                "each, at least one."
            )
        return -(-sizes[0] // int(size))

    def _to_device(self, part: Any) -> Tensor:
        param = next(self.module.parameters(), None)
        return torch.as_tensor(part, device=None if param is None else param.device)


class Trainer(Handler):
    """Trains a module: one call is one pass over the data. The accumulated error is reset, and train mode stays on."""

    def __init__(
        self, mod: nn.Module, cost: Any, optimizer: Any, onBatchFinish: Finish | None = None, batchsize: int = 128
    ) -> None:
        super().__init__(mod, onBatchFinish, batchsize)
        self.cost: Cost = costs.by_name(cost)
        self.optimizer: Optimizer = optimizers.by_name(optimizer)
        self._parts: Any = None
        self._native: Any = None
        self._prepared: Any = None

    def trainFromHost(
        self,
        data: Any,
        target: Any,
        macroBatchSize: int = 10000,
        onMacroBatchFinish: Finish | None = None,
        random: bool = True,
    ) -> None:
        """One pass over data of the host."""
        self._begin()
        self.handleFromHost([data, target], None, macroBatchSize, onMacroBatchFinish, random)

    def train(self, data: Any, target: Any, random: bool = True) -> None:
        """One pass over data of the device."""
        self._begin()
        self.handle([data, target], None, random)

    def handleBatch(self, batch: Any, idx: int, state: Any) -> None:
        """One update, in the mode that the module is in; the error is that of before it."""
        leaves: dict[str, Tensor] = {}
        form, rows, together = _flat(batch, leaves), self.getDataSize(batch), self._together
        unchanged = together is not None and together is self._prepared
        if not unchanged:
            self._prepare(form)
            self._prepared = together
        given, objective = Batch(leaves, rows), self._objective
        given.macrobatch = together
        losses = self._native.step(given, unchanged=unchanged)
        errors = [losses[name] * rows for name in objective.shown]
        self.optimizer.t += 1
        self.cost.record(errors if objective.several else errors[0], rows)

    def _begin(self) -> None:
        self.cost.resetAccumulator()
        self.module.train()

    def _prepare(self, form: Any) -> None:
        """Finds the trainer behind this one: another one where module, cost or optimizer have been replaced."""
        optimizer = self.optimizer
        if optimizer.torch is None:
            optimizer.setupOn(self.module)
        parts = self.module, self.cost, optimizer.torch
        if parts != self._parts:
            optimizer.attach(None)
            self._parts, self._objective = parts, _CostObjective(self.cost)
            self._native = NativeTrainer(self.module, self._objective, optimizer._ready(), batch_size=self.batchsize)
        optimizer.attach(self._native)
        resting = [] if self.module.training else [each for each in self.module.modules() if not each.training]
        self._objective.follow(form, resting)  # a step is made in train mode


class Validator(Handler):
    """Computes the error of a module over data, as its cost counts it in a validation."""

    def __init__(self, mod: nn.Module, cost: Any, onBatchFinish: Finish | None = None, batchsize: int = 128) -> None:
        super().__init__(mod, onBatchFinish, batchsize)
        self.cost: Cost = costs.by_name(cost)
        self.error: Any = 0.0

    def validateFromHost(
        self, data: Any, target: Any, macroBatchSize: int = 10000, onMacroBatchFinish: Finish | None = None
    ) -> Any:
        """The error over data of the host; a list of them if there are several targets."""
        state = {"error": [0.0] * (len(target) if isinstance(target, list) else 1)}
        self.module.eval()
        self.handleFromHost([data, target], state, macroBatchSize, onMacroBatchFinish, random=False)
        return self._mean(state, target)

    def validate(self, data: Any, target: Any) -> Any:
        """The error over data of the device."""
        state = {"error": [0.0] * (len(target) if isinstance(target, list) else 1)}
        self.module.eval()
        self.handle([data, target], state, random=False)
        return self._mean(state, target)

    def handleBatch(self, batch: Any, idx: int, state: Any) -> None:
        data, target = batch
        with torch.no_grad():
            found = self.cost.validate(self.module(data), target)
        for k, error in enumerate(found if isinstance(found, list) else [found]):
            state["error"][k] += self.getDataSize(data) * error

    def _mean(self, state: Any, target: Any) -> Any:
        errors = [error / self.getDataSize(target) for error in state["error"]]
        self.error = errors if isinstance(target, list) else errors[0]
        return self.error


class Calculator(Handler):
    """Lets a module compute: what it returns for all samples, in their order."""

    def calcFromHost(self, data: Any, macroBatchSize: int = 10000, onMacroBatchFinish: Finish | None = None) -> Any:
        """Arrays of NumPy, nested as what the module returns."""
        state: dict[str, Any] = {"hostSize": self.getDataSize(data), "parts": []}
        self.module.eval()
        self.handleFromHost(data, state, macroBatchSize, onMacroBatchFinish, random=False)
        return _joined(state["parts"], lambda parts: torch.cat(parts).cpu().numpy())

    def calc(self, data: Any) -> Any:
        """Tensors on the device."""
        state: dict[str, Any] = {"devSize": self.getDataSize(data), "parts": []}
        self.module.eval()
        self.handle(data, state, random=False)
        return _joined(state["parts"], torch.cat)

    def handleBatch(self, batch: Any, idx: int, state: Any) -> None:
        with torch.no_grad():
            state["parts"].append(self.module(batch))


class _CostObjective(Objective):
    """What a cost trains on, with what it reports beside it."""

    def __init__(self, cost: Cost) -> None:
        self.several, costs = isinstance(cost, Multi), cost.costs if isinstance(cost, Multi) else [cost]
        ours = self.splits = all(type(each).__module__ == Cost.__module__ for each in costs)
        # a tape would notice that a cost remembers errors, which those of ours do not compute with
        self._check = _apart(cost.check) if ours else cost.check
        self._errors = tuple(_apart(each.errors) if ours else each.errors for each in costs)
        self.read_settings = _apart(lambda: [v for each in costs for k, v in vars(each).items() if k not in REMEMBERED])
        self.settings: list[Any] = []
        """What costs of ours are set to."""
        self.form: Any = None
        self.resting: list[nn.Module] = []
        """Modules to compute in eval mode, which a training is not."""
        self.shown: list[str] = []
        """The terms that are reported."""

    def follow(self, form: Any, resting: list[nn.Module]) -> None:
        """Looks at how the next batch is nested, at the modes of modules, and at what the costs are set to."""
        if form != self.form or resting != self.resting:
            self.form, self.resting = form, resting
        settings = self.read_settings()
        if len(settings) != len(self.settings) or not all(map(operator.is_, settings, self.settings)):
            self.settings = settings

    def terms(self, model: nn.Module, batch: Batch) -> Terms:
        for module in self.resting:
            module.training = False
        data, target = _nested(self.form, batch.fields)
        outputs = model(data)
        self._check(outputs, target)
        terms, shown = Terms(), []
        for k, errors in enumerate(self._errors):
            trained, error = errors(*(outputs[k], target[k])) if self.several else errors(outputs, target)
            terms[f"cost{k}"] = Term(trained, float(batch.rows))
            shown.append(f"cost{k}")
            if error is not trained:
                shown[k] = f"error{k}"
                terms[shown[k]] = Term(error.detach(), float(batch.rows), coefficient=0.0)
        if shown != self.shown:
            self.shown = shown
        return terms


def _apart(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function that calls a method, and holds nothing."""
    return lambda *given: method(*given)


def _order(count: int, random: bool) -> list[int]:
    found: list[int] = (np.random.permutation(count) if random else np.arange(count)).tolist()
    return found


def _flat(data: Any, leaves: dict[str, Tensor]) -> Any:
    """Nested lists with a name for each tensor, which is put into `leaves`."""
    if isinstance(data, list | tuple):
        return [_flat(each, leaves) for each in data]
    name = f"s{len(leaves)}"
    leaves[name] = data if isinstance(data, Tensor) else torch.as_tensor(data)
    return name


def _nested(form: Any, leaves: Any) -> Any:
    return [_nested(each, leaves) for each in form] if isinstance(form, list) else leaves[form]


def _joined(parts: list[Any], join: Callable[[list[Tensor]], Any]) -> Any:
    if isinstance(parts[0], list | tuple):
        return [_joined(list(column), join) for column in zip(*parts, strict=True)]
    return join(parts)
