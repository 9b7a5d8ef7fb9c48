"""Layers by CNTK's names: dense ones and embeddings, recurrent cells, and layers made of layers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import ConfigError
from ._native import lookup
from .default_options import default_options as default_options
from .default_options import default_override_or, get_default_override, is_default_override
from .initializer import glorot_uniform, initializer_with_rank
from .ops.elementwise import dropout, element_times, minus, plus, sigmoid, tanh
from .ops.elementwise import identity as identity
from .ops.functions import Layer
from .ops.sequence import first as _first
from .ops.sequence import last as _last
from .ops.sequence import recurrence
from .ops.tensors import product_of, times
from .ops.tensors import slice as _slice
from .variables import Constant, Variable, as_shape
from .variables import Parameter as _Parameter

_GLOROT = default_override_or(glorot_uniform())


def Dense(
    shape: Any,
    activation: Any = default_override_or(identity),
    init: Any = _GLOROT,
    input_rank: int | None = None,
    map_rank: int | None = None,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    name: str = "",
) -> Layer:
    """activation(x @ W + b)."""
    activation = get_default_override(activation=activation)
    output = as_shape(shape)
    if input_rank is not None and map_rank is not None:
        raise ValueError("Dense: input_rank and map_rank cannot be specified at the same time.")
    begin = initializer_with_rank(get_default_override(init=init), output_rank=len(output))
    w = _Parameter((*[-1] * (input_rank or 1), *output), begin, name="W")
    with_bias = get_default_override(bias=bias)
    b = _Parameter(output, get_default_override(init_bias=init_bias), name="b") if with_bias else None
    to_map = -1 if input_rank is not None else map_rank or 0

    def dense(x: Any) -> Any:
        found = product_of([x, w, b] if b is not None else [x, w], len(output), to_map)
        return found if activation is None else activation(found)

    return Layer(dense, name, {"W": w, "b": b}, op_name="Dense")


def Embedding(shape: Any = None, init: Any = _GLOROT, weights: Any = None, name: str = "") -> Layer:
    """A vector for every index, given one-hot."""
    if weights is not None:
        if not is_default_override(init) or shape is not None:
            raise ValueError("Embedding: weights= are the table itself: leave shape= and init= out.")
        e: Any = Constant(np.asarray(weights, np.float32), name="E")
    elif shape is None:
        raise ValueError("Embedding: output shape must be specified.")
    else:
        e = _Parameter((-1, *as_shape(shape)), get_default_override(init=init), name="E")

    def embed(x: Any) -> Any:
        return times(x, e)

    return Layer(embed, name, {"E": e}, op_name="Embedding")


def Dropout(
    dropout_rate: float | None = None, keep_prob: float | None = None, seed: Any = None, name: str = ""
) -> Layer:
    """In training, zeros at a rate."""
    if (dropout_rate is None) == (keep_prob is None):
        raise ValueError("Dropout: either dropout_rate or keep_prob must be specified.")
    rate = 1 - keep_prob if keep_prob is not None else dropout_rate

    def drop(x: Any) -> Any:
        return dropout(x, float(rate or 0.0), seed)

    return Layer(drop, name, op_name="Dropout")


# --- recurrent cells ---


Rule = Callable[[Any, int, Any], Any]


def _cell(
    kind: str, rule: Rule, gates: int, shape: Any, cell_shape: Any, name: str, states: int, **given: Any
) -> Layer:
    """A recurrent cell: the weights of its gates lie side by side."""
    given["init"] = _GLOROT if given["init"] is None else given["init"]
    options = {key: get_default_override(**{key: value}) for key, value in given.items()}
    for key in ("use_peepholes", "enable_self_stabilization"):
        if options.pop(key, False):
            raise ConfigError(f"{kind}: {key}= is not offered. Write the step, and give it to Recurrence.")
    out = as_shape(shape)
    if len(out) != 1 or cell_shape not in (None, shape):
        raise ValueError(f"{kind}: shape is one number, and the cell has the same, got {shape}, {cell_shape}.")
    size, wide = out[0], gates * out[0]
    b = _Parameter((wide,), options["init_bias"], name="b")
    w = _Parameter((-1, wide), options["init"], name="W")
    members = {"b": b, "W": w, "states": [out] * states}
    members["H"] = _Parameter((*out, 2 * size if gates == 3 else wide), options["init"], name="H")
    members["H1"] = _Parameter((*out, size), options["init"], name="H1") if gates == 3 else None
    return Layer(rule(options["activation"], size, members), name, members, op_name=kind)


def _part(value: Any, k: int, size: int) -> Any:
    return _slice(value, -1, k * size, (k + 1) * size)


def _lstm(activation: Any, size: int, weights: Any) -> Any:
    def lstm(dh: Any, dc: Any, x: Any) -> Any:
        stacked = plus(weights["b"], times(x, weights["W"]), times(dh, weights["H"]))
        enter, keep, leave = (sigmoid(_part(stacked, k, size)) for k in (0, 2, 3))
        ct = plus(element_times(keep, dc), element_times(enter, activation(_part(stacked, 1, size))))
        return element_times(leave, activation(ct)), ct

    return lstm


def _gru(activation: Any, size: int, weights: Any) -> Any:
    def gru(dh: Any, x: Any) -> Any:
        given, before = plus(weights["b"], times(x, weights["W"])), times(dh, weights["H"])
        update, reset = (sigmoid(plus(_part(given, k, size), _part(before, k, size))) for k in (0, 1))
        new = activation(plus(_part(given, 2, size), times(element_times(reset, dh), weights["H1"])))
        return plus(element_times(minus(1.0, update), new), element_times(update, dh))

    return gru


def _rnn(activation: Any, size: int, weights: Any) -> Any:
    def step(dh: Any, x: Any) -> Any:
        return activation(plus(weights["b"], times(x, weights["W"]), times(dh, weights["H"])))

    return step


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
    given = {"use_peepholes": use_peepholes, "enable_self_stabilization": enable_self_stabilization}
    given |= {"activation": activation, "init": init, "init_bias": init_bias}
    return _cell("LSTM", _lstm, 4, shape, cell_shape, name, states=2, **given)


def _cells(kind: str, rule: Rule, gates: int, own_activation: Any, sentence: str) -> Callable[..., Layer]:
    """The function that makes cells with one state."""

    def make(
        shape: Any,
        cell_shape: Any = None,
        activation: Any = default_override_or(own_activation),
        init: Any = None,
        init_bias: Any = default_override_or(0),
        enable_self_stabilization: Any = default_override_or(False),
        name: str = "",
    ) -> Layer:
        given = {"activation": activation, "init": init, "init_bias": init_bias}
        given["enable_self_stabilization"] = enable_self_stabilization
        return _cell(kind, rule, gates, shape, cell_shape, name, states=1, **given)

    make.__name__, make.__doc__ = kind, sentence
    return make


GRU = _cells("GRU", _gru, 3, tanh, "A gated recurrent unit: the step (h, x) -> h of a Recurrence.")
RNNStep = _cells("RNNStep", _rnn, 1, sigmoid, "A plain recurrent unit: the step (h, x) -> h of a Recurrence.")


# --- layers made of layers ---


def Sequential(layers: Any, name: str = "") -> Layer:
    """Layers one after the other; lists among them are chains themselves."""
    flat = _flat(layers)

    def chain(x: Any) -> Any:
        for layer in flat:
            x = layer(*x) if isinstance(x, tuple) else layer(x)
        return x

    return Layer(chain, name, {"layers": flat}, op_name="Sequential")


def _flat(layers: Any) -> list[Any]:
    if isinstance(layers, list | tuple):
        return [each for layer in layers for each in _flat(layer)]
    return [layers] if layers is not None else []


def _states(step: Any, initial: Any, inputs: int = 1) -> tuple[list[Any], list[Any]]:
    """The first states of a recurrence, and their shapes, where they are known."""
    known = vars(step).get("members", {}).get("states") if isinstance(step, Layer) else None
    python = step.python if isinstance(step, Layer) else step
    count = len(known) if known else len(Layer.parameters_of(python)) - inputs
    begins = list(initial) if isinstance(initial, list | tuple) else [initial] * max(1, count)
    begins = [0.0 if each is None else each for each in begins]
    shapes = [as_shape(shape) for shape in known] if known else [_shape_of(each) for each in begins]
    return begins, shapes


def _shape_of(initial: Any) -> Any:
    return initial.shape if isinstance(initial, Variable) and initial.shape else None


def Recurrence(
    step_function: Any,
    go_backwards: Any = default_override_or(False),
    initial_state: Any = default_override_or(0),
    return_full_state: bool = False,
    name: str = "",
) -> Layer:
    """A step applied to every item of a sequence, with what it made of the item before."""
    backwards = get_default_override(go_backwards=go_backwards)
    initial = get_default_override(initial_state=initial_state)

    def recur(x: Any) -> Any:
        if not isinstance(x, Variable) or x.is_placeholder:
            return _unrolled_once(step_function, x, initial)
        begins, shapes = _states(step_function, initial)
        return recurrence(step_function, x, begins, shapes, backwards, return_full_state, name)

    return Layer(recur, name, {"step_function": step_function}, op_name="Recurrence")


def Fold(
    folder_function: Any,
    go_backwards: Any = default_override_or(False),
    initial_state: Any = default_override_or(0),
    return_full_state: bool = False,
    name: str = "",
) -> Layer:
    """What a recurrence has come to at the end of every sequence."""
    backwards = get_default_override(go_backwards=go_backwards)
    initial = get_default_override(initial_state=initial_state)
    over = Recurrence(folder_function, False, initial, return_full_state)

    def fold(x: Any) -> Any:
        if not isinstance(x, Variable) or x.is_placeholder:
            return _unrolled_once(folder_function, x, initial)
        if backwards:
            begins, shapes = _states(folder_function, initial)
            found = recurrence(folder_function, x, begins, shapes, True, return_full_state, "")
            return _each(_first, found)
        return _each(_last, over(x))

    return Layer(fold, name, op_name="Fold")


def _each(function: Callable[[Any], Any], found: Any) -> Any:
    made = tuple(function(each) for each in found.outputs)
    return made if len(made) > 1 else made[0]


def RecurrenceFrom(
    step_function: Any, go_backwards: Any = default_override_or(False), return_full_state: bool = False, name: str = ""
) -> Layer:
    """A recurrence whose first states are its first arguments."""
    backwards = get_default_override(go_backwards=go_backwards)

    def recur(*given: Any) -> Any:
        *begins, x = given
        _, shapes = _states(step_function, begins)
        return recurrence(step_function, x, begins, shapes, backwards, return_full_state, name)

    return Layer(recur, name, op_name="RecurrenceFrom")


def _unrolled_once(step: Any, x: Any, initial: Any) -> Any:
    """One step over placeholders, which shows what parameters there are before the input is known."""
    begins, _ = _states(step, initial)
    made = step(*begins, x)
    return made[0] if isinstance(made, tuple) else made.outputs[0]


__getattr__ = lookup("layers")
