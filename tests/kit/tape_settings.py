"""Models that read a setting somewhere in Python, which is changed late: objects, classes, containers, functions.

Each scales what the model returns, so that a pass which does not notice the change gives another loss.
"""

import collections
import contextlib
import enum
import functools
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr

from .tape_cheats import LATE, Cheat, Net, Table, into, scaled

SETTINGS: Table = {}
add = into(SETTINGS)
HERE = sys.modules[__name__]
FACTOR = 1.0
TABLE = {"deep": [{"factor": 1.0}]}


class Config:
    """Settings of a recipe, as many write them."""

    alpha = 1.0


@dataclass
class Record:
    factor: float = 1.0

    def value(self) -> float:
        return self.factor


class Mode(enum.Enum):
    FIRST = 1.0


class Kind(type):
    """A class of classes."""

    factor = 1.0


class Part(nn.Module):
    def __iter__(self) -> Iterator[float]:
        return iter([1.0])


class Field:
    """A descriptor."""

    value = 1.0

    def __get__(self, owner: Any, kind: type) -> Any:
        return self.value


def read_factor() -> float:
    return FACTOR


def scaled_by_factor(value: float) -> float:
    return value * FACTOR


def three(*given: Any) -> float:
    return 3.0


def turned(x: Tensor) -> Tensor:
    """What takes the place of a layer."""
    return torch.tanh(x) @ torch.ones(6, 8)


Late = Callable[[Any, pytest.MonkeyPatch], Any]


def late_factor(model: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HERE, "FACTOR", 3.0)


def own(change: Late, members: Callable[[], dict[str, Any]] = dict) -> Callable[[], Cheat]:
    """What makes a model whose class is derived from one with these members; late, it is changed."""

    def cheat() -> Cheat:
        patch, given = pytest.MonkeyPatch(), members()
        base = given.pop("metaclass", type)("Own", (Net,), given)
        model = type(base)("Leaf", (base,), {})()
        return Cheat(model, change=lambda: change(model, patch), undo=patch.undo)

    return cheat


def reads(scale: Callable[..., Any], change: Late = late_factor, **held: Any) -> Callable[[], Cheat]:
    """What makes a model that reads something so; late, that is changed, by default the global variable."""

    def cheat() -> Cheat:
        patch, model = pytest.MonkeyPatch(), scaled(scale, **held)
        return Cheat(model, change=lambda: change(model, patch), undo=patch.undo)

    return cheat


def held(read: Callable[[Any], Any], held: Any, change: Callable[[Any], Any] | None = None) -> Callable[[], Cheat]:
    """What makes a model that holds an object and reads it so; late, the object is changed."""

    def cheat() -> Cheat:
        thing = held()
        return Cheat(scaled(lambda self: read(self.held), held=thing), change=change and (lambda: change(thing)))

    return cheat


def on_leaf(name: str, value: Any) -> Late:
    return lambda model, patch: setattr(type(model), name, value)


def on_base(name: str, value: Any) -> Late:
    return lambda model, patch: setattr(type(model).__base__, name, value)


def on_model(name: str, value: Any) -> Late:
    return lambda model, patch: setattr(model, name, value)


def beside(name: str, value: Any) -> Late:
    """The instance has an attribute beside torch's own tables."""
    return lambda model, patch: vars(model).update({name: value})


def of_patch(owner: Any, name: str, value: Any = 3.0) -> Late:
    return lambda model, patch: patch.setattr(owner, name, value, raising=False)


# --- classes and objects ------------------------------------------------------------------------------------

