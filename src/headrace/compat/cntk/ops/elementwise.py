"""Operations on every number of their inputs, which are broadcast to one shape."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import ConfigError, DataError
from ..variables import Variable
from .functions import Function, Made
from .graph import axes_of


def broadcast(shapes: Sequence[Any]) -> Any:
    """The shape of samples of these shapes together; unknown if one is."""
    if any(shape is None for shape in shapes):
        return None
    try:
        return tuple(torch.broadcast_shapes(*[tuple(max(1, size) for size in shape) for shape in shapes]))
    except RuntimeError:
        raise DataError(f"samples of shapes {' and '.join(map(str, shapes))} cannot be broadcast to one.") from None


def dense(value: Any) -> Any:
    """Numbers, also where only those that are not zero are kept."""
    if isinstance(value, Sparse):
        return value.to_dense()
    if isinstance(value, Ragged) and isinstance(value.values, Sparse):
        return value.with_values(value.values.to_dense())
    return value


def aligned(values: Sequence[Any], kinds: Sequence[int]) -> tuple[list[Tensor], Ragged | None]:
    """The numbers of all inputs, a row for each sample or item, and the sequences whose items they are."""
    like = next((value for value in values if isinstance(value, Ragged)), None)
    parts: list[Tensor] = []
    for value, kind in zip(values, kinds, strict=True):
        if isinstance(value, Ragged):
            assert like is not None
            parts.append(dense(value).values if value is like else like.items_of(dense(value)))
        elif kind == 1 and like is not None:
            parts.append(torch.repeat_interleave(dense(value), like.lengths, dim=0, output_size=like.items))
        else:
            parts.append(dense(value))
    ranks = [part.dim() - (kind > 0) for part, kind in zip(parts, kinds, strict=True)]
    most = max(ranks)
    if any(kinds) and len(set(ranks)) > 1:
        parts = [
            part.reshape(len(part), *[1] * (most - rank), *part.shape[1:]) if kind and rank < most else part
            for part, kind, rank in zip(parts, kinds, ranks, strict=True)
        ]
    return parts, like


def elementwise(op: str, fn: Callable[..., Tensor], inputs: Sequence[Any], name: str, modal: bool = False) -> Function:
    """A node that applies a function to every number."""

    def make(*variables: Variable) -> Made:
        kinds = [v.kind for v in variables]
        ranks = {None if v.shape is None else len(v.shape) for v in variables if v.kind}
        most = next(iter(ranks)) if len(ranks) == 1 else None
        plain = most is not None and all(v.kind or len(v.shape) <= most for v in variables)

        def run(*values: Any, **mode: Any) -> Any:
            if plain and all(type(value) is Tensor for value in values):
                return fn(*values, **mode)
            parts, like = aligned(values, kinds)
            result = fn(*parts, **mode)
            return result if like is None else like.with_values(result)

        return run, broadcast([v.shape for v in variables]), axes_of(*variables)

    return Function(op, make, inputs, name, modal)


def _unary(op: str, fn: Callable[[Tensor], Tensor], sentence: str) -> Callable[..., Any]:
    def call(x: Any, name: str = "") -> Any:
        return elementwise(op, fn, [x], name)

    call.__name__, call.__doc__ = op.lower(), sentence
    return call


def _binary(op: str, fn: Callable[..., Tensor], sentence: str) -> Callable[..., Any]:
    def call(left: Any, right: Any, *more: Any, name: str = "") -> Any:
        found = elementwise(op, fn, [left, right], name if not more else "")
        for k, each in enumerate(more):
            found = elementwise(op, fn, [found, each], name if k == len(more) - 1 else "")
        return found

    call.__name__, call.__doc__ = op.lower(), sentence
    return call


plus = _binary("Plus", torch.add, "The sum of its inputs.")
minus = _binary("Minus", torch.sub, "The difference of its inputs.")
element_times = _binary("ElementTimes", torch.mul, "The product of its inputs, number by number.")
element_divide = _binary("ElementDivide", torch.div, "The quotient of its inputs, number by number.")
pow = _binary("Pow", torch.pow, "The first input to the power of the second.")
negate = _unary("Negate", torch.neg, "The negative.")
abs = _unary("Abs", torch.abs, "The absolute value.")
exp = _unary("Exp", torch.exp, "e to the power of x.")
log = _unary("Log", torch.log, "The natural logarithm.")
sqrt = _unary("Sqrt", torch.sqrt, "The square root.")
square = _unary("Square", torch.square, "The square.")
sin = _unary("Sin", torch.sin, "The sine.")
cos = _unary("Cos", torch.cos, "The cosine.")
tanh = _unary("Tanh", torch.tanh, "The hyperbolic tangent.")
sigmoid = _unary("Sigmoid", torch.sigmoid, "1 / (1 + exp(-x)).")
relu = _unary("ReLU", torch.relu, "The larger of x and 0.")
softplus = _unary("Softplus", functional.softplus, "log(1 + exp(x)).")
stop_gradient = _unary("StopGradient", Tensor.detach, "The same value, through which no gradient flows.")
identity = _unary("Alias", lambda value: value, "The same value.")


def _compared(op: str, fn: Callable[..., Tensor]) -> Callable[..., Any]:
    def call(left: Any, right: Any, name: str = "") -> Any:
        return elementwise(op, lambda a, b: fn(a, b).to(a.dtype), [left, right], name)

    call.__name__, call.__doc__ = op.lower(), f"1 where the inputs are {op.lower()}, else 0."
    return call


less, less_equal = _compared("Less", torch.lt), _compared("LessEqual", torch.le)
greater, greater_equal = _compared("Greater", torch.gt), _compared("GreaterEqual", torch.ge)
equal, not_equal = _compared("Equal", torch.eq), _compared("NotEqual", torch.ne)


def dropout(x: Any, dropout_rate: float = 0.0, seed: Any = None, name: str = "") -> Function:
    """In training, zeros at this rate, and everything else larger for it."""
    if not 0 <= dropout_rate < 1:
        raise ValueError(f"dropout_rate= is from 0 to below 1, got {dropout_rate}.")
    if seed is not None:
        raise ConfigError(
            "seed= of dropout is not offered: all draw from the generator of torch. Seed that, by "
            "cntk_py.set_fixed_random_seed(...) or torch.manual_seed(...)."
        )

    def drop(a: Tensor, training: bool = False) -> Tensor:
        return functional.dropout(a, dropout_rate, training)

    return elementwise("Dropout", drop, [x], name, modal=True)
