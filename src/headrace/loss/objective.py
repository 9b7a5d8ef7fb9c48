"""Objectives compute terms from a model and a batch, also for trainings that are not plain supervision.

The default objective calls the model on its input streams and compares the outputs with the target. Write your own for
anything else, such as contrastive learning, distillation, or a model that computes its own loss.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..data.batch import Batch, Stream
from ..data.ragged import Ragged
from ..errors import ConfigError, DataError, unknown
from .base import Loss, Losses, Sum, Term, Weight, as_list, by_items, pick, terms_of_outputs
from .call import Call, Inputs, first_call
from .metrics import Compared
from .translate import translate


class Terms(dict[str, Term]):
    """Terms by name, and the outputs of the model for the metrics."""

    outputs: Any = None


class Objective(ABC):
    """Computes terms from a model and a batch. Override `terms`, and `weights` if they are known beforehand."""

    splits: bool = False
    """Whether microbatches and workers may split a batch: its terms are the sums of the terms of its parts.

    An objective whose terms are sums over rows declares it. One that compares rows with each other needs whole batches.
    """
    joins: bool = False
    """Whether a validation may compute the terms of several batches together, from their joined outputs."""
    reads: str | None = None
    """What kind of outputs these are: one of `headrace.loss.task.READS`; some metrics need it."""
    ignores: int | None = None
    """The label that neither the loss nor a metric counts."""
    call: Call = Call()
    """Calls the model on its input streams, as the trainer's `inputs=` says."""
    compares: bool = False
    """Whether a term is known to compare an output with the trainer's target."""

    @abstractmethod
    def terms(self, model: nn.Module, batch: Batch) -> Mapping[str, Term]:
        """The terms of one microbatch; return `Terms` with `.outputs` to have training metrics."""

    def weights(self, batch: Batch) -> Mapping[str, Weight | None]:
        """The weight of every term, before the model is called; `{}` if only the forward pass can tell."""
        return {}

    def known(self, batch: Batch) -> Any:
        """Values of a batch, besides its shapes, that the host knows and that change how terms are computed."""
        return None

    def outputs(self, model: nn.Module, batch: Batch) -> Any:
        """The outputs that `predict` returns and metrics get."""
        return self.call(model, batch)

    def scored(self, outputs: Any) -> Any:
        """The output that metrics compare with the target."""
        return outputs

    def measured(self, name: str, target: str) -> Compared:
        """The output and the stream that metrics of this name compare; else the trainer's `target`."""
        if not name:
            return Compared(target, self.scored, self.reads, self.ignores)
        return Compared(name, partial(pick, key=name, name=f"metrics of {name!r}"))

    def soft_targets(self) -> set[str]:
        """The streams that may be probabilities of classes in one data set, and classes in another."""
        return set()

    def bind(self, inputs: Inputs, target: str) -> None:
        """Gets the trainer's names of inputs and target; raises if those of another trainer differ."""
        given = tuple(inputs) if isinstance(inputs, list) else inputs, target
        before = vars(self).setdefault("_bound", given)
        if before != given:
            raise ConfigError(
                f"this {type(self).__name__} was given to a trainer with inputs={before[0]!r} and "
                f"target={before[1]!r}. Make another one for this trainer, which has inputs={given[0]!r} and "
                f"target={target!r}."
            )
        self.call = Call(inputs, {target})

    def prepare(self, streams: Sequence[Stream], columns: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Called before a training: raises if it cannot work with these streams.

        `columns` are the streams that are completely in memory, by the name of their data set.
        """

    def check_order(self, streams: Sequence[str], others: Sequence[str], data: str) -> None:
        """Called before a training: raises if the streams of other data would reach the model in another order."""


class Supervised(Objective):
    """The default: the model on its inputs, its outputs against the target, term by term."""

    def __init__(self, loss: Loss | Sum) -> None:
        self.loss = Losses.of(as_list(loss))
        self._find_main("y")
        if not self._data_terms:
            raise ConfigError(
                "loss= holds priors only. Add a term that looks at the data: CrossEntropy() + L2Prior(1e-4)."
            )
        self.splits = all(term.splits for term in self.loss.values())
        self._columns: Mapping[str, Mapping[str, Any]] | None = None

    def terms(self, model: nn.Module, batch: Batch, outputs: Any = None) -> Terms:
        """The terms of one microbatch; `outputs`: what the model returned, where it has been called already."""
        if outputs is None and self._columns is None:
            outputs = self.call.known.get(tuple(batch.fields), self.call)(model, batch)
        elif outputs is None:
            outputs = self._first_call(model, batch)
        losses = self.loss if model.training else self._data_terms
        terms = Terms(terms_of_outputs(losses, model, outputs, batch))
        terms.outputs = outputs
        return terms

    def answers(self, model: nn.Module, batch: Batch) -> Any:
        """What the model returns; for the first batch of a data set, only after a look at it."""
        return self.call(model, batch) if self._columns is None else self._first_call(model, batch)

    def weights(self, batch: Batch) -> dict[str, Weight | None]:
        return self.loss.weights(batch)

    def known(self, batch: Batch) -> Any:
        return self._data_terms.known(batch)

    def scored(self, outputs: Any) -> Any:
        main = self._main
        return outputs if main is None or main.output is None else pick(outputs, main.output, main.name)

    def measured(self, name: str, target: str) -> Compared:
        """Those of a name look at the term that compares with this target, else at the one of this output."""
        terms = list(self._data_terms.values())
        if not name and self._main is None:
            compared = [
                f"{each} compares output {t.output!r} with {t.target!r}" for each, t in self._data_terms.items()
            ]
            raise ConfigError(
                f"metrics compare with target={target!r}, and no term of the loss does, so that it is not known "
                f"which output they are of: {', '.join(compared)}. Say target="
                f"{' or '.join(repr(t) for t in dict.fromkeys(term.target for term in terms))}."
            )
        if not name:
            return replace(super().measured(name, target), mask=None if self._main is None else self._main.row_weight)
        found = [t for t in terms if t.target == name] or [t for t in terms if t.output == name]
        if not found:
            known = dict.fromkeys(str(key) for t in terms for key in (t.target, t.output) if key is not None)
            raise ConfigError(f"metrics= are of an {unknown('output or target', name, list(known))}")
        term = next((term for term in found if term.output is not None), found[0])
        output = partial(pick, key=term.output, name=term.name)
        return Compared(term.target, output, term.reads, term.ignore_index, mask=term.row_weight)

    def bind(self, inputs: Inputs, target: str) -> None:
        super().bind(inputs, target)
        self.loss.bind(target)
        self._find_main(target)
        self.call = Call(inputs, {target, *self.compared()})

    @property
    def joins(self) -> bool:  # type: ignore[override]
        return all(term.joins and term.reduce == "mean" for term in self._data_terms.values())

    @property
    def reads(self) -> str | None:  # type: ignore[override]
        return None if self._main is None else self._main.reads

    @property
    def ignores(self) -> int | None:  # type: ignore[override]
        return None if self._main is None else self._main.ignore_index

    def _find_main(self, target: str) -> None:
        """Finds the term whose output metrics compare with the trainer's target.

        It is the first that compares with this target, before all of those that say which output they take; where none
        does, the first of all, if all of them take the same output.
        """
        self._data_terms = self.loss.of_data
        terms = list(self._data_terms.values())
        ours = [term for term in terms if term.target == target]
        self.compares = bool(ours)
        if not ours and len({term.output for term in terms}) == 1:
            ours = terms
        self._main = next((term for term in ours if term.output is not None), ours[0] if ours else None)

    def prepare(self, streams: Sequence[Stream], columns: Mapping[str, Mapping[str, Tensor]]) -> None:
        names = [s.name for s in streams]
        self._data_terms.check_streams(names)
        self.call.way(names)
        self._columns = columns

    def check_order(self, streams: Sequence[str], others: Sequence[str], data: str) -> None:
        self.call.check_order(streams, others, data)

    def compared(self) -> list[str]:
        """The streams that the terms compare with or weigh by."""
        return self._data_terms.streams

    def soft_targets(self) -> set[str]:
        terms = self._data_terms.values()
        return {term.target for term in terms if term.target is not None} - {
            term.target for term in terms if not term.takes_soft
        }

    def _first_call(self, model: nn.Module, batch: Batch) -> Any:
        """The first call of a training shows what the model returns: the last check before an update."""
        outputs = first_call(self.call, model, batch)
        for term in self._data_terms.values():
            answers, items = by_items(term, outputs, batch)
            for name, columns in {**(self._columns or {}), "": batch.fields}.items():
                _check(term, answers, columns.get(term.target), name)
            term.check_outputs(answers, items)
        self._columns = None
        return outputs


class NoLoss(Objective):
    """Replaces the missing loss of a trainer: all methods except those for `predict` raise an error."""

    def terms(self, model: nn.Module, batch: Batch) -> Mapping[str, Term]:
        self._refuse()

    def prepare(self, streams: Sequence[Stream], columns: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "this trainer was made without a loss, and can only predict. To train, make it as hr.Trainer(model, loss, "
            "optimizer); to validate, a loss is enough: hr.Trainer(model, loss)."
        )


class ByTrainStep(Objective):
    """Stands for the loss of an optimizer whose updates an overridden `train_step` makes."""

    splits = True  # it has no terms that could be split wrongly

    def terms(self, model: nn.Module, batch: Batch) -> Mapping[str, Term]:
        raise ConfigError(
            "this trainer was made without a loss for this optimizer, since train_step is overridden. The original "
            "train_step or evaluate_step needs one: give loss= with the keys of optimizer=, or eval_loss=."
        )


def module_of(objective: Objective) -> nn.Module | None:
    """The objective as a module, if it is one too, with parameters of its own."""
    return objective if isinstance(objective, nn.Module) else None


def losses_of(objective: Objective) -> list[Loss]:
    """The terms of an objective that are losses of this library."""
    return [*objective.loss.values()] if isinstance(objective, Supervised) else []


def as_objective(loss: Any, argument: str = "loss") -> Objective:
    """An Objective for whatever `loss=` may be."""
    return loss if isinstance(loss, Objective) else Supervised(translate(loss, argument))


def terms_of(objective: Objective, model: nn.Module, batch: Batch) -> Mapping[str, Term]:
    """The terms of one microbatch, which are terms."""
    found = objective.terms(model, batch)
    if not isinstance(found, Mapping):
        raise _no_terms(objective, f"a {type(found).__name__}")
    for name, term in found.items():
        if not isinstance(term, Term):
            raise _no_terms(objective, f"{name!r}: a {type(term).__name__}")
        if not isinstance(term.sum, Tensor | int | float) or (isinstance(term.sum, Tensor) and term.sum.dim()):
            shape = f"shape {list(term.sum.shape)}" if isinstance(term.sum, Tensor) else f"a {type(term.sum).__name__}"
            raise ConfigError(f"term {name!r}: sum must be a single number, got {shape}.")
    return found


def _no_terms(objective: Objective, came: str) -> ConfigError:
    return ConfigError(
        f"{type(objective).__name__}.terms() returns terms by name, got {came}. Return "
        "{'name': hr.Term(sum, weight)}: the sum over the rows, and what to divide it by; for a mean over rows "
        "{'name': hr.Term(mean * batch.rows, batch.rows)}."
    )


def scoring(objectives: Mapping[str, Objective]) -> str:
    """The key of the objective whose outputs metrics look at: the first that compares with the target, or the first."""
    return next((key for key, objective in objectives.items() if objective.compares), next(iter(objectives)))


def measured_by(objectives: Mapping[str, Objective], target: str) -> Callable[[str], Compared]:
    """A function from a name in `metrics=` to what those metrics look at; `target` is the trainer's."""
    return partial(objectives[scoring(objectives)].measured, target=target)


def _check(term: Loss, outputs: Any, targets: Any, name: str) -> None:
    """Checks targets, and says whose they are; of sequences, in which row."""
    dense = targets.dense() if isinstance(targets, Ragged) else targets
    if not isinstance(dense, Tensor):
        return
    try:
        term.check_targets(outputs, dense)
    except DataError as error:
        message = str(error)
        if isinstance(targets, Ragged) and (found := re.search(r"\brow (\d+)", message)):
            row = int(targets.rows_of(torch.tensor(item := int(found[1]))))
            message = message.replace(found[0], f"row {row}, item {item - int(targets.host_offsets[row])}", 1)
        raise DataError(f"the {name} data: {message}" if name else message) from None
