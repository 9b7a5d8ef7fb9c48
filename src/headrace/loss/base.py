"""Terms, how they add up to a loss, and their settings."""

import copy
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..data.fields import Field, Rows
from ..data.ragged import Ragged
from ..data.sparse import Sparse
from ..errors import ConfigError, DataError, unknown

OF_CLASSES = ("classes", "class probabilities")
"""The values of `reads` for outputs with a column for each class."""
Weight = float | Tensor
"""A denominator: a number where the host knows it, a 0-dimensional tensor where only the device does."""


@dataclass(slots=True)
class Term:
    """One term of a loss on one microbatch.

    It adds `coefficient * times * sum / weight` to the loss, where `weight` is added up over the complete update. A
    term that is `summed` is divided by the weight only in reports. Set `times` to the number of rows if `sum` is a mean
    over them. A term with coefficient 0 is only logged. A batch is skipped if no term that `counts` has a weight. A
    term that does not count, a prior, is reported multiplied by its coefficient.
    """

    sum: Any
    """A tensor of no dimensions, with its graph; in reports the number that was read from it."""
    weight: Weight
    coefficient: float = 1.0
    times: float = 1.0
    counts: bool = True
    summed: bool = False


Check = Callable[[str, Any], Any]
"""From the name of a setting and a value to the value as it is kept; raises on one that cannot work."""


class _Setting:
    """Checks what an attribute is set to. It is read from the instance as any other: there is no `__get__`."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, loss: Any, value: Any) -> None:
        loss.__dict__[self._name] = self._check(self._name, value)


setting: Callable[[Check], Any] = _Setting
"""An attribute that is checked by this whenever it is set, also between two updates."""


def one_of(*choices: str) -> Check:
    """One of these words."""
    return _value(f"is {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}", choices.__contains__)


def number(wanted: str, fits: Callable[[float], bool] = math.isfinite) -> Check:
    """A number that `fits`, which errors call `wanted`."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, Tensor) and value.requires_grad:
            raise ConfigError(
                f"{name}= is {wanted}, got a tensor that is learnt. Write an hr.Objective, and multiply the sum of its "
                "hr.Term by the tensor."
            )
        try:
            good = fits(float(value))
        except (TypeError, ValueError, RuntimeError):
            good = False
        if not good:
            raise ConfigError(f"{name}= is {wanted}, got {value!r}.")
        return value.item() if isinstance(value, Tensor) else value

    return check


def _value(wanted: str, fits: Callable[[Any], bool]) -> Check:
    """A value that `fits`, which errors say by `wanted`."""

    def check(name: str, value: Any) -> Any:
        if not fits(value):
            raise ConfigError(f"{name}= {wanted}, got {value!r}.")
        return value

    return check


switch = _value("is True or False", lambda value: isinstance(value, bool))
label = _value(
    "is a whole number or None",
    lambda value: value is None or (isinstance(value, Integral) and not isinstance(value, bool)),
)


def positive_weights(
    name: str, weights: Sequence[float] | Tensor | None, each: str = "", dim: int | None = None
) -> Tensor | None:
    """Non-negative numbers, in so many dimensions, or none."""
    if weights is None:
        return None
    tensor = torch.as_tensor(weights)
    if dim not in (None, tensor.dim()) or not bool(((tensor >= 0) & tensor.isfinite()).all()):
        raise ConfigError(f"{name}= are non-negative numbers{each}, got {weights!r}.")
    return tensor


def class_weights(name: str, weights: Sequence[float] | Tensor | None) -> Tensor | None:
    """A number for each class, or none."""
    tensor = positive_weights(name, weights, ", one per class", dim=1)
    if tensor is not None and not bool(tensor.any()):
        raise ConfigError(f"{name}= are all 0, so that no row counts. Give a number above 0 to what is to be learnt.")
    return tensor if tensor is None or tensor.is_floating_point() else tensor.float()


