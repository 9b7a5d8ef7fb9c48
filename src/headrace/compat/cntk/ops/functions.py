"""Functions: nodes of a graph, how they are made of each other, and how a graph is computed."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....errors import ConfigError, DataError
from .._native import instead_of
from ..axis import Axis
from ..core import Value
from ..state import load_weights, read_state, weights_of, write_state
from ..variables import Constant, Parameter, Placeholder, Variable, as_variable
from .graph import Plan, as_fed, feed, leaf_of, numbers_of, ordered, shown

Run = Callable[..., Any]
Made = tuple[Run, Any, tuple[Axis, ...]]
"""How a node computes its value from those of its inputs, the shape of a sample, and its dynamic axes."""


class Function(Variable):
    """A node of a graph: what computes a value from others. Called with nodes, it is applied to these instead."""

    kind_name, is_output = "Output", True

    def __new__(cls, *given: Any, **named: Any) -> Any:
        python = cls is Function and given and callable(given[0])
        return super().__new__(Layer if python else cls)

    def __init__(
        self, op_name: Any, make: Callable[..., Made], inputs: Sequence[Any], name: str = "", modal: bool = False
    ) -> None:
        dtype = next((each.dtype for each in inputs if isinstance(each, Variable)), np.float32)
        found = [each if isinstance(each, Variable) else Constant(each, dtype=dtype) for each in inputs]
        if other := next((each for each in found if each.dtype is not dtype), None):
            raise DataError(
                f"{op_name}: {found[0]!r} has {np.dtype(dtype)} and {other!r} has {np.dtype(other.dtype)}. "
                "Give both one dtype=."
            )
        self.run, shape, axes = make(*found)
        super().__init__(shape, dtype, dynamic_axes=axes, name=name)
        self.op_name, self.make, self.modal = op_name, make, modal
        self.inputs: list[Variable] = found
        self._plan: Plan | None = None

    # --- the graph ---------------------------------------------------------------------------------------

    @property
    def output(self) -> "Function":
        return self

    @property
    def outputs(self) -> tuple[Variable, ...]:
        return (self,)

    @property
    def arguments(self) -> tuple[Variable, ...]:
        """The inputs and placeholders that it needs, in the order in which they are met."""
        return tuple(v for v in ordered([self]) if v.is_input or v.is_placeholder)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(v for v in ordered([self]) if isinstance(v, Parameter))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r} here. {instead_of(name)}")

    def argument_map(self, *values: Any, **named: Any) -> dict[Variable, Any]:
        arguments = self.arguments
        if len(values) + len(named) != len(arguments):
            listed = ", ".join(v.name or v.uid for v in arguments)
            raise TypeError(f"expected {len(arguments)} arguments ({listed}), got {len(values) + len(named)}.")
        remaining = [v for v in arguments if v.name not in named]
        return {**dict(zip(remaining, values, strict=True)), **{v: named[v.name] for v in arguments if v.name in named}}

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Applied to nodes, the same graph over these; applied to data, its value."""
        mapped = self.argument_map(*values, **named)
        if any(isinstance(each, Variable) for each in mapped.values()):
            return self.replaced(mapped)
        return self.eval(mapped)

    def replaced(self, substitutions: Mapping[Variable, Any]) -> Any:
        """The same graph with other nodes in place of some; parameters are shared."""
        made: dict[Variable, Any] = {old: as_variable(new) for old, new in substitutions.items()}
        for node in ordered([self]):
            moved = any(made.get(each, each) is not each for each in node.inputs)
            if isinstance(node, Function) and node not in made and moved:
                made[node] = node.remade([made.get(each, each) for each in node.inputs])
        return made.get(self, self)

    def remade(self, inputs: Sequence[Variable]) -> "Function":
        """The same operation on other inputs."""
        return Function(self.op_name, self.make, inputs, self.name, self.modal)

    # --- its value ---------------------------------------------------------------------------------------

    @property
    def plan(self) -> "Plan":
        if self._plan is None:
            self._plan = Plan(list(self.outputs))
        return self._plan

    def eval(
        self,
        arguments: Any = None,
        outputs: Sequence[Variable] | None = None,
        device: Any = None,
        as_numpy: bool = True,
    ) -> Any:
        """Its value for these arguments: an array, or a list of arrays where samples are sequences."""
        roots = list(outputs or self.outputs)
        with torch.no_grad():
            plan = Plan(roots)
            values = plan(feed(plan, arguments, device))
        found = {root: shown(root, value, as_numpy) for root, value in zip(roots, values, strict=True)}
        return found if len(roots) > 1 else found[roots[0]]

    def grad(
        self, at: Any = None, wrt: Iterable[Variable] | None = None, *, device: Any = None, as_numpy: bool = True
    ) -> Any:
        """The gradient of the sum of its value, by these variables (all arguments that need one, if not named)."""
        plan = Plan([self.outputs[0]])
        fed = feed(plan, at, device, gradients=True)
        (value,) = plan(fed, training=True)
        wanted = [v for v in self.arguments if v.needs_gradient] if wrt is None else list(wrt)
        leaves = [leaf_of(v, fed) for v in wanted]
        found = torch.autograd.grad(numbers_of(value).sum(), leaves, allow_unused=True, materialize_grads=True)
        by_variable = {
            v: as_fed(g, fed.get(v)) if as_numpy else Value.over(g) for v, g in zip(wanted, found, strict=True)
        }
        return by_variable if len(wanted) > 1 else by_variable[wanted[0]]

    def save(self, filename: Any, format: Any = None) -> None:
        write_state(Path(filename), {"weights": weights_of(ordered(self.outputs))})

    def restore(self, filename: Any) -> None:
        """Reads its parameters from a file that a function like it was saved in."""
        path = Path(filename)
        load_weights(weights_of(ordered(self.outputs)), read_state(path)["weights"], path)

    @staticmethod
    def load(model: Any, device: Any = None, format: Any = None) -> Any:
        """Not offered: make the function again, and restore it."""
        raise ConfigError("cntk.Function.load is not offered here. Make the function again, and call z.restore(name).")

    def __repr__(self) -> str:
        listed = ", ".join(v.name or v.uid for v in self.arguments)
        return f"{self.op_name}({listed}) -> {list(self.shape or ())}"


