"""Losses by CNTK's names: what is minimised, for every sample."""

from typing import Any

from torch import Tensor
from torch.nn import functional

from .ops.elementwise import element_times, elementwise, log, minus, plus
from .ops.elementwise import square as _square
from .ops.functions import Function
from .ops.tensors import reduce_sum


def cross_entropy_with_softmax(output_vector: Any, target_vector: Any, axis: int = -1, name: str = "") -> Function:
    """-Σ target·log softmax(output) over an axis."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        if output.dim() == 2 and target.shape == output.shape and axis in (-1, 0):
            return functional.cross_entropy(output, target, reduction="none")[:, None]
        return -(target * output.log_softmax(axis)).sum(axis, keepdim=True)

    return _over_axis("CrossEntropyWithSoftmax", loss, output_vector, target_vector, axis, name)


def _over_axis(op: str, fn: Any, output: Any, target: Any, axis: int, name: str) -> Function:
    found = elementwise(op, fn, [output, target], name)
    if found.shape:
        found.shape = tuple(1 if k == axis % len(found.shape) else s for k, s in enumerate(found.shape))
    return found


def classification_error(
    output_vector: Any, target_vector: Any, axis: int = -1, topN: int = 1, name: str = ""
) -> Function:
    """1 where the largest target is not among the `topN` largest outputs, else 0."""

    def error(output: Tensor, target: Tensor) -> Tensor:
        wanted = target.expand_as(output).argmax(axis, keepdim=True)
        if topN == 1:
            return (output.argmax(axis, keepdim=True) != wanted).to(output.dtype)
        best = output.topk(min(topN, output.shape[axis]), axis).indices
        return (best != wanted).all(axis, keepdim=True).to(output.dtype)

    return _over_axis("ClassificationError", error, output_vector, target_vector, axis, name)


def squared_error(output: Any, target: Any, name: str = "") -> Any:
    """Σ (output - target)² of a sample."""
    return reduce_sum(_square(minus(output, target)), name=name)


def binary_cross_entropy(output: Any, target: Any, name: str = "") -> Any:
    """-Σ target·log output + (1 - target)·log(1 - output) of a sample."""
    one = minus(1.0, target)
    terms = plus(element_times(target, log(output)), element_times(one, log(minus(1.0, output))))
    return reduce_sum(minus(0.0, terms), name=name)
