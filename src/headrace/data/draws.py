"""Random numbers that belong to rows, computed from (seed, epoch, position).

A `map` draws the same numbers for a row in any batch, worker or thread, and after any resume.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError

CHUNK = 1 << 15  # numbers at a time: the temporaries stay in the processor's cache
_GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed number
_FIRST = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9
_SECOND = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


class Draws:
    """Random numbers of shape (rows, *shape) for the rows of a batch; every call gives new ones.

    ```python
    def flip(batch, draws):
        return {**batch, "x": torch.where(draws.chance(0.5)[:, None], batch["x"].flip(1), batch["x"])}
    ```
    """

    def __init__(self, keys: Tensor) -> None:
        self._keys, self._calls = keys, 0

    @classmethod
    def at(cls, seed: int, pieces: Sequence[tuple[int, int, int]]) -> "Draws":
        """Those of runs of positions, each as (epoch, start, stop)."""
        rows = torch.cat([torch.arange(start, stop) for _, start, stop in pieces])
        epochs = torch.tensor([epoch for epoch, _, _ in pieces]).repeat_interleave(
            torch.tensor([stop - start for _, start, stop in pieces])
        )
        key = _mix_(torch.from_numpy(np.array([seed % 2**64], np.uint64).view(np.int64)))
        return cls(_mix_(_mix_(key + epochs * _GOLDEN) + rows * _GOLDEN))

    def __len__(self) -> int:
        return len(self._keys)

    def to(self, device: torch.device) -> "Draws":
        """The same numbers, made on another device."""
        return Draws(self._keys.to(device, non_blocking=True))

    def split(self, counts: Sequence[int]) -> "list[Draws]":
        """The numbers of consecutive runs of rows."""
        return [Draws(keys) for keys in self._keys.split(list(counts))]

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Numbers of float32 from `low` up to, not including, `high`."""
        unit = _shifted(self._bits(shape), 40).to(torch.float32) * 2**-24
        if (low, high) == (0.0, 1.0):
            return unit
        below = torch.nextafter(torch.tensor(float(high)), torch.tensor(float(low))).item()  # rounding may not reach it
        return (unit * (high - low) + low).clamp_(max=below)

    def normal(self, *shape: int) -> Tensor:
        """Numbers of a normal distribution, of mean 0 and deviation 1 (Box & Muller 1958)."""
        radius = (-2 * torch.log1p(-self.uniform(*shape))).sqrt_()
        return radius * torch.cos(2 * math.pi * self.uniform(*shape))

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Whole numbers from `low` up to, not including, `high`."""
        if not low < high:
            raise ConfigError(f"integers({low}, {high}): there are none from {low} up to, not including, {high}.")
        return _shifted(self._bits(shape), 1) % (high - low) + low

    def chance(self, probability: float, *shape: int) -> Tensor:
        """True with this probability."""
        return self.uniform(*shape) < probability

    def _bits(self, shape: Sequence[int]) -> Tensor:
        """64 random bits for each number: the splitmix64 of the row's key and the number's place."""
        count = math.prod(shape)
        self._calls += 1
        steps = torch.arange(count, device=self._keys.device) + (self._calls << 40)
        bits = self._keys[:, None] + steps * _GOLDEN
        for part in bits.view(-1).split(CHUNK) if bits.device.type == "cpu" else (bits,):
            _mix_(part)
        return bits.view(len(self._keys), *shape)


def _mix_(z: Tensor) -> Tensor:
    """The finaliser of splitmix64, in wrapping 64-bit integers, in place."""
    z += _GOLDEN
    z ^= _shifted(z, 30)
    z *= _FIRST
    z ^= _shifted(z, 27)
    z *= _SECOND
    z ^= _shifted(z, 31)
    return z


def _shifted(z: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: torch's keeps the sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)