SETTINGS.update(
    {
        "class_of_settings": reads(lambda self: self.cfg.alpha, of_patch(Config, "alpha"), cfg=Config),
        "class_as_a_default": reads(lambda self, cfg=Config: cfg.alpha, of_patch(Config, "alpha")),
        "shadowed_later": own(on_model("a", 3.0), lambda: {"scale": lambda self: self.a, "a": 1.0}),
        "shadowed_later_by_a_subclass": own(on_leaf("a", 3.0), lambda: {"scale": lambda self: self.a, "a": 1.0}),
        "method_added_to_a_subclass": own(on_leaf("scale", three)),
        "method_added_to_a_base": own(on_base("scale", three)),
        "forward_added_to_a_subclass": own(on_leaf("forward", lambda self, x: Net.forward(self, x) * 3)),
        "call_added_to_a_subclass": own(on_leaf("__call__", lambda self, x: self.forward(x) * 3)),
        "method_of_the_instance": own(on_model("scale", three)),
        "base_class_replaced": own(on_leaf("__bases__", (type("Second", (Net,), {"scale": three}),))),
        "class_of_the_model_replaced": own(on_model("__class__", type("Other", (Net,), {"scale": three}))),
        "static_method_replaced": own(
            on_base("fixed", staticmethod(three)),
            lambda: {"scale": lambda self: self.fixed(), "fixed": staticmethod(lambda: 1.0)},
        ),
        "class_method_reads_its_class": own(
            on_base("a", 3.0),
            lambda: {"scale": lambda self: self.of(), "of": classmethod(lambda kind: kind.a), "a": 1.0},
        ),
        "metaclass_of_the_model": own(
            of_patch(Kind, "factor"), lambda: {"scale": lambda self: type(self).factor, "metaclass": Kind}
        ),
        "descriptor_with_a_state": own(
            lambda model, patch: setattr(vars(type(model).__base__)["field"], "value", 3.0),
            lambda: {"scale": lambda self: self.field, "field": Field()},
        ),
        "cached_property_forgotten": own(
            lambda model, patch: (model.box.__setitem__(0, 3.0), vars(model).pop("seen")),
            lambda: {
                "scale": lambda self: self.seen,
                "seen": functools.cached_property(lambda self: self.box[0]),
                "box": [1.0],
            },
        ),
        "getattr_of_the_model": own(
            late_factor,
            lambda: {
                "scale": lambda self: self.seen,
                "__getattr__": lambda self, name: FACTOR if name == "seen" else nn.Module.__getattr__(self, name),
            },
        ),
        "name_of_the_class": own(
            on_leaf("__name__", "Other"), lambda: {"scale": lambda self: 3.0 if type(self).__name__ == "Other" else 1.0}
        ),
        "property_over_an_attribute": reads(lambda self: self.a, on_leaf("a", property(three)), a=1.0),
        "attribute_over_a_module": own(beside("enter", turned)),
        "class_attribute_over_a_module": own(on_leaf("enter", staticmethod(turned))),
        "attribute_over_a_parameter": own(lambda model, patch: vars(model.enter).update(bias=torch.ones(8))),
        "hasattr_of_the_model": reads(lambda self: 3.0 if hasattr(self, "factor") else 1.0, on_model("factor", 1)),
        "keys_of_a_parameter": reads(
            lambda self: 1.0 + len(self.enter.weight.__dict__),
            lambda model, patch: setattr(model.enter.weight, "anything", 1),
        ),
        "truth_of_a_module": reads(
            lambda self: 1.0 if self.enter else 3.0, of_patch(nn.Linear, "__bool__", lambda self: False)
        ),
        "value_of_an_enum": reads(lambda self: self.mode.value, of_patch(Mode.FIRST, "_value_"), mode=Mode.FIRST),
    }
)


@add
def iteration_over_a_module() -> Cheat:
    patch, model = pytest.MonkeyPatch(), scaled(lambda self: sum(self.part), part=Part())
    return Cheat(model, change=lambda: patch.setattr(Part, "__iter__", lambda self: iter([3.0])), undo=patch.undo)


@add
def attribute_over_a_buffer() -> Cheat:
    model = scaled(lambda self: self.factor)
    model.register_buffer("factor", torch.ones(()))
    return Cheat(model, change=lambda: vars(model).update(factor=3.0))


