"""The forms of an operation: those that write their results into given memory, the quickest one that gives its bits."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .recording import TapeTensor

aten = torch.ops.aten

COPIES = {aten.clone.default, aten._to_copy.default}
MOST = 4096
"""How many forms are remembered."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of an operation that writes into memory, which it calls by these names; without a function, a copy."""

    function: Any
    names: tuple[str, ...] = ("out",)
    extra: tuple[Any, ...] = ()

    def write(self, args: Any, kwargs: Any, places: Sequence[Tensor]) -> None:
        """Writes the results of an operation into these places."""
        if self.function is None:
            places[0].copy_(args[0])
        else:
            self.function(*args, *self.extra, **kwargs, **dict(zip(self.names, places, strict=True)))


Forms = dict[Any, Form | None]
"""The forms that have shown to give an operation's bits, by the operation and the layouts of what it was given."""


def find_form(function: Any, args: Any, kwargs: Any, places: Sequence[Tensor], result: Any) -> Form | None:
    """The quickest form of an operation that writes its `result` into these places, and nothing else."""
    wanted = [result] if isinstance(result, Tensor) else list(result)
    if len(wanted) != len(places) or any(not isinstance(tensor, Tensor) for tensor in wanted):
        return None
    layouts = [_layout(tensor) for tensor in wanted]
    if layouts != [_layout(place) for place in places]:
        return None
    for form in _forms(function, args):
        for place, tensor in zip(places, wanted, strict=True):
            _spoil(place, tensor)
        try:
            form.write(args, kwargs, places)
        except (TypeError, RuntimeError, NotImplementedError, UserWarning):
            continue
        if all(map(torch.equal, places, wanted)) and [_layout(place) for place in places] == layouts:
            return form
    return None


def likeness(spec: Any) -> Any:
    """What decides about the forms of an operation: layouts of tensors, and everything else as it is."""
    if isinstance(spec, TapeTensor):
        return spec.shape, spec.stride, spec.dtype, spec.device
    if isinstance(spec, tuple | list):
        return tuple(map(likeness, spec))
    if isinstance(spec, dict):
        return tuple((name, likeness(value)) for name, value in spec.items())
    return type(spec), spec


def _forms(function: Any, args: Any) -> Iterator[Form]:
    """The forms of an operation that may write into planned memory, the quickest first."""
    if function is aten._log_softmax.default and (by_columns := log_softmax_by_columns(*args)) is not None:
        yield Form(by_columns)
    if function in COPIES:
        yield Form(None)
    elif function is aten.relu.default:
        yield Form(torch.clamp_min, extra=(0,))  # which is how torch computes it
    else:
        variant, names = _variant(function)
        name, homes = function.overloadpacket.__name__, (torch._C._VariableFunctions, torch._C._nn)
        bound = [getattr(home, name) for home in homes if hasattr(home, name)] if len(names) <= 1 else []
        for binding in bound:  # which warns in Python if it does not write in place: then there is no such form
            yield Form(binding)
        if variant is not None and not bound:
            yield Form(variant._op, names)


@cache
def _variant(function: Any) -> tuple[Any, tuple[str, ...]]:
    """The overload of an operation that writes into given memory, if a kernel does, and what it calls that memory."""
    wanted = [(a.name, str(a.type)) for a in function._schema.arguments]
    for name in function.overloadpacket.overloads():
        other = getattr(function.overloadpacket, name)
        arguments = other._schema.arguments
        outs = tuple(a.name for a in arguments if a.is_out)
        if outs and [(a.name, str(a.type)) for a in arguments if not a.is_out] == wanted:
            kernel = torch._C._dispatch_has_kernel_for_dispatch_key(other.name(), "CPU")
            return (other, outs) if kernel else (None, outs)
    return None, ()


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _spoil(place: Tensor, wanted: Tensor) -> None:
    """Nothing that was here can be taken for what is wanted."""
    if place.dtype == torch.bool:
        torch.logical_not(wanted, out=place)
    else:
        place.fill_(math.nan if place.is_floating_point() or place.is_complex() else 113)


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
    """log_softmax over a few classes, column by column: the bits of torch's way by rows, in less time.

    For 128 rows of 10 classes it takes 4.5 instead of 20 µs, for 128 of 2 classes 2.8 instead of 3.5. The result takes
    the arguments of torch's function, and `out`; there is one only if it gave torch's bits for many draws like `x`.

    Torch's kernel for the last dimension computes a row at a time, and leaves most of a vector of the processor empty
    if there are fewer classes than it has places. Its kernel for the first dimension fills vectors with as many rows.
    Both add up a row's numbers in the same order. Searched on AVX-512 with 10^6 rows for each number of classes, in
    batches of 16, 32, 48, 64, 80, 128, 256 and 512: equal to the bit. Where 16 does not divide the rows, one in 70 may
    differ, and torch's kernel is used. The backward pass stays torch's, too: of a row of gradients that are all -0.0,
    the columns give zeros of the other sign.
    """
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
