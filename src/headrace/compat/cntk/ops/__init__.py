"""Operations on variables and functions, by CNTK's names."""

from collections.abc import Callable, Sequence
from typing import Any

from .._native import lookup
from ..variables import Variable, as_variable
from ..variables import constant as constant
from ..variables import input_variable as input_variable
from ..variables import parameter as parameter
from ..variables import placeholder as placeholder
from . import sequence as sequence
from .elementwise import abs as abs
from .elementwise import acos as acos
from .elementwise import asin as asin
from .elementwise import asinh as asinh
from .elementwise import atan as atan
from .elementwise import atanh as atanh
from .elementwise import ceil as ceil
from .elementwise import clip as clip
from .elementwise import cos as cos
from .elementwise import cosh as cosh
from .elementwise import dropout as dropout
from .elementwise import element_divide as element_divide
from .elementwise import element_max as element_max
from .elementwise import element_min as element_min
from .elementwise import element_select as element_select
from .elementwise import element_times as element_times
from .elementwise import elu as elu
from .elementwise import equal as equal
from .elementwise import erf as erf
from .elementwise import exp as exp
from .elementwise import floor as floor
from .elementwise import greater as greater
from .elementwise import greater_equal as greater_equal
from .elementwise import hard_sigmoid as hard_sigmoid
from .elementwise import identity as _identity
from .elementwise import leaky_relu as leaky_relu
from .elementwise import less as less
from .elementwise import less_equal as less_equal
from .elementwise import log as log
from .elementwise import log_add_exp as log_add_exp
from .elementwise import minus as minus
from .elementwise import negate as negate
from .elementwise import not_equal as not_equal
from .elementwise import param_relu as param_relu
from .elementwise import plus as plus
from .elementwise import pow as pow
from .elementwise import reciprocal as reciprocal
from .elementwise import relu as relu
from .elementwise import round as round
from .elementwise import selu as selu
from .elementwise import sigmoid as sigmoid
from .elementwise import sin as sin
from .elementwise import sinh as sinh
from .elementwise import softplus as softplus
from .elementwise import softsign as softsign
from .elementwise import sqrt as sqrt
from .elementwise import square as square
from .elementwise import stop_gradient as stop_gradient
from .elementwise import tan as tan
from .elementwise import tanh as tanh
from .functions import Combined
from .functions import Function as Function
from .sequence import delay as delay
from .sequence import future_value as future_value
from .sequence import past_value as past_value
from .tensors import argmax as argmax
from .tensors import argmin as argmin
from .tensors import expand_dims as expand_dims
from .tensors import flatten as flatten
from .tensors import hardmax as hardmax
from .tensors import log_softmax as log_softmax
from .tensors import one_hot as one_hot
from .tensors import reduce_l1 as reduce_l1
from .tensors import reduce_l2 as reduce_l2
from .tensors import reduce_log_sum_exp as reduce_log_sum_exp
from .tensors import reduce_max as reduce_max
from .tensors import reduce_mean as reduce_mean
from .tensors import reduce_min as reduce_min
from .tensors import reduce_prod as reduce_prod
from .tensors import reduce_sum as reduce_sum
from .tensors import reduce_sum_square as reduce_sum_square
from .tensors import reshape as reshape
from .tensors import slice as slice
from .tensors import softmax as softmax
from .tensors import squeeze as squeeze
from .tensors import times as times
from .tensors import times_transpose as times_transpose
from .tensors import transpose as transpose

reduce_log_sum = reduce_log_sum_exp
input = input_variable
__getattr__ = lookup("ops")


def alias(x: Any, name: str = "") -> Any:
    """The same value under another name."""
    return _identity(x, name)


def combine(*operands: Any, name: str = "") -> Combined:
    """Several functions as one, with an output for each."""
    listed = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    return Combined([as_variable(each) for each in listed], name)


def as_composite(root_function: Any, name: str = "") -> Any:
    """The function itself: there is one kind of function here."""
    return root_function


def as_block(
    composite: Any,
    block_arguments_map: Sequence[tuple[Any, Any]],
    block_op_name: str,
    block_instance_name: str = "",
) -> Any:
    """A graph with its placeholders replaced, under a name."""
    made = composite.replaced(dict(block_arguments_map))
    made.name = block_instance_name or made.name
    return made


def sum(*operands: Any, name: str = "") -> Any:
    """The sum of several values."""
    listed = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    found = listed[0] if len(listed) == 1 else plus(*listed, name=name)
    return found


def mean(*operands: Any, name: str = "") -> Any:
    """The mean of several values."""
    listed = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    return element_divide(sum(*listed), float(len(listed)), name=name)


def element_and(x: Any, y: Any, name: str = "") -> Any:
    """1 where both are not 0, else 0."""
    return element_select(x, y, 0.0, name)


def element_or(x: Any, y: Any, name: str = "") -> Any:
    """1 where one of them is not 0, else 0."""
    return element_select(x, 1.0, y, name)


def element_not(x: Any, name: str = "") -> Any:
    """1 where it is 0, else 0."""
    return minus(1.0, x, name=name)


def zeros_like(x: Any, name: str = "") -> Any:
    """Zeros in the shape of another value."""
    return element_times(x, 0.0, name=name)


def ones_like(x: Any, name: str = "") -> Any:
    """Ones in the shape of another value."""
    return plus(element_times(x, 0.0), 1.0, name=name)


def _item(x: Variable, key: Any) -> Any:
    """A part of every sample, by the indices of Python."""
    keys = key if isinstance(key, tuple) else (key,)
    found: Any = x
    for axis, each in enumerate(keys):
        if isinstance(each, int):
            each = type("_", (), {"start": each, "stop": each + 1 or None, "step": 1})
        if each.start is None and each.stop is None and each.step is None:
            continue
        found = slice(found, axis, each.start or 0, each.stop or 0, each.step or 1)
    return found


def _swapped(op: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda x, other: op(other, x)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "__add__": plus,
    "__radd__": _swapped(plus),
    "__sub__": minus,
    "__rsub__": _swapped(minus),
    "__mul__": element_times,
    "__rmul__": _swapped(element_times),
    "__truediv__": element_divide,
    "__rtruediv__": _swapped(element_divide),
    "__pow__": pow,
    "__rpow__": _swapped(pow),
    "__matmul__": times,
    "__rmatmul__": _swapped(times),
    "__neg__": negate,
    "__abs__": abs,
    "__getitem__": _item,
    "__gt__": greater,
    "__ge__": greater_equal,
    "__lt__": less,
    "__le__": less_equal,
}
for _name, _op in _OPERATORS.items():
    setattr(Variable, _name, (lambda op: lambda *given: op(*given))(_op))
setattr(Variable, "__array_ufunc__", None)  # noqa: B010  # an array beside it leaves the operation to it
