"""Blocks: recurrent cells and other parts, with parameters of their own."""

from typing import Any

import numpy as np

from ..default_options import DefaultOverride as Override
from ..default_options import default_override_or, get_default_override
from ..initializer import glorot_uniform
from ..ops.elementwise import element_times, exp, log, minus, plus, sigmoid, tanh
from ..ops.elementwise import identity as _same
from ..ops.functions import Layer
from ..ops.tensors import slice as _slice
from ..ops.tensors import times
from ..variables import Parameter as _Parameter
from ..variables import as_shape

INFERRED = (-1,)


def identity(keep: Any) -> Any:
    """The same value."""
    return _same(keep)


def Stabilizer(steepness: float = 4, enable_self_stabilization: Any = default_override_or(True), name: str = "") -> Any:
    """A learnt positive factor, which begins at 1."""
    if not get_default_override(Stabilizer, enable_self_stabilization=enable_self_stabilization):
        return identity
    begin = float(np.log(np.exp(steepness) - 1) / steepness)
    alpha = _Parameter((1,), begin, name="alpha")

    def stabilize(x: Any) -> Any:
        beta = element_times(log(plus(1.0, exp(element_times(alpha, float(steepness))))), 1.0 / steepness)
        return element_times(x, beta)

    return Layer(stabilize, name, {"beta": alpha})


def _cell(
    kind: str,
    shape: Any,
    cell_shape: Any,
    name: str,
    *,
    activation: Any,
    init: Any,
    init_bias: Any,
    enable_self_stabilization: bool,
    use_peepholes: bool = False,
) -> Layer:
    """A recurrent cell: the weights of its gates lie side by side."""
    out = as_shape(shape)
    cell = out if cell_shape is None else as_shape(cell_shape)
    if len(out) != 1 or len(cell) != 1:
        raise ValueError(f"{kind}: shape and cell_shape must be vectors, got {out} and {cell}.")
    size, gates = cell[0], {"RNNStep": 1, "GRU": 3, "LSTM": 4}[kind]
    wide, wide_h = gates * size, (2 if kind == "GRU" else gates) * size
    b = _Parameter((wide,), init_bias, name="b")
    w = _Parameter((-1, wide), init, name="W")
    h = _Parameter((*out, wide_h), init, name="H")
    h1 = _Parameter((*out, size), init, name="H1") if kind == "GRU" else None
    ci, cf, co = (_Parameter(cell, init, name=n) if use_peepholes else None for n in ("Ci", "Cf", "Co"))
    project = _Parameter((*cell, *out), init, name="P") if cell_shape is not None else None
    steady = {n: Stabilizer(enable_self_stabilization=enable_self_stabilization) for n in ("dh", "dc", "ct", "ht")}

    def part(value: Any, k: int) -> Any:
        return value if gates == 1 else _slice(value, -1, k * size, (k + 1) * size)

    def peep(value: Any, state: Any, weight: Any) -> Any:
        return plus(value, element_times(weight, state)) if weight is not None else value

    def projected(value: Any) -> Any:
        return value if project is None else times(steady["ht"](value), project)

    def lstm(dh: Any, dc: Any, x: Any) -> Any:
        dhs, dcs = steady["dh"](dh), steady["dc"](dc)
        stacked = plus(b, times(x, w), times(dhs, h))
        enter = sigmoid(peep(part(stacked, 0), dcs, ci))
        keep = sigmoid(peep(part(stacked, 2), dcs, cf))
        ct = plus(element_times(keep, dc), element_times(enter, activation(part(stacked, 1))))
        leave = sigmoid(peep(part(stacked, 3), steady["ct"](ct), co))
        return projected(element_times(leave, activation(ct))), ct

    def gru(dh: Any, x: Any) -> Any:
        dhs = steady["dh"](dh)
        given, before = plus(b, times(x, w)), times(dhs, h)
        update = sigmoid(plus(part(given, 0), _slice(before, -1, 0, size)))
        reset = sigmoid(plus(part(given, 1), _slice(before, -1, size, 2 * size)))
        new = activation(plus(part(given, 2), times(element_times(reset, dhs), h1)))
        return projected(plus(element_times(minus(1.0, update), new), element_times(update, dhs)))

    def step(dh: Any, x: Any) -> Any:
        return projected(activation(plus(b, times(x, w), times(steady["dh"](dh), h))))

    python: Any = {"LSTM": lstm, "GRU": gru, "RNNStep": step}[kind]
    members = {"b": b, "W": w, "H": h, "H1": h1, "states": [out, cell] if kind == "LSTM" else [out]}
    return Layer(python, name, members, op_name=kind)


def _recurrent(scope: Any, shape: Any, cell_shape: Any, name: str, **given: Any) -> Layer:
    """A cell of the kind that a function is called after, with its defaults."""
    given["init"] = Override(glorot_uniform()) if given["init"] is None else given["init"]
    settled = {key: get_default_override(scope, **{key: value}) for key, value in given.items()}
    return _cell(scope.__name__, shape, cell_shape, name, **settled)


def LSTM(
    shape: Any,
    cell_shape: Any = None,
    activation: Any = default_override_or(tanh),
    use_peepholes: Any = default_override_or(False),
    init: Any = None,
    init_bias: Any = default_override_or(0),
    enable_self_stabilization: Any = default_override_or(False),
    name: str = "",
) -> Layer:
    """A long short-term memory cell: the step (h, c, x) -> (h, c) of a Recurrence."""
    given = {"activation": activation, "init": init, "init_bias": init_bias, "use_peepholes": use_peepholes}
    return _recurrent(LSTM, shape, cell_shape, name, enable_self_stabilization=enable_self_stabilization, **given)


def GRU(
    shape: Any,
    cell_shape: Any = None,
    activation: Any = default_override_or(tanh),
    init: Any = None,
    init_bias: Any = default_override_or(0),
    enable_self_stabilization: Any = default_override_or(False),
    name: str = "",
) -> Layer:
    """A gated recurrent unit: the step (h, x) -> h of a Recurrence."""
    given = {"activation": activation, "init": init, "init_bias": init_bias}
    return _recurrent(GRU, shape, cell_shape, name, enable_self_stabilization=enable_self_stabilization, **given)


def RNNStep(
    shape: Any,
    cell_shape: Any = None,
    activation: Any = default_override_or(sigmoid),
    init: Any = None,
    init_bias: Any = default_override_or(0),
    enable_self_stabilization: Any = default_override_or(False),
    name: str = "",
) -> Layer:
    """A plain recurrent unit: the step (h, x) -> h of a Recurrence."""
    given = {"activation": activation, "init": init, "init_bias": init_bias}
    return _recurrent(RNNStep, shape, cell_shape, name, enable_self_stabilization=enable_self_stabilization, **given)


RNNUnit = RNNStep
