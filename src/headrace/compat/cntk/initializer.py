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


def _by_fans(law: str, size: Callable[[int, int], float], sentence: str) -> Callable[..., Initializer]:
    """Initializers that draw by a law whose bound, or deviation, depends on the fans."""

    def make(
        scale: float = 1, output_rank: int = SENTINEL, filter_rank: int = SENTINEL, seed: int | None = None
    ) -> Initializer:
        def draw(value: Tensor, fan_in: int, fan_out: int, generator: Any) -> Tensor:
            size_ = scale * size(fan_in, fan_out)
            if law == "uniform":
                return value.uniform_(-size_, size_, generator=generator)
            return value.normal_(0, size_, generator=generator)

        return Initializer(draw, seed, 1 if output_rank in (None, SENTINEL) else output_rank)

    make.__doc__ = sentence
    return make


glorot_uniform = _by_fans("uniform", lambda i, o: math.sqrt(6 / (i + o)), "Uniform to scale·√(6 / (fan in + fan out)).")
glorot_normal = _by_fans("normal", lambda i, o: math.sqrt(2 / (i + o)), "Normal by scale·√(2 / (fan in + fan out)).")
xavier = _by_fans("uniform", lambda i, o: math.sqrt(3 / i), "Uniform up to scale·√(3 / fan in).")
he_uniform = _by_fans("uniform", lambda i, o: math.sqrt(6 / i), "Uniform up to scale·√(6 / fan in).")
he_normal = _by_fans("normal", lambda i, o: math.sqrt(2 / i), "Normal with deviation scale·√(2 / fan in).")
normal = _by_fans("normal", lambda i, o: 1.0, "Normal with the deviation scale.")


def uniform(scale: float, seed: int | None = None) -> Initializer:
    """Uniform from -scale to scale."""
    return _by_fans("uniform", lambda i, o: 1.0, "")(scale, seed=seed)


def constant_initializer(value: float) -> Initializer:
    """The same number everywhere."""
    return Initializer(lambda tensor, *_: tensor.fill_(value))


def initializer_with_rank(initializer: Any, output_rank: int | None = None, filter_rank: int | None = None) -> Any:
    """The same, for weights whose last axes are those of the output."""
    if isinstance(initializer, Initializer) and output_rank is not None:
        return Initializer(initializer._draw, initializer._seed, output_rank)
    return initializer
