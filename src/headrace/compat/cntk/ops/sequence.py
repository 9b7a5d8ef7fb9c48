"""Operations along sequences: their items' sum, first and last, shifts, and recurrences."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....data.ragged import Ragged
from ....data.sparse import Sparse
from ....errors import DataError
from ..axis import BATCH
from ..variables import Input, Variable, as_variable, sequence_input_variable
from .elementwise import aligned, dense
from .functions import Combined, Function, Made
from .graph import Plan, axes_of, ordered

input_variable = sequence_input_variable
input = sequence_input_variable


def _per_sequence(op: str, fn: Callable[[Ragged], Any], x: Any, name: str) -> Function:
    """A node that makes a value of every sequence."""

    def make(variable: Variable) -> Made:
        if variable.kind == 1 and not variable.is_placeholder:
            raise DataError(f"sequence.{op} is given {variable!r}, which has no sequences: it has one value a sample.")

        return fn, variable.shape, (BATCH,)

    return Function(f"Sequence::{op}", make, [x], name)


def _item_at(value: Ragged, places: Tensor) -> Any:
    if bool((value.host_offsets.diff() == 0).any()):
        raise DataError("an empty sequence has no first and no last item. Drop it.")
    if isinstance(value.values, Sparse):
        return value.values.take(places.cpu())
    return value.values.index_select(0, places)


def last(seq: Any, name: str = "") -> Function:
    """The last item of every sequence."""
    return _per_sequence("Slice", lambda v: _item_at(v, v.offsets[1:] - 1), seq, name)


def first(seq: Any, name: str = "") -> Function:
    """The first item of every sequence."""
    return _per_sequence("Slice", lambda v: _item_at(v, v.offsets[:-1]), seq, name)


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
    return _per_sequence("ReduceSum", _segments("sum"), seq, name)


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


# --- recurrences ---


def recurrence(
    step: Callable[..., Any],
    x: Any,
    states: Sequence[Any],
    shapes: Sequence[Any],
    go_backwards: bool,
    full: bool,
    name: str,
) -> Any:
    """The outputs of `step(*states, x)` for every item, the states being its outputs for the item before.

    The graph of the step is made once. What it needs from outside are parameters, and values for each sample or item.
    """
    item = Input(x.shape, x.dtype, is_sparse=x.is_sparse, dynamic_axes=(BATCH,))
    starts = [as_variable(state) for state in states]
    state_inputs = [Input(shape, x.dtype, dynamic_axes=(BATCH,)) for shape in shapes]
    outputs = _outputs(step(*state_inputs, item))
    if any(shape is None for shape in shapes):  # the first graph has shown what the states are
        state_inputs = [Input(output.shape, x.dtype, dynamic_axes=(BATCH,)) for output in outputs[: len(state_inputs)]]
        outputs = _outputs(step(*state_inputs, item))
    own = {item, *state_inputs}
    outer = [v for v in ordered(outputs) if not isinstance(v, Function) and v not in own]
    plan = Plan(outputs)
    found = [
        Function(
            "Recurrence",
            _maker(plan, item, state_inputs, outer, len(starts), k, go_backwards),
            [x, *starts, *outer],
            name,
        )
        for k in range(len(outputs) if full else 1)
    ]
    return found[0] if len(found) == 1 else Combined(found, name)


def _outputs(made: Any) -> list[Variable]:
    listed = made if isinstance(made, tuple | list) else [made]
    return [each for one in listed for each in getattr(one, "outputs", (one,))]


def _maker(
    plan: Plan,
    item: Input,
    state_inputs: Sequence[Input],
    outer: Sequence[Variable],
    count: int,
    which: int,
    backwards: bool,
) -> Callable[..., Made]:
    def make(x: Variable, *others: Variable) -> Made:
        kinds = [v.kind for v in others]

        def run(value: Ragged, *rest: Any) -> Ragged:
            order = torch.argsort(value.host_offsets.diff(), descending=True, stable=True)
            fixed = [
                _at_steps(each, kind, order, backwards) for each, kind in zip(rest[count:], kinds[count:], strict=True)
            ]
            begins = [
                _state(each, kind, order, shape)
                for each, kind, shape in zip(rest, kinds, (h.shape for h in state_inputs), strict=False)
            ]
            return _walk(plan, value, order, begins, item, state_inputs, outer, fixed, which, backwards)

        root = plan.roots[which]
        return run, root.shape, axes_of(x)

    return make


def _walk(
    plan: Plan,
    value: Ragged,
    order: Tensor,
    states: list[Tensor],
    item: Input,
    state_inputs: Sequence[Input],
    outer: Sequence[Variable],
    fixed: Sequence[Callable[[int, Tensor], Any]],
    which: int,
    backwards: bool,
) -> Ragged:
    """Item by item; the longest sequences come first, so that those that have ended are the last rows."""
    lengths = value.host_offsets.diff()[order]
    begins = value.host_offsets[:-1][order]
    ends = value.host_offsets[1:][order] - 1
    items = value.values
    made: list[Tensor] = []
    places: list[Tensor] = []
    for step in range(value.longest):
        rows = int((lengths > step).sum())
        place = (ends[:rows] - step) if backwards else (begins[:rows] + step)
        there = place.to(value.device)
        now = items.take(place) if isinstance(items, Sparse) else items.index_select(0, there)
        fed: dict[Variable, Any] = {item: now, **{h: s[:rows] for h, s in zip(state_inputs, states, strict=True)}}
        fed |= {v: at(rows, there) for v, at in zip(outer, fixed, strict=True)}
        outputs = plan(fed, training=True)
        states = list(outputs[: len(states)])
        made.append(outputs[which])
        places.append(there)
    if not made:
        return value.with_values(torch.zeros(0, *(plan.roots[which].shape or ())))
    back = torch.empty(value.items, dtype=torch.int64, device=value.device)
    back[torch.cat(places)] = torch.arange(value.items, device=value.device)
    return value.with_values(torch.cat(made).index_select(0, back))


def _at_steps(value: Any, kind: int, order: Tensor, backwards: bool) -> Callable[[int, Tensor], Any]:
    """What a value from outside is at a step, for so many rows, whose items are at these places."""
    if kind == 0:
        return lambda rows, places: value
    if kind == 1:
        sorted_rows = dense(value)[order.to(dense(value).device)]
        return lambda rows, places: sorted_rows[:rows]
    items = dense(value).values
    return lambda rows, places: items.index_select(0, places)


def _state(value: Any, kind: int, order: Tensor, shape: Any) -> Tensor:
    """The first state of every sequence, the longest first."""
    value = dense(value)
    if kind:
        return torch.as_tensor(value[order.to(value.device)])
    return value.expand(len(order), *(shape or value.shape)) if isinstance(value, Tensor) else value
