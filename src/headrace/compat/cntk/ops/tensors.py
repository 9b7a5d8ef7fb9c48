"""Operations on the axes of samples: products, sums, slices, joins."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import ConfigError, DataError
from ..axis import Axis, number_of
from ..variables import Parameter, Shape, Variable, as_shape
from .elementwise import aligned, dense
from .functions import Function, Made
from .graph import axes_of


def mapped(
    op: str, fn: Callable[[Tensor, int], Tensor], shape_of: Callable[[Shape], Shape], x: Any, name: str
) -> Function:
    """A node that changes every sample in the same way; `fn` is told how many axes come before those of a sample."""

    def make(variable: Variable) -> Made:
        dynamic = min(1, variable.kind)

        def run(value: Any) -> Any:
            value = dense(value)
            if isinstance(value, Ragged):
                return value.with_values(fn(value.dense(), 1))
            return fn(value, dynamic)

        return run, None if variable.shape is None else shape_of(variable.shape), variable.dynamic_axes

    return Function(op, make, [x], name)


def _place(axis: Any, rank: int) -> int:
    """A static axis as a number from 0."""
    which = int(number_of(axis))
    if not -rank <= which < rank:
        raise DataError(f"axis {which} is out of range for samples with {rank} axes.")
    return which % rank


# --- products ----------------------------------------------------------------------------------------------


def times(left: Any, right: Any, output_rank: int = 1, infer_input_rank_to_map: int = -1, name: str = "") -> Function:
    """The product of matrices, or of tensors over the last axes of one and the first of the other."""
    return product_of([left, right], output_rank, infer_input_rank_to_map, name)


def product_of(inputs: Sequence[Any], output_rank: int, infer_input_rank_to_map: int, name: str = "") -> Function:
    """A product of two tensors, with a third one added, by choice, that has the shape of the output."""

    def make(a: Variable, b: Variable, *added: Variable) -> Made:
        if isinstance(b, Parameter) and a.shape is not None and -1 in b.shape:
            front = len(b.shape) - output_rank
            taken = a.shape[infer_input_rank_to_map:] if infer_input_rank_to_map > 0 else a.shape
            taken = a.shape[-front:] if infer_input_rank_to_map < 0 else taken
            b.infer((*taken, *b.shape[len(b.shape) - output_rank :]), by_columns=not a.is_sparse)
        if a.shape is None or b.shape is None or -1 in b.shape:
            known = b.shape if b.shape is not None and output_rank == len(b.shape) - 1 else None
            shape = known[len(known) - output_rank :] if known and a.shape is None else None
            return _unknown, shape, axes_of(a, b)
        inner = len(b.shape) - output_rank
        if inner > len(a.shape) or tuple(a.shape[len(a.shape) - inner :]) != tuple(b.shape[:inner]):
            raise DataError(f"times: samples of shape {a.shape} cannot be multiplied with {b.shape}.")
        outer, output = a.shape[: len(a.shape) - inner], b.shape[inner:]
        size, wide = math.prod(b.shape[:inner]), math.prod(output)
        shape, kinds = (*outer, *output), (a.kind, b.kind)

        def product(x: Any, w: Tensor, bias: Tensor | None = None) -> Any:
            if isinstance(x, Sparse):
                found = _bags(x, w.reshape(size, wide)).view(-1, *shape)
                return found if bias is None else found + bias
            if bias is not None and x.dim() == 2 and w.dim() == 2:
                return torch.addmm(bias, x, w)
            front = x.shape[: x.dim() - inner]
            found = (x.reshape(*front, size) @ w.reshape(size, wide)).view(*front, *output)
            return found if bias is None else found + bias

        def run(x: Any, w: Any, *bias: Any) -> Any:
            if kinds[1] == 0:
                if isinstance(x, Ragged):
                    return x.with_values(product(x.values, w, *bias))
                return product(x, w, *bias)
            (p, q), like = aligned([x, w], kinds)
            p = p.reshape(*p.shape[: p.dim() - inner], size)
            if kinds[0] == 0:
                p = p.expand(len(q), *p.shape)
            found = torch.bmm(p.reshape(len(q), -1, size), q.reshape(len(q), size, wide)).view(len(q), *shape)
            return found if like is None else like.with_values(found)

        return run, shape, axes_of(a, b)

    return Function("Times", make, inputs, name)


def _bags(rows: Sparse, weights: Tensor) -> Tensor:
    """Sparse rows times weights, of which only the rows that are named are read."""
    given: dict[str, Any] = rows.bag()
    return functional.embedding_bag(**given, weight=weights, mode="sum")


def _unknown(*_: Any, **__: Any) -> Any:
    raise DataError("a layer has to be applied to an input before it is computed: its shapes are not known yet.")


# --- sums and the like ---------------------------------------------------------------------------------------


def _reduction(op: str, fn: Callable[..., Tensor], sentence: str) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, keepdims: bool = True, name: str = "") -> Any:
        over_all = axis == Axis.all_axes()
        if over_all or axis == Axis.default_batch_axis():
            return _over_the_batch(op, fn, x, over_all, name)
        axes = axis if isinstance(axis, list | tuple) else [axis]

        def shape_of(shape: Shape) -> Shape:
            if axis is None or axis == Axis.all_static_axes():
                return ()
            places = {_place(each, len(shape)) for each in axes}
            return tuple(1 if k in places else s for k, s in enumerate(shape) if keepdims or k not in places)

        def over(value: Tensor, front: int) -> Tensor:
            rank = value.dim() - front
            if axis is None or axis == Axis.all_static_axes():
                return fn(value, tuple(range(front, value.dim())), False) if rank else value
            return fn(value, tuple(sorted({front + _place(each, rank) for each in axes})), keepdims)

        return mapped(op, over, shape_of, x, name)

    call.__name__, call.__doc__ = op, sentence
    return call


def _over_the_batch(op: str, fn: Callable[..., Tensor], x: Any, over_all: bool, name: str) -> Function:
    def make(variable: Variable) -> Made:
        def run(value: Any) -> Any:
            value = dense(value)
            value = value.values if isinstance(value, Ragged) else value
            return fn(value, tuple(range(value.dim())) if over_all else (0,), False)

        return run, () if over_all else variable.shape, ()

    return Function(op, make, [x], name)


reduce_sum = _reduction(
    "ReduceSum", lambda v, d, k: v.sum(d, k), "The sum over axes; over all of a sample if none is named."
)
reduce_mean = _reduction("ReduceMean", lambda v, d, k: v.mean(d, k), "The mean over axes.")
reduce_max = _reduction("ReduceMax", lambda v, d, k: v.amax(d, k), "The largest number over axes.")


def _arg(op: str, fn: Callable[..., Tensor], x: Any, axis: Any, name: str) -> Function:
    of_all = axis is None or axis == Axis.all_static_axes()

    def shape_of(old: Shape) -> Shape:
        return () if of_all else tuple(1 if k == _place(axis, len(old)) else n for k, n in enumerate(old))

    def over(value: Tensor, front: int) -> Tensor:
        if of_all:
            return fn(value.reshape(*value.shape[:front], -1), front, False).to(value.dtype)
        return fn(value, front + _place(axis, value.dim() - front), True).to(value.dtype)

    return mapped(op, over, shape_of, x, name)


def argmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """The place of the largest number on an axis, or among all numbers of a sample."""
    return _arg("Argmax", torch.argmax, x, axis, name)


def softmax(x: Any, axis: Any = None, name: str = "") -> Function:
    """Probabilities of log odds, over the last axis if none is named."""
    return mapped(
        "Softmax", lambda v, f: v.softmax(-1 if axis is None else f + _place(axis, v.dim() - f)), tuple, x, name
    )


# --- shapes --------------------------------------------------------------------------------------------------


def reshape(x: Any, shape: Any, name: str = "") -> Function:
    """The same numbers of every sample in another shape; one size may be -1."""
    wanted = as_shape(shape)

    def shape_of(old: Shape) -> Shape:
        found, total = list(wanted), math.prod(old)
        if -1 in found:
            found[found.index(-1)] = total // -math.prod(found)
        if math.prod(found) != total:
            raise DataError(f"reshape: samples of shape {old} do not fill {wanted}.")
        return tuple(found)

    return mapped("Reshape", lambda v, f: v.reshape(*v.shape[:f], *shape_of(tuple(v.shape[f:]))), shape_of, x, name)


def slice(x: Any, axis: Any, begin_index: Any, end_index: Any, strides: Any = None, name: str = "") -> Function:
    """A part of every sample: from begin to end on each axis; an end of 0 is the last."""
    if strides not in (None, 1, [1], (1,)):
        raise ConfigError(f"slice: strides= other than 1 are not offered, got {strides}.")
    lists = [v if isinstance(v, list | tuple) else [v] for v in (axis, begin_index, end_index)]

    def cut(value: Tensor, front: int) -> Tensor:
        for which, begin, end in zip(*lists, strict=True):
            place = front + _place(which, value.dim() - front)
            start, stop = _bounds(int(begin or 0), int(end or 0), value.shape[place])
            value = value.narrow(place, start, stop - start)
        return value

    return mapped("Slice", cut, lambda s: tuple(cut(torch.empty(s, device="meta"), 0).shape), x, name)


def _bounds(begin: int, end: int, size: int) -> tuple[int, int]:
    """Where a slice of an axis begins and ends, both counted from the end where they are negative."""
    start, stop = begin + size if begin < 0 else begin, end + size if end <= 0 else end
    if not 0 <= start < stop <= size:
        raise DataError(f"slice: {begin} to {end} is no part of an axis of size {size}.")
    return start, stop
