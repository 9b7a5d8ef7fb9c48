"""A graph of values: its nodes in order, what is fed to it, and how it is computed."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import ConfigError, DataError, unknown
from ..axis import Axis
from ..core import Field, Value, array_of, rows_for
from ..device import chosen
from ..variables import Parameter, Variable


class Plan:
    """The steps that compute some nodes, in order."""

    def __init__(self, roots: Sequence[Variable]) -> None:
        self.roots = list(roots)
        nodes = ordered(roots)
        place = {node: k for k, node in enumerate(nodes)}
        self.leaves = [(k, v) for k, v in enumerate(nodes) if not v.inputs and v.run is None]
        self._steps = [
            (k, node.run, [place[each] for each in node.inputs], node.modal)
            for k, node in enumerate(nodes)
            if node.run is not None
        ]
        self._roots = [place[root] for root in roots]
        self._count = len(nodes)
        self.needed = [v for _, v in self.leaves if v.is_input or v.is_placeholder]
        self.by_name = {v.name: v for v in self.needed if v.name}

    def __call__(self, fed: Mapping[Variable, Any], training: bool = False) -> list[Any]:
        values: list[Any] = [None] * self._count
        for k, leaf in self.leaves:
            if leaf in fed:
                values[k] = fed[leaf]
            elif leaf.is_placeholder or leaf.is_input:
                raise ConfigError(f"{leaf!r} is given no value. Pass one in arguments=.")
            else:
                values[k] = leaf.tensor  # type: ignore[attr-defined]
        for k, run, places, modal in self._steps:
            inputs = [values[place] for place in places]
            values[k] = run(*inputs, training=training) if modal else run(*inputs)
        return [values[k] for k in self._roots]


def ordered(roots: Sequence[Variable]) -> list[Variable]:
    """All nodes that these need, and they themselves, each after its inputs."""
    found: dict[Variable, None] = {}
    stack: list[tuple[Variable, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if node in found:
            continue
        if ready or not node.inputs:
            found[node] = None
            continue
        stack.append((node, True))
        stack.extend((each, False) for each in reversed(node.inputs) if each not in found)
    return list(found)


def by_input(needed: Sequence[Variable], arguments: Any) -> dict[Any, Any]:
    """What is fed, by variable or name; data that come alone are those of the only input."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if arguments is None:
        return {}
    if isinstance(arguments, tuple) and len(arguments) == 2 and isinstance(arguments[0], Mapping):
        raise DataError(
            "seq_starts continue the sequences of the minibatch before, which is not offered. Give sequences whole."
        )
    if len(needed) != 1:
        listed = ", ".join(v.name or v.uid for v in needed)
        raise ConfigError(f"there are {len(needed)} arguments ({listed}): pass a dict of them.")
    return {needed[0]: arguments}


def feed(plan: Plan, arguments: Any, device: Any = None, gradients: bool = False) -> dict[Variable, Any]:
    """The rows of every argument that is needed, by variable."""
    needed, by_name = plan.needed, plan.by_name
    found, where = {}, chosen(device)
    for key, data in by_input(needed, arguments).items():
        variable = by_name.get(key) if isinstance(key, str) else key
        if variable is None:
            raise ValueError(unknown("argument", key, list(by_name)))
        if variable in needed:
            rows = rows_for(variable, data)
            rows = rows if rows.device == where else rows.to(where)
            found[variable] = _with_gradient(rows) if gradients and variable.needs_gradient else rows
    return found


def _with_gradient(rows: Field) -> Field:
    if isinstance(rows, Tensor):
        return rows.detach().clone().requires_grad_()
    if isinstance(rows, Ragged):
        return rows.with_values(rows.dense().detach().clone().requires_grad_())
    return rows.to_dense().requires_grad_()


def leaf_of(variable: Variable, fed: Mapping[Variable, Any]) -> Tensor:
    """What a gradient by this variable is taken of."""
    if isinstance(variable, Parameter):
        return variable.tensor
    return numbers_of(fed[variable])


def numbers_of(value: Any) -> Tensor:
    """All numbers of a value, as a tensor."""
    return value.dense() if isinstance(value, Ragged) else value.to_dense() if isinstance(value, Sparse) else value


def as_fed(gradient: Tensor, fed: Any) -> Any:
    if isinstance(fed, Ragged):
        return Value.over(fed.with_values(gradient)).as_sequences()
    return gradient.detach().cpu().numpy()


def shown(node: Variable, value: Any, as_numpy: bool = True) -> Any:
    """A value as it is given to the user: an array, a list of them for sequences, or a Value."""
    if not as_numpy:
        return Value.over(value)
    if isinstance(value, Ragged):
        return Value.over(value).as_sequences()
    return array_of(value)


def axes_of(*inputs: Variable) -> tuple[Axis, ...]:
    """The dynamic axes of what is computed of these: the most that any has."""
    return max((v.dynamic_axes for v in inputs), key=len, default=())