@add
def attribute_that_comes_as_another_goes() -> Cheat:
    model: Any = scaled(lambda self: self.factor, other=1)
    type(model).factor = 1.0
    return Cheat(model, change=lambda: (setattr(model, "factor", 3.0), delattr(model, "other")))


@add
def attribute_of_a_metaclass_named_as_a_modules() -> Cheat:
    cheat = own(
        of_patch(Kind, "factor"),
        lambda: {"scale": lambda self: type(self).factor * self.enter.factor, "metaclass": Kind},
    )()
    _with(cheat.model.enter)
    return cheat


@add
def attribute_of_a_class_of_torch_named_as_the_models() -> Cheat:
    _with(nn.ReLU)
    model = scaled(lambda self: nn.ReLU.factor * self.factor, factor=1.0)
    return Cheat(model, change=lambda: _set("factor")(nn.ReLU), undo=lambda: delattr(nn.ReLU, "factor"))


# --- what a model holds -------------------------------------------------------------------------------------


def _set(name: str, value: Any = 3.0) -> Callable[[Any], None]:
    return lambda thing: setattr(thing, name, value)


def _first(value: Any = 3.0) -> Callable[[Any], None]:
    return lambda thing: thing.__setitem__(0, value)


def _with(thing: Any) -> Any:
    thing.factor = 1.0
    return thing


def _given(factor: float) -> float:
    return factor


def _yields() -> Iterator[float]:
    for k in itertools.count():
        yield 1.0 if k < LATE else 3.0


SETTINGS.update(
    {
        "dataclass_field": held(lambda it: it.factor, Record, _set("factor")),
        "bound_method": held(lambda it: it(), lambda: Record().value, lambda it: _set("factor")(it.__self__)),
        "array_of_numpy": held(lambda it: float(it[0]), lambda: np.ones(2), _first()),
        "list_in_a_tuple": held(lambda it: it[0][0], lambda: ([1.0],), lambda it: _first()(it[0])),
        "length_of_a_list": held(lambda it: float(len(it)), lambda: [0], lambda it: it.extend([0, 0])),
        "identity_in_a_list": held(
            lambda it: 3.0 if it[0] is it[1] else 1.0, lambda: [[1.0], [1.0]], lambda it: it.__setitem__(1, it[0])
        ),
        "one_becomes_true": held(lambda it: 3.0 if it[0] is True else 1.0, lambda: [1], _first(True)),
        "ordered_dictionary": held(
            lambda it: it["a"], lambda: collections.OrderedDict(a=1.0), lambda it: it.update(a=3.0)
        ),
        "default_dictionary": held(
            lambda it: it["a"], lambda: collections.defaultdict(lambda: 1.0), lambda it: it.update(a=3.0)
        ),
        "order_of_a_dictionary": held(
            lambda it: next(iter(it.values())), lambda: {"a": 1.0, "b": 3.0}, lambda it: it.update(a=it.pop("a"))
        ),
        "key_of_a_dictionary": held(lambda it: it.get("b", 1.0), lambda: {"a": 1.0}, lambda it: it.update(b=3.0)),
        "key_becomes_true": held(
            lambda it: 3.0 if next(iter(it)) is True else 1.0,
            lambda: {1: 0},
            lambda it: (it.clear(), it.update({True: 0})),
        ),
        "member_of_a_set": held(lambda it: 3.0 if "b" in it else 1.0, lambda: {"a"}, lambda it: it.add("b")),
        "number_in_a_slice": held(lambda it: it.start[0], lambda: slice([1.0], None), lambda it: _first()(it.start)),
        "iterator_of_a_list": held(next, lambda: itertools.chain([1.0] * LATE, itertools.repeat(3.0))),
        "generator_that_is_sent": held(lambda it: it.send(None), _yields),
        "function_with_an_attribute": held(lambda it: it.factor, lambda: _with(lambda: 1.0), _set("factor")),
        "keywords_of_a_partial": held(
            lambda it: it(), lambda: functools.partial(_given, factor=1.0), lambda it: it.keywords.update(factor=3.0)
        ),
        "state_of_a_partial": held(
            lambda it: it(),
            lambda: functools.partial(_given, factor=1.0),
            lambda it: it.__setstate__((_given, (), {"factor": 3.0}, {})),
        ),
        "tensor_as_a_setting": held(lambda it: it["a"], lambda: {"a": torch.ones(())}, lambda it: it["a"].fill_(3.0)),
        "tensor_exchanged": held(
            lambda it: it["a"], lambda: {"a": torch.ones(())}, lambda it: it.update(a=torch.full((), 3.0))
        ),
        "tensor_transposed_in_place": held(
            lambda it: it[0] @ torch.ones(3), lambda: [torch.arange(9.0).view(3, 3) / 9], lambda it: it[0].t_()
        ),
        "attribute_of_a_tensor": held(lambda it: it.factor, lambda: _with(torch.ones(())), _set("factor")),
        "module_that_is_not_registered": held(
            lambda it: it[0].factor, lambda: [_with(Net())], lambda it: setattr(it[0], "factor", 3.0)
        ),
    }
)