class Loss(ABC):
    """A term that is computed from the outputs of the model and the streams of the batch.

    `output` selects an output of a model that returns a tuple or a dict. `target` names the stream to compare with, by
    default the trainer's target; `weight` names the stream of row weights. `reduce="sum"` minimises the sum, so that a
    learning rate applies to each sample, whatever the batch size; the mean is reported all the same.

    Settings may be changed at any time, as in `loss.coefficient = 0.5`, and take effect in the next update. A product
    is a separate term: after `half = 0.5 * loss`, change the settings of `half`.
    """

    training_only: ClassVar[bool] = False
    """Whether validation leaves the term out."""
    reads: str | None = None
    """The kind of outputs that the term expects, for metrics: see `headrace.loss.task.READS`."""
    ignore_index: int | None = None
    """The label that does not count."""
    joins: ClassVar[bool] = False
    """Whether it uses only outputs, target and row weights, so that a validation may join batches."""
    takes_soft: ClassVar[bool] = False
    """Whether targets may be class probabilities in one data set, as with CutMix, and class indices in another."""
    splits: bool = True
    """Whether the term of a batch is the sum of the terms of its parts."""
    reduce: Literal["mean", "sum"] = setting(one_of("mean", "sum"))
    coefficient: float = setting(number("a number"))

    def __init__(
        self,
        *,
        output: str | int | None = None,
        target: str | None = None,
        weight: str | None = None,
        reduce: Literal["mean", "sum"] = "mean",
        coefficient: float = 1.0,
        name: str | None = None,
    ) -> None:
        self.output, self.row_weight = output, weight
        self.own_target, self._trainers_target = target, ""
        self.reduce, self.coefficient = reduce, coefficient
        self.name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()

    @abstractmethod
    def weight(self, batch: Batch) -> Weight | None:
        """What the sum over this batch, or a part of it, is divided by; `None` if only the forward pass can tell.

        The weights of all parts are added up: of all microbatches, and of all workers.
        """

    def known(self, batch: Batch) -> Any:
        """What the host knows of a batch, beside its shapes, that changes how the term is computed."""
        return None

    @abstractmethod
    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        """The sum over the rows of this batch."""

    def term(self, model: nn.Module, outputs: Any, batch: Batch) -> Term:
        """The term of one microbatch."""
        total, weight = self.sum(outputs, batch), self.weight(batch)
        if weight is None:
            raise ConfigError(f"{type(self).__name__} gives no weight: override term(), or return it from weight().")
        return Term(total, weight, self.coefficient, summed=self.reduce == "sum")

    @property
    def target(self) -> str:
        """The stream to compare with."""
        return self.own_target or self._trainers_target or "y"

    def bind(self, target: str) -> None:
        """Gets the trainer's target, which counts if the term names none; raises if that of another trainer differs."""
        if self.own_target is None and self._trainers_target not in ("", target):
            raise ConfigError(
                f"this {type(self).__name__} was given to a trainer with target={self._trainers_target!r}, and is now "
                f"given to one with target={target!r}. Make a term for each, or say target= in the term."
            )
        self._trainers_target = target

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "target" or callable(getattr(Loss, name, None)):
            there = ", ".join(each for each in vars(self) if not each.startswith("_") and each not in _FIXED)
            raise ConfigError(
                f"{type(self).__name__}.{name} cannot be set: streams are named when the term is made, and how much it "
                f"counts is its coefficient. What can be set: {there}."
            )
        super().__setattr__(name, value)

    def check_targets(self, outputs: Any, targets: Tensor) -> None:
        """Called before the first update: raises on a target that cannot belong to these outputs."""

    def check_outputs(self, outputs: Any, batch: Batch) -> None:
        """Called before the first update: raises on outputs of another kind than `inputs` declares."""

    def __add__(self, other: "Loss | Sum") -> "Sum":
        return Sum([self, *as_list(other)]) if isinstance(other, Loss | Sum) else NotImplemented

    def __mul__(self, factor: float) -> "Loss":
        scaled = copy.copy(self)
        scaled.coefficient = self.coefficient * factor
        return scaled

    __rmul__ = __mul__

    def read(self, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        return pick(outputs, self.output, self.name), batch[self.target]


_FIXED = ("output", "row_weight", "own_target", "name")


class Sum:
    """Several terms, added; each is logged by its own name."""

    def __init__(self, terms: Sequence[Loss]) -> None:
        self.terms = list(terms)

    def __add__(self, other: "Loss | Sum") -> "Sum":
        return Sum([*self.terms, *as_list(other)]) if isinstance(other, Loss | Sum) else NotImplemented

    def __mul__(self, factor: float) -> "Sum":
        return Sum([factor * term for term in self.terms])

    __rmul__ = __mul__

    def __iter__(self) -> Iterator[Loss]:
        return iter(self.terms)


def as_list(loss: "Loss | Sum") -> list[Loss]:
    """The terms of a loss."""
    return list(loss) if isinstance(loss, Sum) else [loss]


class Losses(dict[str, Loss]):
    """Losses by name; a name that comes again gets a number."""

    @classmethod
    def of(cls, losses: Sequence[Loss]) -> "Losses":
        named = cls()
        for loss in losses:
            name, k = loss.name, 2
            while name in named:
                name, k = f"{loss.name}_{k}", k + 1
            named[name] = loss
        return named

    def bind(self, target: str) -> None:
        """All of them get the trainer's target."""
        for loss in self.values():
            loss.bind(target)

    @property
    def of_data(self) -> "Losses":
        """The losses that a validation includes: all except priors."""
        return Losses({name: loss for name, loss in self.items() if not loss.training_only})

    def weights(self, batch: Batch) -> dict[str, Weight | None]:
        """The weight of every term, as far as it is known before the model is called."""
        return {name: loss.weight(by_items(loss, None, batch)[1]) for name, loss in self.items()}

    def known(self, batch: Batch) -> tuple[Any, ...]:
        """What the host knows of a batch, beside its shapes, that changes how terms are computed."""
        return tuple([loss.known(batch) for loss in self.values()])

    @property
    def streams(self) -> list[str]:
        """The streams that the terms compare with or weigh by."""
        every = (stream for loss in self.values() for stream in (loss.target, loss.row_weight) if stream is not None)
        return list(dict.fromkeys(every))

    def check_streams(self, names: Sequence[str]) -> None:
        """Raises unless these streams have all that the terms look at."""
        for name in self.streams:
            if name not in names:
                raise ConfigError(
                    f"the loss compares with an {unknown('stream', name, names)} Pass it, as in (x, y), or say target=."
                )


def terms_of_outputs(losses: Losses, model: nn.Module, outputs: Any, batch: Batch) -> dict[str, Term]:
    """The terms of outputs that are there already."""
    if any(isinstance(field, Rows) for field in batch.fields.values()):
        return {name: loss.term(model, *by_items(loss, outputs, batch)) for name, loss in losses.items()}
    return {name: loss.term(model, outputs, batch) for name, loss in losses.items()}


def by_items(loss: Loss, outputs: Any, batch: Batch) -> tuple[Any, Batch]:
    """Outputs and batch as a loss wants them: the target dense, and of sequences with a row for each of their items.

    Outputs may be padded, a Ragged, or a row for each item; weights of rows become those of their items. Without
    outputs, `None`, only the batch is looked at.
    """
    target = batch.fields.get(loss.target)
    if type(target) is Tensor or not isinstance(target, Rows) or loss.training_only:  # nearly always, so first
        return outputs, batch
    if isinstance(target, Sparse):
        return outputs, Batch({**batch.fields, loss.target: target.to_dense()}, batch.rows, total=batch.total)
    assert isinstance(target, Ragged)
    items = target.dense()
    if outputs is not None:
        picked = outputs if isinstance(outputs, Ragged) else pick(outputs, loss.output, loss.name)
        outputs = target.items_of(picked, flat=is_flat(picked, items, loss.reads))
        outputs = outputs if loss.output is None else {loss.output: outputs}
    fields: dict[str, Field] = {**batch.fields, loss.target: items}
    if loss.row_weight is not None:
        fields[loss.row_weight] = weights_of_items(loss.row_weight, batch[loss.row_weight], target)
    return outputs, Batch(fields, target.items, share=batch.share)


def is_flat(outputs: Any, items: Tensor, reads: str | None) -> bool:
    """Whether outputs that may be padded or not have a row for each of these items, by what they are to be."""
    if not isinstance(outputs, Tensor):
        return False
    if reads in OF_CLASSES and not items.is_floating_point():
        return outputs.dim() == items.dim() + 1
    return outputs.numel() == items.numel() and outputs.dim() <= items.dim()


def weights_of_items(stream: str, weights: Any, sequences: Ragged) -> Tensor:
    """A weight for every item: its own, or that of its row."""
    if isinstance(weights, Ragged):
        try:
            return sequences.items_of(weights)
        except DataError as error:
            raise DataError(f"stream {stream!r}, the weights: {error}") from None
    spread_out: Tensor = weights.repeat_interleave(sequences.lengths, output_size=sequences.items)
    return spread_out


def pick(outputs: Any, key: str | int | None, name: str) -> Any:
    """One output of a model that may return several."""
    if key is None:
        if isinstance(outputs, Tensor):
            return outputs
        kind = f"a dict with {list(outputs)}" if isinstance(outputs, dict) else f"a {type(outputs).__name__}"
        raise ConfigError(f"{name}: the model returned {kind}. Say which output is meant with output=.")
    try:
        return outputs[key]
    except (KeyError, IndexError, TypeError):
        known = list(outputs) if isinstance(outputs, dict) else type(outputs).__name__
        raise ConfigError(f"{name}: output={key!r} is not among what the model returned: {known}.") from None


def weights_like(loss: Loss, batch: Batch, like: Tensor) -> Tensor:
    """What each element counts, to multiply it by: a number for each row, each element, or what is between them.

    Weights of sequences or maps, (rows, places), are those of all numbers of a place, (rows, places, ...). A dimension
    of size 1 stands for all, as in (rows, 1, height, width).
    """
    assert loss.row_weight is not None
    weights: Tensor = batch[loss.row_weight]
    if weights.shape == like.shape:
        return weights
    if weights.numel() == batch.rows:
        return weights.reshape(-1, *[1] * (like.dim() - 1))
    if [n for n in weights.shape[1:] if n != 1] == [n for n in like.shape[1:] if n != 1]:
        return weights.reshape(like.shape)
    spread = [*weights.shape, *[1] * (like.dim() - weights.dim())]
    if len(spread) == like.dim() and all(n in (1, size) for n, size in zip(spread, like.shape, strict=True)):
        return weights.reshape(spread)
    raise DataError(
        f"{loss.name}: weight={loss.row_weight!r} has rows of shape {list(weights.shape[1:])}. Expected one number for "
        f"each row, for each item of a sequence, or for each element of a row, {list(like.shape[1:])}; dimensions may "
        "be 1, and the last ones may be missing. Other weights are for a term of your own: subclass hr.Loss."
    )


def comparable(labels: Tensor) -> Tensor:
    """Labels that torch can compare with numbers."""
    return labels.long() if labels.dtype in (torch.uint16, torch.uint32, torch.uint64) else labels
