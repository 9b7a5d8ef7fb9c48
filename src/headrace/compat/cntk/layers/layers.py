"""Layers: dense, embedding, dropout, normalisation."""

from typing import Any

import numpy as np

from .._native import hint
from ..default_options import default_override_or, get_default_override, is_default_override
from ..initializer import glorot_uniform, initializer_with_rank
from ..ops.elementwise import dropout
from ..ops.functions import Layer
from ..ops.tensors import product_of, times
from ..variables import Constant, Parameter, as_shape
from .blocks import identity

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
    hint("layers.Dense", "torch.nn.Linear")
    activation = get_default_override(Dense, activation=activation)
    output = as_shape(shape)
    if input_rank is not None and map_rank is not None:
        raise ValueError("Dense: input_rank and map_rank cannot be specified at the same time.")
    begin = initializer_with_rank(get_default_override(Dense, init=init), output_rank=len(output))
    w = Parameter((*[-1] * (input_rank or 1), *output), begin, name="W")
    with_bias = get_default_override(Dense, bias=bias)
    b = Parameter(output, get_default_override(Dense, init_bias=init_bias), name="b") if with_bias else None
    to_map = -1 if input_rank is not None else map_rank or 0

    def dense(x: Any) -> Any:
        found = product_of([x, w, b] if b is not None else [x, w], len(output), to_map)
        return found if activation is None else activation(found)

    return Layer(dense, name, {"W": w, "b": b}, op_name="Dense")


def Embedding(shape: Any = None, init: Any = _GLOROT, weights: Any = None, name: str = "") -> Layer:
    """A vector for every index, given one-hot."""
    hint("layers.Embedding", "torch.nn.Embedding")
    if weights is not None:
        if not is_default_override(init) or shape is not None:
            raise ValueError("Embedding: weights= are the table itself: leave shape= and init= out.")
        e: Any = Constant(np.asarray(weights, np.float32), name="E")
    elif shape is None:
        raise ValueError("Embedding: output shape must be specified.")
    else:
        e = Parameter((-1, *as_shape(shape)), get_default_override(Embedding, init=init), name="E")

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


def Activation(activation: Any = default_override_or(identity), name: str = "") -> Layer:
    """A function of every number."""
    chosen = get_default_override(Activation, activation=activation)

    def activate(x: Any) -> Any:
        return chosen(x)

    return Layer(activate, name, op_name="Activation")