# --- global variables ---------------------------------------------------------------------------------------

SETTINGS.update(
    {
        "global_number": reads(lambda self: FACTOR),
        "global_number_in_a_helper": reads(lambda self: read_factor()),
        "global_number_in_a_comprehension": reads(lambda self: sum([FACTOR / 2 for _ in range(2)])),
        "global_number_in_a_generator": reads(lambda self: max(FACTOR for _ in range(2))),
        "global_number_by_map": reads(lambda self: next(iter(map(scaled_by_factor, [1.0])))),
        "global_number_in_a_default": reads(lambda self, read=read_factor: read()),
        "compiled_in_the_pass": reads(lambda self: eval("FACTOR")),
        "helper_replaced": reads(lambda self: read_factor(), of_patch(HERE, "read_factor", three)),
        "global_name_that_hides_a_built_in": reads(lambda self: float(len([1])), of_patch(HERE, "len", three)),
        "global_container": reads(
            lambda self: TABLE["deep"][0]["factor"],
            lambda model, patch: patch.setitem(TABLE["deep"][0], "factor", 3.0),
        ),
        "environment": reads(
            lambda self: float(os.environ.get("FACTOR_OF_A_USER", "1")),
            lambda model, patch: patch.setenv("FACTOR_OF_A_USER", "3"),
        ),
        "name_of_a_function": reads(
            lambda self: 3.0 if read_factor.__name__ == "other" else 1.0, of_patch(read_factor, "__name__", "other")
        ),
    }
)


@add
def global_name_that_appears() -> Cheat:
    def scale(self: Any) -> Any:
        try:
            return APPEARS  # type: ignore[name-defined]
        except NameError:
            return 1.0

    return reads(scale, of_patch(HERE, "APPEARS"))()


@add
def imported_within() -> Cheat:
    def scale(self: Any) -> Any:
        from kit import tape_settings

        return tape_settings.FACTOR

    return reads(scale)()


@add
def number_of_another_module() -> Cheat:
    module: Any = _with(types.ModuleType("settings_of_a_user"))
    return Cheat(scaled(lambda self: module.factor), change=lambda: setattr(module, "factor", 3.0))


@add
def made_in_the_pass() -> Cheat:
    def scale(self: Any) -> Any:
        class Local:
            value = FACTOR

        return Local.value

    return reads(scale)()


@add
def coroutine() -> Cheat:
    async def factor() -> float:
        return FACTOR

    def scale(self: Any) -> Any:
        running = factor()
        try:
            running.send(None)
        except StopIteration as end:
            return end.value

    return reads(scale)()


# --- functions ----------------------------------------------------------------------------------------------


