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


_ARITHMETIC = {
    "add": elementwise.plus,
    "sub": elementwise.minus,
    "mul": elementwise.element_times,
    "truediv": elementwise.element_divide,
    "pow": elementwise.pow,
    "matmul": tensors.times,
}
_OPERATORS: dict[str, Callable[..., Any]] = {
    "neg": elementwise.negate,
    "abs": elementwise.abs,
    "getitem": _item,
    "gt": elementwise.greater,
    "ge": elementwise.greater_equal,
    "lt": elementwise.less,
    "le": elementwise.less_equal,
}
for _name, _op in {**_ARITHMETIC, **_OPERATORS}.items():
    setattr(Variable, f"__{_name}__", lambda *given, op=_op: op(*given))
for _name, _op in _ARITHMETIC.items():
    setattr(Variable, f"__r{_name}__", lambda x, other, op=_op: op(other, x))
setattr(Variable, "__array_ufunc__", None)  # noqa: B010  # an array beside it leaves the operation to it