class Combined(Function):
    """Several functions as one."""

    def __init__(self, outputs: Sequence[Any], name: str = "") -> None:
        members = [each for output in outputs for each in getattr(output, "outputs", (output,))]
        first = members[0]
        super().__init__("Combine", lambda *v: (lambda *x: x[0], first.shape, first.dynamic_axes), members, name)
        self._members, self.run = tuple(members), None

    @property
    def outputs(self) -> tuple[Variable, ...]:
        return self._members

    def remade(self, inputs: Sequence[Variable]) -> "Function":
        return Combined(inputs, self.name)


class Layer(Function):
    """A function of Python that makes a graph of its arguments; its parameters are made once, and shared.

    `members` are attributes, such as a layer's weights.
    """

    def __init__(
        self, python: Callable[..., Any], name: str = "", members: Mapping[str, Any] | None = None, op_name: str = ""
    ) -> None:
        Variable.__init__(self, None, dynamic_axes=(), name=name)
        self.python, self.members = python, dict(members or {})
        self.op_name, self.modal = op_name or getattr(python, "__name__", "Function"), False
        self.inputs = []
        self._graph: Function | None = None
        self.__doc__ = python.__doc__

    @staticmethod
    def parameters_of(python: Callable[..., Any]) -> list[str]:
        listed = inspect.signature(python).parameters.values()
        return [each.name for each in listed if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]

    @property
    def graph(self) -> Function:
        """The graph over placeholders."""
        if self._graph is None:
            made = [Placeholder(name=name) for name in self.parameters_of(self.python)]
            self._graph = _as_function(self.python(*made), self.name)
        return self._graph

    @property
    def outputs(self) -> tuple[Variable, ...]:
        return self.graph.outputs

    @property
    def output(self) -> Function:
        return self.graph

    @property
    def arguments(self) -> tuple[Variable, ...]:
        return tuple(self.graph.arguments)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(v for v in ordered(self.graph.outputs) if isinstance(v, Parameter))

    def __call__(self, *values: Any, **named: Any) -> Any:
        if any(isinstance(each, Variable) for each in [*values, *named.values()]) or not values:
            made = _as_function(self.python(*values, **named), self.name)
            for member, value in self.members.items():
                vars(made).setdefault(member, value)
            return made
        return self.graph(*values, **named)

    def eval(self, *arguments: Any, **options: Any) -> Any:
        return self.graph.eval(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        members = vars(self).get("members", {})
        if name not in members:
            return super().__getattr__(name)
        return members[name]


def _as_function(made: Any, name: str) -> Function:
    """What a Python function has returned, as one function."""
    if isinstance(made, tuple | list):
        return Combined(list(made), name)
    if isinstance(made, dict):
        return Combined(list(made.values()), name)
    if not isinstance(made, Function):
        return Combined([made], name)
    if name and not made.name:
        made.name = name
    return made
