"""How parameters begin: CNTK's formulas, drawn from torch's generator or from a seed."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SENTINEL = -1
DefaultParamInitScale = 1
SentinelValueForInferParamInitRank = SENTINEL
SentinelValueForAutoSelectRandomSeed = SENTINEL


class Initializer:
    """Draws a tensor of a shape. Its fans are the axes before and after the last `output_rank` ones."""

    def __init__(self, draw: Callable[..., Tensor], seed: int | None = None, output_rank: int = 1) -> None:
        self._draw, self._seed, self.output_rank = draw, seed, output_rank

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        generator = None
        if self._seed not in (None, SENTINEL):
            generator = torch.Generator().manual_seed(int(self._seed or 0))
        rank = min(self.output_rank, len(shape))
        fan_in, fan_out = math.prod(shape[: len(shape) - rank]), math.prod(shape[len(shape) - rank :])
        return self._draw(torch.empty(shape, dtype=dtype), fan_in, fan_out, generator)


def _uniform(bound: Callable[[int, int], float], seed: Any, rank: Any) -> Initializer:
    def draw(value: Tensor, fan_in: int, fan_out: int, generator: Any) -> Tensor:
        limit = bound(fan_in, fan_out)
        return value.uniform_(-limit, limit, generator=generator)

    return Initializer(draw, seed, 1 if rank in (None, SENTINEL) else rank)


def _normal(deviation: Callable[[int, int], float], seed: Any, rank: Any) -> Initializer:
    def draw(value: Tensor, fan_in: int, fan_out: int, generator: Any) -> Tensor:
        return value.normal_(0, deviation(fan_in, fan_out), generator=generator)

    return Initializer(draw, seed, 1 if rank in (None, SENTINEL) else rank)


def glorot_uniform(
    scale: float = 1, output_rank: int = SENTINEL, filter_rank: int = SENTINEL, seed: int | None = None
) -> Initializer:
    """Uniform up to scale·√(6 / (fan in + fan out))."""
    return _uniform(lambda i, o: scale * math.sqrt(6 / (i + o)), seed, output_rank)


def glorot_normal(
    scale: float = 1, output_rank: int = SENTINEL, filter_rank: int = SENTINEL, seed: int | None = None
) -> Initializer:
    """Normal with deviation scale·√(2 / (fan in + fan out))."""
    return _normal(lambda i, o: scale * math.sqrt(2 / (i + o)), seed, output_rank)


def xavier(
    scale: float = 1, output_rank: int = SENTINEL, filter_rank: int = SENTINEL, seed: int | None = None
) -> Initializer:
    """Uniform up to scale·√(3 / fan in)."""
    return _uniform(lambda i, o: scale * math.sqrt(3 / i), seed, output_rank)


def he_uniform(
    scale: float = 1, output_rank: int = SENTINEL, filter_rank: int = SENTINEL, seed: int | None = None
) -> Initializer:
    """Uniform up to scale·√(6 / fan in)."""
    return _uniform(lambda i, o: scale * math.sqrt(6 / i), seed, output_rank)


def he_normal(
    scale: float = 1, output_rank: int = SENTINEL, filter_rank: int = SENTINEL, seed: int | None = None
) -> Initializer:
    """Normal with deviation scale·√(2 / fan in)."""
    return _normal(lambda i, o: scale * math.sqrt(2 / i), seed, output_rank)


def uniform(scale: float, seed: int | None = None) -> Initializer:
    """Uniform from -scale to scale."""
    return _uniform(lambda i, o: scale, seed, 1)


def normal(
    scale: float, output_rank: int = SENTINEL, filter_rank: int = SENTINEL, seed: int | None = None
) -> Initializer:
    """Normal with this deviation."""
    return _normal(lambda i, o: scale, seed, output_rank)


def truncated_normal(scale: float, seed: int | None = None) -> Initializer:
    """Normal with this deviation, drawn again beyond two of them."""

    def draw(value: Tensor, fan_in: int, fan_out: int, generator: Any) -> Tensor:
        return torch.nn.init.trunc_normal_(value, std=scale, a=-2 * scale, b=2 * scale, generator=generator)

    return Initializer(draw, seed)


def constant_initializer(value: float) -> Initializer:
    """The same number everywhere."""
    return Initializer(lambda tensor, *_: tensor.fill_(value))


def initializer_with_rank(initializer: Any, output_rank: int | None = None, filter_rank: int | None = None) -> Any:
    """The same, for weights whose last axes are those of the output."""
    if isinstance(initializer, Initializer) and output_rank is not None:
        return Initializer(initializer._draw, initializer._seed, output_rank)
    return initializer