def of_code(change: Callable[[Any], Any]) -> Callable[[], Cheat]:
    """What makes a model whose method has a default, and a default of a keyword; late, the function is changed."""

    def cheat() -> Cheat:
        def scale(self: Any, factors: list[float] = [1.0], *, factor: float = 1.0) -> float:  # noqa: B006
            return factors[0] * factor

        return Cheat(scaled(scale), change=lambda: change(scale))

    return cheat


SETTINGS.update(
    {
        "code_of_a_method_replaced": of_code(_set("__code__", (lambda self, a, *, factor: 3.0).__code__)),
        "defaults_replaced": of_code(_set("__defaults__", ([3.0],))),
        "default_that_is_a_list": of_code(lambda scale: _first()(scale.__defaults__[0])),
        "keyword_defaults_replaced": of_code(lambda scale: scale.__kwdefaults__.update(factor=3.0)),
    }
)


@add
def cell_of_a_closure() -> Cheat:
    factor = 1.0

    def scale(self: Any) -> float:
        return factor

    return Cheat(scaled(scale), change=lambda: setattr(scale.__closure__[0], "cell_contents", 3.0))  # type: ignore[index]


@add
def cell_of_a_nested_closure() -> Cheat:
    factor = 1.0

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return Cheat(scaled(lambda self: sum([(lambda: factor / 2)() for _ in range(2)])), change=change)


@add
def closure_that_counts() -> Cheat:
    calls = 0

    def scale(self: Any) -> float:
        nonlocal calls
        calls += 1
        return 1.0 if calls < LATE else 3.0

    return Cheat(scaled(scale))


@add
def function_that_counts_on_itself() -> Cheat:
    def scale(self: Any) -> float:
        scale.calls += 1  # type: ignore[attr-defined]
        return 1.0 if scale.calls < LATE else 3.0  # type: ignore[attr-defined]

    scale.calls = 0  # type: ignore[attr-defined]
    return Cheat(scaled(scale))


@add
def context_with_a_state() -> Cheat:
    factors = [1.0]

    @contextlib.contextmanager
    def entered() -> Iterator[float]:
        yield factors[0]

    def scale(self: Any) -> float:
        with entered() as factor:
            return factor

    return Cheat(scaled(scale), change=lambda: factors.__setitem__(0, 3.0))


@add
def error_with_a_state() -> Cheat:
    error = ValueError(1.0)

    def scale(self: Any) -> Any:
        try:
            raise error
        except ValueError as caught:
            return caught.args[0]

    return Cheat(scaled(scale), change=lambda: setattr(error, "args", (3.0,)))


@add
def matched() -> Cheat:
    def scale(self: Any) -> Any:
        match self.point:
            case Record(factor=factor):
                return factor

    return reads(scale, lambda model, patch: setattr(model.point, "factor", 3.0), point=Record())()


@add
def attribute_of_a_function_named_as_the_models() -> Cheat:
    function: Any = _with(types.FunctionType(_given.__code__, globals()))
    model = scaled(lambda self: self.helper.factor * self.factor, factor=1.0, helper=function)
    return Cheat(model, change=lambda: setattr(function, "factor", 3.0))


# --- tables of modules --------------------------------------------------------------------------------------


@add
def hooks_of_a_module_exchanged() -> Cheat:
    def change(model: Any, patch: Any) -> None:
        model._forward_hooks = collections.OrderedDict()
        model.register_forward_hook(lambda module, given, out: out * 3)

    return own(change)()


@add
def modules_of_a_module_exchanged() -> Cheat:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return Cheat(model, change=lambda: setattr(model, "_modules", {"0": model[0], "1": nn.Tanh(), "2": model[2]}))


@add
def error_of_a_number_in_a_batch() -> Cheat:
    class Falls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, x: Tensor) -> Any:
            try:
                return self.table(x)
            except IndexError:
                return self.table(x.clamp(max=4)) * 2

    x = torch.arange(80) % 5
    x[torch.from_numpy(hr.Order(80, seed=0).indices(0, 0, 80))[70]] = 9
    return Cheat(Falls(), data={"x": x, "y": torch.arange(80) % 3})
