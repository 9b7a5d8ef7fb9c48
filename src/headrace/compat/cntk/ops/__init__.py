"""Operations on variables and functions, by CNTK's names."""

from collections.abc import Callable
from typing import Any

from .. import variables
from .._native import lookup
from ..variables import Variable, as_variable
from . import elementwise, functions, tensors
from . import sequence as sequence
from .functions import Combined
from .sequence import future_value as future_value
from .sequence import past_value as past_value

input = variables.input_variable
__getattr__ = lookup("ops", elementwise, tensors, functions, variables)


def combine(*operands: Any, name: str = "") -> Combined:
    """Several functions as one, with an output for each."""
    listed = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    return Combined([as_variable(each) for each in listed], name)


def as_block(composite: Any, block_arguments_map: Any, block_op_name: str, block_instance_name: str = "") -> Any:
    """A graph with its placeholders replaced, under a name."""
    made = composite.replaced(dict(block_arguments_map))
    made.name = block_instance_name or made.name
    return made


def _item(x: Variable, key: Any) -> Any:
    """A part of every sample, by the indices of Python."""
    keys = key if isinstance(key, tuple) else (key,)
    found: Any = x
    for axis, each in enumerate(keys):
        part = each if isinstance(each, slice) else slice(each, each + 1 or None)
        if part != slice(None):
            found = tensors.slice(found, axis, part.start or 0, part.stop or 0, part.step)
    return found


def _swapped(op: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda x, other: op(other, x)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "__add__": elementwise.plus,
    "__radd__": _swapped(elementwise.plus),
    "__sub__": elementwise.minus,
    "__rsub__": _swapped(elementwise.minus),
    "__mul__": elementwise.element_times,
    "__rmul__": _swapped(elementwise.element_times),
    "__truediv__": elementwise.element_divide,
    "__rtruediv__": _swapped(elementwise.element_divide),
    "__pow__": elementwise.pow,
    "__rpow__": _swapped(elementwise.pow),
    "__matmul__": tensors.times,
    "__rmatmul__": _swapped(tensors.times),
    "__neg__": elementwise.negate,
    "__abs__": elementwise.abs,
    "__getitem__": _item,
    "__gt__": elementwise.greater,
    "__ge__": elementwise.greater_equal,
    "__lt__": elementwise.less,
    "__le__": elementwise.less_equal,
}
for _name, _op in _OPERATORS.items():
    setattr(Variable, _name, (lambda op: lambda *given: op(*given))(_op))
setattr(Variable, "__array_ufunc__", None)  # noqa: B010  # an array beside it leaves the operation to it
