"""log_softmax over a few classes, column by column: the bits of torch's way by rows, in less time.

For 128 rows of 10 classes it takes 4.5 instead of 20 µs, for 128 of 2 classes 2.8 instead of 3.5.

Torch's kernel for the last dimension computes a row at a time, and leaves most of a vector of the processor empty if
there are fewer classes than it has places. Its kernel for the first dimension fills vectors with as many rows. Both add
up a row's numbers in the same order. Searched on AVX-512 with 10^6 rows for each number of classes, in batches
of 16, 32, 48, 64, 80, 128, 256 and 512: equal to the bit. Where 16 does not divide the rows, one in 70 may differ, and
torch's kernel is used.

The backward pass stays torch's, too: of a row of gradients that are all -0.0, the columns give zeros of the other sign.
"""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

CLASSES, ROWS = range(2, 16), range(16, 513, 16)
SMALLEST = 256
"""How many numbers there are at least: for fewer, the copies take longer than what they save."""
_DRAWS: Sequence[Callable[[Tensor], Tensor]] = (
    lambda x: x,
    lambda x: x * 1e3,
    lambda x: x * 1e-6,
    lambda x: x.round(),
    lambda x: -30 * x.abs(),
    lambda x: x[:, :1].repeat(1, x.shape[1]),
    lambda x: x.masked_fill(x == x.amin(1, keepdim=True), -math.inf),
)


def log_softmax_by_columns(x: Tensor, dim: int, half: bool) -> Callable[..., None] | None:
    """A function that takes the arguments of torch's, and `out`, if it gave torch's bits for many draws like `x`."""
    if x.dim() != 2 or dim not in (1, -1) or half or x.dtype != torch.float32 or not x.is_contiguous():
        return None
    rows, classes = x.shape
    if rows not in ROWS or classes not in CLASSES or x.numel() < SMALLEST:
        return None
    found, place = make(rows, classes), torch.empty(rows, classes)
    for draw in _draws(rows, classes):
        found(draw, 1, False, out=place)
        if not torch.equal(place.view(torch.int32), torch._log_softmax(draw, 1, False).view(torch.int32)):
            return None
    return found


def make(rows: int, classes: int) -> Callable[..., None]:
    """The function, for arguments of one shape."""
    compute = torch._log_softmax
    x_columns, columns = torch.empty(2, classes, rows).unbind()
    x_rows, result = x_columns.t(), columns.t()

    def log_softmax(x: Tensor, dim: int, half: bool, *, out: Tensor) -> None:
        x_rows.copy_(x)
        compute(x_columns, 0, False, out=columns)
        out.copy_(result)

    return log_softmax


def _draws(rows: int, classes: int) -> Iterator[Tensor]:
    """What both ways are tried with: normal, large, tiny, rounded, negative, equal and infinite numbers."""
    generator = torch.Generator().manual_seed(0)
    for k in range(max(len(_DRAWS), min(56, 4096 // rows))):
        yield _DRAWS[k % len(_DRAWS)](torch.randn(rows, classes, generator=generator))
