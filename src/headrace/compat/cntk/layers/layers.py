"""Layers: dense, embedding, convolution, pooling, normalisation, dropout."""

from typing import Any

import numpy as np

from .._native import hint, not_offered
from ..default_options import default_override_or, get_default_override, is_default_override
from ..initializer import glorot_uniform, initializer_with_rank
from ..ops.elementwise import dropout, element_divide, element_times, minus, plus, sqrt, square
from ..ops.functions import Layer
from ..ops.images import AVG_POOLING, MAX_POOLING, batch_normalization, convolution, pooling
from ..ops.tensors import product_of, reduce_mean, reshape, times
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


def Label(name: str) -> Layer:
    """The same value under a name."""

    def label(x: Any) -> Any:
        return identity(x)

    return Layer(label, name, op_name="Label")


def Convolution(
    filter_shape: Any,
    num_filters: Any = None,
    sequential: bool = False,
    activation: Any = default_override_or(identity),
    init: Any = _GLOROT,
    pad: Any = default_override_or(False),
    strides: Any = 1,
    sharing: bool = True,
    bias: Any = default_override_or(True),
    init_bias: Any = default_override_or(0),
    reduction_rank: int = 1,
    transpose_weight: bool = False,
    dilation: Any = 1,
    groups: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    op_name: str = "Convolution",
    name: str = "",
) -> Layer:
    """Correlation with kernels of a size, over static axes; `num_filters` is the depth of the output."""
    window, depth = as_shape(filter_shape), 1 if num_filters in (None, ()) else as_shape(num_filters)[0]
    activation = get_default_override(Convolution, activation=activation)
    begin = initializer_with_rank(get_default_override(Convolution, init=init), output_rank=1)
    padded = get_default_override(Convolution, pad=pad)
    w = Parameter((depth, -1 if reduction_rank else 1, *window), begin, name="W")
    with_bias = get_default_override(Convolution, bias=bias)
    start = get_default_override(Convolution, init_bias=init_bias)
    b = Parameter((depth, *[1] * len(window)), start, name="b") if with_bias else None

    def convolve(x: Any) -> Any:
        if not reduction_rank:
            x = reshape(x, (1, *x.shape))
        found = convolution(w, x, strides, (True,), padded, sequential, dilation, 1, groups)
        found = found if b is None else plus(found, b)
        if num_filters in (None, ()):
            found = reshape(found, found.shape[1:])
        return found if activation is None else activation(found)

    return Layer(convolve, name, {"W": w, "b": b}, op_name=op_name)


def _pool(kind: int, window: Any, strides: Any, pad: Any, name: str) -> Layer:
    sizes = as_shape(window)

    def pool(x: Any) -> Any:
        return pooling(x, kind, sizes, strides, pad)

    return Layer(pool, name, op_name="Pooling")


def MaxPooling(filter_shape: Any, strides: Any = 1, pad: Any = default_override_or(False), name: str = "") -> Layer:
    """The largest number in every window."""
    return _pool(MAX_POOLING, filter_shape, strides, get_default_override(MaxPooling, pad=pad), name)


def AveragePooling(filter_shape: Any, strides: Any = 1, pad: Any = default_override_or(False), name: str = "") -> Layer:
    """The mean of every window."""
    return _pool(AVG_POOLING, filter_shape, strides, get_default_override(AveragePooling, pad=pad), name)


def GlobalMaxPooling(name: str = "") -> Layer:
    """The largest number of every channel."""

    def pool(x: Any) -> Any:
        return pooling(x, MAX_POOLING, x.shape[1:], 1, False)

    return Layer(pool, name, op_name="GlobalMaxPooling")


def GlobalAveragePooling(name: str = "") -> Layer:
    """The mean of every channel."""

    def pool(x: Any) -> Any:
        return pooling(x, AVG_POOLING, x.shape[1:], 1, False)

    return Layer(pool, name, op_name="GlobalAveragePooling")


def BatchNormalization(
    map_rank: Any = default_override_or(None),
    init_scale: float = 1,
    normalization_time_constant: Any = default_override_or(5000),
    blend_time_constant: float = 0,
    epsilon: Any = default_override_or(0.00001),
    use_cntk_engine: Any = default_override_or(False),
    disable_regularization: Any = default_override_or(False),
    name: str = "",
) -> Layer:
    """Numbers of mean 0 and variance 1, scaled and shifted; with map_rank=1, channel by channel."""
    rank = get_default_override(BatchNormalization, map_rank=map_rank)
    if rank not in (None, 1):
        raise NotImplementedError("BatchNormalization: map_rank can only be 1 or None for now.")
    constant = get_default_override(BatchNormalization, normalization_time_constant=normalization_time_constant)
    tiny = get_default_override(BatchNormalization, epsilon=epsilon)
    scale, bias = Parameter((-1,), init_scale, name="scale"), Parameter((-1,), 0, name="bias")
    mean, variance = Constant(0.0, (1,), name="aggregate_mean"), Constant(1.0, (1,), name="aggregate_variance")

    def normalize(x: Any) -> Any:
        return batch_normalization(x, scale, bias, mean, variance, rank == 1, constant, blend_time_constant, tiny)

    members = {"scale": scale, "bias": bias, "mean": mean, "variance": variance}
    return Layer(normalize, name, members, op_name="BatchNormalization")


def LayerNormalization(
    initial_scale: float = 1, initial_bias: float = 0, epsilon: Any = default_override_or(0.00001), name: str = ""
) -> Layer:
    """Samples of mean 0 and variance 1, scaled and shifted."""
    tiny = float(get_default_override(LayerNormalization, epsilon=epsilon))
    scale, bias = Parameter((1,), initial_scale, name="scale"), Parameter((1,), initial_bias, name="bias")

    def normalize(x: Any) -> Any:
        apart = minus(x, reduce_mean(x))
        spread = sqrt(plus(reduce_mean(square(apart)), tiny))
        return plus(element_times(element_divide(apart, spread), scale), bias)

    return Layer(normalize, name, {"scale": scale, "bias": bias}, op_name="LayerNormalization")


_THERE = "Write it with the operations that are there, or as a torch module of a headrace Trainer."
ConvolutionTranspose = not_offered("layers.ConvolutionTranspose", _THERE)
ConvolutionTranspose1D = not_offered("layers.ConvolutionTranspose1D", _THERE)
ConvolutionTranspose2D = not_offered("layers.ConvolutionTranspose2D", _THERE)
ConvolutionTranspose3D = not_offered("layers.ConvolutionTranspose3D", _THERE)
MaxUnpooling = not_offered("layers.MaxUnpooling", _THERE)
AttentionModel = not_offered("layers.AttentionModel", _THERE)


def _of_rank(count: int) -> Any:
    def make(filter_shape: Any, *given: Any, **named: Any) -> Layer:
        """A convolution over this many axes."""
        if len(as_shape(filter_shape)) != count:
            raise ValueError(f"Convolution{count}D: filter_shape must have {count} sizes, got {filter_shape}.")
        return Convolution(filter_shape, *given, **named)

    make.__name__ = f"Convolution{count}D"
    return make


Convolution1D, Convolution2D, Convolution3D = _of_rank(1), _of_rank(2), _of_rank(3)
