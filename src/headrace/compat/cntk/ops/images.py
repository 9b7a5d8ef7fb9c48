"""Operations on images: convolution, pooling, normalisation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ....errors import ConfigError, DataError
from ..variables import Parameter, Shape, Variable, as_shape
from .elementwise import aligned
from .functions import Function, Made
from .graph import axes_of

AVG_POOLING, MAX_POOLING = 1, 0
_CONVOLUTIONS: list[Callable[..., Tensor]] = [functional.conv1d, functional.conv2d, functional.conv3d]
_MAX: list[Any] = [functional.max_pool1d, functional.max_pool2d, functional.max_pool3d]
_AVERAGE: list[Any] = [functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d]


def _each(value: Any, count: int) -> list[int]:
    """A setting of every spatial axis."""
    found = list(as_shape(value)) if not isinstance(value, bool) else [int(value)]
    return found[-count:] if len(found) >= count else [found[0]] * count


def _padded(value: Tensor, window: Sequence[int], strides: Sequence[int], pads: Sequence[int], fill: float) -> Tensor:
    """Padded so that the window's centre visits every place: more after than before where it is even."""
    sides: list[int] = []
    for size, wide, step, pad in reversed(list(zip(value.shape[2:], window, strides, pads, strict=True))):
        extra = max(0, (-(-size // step) - 1) * step + wide - size) if pad else 0
        sides += [extra // 2, extra - extra // 2]
    return functional.pad(value, sides, value=fill) if any(sides) else value


def convolution(
    convolution_map: Any,
    operand: Any,
    strides: Any = (1,),
    sharing: Any = (True,),
    auto_padding: Any = (True,),
    sequential: bool = False,
    dilation: Any = (1,),
    reduction_rank: int = 1,
    groups: int = 1,
    max_temp_mem_size_in_samples: int = 0,
    name: str = "",
) -> Function:
    """The correlation of samples with kernels of shape (outputs, inputs, size...)."""
    if sequential or reduction_rank != 1:
        raise ConfigError("convolution is offered over static axes with one axis of channels (reduction_rank=1).")

    def make(kernel: Variable, x: Variable) -> Made:
        count = len(kernel.shape) - 2
        if isinstance(kernel, Parameter) and x.shape is not None and -1 in kernel.shape:
            kernel.infer((kernel.shape[0], x.shape[0] // groups, *kernel.shape[2:]))
        steps, pads, wide = _each(strides, count), _each(auto_padding, count), _each(dilation, count)

        def apply(weight: Tensor, value: Tensor) -> Tensor:
            window = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], wide, strict=True)]
            value = _padded(value, window, steps, pads, 0.0)
            return _CONVOLUTIONS[count - 1](value, weight, None, steps, 0, wide, groups)

        shape: Any = None
        if x.shape is not None:
            if len(x.shape) != count + 1:
                raise DataError(f"convolution: samples of shape {x.shape} for kernels of {kernel.shape}.")
            shape = tuple(
                apply(torch.empty(kernel.shape, device="meta"), torch.empty(1, *x.shape, device="meta")).shape[1:]
            )
        kinds = (kernel.kind, x.kind)

        def run(weight: Tensor, value: Any) -> Any:
            (given,), like = aligned([value], kinds[1:])
            found = apply(weight, given if kinds[1] else given[None])
            return found if like is None else like.with_values(found)

        return run, shape, axes_of(x)

    return Function("Convolution", make, [convolution_map, operand], name)


def pooling(
    operand: Any,
    pooling_type: int,
    pooling_window_shape: Any,
    strides: Any = (1,),
    auto_padding: Any = (False,),
    ceil_out_dim: bool = False,
    include_pad: bool = False,
    name: str = "",
) -> Function:
    """The largest number, or the mean, in every window."""
    window = list(as_shape(pooling_window_shape))

    def make(x: Variable) -> Made:
        count = len(window) if x.shape is None else len(x.shape) - 1
        sizes, steps, pads = _each(tuple(window), count), _each(strides, count), _each(auto_padding, count)

        def apply(value: Tensor) -> Tensor:
            if pooling_type == MAX_POOLING:
                value = _padded(value, sizes, steps, pads, float("-inf"))
                found: Tensor = _MAX[count - 1](value, sizes, steps, ceil_mode=ceil_out_dim)
                return found
            total = _AVERAGE[count - 1](_padded(value, sizes, steps, pads, 0.0), sizes, steps, ceil_mode=ceil_out_dim)
            if include_pad or not any(pads):
                return torch.as_tensor(total)
            ones = _padded(torch.ones_like(value), sizes, steps, pads, 0.0)
            return torch.as_tensor(total / _AVERAGE[count - 1](ones, sizes, steps, ceil_mode=ceil_out_dim))

        shape: Shape | None = None
        if x.shape is not None:
            shape = tuple(apply(torch.empty(1, *x.shape, device="meta")).shape[1:])

        def run(value: Any) -> Any:
            (given,), like = aligned([value], [x.kind])
            found = apply(given)
            return found if like is None else like.with_values(found)

        return run, shape, axes_of(x)

    return Function("Pooling", make, [operand], name)


def batch_normalization(
    operand: Any,
    scale: Any,
    bias: Any,
    running_mean: Any,
    running_inv_std: Any,
    spatial: bool = False,
    normalization_time_constant: float = 5000,
    blend_time_constant: float = 0,
    epsilon: float = 0.00001,
    use_cudnn_engine: bool = True,
    name: str = "",
    running_count: Any = None,
    disable_regularization: bool = False,
) -> Function:
    """Numbers of mean 0 and variance 1 over a minibatch, scaled and shifted; when tested, by running statistics."""

    def make(x: Variable, gain: Variable, shift: Variable, mean: Variable, variance: Variable) -> Made:
        for each in (gain, shift):
            if isinstance(each, Parameter) and x.shape is not None and -1 in each.shape:
                each.infer((x.shape[0],) if spatial else x.shape)

        def run(value: Any, g: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool = False) -> Any:
            (given,), like = aligned([value], [x.kind])
            flat = given if spatial else given.flatten(1)
            keep = 0.0 if normalization_time_constant <= 0 else 1.0
            momentum = 1 - float(torch.tensor(-len(flat) / normalization_time_constant).exp()) if keep else 1.0
            for held in (m, v):
                if held.dim() == 0 or held.numel() != flat.shape[1]:
                    held.data = held.data.reshape(-1)[:1].expand(flat.shape[1]).clone()
            found = functional.batch_norm(flat, m, v, g.reshape(-1), b.reshape(-1), training, momentum, epsilon)
            found = found.view_as(given)
            return found if like is None else like.with_values(found)

        return run, x.shape, axes_of(x)

    return Function("BatchNormalization", make, [operand, scale, bias, running_mean, running_inv_std], name, modal=True)
