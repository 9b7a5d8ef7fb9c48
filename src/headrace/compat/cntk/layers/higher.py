"""Layers made of layers: chains, repetitions, recurrences."""

from collections.abc import Callable
from typing import Any

from .._native import hint
from ..default_options import default_override_or, get_default_override
from ..ops.functions import Layer
from ..ops.recurrent import recurrence
from ..ops.sequence import first as _first
from ..ops.sequence import last as _last
from ..variables import Variable, as_shape


def Sequential(layers: Any, name: str = "") -> Layer:
    """Layers one after the other; lists among them are chains themselves."""
    hint("layers.Sequential", "torch.nn.Sequential")
    flat = _flat(layers)

    def chain(x: Any) -> Any:
        for layer in flat:
            x = layer(*x) if isinstance(x, tuple) else layer(x)
        return x

    return Layer(chain, name, {"layers": flat}, op_name="Sequential")


def _flat(layers: Any) -> list[Any]:
    if isinstance(layers, list | tuple):
        return [each for layer in layers for each in _flat(layer)]
    return [layers] if layers is not None else []


def _states(step: Any, initial: Any, inputs: int = 1) -> tuple[list[Any], list[Any]]:
    """The first states of a recurrence, and their shapes, where they are known."""
    known = vars(step).get("members", {}).get("states") if isinstance(step, Layer) else None
    python = step.python if isinstance(step, Layer) else step
    count = len(known) if known else len(Layer.parameters_of(python)) - inputs
    begins = list(initial) if isinstance(initial, list | tuple) else [initial] * max(1, count)
    begins = [0.0 if each is None else each for each in begins]
    shapes = [as_shape(shape) for shape in known] if known else [_shape_of(each) for each in begins]
    return begins, shapes


def _shape_of(initial: Any) -> Any:
    return initial.shape if isinstance(initial, Variable) and initial.shape else None


def Recurrence(
    step_function: Any,
    go_backwards: Any = default_override_or(False),
    initial_state: Any = default_override_or(0),
    return_full_state: bool = False,
    name: str = "",
) -> Layer:
    """A step applied to every item of a sequence, with what it made of the item before."""
    hint("layers.Recurrence", "torch.nn.LSTM over words.packed()")
    backwards = get_default_override(Recurrence, go_backwards=go_backwards)
    initial = get_default_override(Recurrence, initial_state=initial_state)

    def recur(x: Any) -> Any:
        if not isinstance(x, Variable) or x.is_placeholder:
            return _unrolled_once(step_function, x, initial)
        begins, shapes = _states(step_function, initial)
        return recurrence(step_function, x, begins, shapes, backwards, return_full_state, name)

    return Layer(recur, name, {"step_function": step_function}, op_name="Recurrence")


def Fold(
    folder_function: Any,
    go_backwards: Any = default_override_or(False),
    initial_state: Any = default_override_or(0),
    return_full_state: bool = False,
    name: str = "",
) -> Layer:
    """What a recurrence has come to at the end of every sequence."""
    backwards = get_default_override(Fold, go_backwards=go_backwards)
    initial = get_default_override(Fold, initial_state=initial_state)
    over = Recurrence(folder_function, False, initial, return_full_state)

    def fold(x: Any) -> Any:
        if not isinstance(x, Variable) or x.is_placeholder:
            return _unrolled_once(folder_function, x, initial)
        if backwards:
            begins, shapes = _states(folder_function, initial)
            found = recurrence(folder_function, x, begins, shapes, True, return_full_state, "")
            return _each(_first, found)
        return _each(_last, over(x))

    return Layer(fold, name, op_name="Fold")


def _each(function: Callable[[Any], Any], found: Any) -> Any:
    made = tuple(function(each) for each in found.outputs)
    return made if len(made) > 1 else made[0]


def RecurrenceFrom(
    step_function: Any, go_backwards: Any = default_override_or(False), return_full_state: bool = False, name: str = ""
) -> Layer:
    """A recurrence whose first states are its first arguments."""
    backwards = get_default_override(RecurrenceFrom, go_backwards=go_backwards)

    def recur(*given: Any) -> Any:
        *begins, x = given
        _, shapes = _states(step_function, begins)
        return recurrence(step_function, x, begins, shapes, backwards, return_full_state, name)

    return Layer(recur, name, op_name="RecurrenceFrom")


def _unrolled_once(step: Any, x: Any, initial: Any) -> Any:
    """One step over placeholders, which shows what parameters there are before the input is known."""
    begins, _ = _states(step, initial)
    made = step(*begins, x)
    return made[0] if isinstance(made, tuple) else made.outputs[0]
