"""Operations along sequences: their items' sum, first and last, shifts, selections."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import DataError
from ..axis import BATCH
from ..variables import Variable, as_variable, sequence_input_variable
from .elementwise import aligned, dense
from .functions import Function, Made
from .graph import axes_of

input_variable = sequence_input_variable
input = sequence_input_variable


def _whole(op: str, fn: Callable[[Ragged], Any], x: Any, name: str) -> Function:
    """A node that makes a value of every sequence."""

    def make(variable: Variable) -> Made:
        if variable.kind == 1 and not variable.is_placeholder:
            raise DataError(f"sequence.{op} is given {variable!r}, which has no sequences: it has one value a sample.")

        def run(value: Any) -> Any:
            return fn(value)

        return run, variable.shape, (BATCH,)

    return Function(f"Sequence::{op}", make, [x], name)


def _at(value: Ragged, places: Tensor) -> Any:
    if bool((value.host_offsets.diff() == 0).any()):
        raise DataError("an empty sequence has no first and no last item. Drop it.")
    if isinstance(value.values, Sparse):
        return value.values.take(places.cpu())
    return value.values.index_select(0, places)


def last(seq: Any, name: str = "") -> Function:
    """The last item of every sequence."""
    return _whole("Slice", lambda v: _at(v, v.offsets[1:] - 1), seq, name)


def first(seq: Any, name: str = "") -> Function:
    """The first item of every sequence."""
    return _whole("Slice", lambda v: _at(v, v.offsets[:-1]), seq, name)


def _segments(reduce: str) -> Callable[[Ragged], Tensor]:
    def over(value: Ragged) -> Tensor:
        if isinstance(value.values, Sparse) and reduce == "sum":
            flat = value.values
            offsets = flat.offsets[value.offsets]
            return Sparse(flat.indices, flat.values, offsets, flat.dim, flat.dtype).to_dense()
        values = value.dense()
        wide = values.flatten(1) if values.dim() > 1 else values[:, None]
        found = torch.segment_reduce(wide, reduce, offsets=value.offsets, axis=0)
        return found.view(len(value), *values.shape[1:])

    return over


def reduce_sum(seq: Any, name: str = "") -> Function:
    """The sum of the items of every sequence."""
    return _whole("ReduceSum", _segments("sum"), seq, name)


def reduce_max(seq: Any, name: str = "") -> Function:
    """The largest numbers among the items of every sequence."""
    return _whole("ReduceMax", _segments("max"), seq, name)


def shifted(seq: Any, initial_state: Any, by: int, name: str = "") -> Function:
    """Every item replaced by the one so many places before it (after it, if negative)."""
    start = as_variable(0 if initial_state is None else initial_state)

    def make(variable: Variable, begin: Variable) -> Made:
        if variable.kind != 2 and not variable.is_placeholder:
            raise DataError(f"only sequences have past and future values, and {variable!r} has none.")
        kinds = (2, begin.kind)

        def run(value: Ragged, state: Any) -> Ragged:
            values = value.dense()
            rows = torch.repeat_interleave(
                torch.arange(len(value), device=values.device), value.lengths, output_size=value.items
            )
            place = torch.arange(value.items, device=values.device) - by
            inside = (place >= value.offsets[rows]) & (place < value.offsets[rows + 1])
            moved = values[place.clamp(0, max(0, value.items - 1))]
            (_, state), _ = aligned([value, state], kinds)
            keep = inside.view(-1, *[1] * (values.dim() - 1))
            return value.with_values(torch.where(keep, moved, state.to(moved.dtype)))

        return run, variable.shape, variable.dynamic_axes

    return Function("PastValue" if by > 0 else "FutureValue", make, [seq, start], name)


def past_value(x: Any, initial_state: Any = None, time_step: int = 1, name: str = "") -> Function:
    """The items of a sequence, so many places later."""
    return shifted(x, initial_state, time_step, name)


def future_value(x: Any, initial_state: Any = None, time_step: int = 1, name: str = "") -> Function:
    """The items of a sequence, so many places earlier."""
    return shifted(x, initial_state, -time_step, name)


def is_first(seq: Any, name: str = "") -> Function:
    """1 at the first item of every sequence, else 0."""
    return _marks(seq, lambda v: v.offsets[:-1], name)


def _marks(seq: Any, places: Callable[[Ragged], Tensor], name: str) -> Function:
    def make(variable: Variable) -> Made:
        def run(value: Ragged) -> Ragged:
            marks = torch.zeros(value.items, 1, dtype=value.dtype, device=value.device)
            return value.with_values(marks.index_fill_(0, places(value), 1))

        return run, (1,), variable.dynamic_axes

    return Function("Sequence::IsFirst", make, [seq], name)


def _kept(flags: Ragged) -> tuple[Tensor, Tensor]:
    kept = flags.dense().reshape(flags.items, -1)[:, 0] != 0
    counts = torch.cat([torch.zeros(1, dtype=torch.int64), kept.long().cumsum(0).cpu()])
    return kept, counts[flags.host_offsets]


def broadcast_as(operand: Any, broadcast_as_operand: Any, name: str = "") -> Function:
    """A value for each sample, repeated along the sequences of another."""

    def make(variable: Variable, like: Variable) -> Made:
        kinds = (variable.kind, like.kind)

        def run(value: Any, other: Ragged) -> Any:
            if kinds[0] == 0:
                return other.with_values(dense(value).expand(other.items, *value.shape))
            (spread, _), _ = aligned([value, other], (kinds[0], 2))
            return other.with_values(spread.reshape(other.items, *dense(value).shape[1:]))

        return run, variable.shape, axes_of(like)

    return Function("Sequence::BroadcastAs", make, [operand, broadcast_as_operand], name)


def slice(seq: Any, begin_index: int, end_index: int, name: str = "") -> Function:
    """The items from begin to end of every sequence; an end of 0 is the last."""

    def make(variable: Variable) -> Made:
        def run(value: Ragged) -> Any:
            lengths = value.host_offsets.diff()
            begin = (lengths + begin_index if begin_index < 0 else torch.full_like(lengths, begin_index)).clamp(min=0)
            end = lengths + end_index if end_index <= 0 else torch.full_like(lengths, end_index)
            place = torch.arange(value.items) - torch.repeat_interleave(value.host_offsets[:-1], lengths)
            keep = (place >= begin.repeat_interleave(lengths)) & (place < end.repeat_interleave(lengths))
            return Ragged(value.dense()[keep], _kept(value.with_values(keep[:, None]))[1])

        return run, variable.shape, variable.dynamic_axes

    return Function("Sequence::Slice", make, [seq], name)
