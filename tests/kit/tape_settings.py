"""Models that read a setting somewhere in Python, which is changed late: objects, classes, containers, functions.

Each scales what the model returns, so that a pass which does not notice the change gives another loss.
"""

import collections
import contextlib
import ctypes
import enum
import functools
import itertools
import math
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr

from .tape_cheats import LATE, Cheat, Net, Table, into, scaled

SETTINGS: Table = {}
add = into(SETTINGS)


class Config:
    """Settings of a recipe, as many write them."""

    alpha = 1.0


FACTOR = 1.0
TABLE = {"deep": [{"factor": 1.0}]}


def read_factor() -> float:
    return FACTOR


def scaled_by_factor(value: float) -> float:
    return value * FACTOR


def patched(model: Any, *change: Any) -> Cheat:
    """A model for which an attribute is set late, and afterwards is what it was."""
    patch = pytest.MonkeyPatch()
    return Cheat(model, change=lambda: patch.setattr(*change), undo=patch.undo)


def held(read: Callable[[Any], Any], held: Any, change: Callable[[Any], Any] | None = None) -> Callable[[], Cheat]:
    """What makes a model that holds an object and reads it so; late, the object is changed."""

    def cheat() -> Cheat:
        thing = held()
        return Cheat(scaled(lambda self: read(self.held), held=thing), change=change and (lambda: change(thing)))

    return cheat


# --- classes and objects ------------------------------------------------------------------------------------


@add
def class_of_settings() -> Cheat:
    return patched(scaled(lambda self: self.cfg.alpha, cfg=Config), Config, "alpha", 3.0)


@add
def object_of_a_class_of_settings() -> Cheat:
    return patched(scaled(lambda self: self.cfg.alpha, cfg=Config()), Config, "alpha", 3.0)


@add
def class_as_a_default() -> Cheat:
    def scale(self: Any, cfg: Any = Config) -> Any:
        return cfg.alpha

    return patched(scaled(scale), Config, "alpha", 3.0)


@add
def shadowed_later() -> Cheat:
    model = scaled(lambda self: self.coefficient)
    type(model).coefficient = 1.0
    return Cheat(model, change=lambda: setattr(model, "coefficient", 3.0))


@add
def shadowed_later_by_a_subclass() -> Cheat:
    class Middle(Net):
        coefficient = 1.0

        def scale(self) -> Any:
            return self.coefficient

    class Leaf(Middle):
        pass

    return Cheat(Leaf(), change=lambda: setattr(Leaf, "coefficient", 3.0))


@add
def method_added_to_a_subclass() -> Cheat:
    class Leaf(Net):
        pass

    return Cheat(Leaf(), change=lambda: setattr(Leaf, "scale", lambda self: 3.0))


@add
def forward_added_to_a_subclass() -> Cheat:
    class Leaf(Net):
        pass

    return Cheat(Leaf(), change=lambda: setattr(Leaf, "forward", lambda self, x: Net.forward(self, x) * 3))


@add
def forward_of_the_instance() -> Cheat:
    model = Net()
    return Cheat(model, change=lambda: setattr(model.enter, "forward", lambda x: torch.tanh(x) @ torch.ones(6, 8)))


@add
def method_of_the_instance() -> Cheat:
    model = scaled(lambda self: 1.0)
    return Cheat(model, change=lambda: setattr(model, "scale", lambda: 3.0))


@add
def base_class_replaced() -> Cheat:
    class First(Net):
        def scale(self) -> Any:
            return 1.0

    class Second(Net):
        def scale(self) -> Any:
            return 3.0

    class Leaf(First):
        pass

    return Cheat(Leaf(), change=lambda: setattr(Leaf, "__bases__", (Second,)))


@add
def class_of_the_model_replaced() -> Cheat:
    model = scaled(lambda self: 1.0)
    return Cheat(model, change=lambda: setattr(model, "__class__", type("Other", (Net,), {"scale": lambda self: 3.0})))


@add
def method_of_the_base_replaced() -> Cheat:
    class Middle(Net):
        def scale(self) -> Any:
            return 1.0

    class Leaf(Middle):
        def scale(self) -> Any:
            return super().scale() * 1.0

    return Cheat(Leaf(), change=lambda: setattr(Middle, "scale", lambda self: 3.0))


@add
def static_method_replaced() -> Cheat:
    model = scaled(lambda self: self.fixed())
    type(model).fixed = staticmethod(lambda: 1.0)
    return Cheat(model, change=lambda: setattr(type(model), "fixed", staticmethod(lambda: 3.0)))


@add
def class_method_reads_its_class() -> Cheat:
    model = scaled(lambda self: self.of_class())
    type(model).of_class = classmethod(lambda kind: kind.factor)
    type(model).factor = 1.0
    return Cheat(model, change=lambda: setattr(type(model), "factor", 3.0))


@add
def descriptor_with_a_state() -> Cheat:
    class Field:
        value = 1.0

        def __get__(self, owner: Any, kind: type) -> Any:
            return self.value

    described = Field()
    model = scaled(lambda self: self.field)
    type(model).field = described
    return Cheat(model, change=lambda: setattr(described, "value", 3.0))


@add
def property_that_reads_a_global() -> Cheat:
    model = scaled(lambda self: self.seen)
    type(model).seen = property(lambda self: FACTOR)
    return patched(model, sys.modules[__name__], "FACTOR", 3.0)


@add
def cached_property_forgotten() -> Cheat:
    box = [1.0]
    cached = functools.cached_property(lambda self: box[0])
    cached.__set_name__(Net, "seen")
    model = scaled(lambda self: self.seen)
    type(model).seen = cached

    def change() -> None:
        box[0] = 3.0
        del model.__dict__["seen"]

    return Cheat(model, change=change)


@add
def getattr_of_the_model() -> Cheat:
    class Made(Net):
        def __getattr__(self, name: str) -> Any:
            return FACTOR if name == "factor" else super().__getattr__(name)

        def scale(self) -> Any:
            return self.factor

    return patched(Made(), sys.modules[__name__], "FACTOR", 3.0)


@add
def operator_of_ones_own() -> Cheat:
    class Factor:
        value = 1.0

        def __rmul__(self, other: Tensor) -> Tensor:
            return other * self.value

    factor = Factor()

    class Uses(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.leave(torch.relu(self.enter(x))).mul(1.0) * factors[0]

    factors = [factor]
    return Cheat(Uses(), change=lambda: setattr(factor, "value", 3.0))


@dataclass
class Record:
    factor: float = 1.0
    deep: dict[str, list[float]] = field(default_factory=lambda: {"a": [1.0]})


@dataclass(frozen=True)
class Frozen:
    factor: float = 1.0


@dataclass(slots=True)
class Slotted:
    factor: float = 1.0


class BySlots:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0


class Structure(ctypes.Structure):
    _fields_: ClassVar[Any] = [("factor", ctypes.c_float)]


class Pair(collections.namedtuple("Pair", "a b")):
    extra = 1.0


class Mode(enum.Enum):
    FIRST = 1.0


class Scale(enum.IntEnum):
    FIRST = 1


def _set(name: str, value: Any = 3.0) -> Callable[[Any], None]:
    return lambda thing: setattr(thing, name, value)


def _factor(thing: Any) -> Any:
    return thing.factor


SETTINGS.update(
    {
        "dataclass_field": held(_factor, Record, _set("factor")),
        "slots": held(_factor, BySlots, _set("factor")),
        "namespace": held(_factor, lambda: types.SimpleNamespace(factor=1.0), _set("factor")),
        "structure_of_c": held(_factor, lambda: Structure(1.0), _set("factor")),
        "array_of_numpy": held(lambda it: float(it[0]), lambda: np.ones(2), lambda it: it.__setitem__(0, 3.0)),
        "weak_reference": held(
            lambda it: it[1]().alpha, lambda: (c := Config(), weakref.ref(c)), lambda it: setattr(it[0], "alpha", 3.0)
        ),
        "thread_local": held(lambda it: it.factor, lambda: _local(), _set("factor")),
        "list_in_a_tuple": held(lambda it: it[0][0], lambda: ([1.0],), lambda it: it[0].__setitem__(0, 3.0)),
        "ordered_dictionary": held(
            lambda it: it["a"], lambda: collections.OrderedDict(a=1.0), lambda it: it.update(a=3.0)
        ),
        "default_dictionary": held(
            lambda it: it["a"], lambda: collections.defaultdict(lambda: 1.0), lambda it: it.update(a=3.0)
        ),
        "order_of_a_dictionary": held(
            lambda it: next(iter(it.values())), lambda: {"a": 1.0, "b": 3.0}, lambda it: it.update(a=it.pop("a"))
        ),
        "key_of_a_dictionary": held(
            lambda it: 3.0 if "b" in it else 1.0, lambda: {"a": 1.0}, lambda it: it.update(b=0)
        ),
        "get_of_a_dictionary": held(lambda it: it.get("b", 1.0), lambda: {"a": 1.0}, lambda it: it.update(b=3.0)),
        "member_of_a_set": held(lambda it: 3.0 if "b" in it else 1.0, lambda: {"a"}, lambda it: it.add("b")),
        "length_of_a_list": held(lambda it: float(len(it)), lambda: [0], lambda it: it.extend([0, 0])),
        "nested_deep": held(
            lambda it: it["a"][0]["b"][0], lambda: {"a": [{"b": [1.0]}]}, lambda it: it["a"][0]["b"].insert(0, 3.0)
        ),
        "one_becomes_true": held(
            lambda it: 3.0 if it[0] is True else 1.0, lambda: [1], lambda it: it.__setitem__(0, True)
        ),
        "one_becomes_a_float": held(
            lambda it: 3.0 if isinstance(it[0], float) else 1.0, lambda: [1], lambda it: it.__setitem__(0, 1.0)
        ),
        "zero_becomes_negative": held(
            lambda it: 2.0 + math.copysign(1.0, it["a"][0]),
            lambda: {"a": [0.0]},
            lambda it: it["a"].__setitem__(0, -0.0),
        ),
        "key_becomes_true": held(
            lambda it: 3.0 if next(iter(it)) is True else 1.0,
            lambda: {1: 0},
            lambda it: (it.clear(), it.update({True: 0})),
        ),
        "order_of_a_set": held(
            lambda it: next(iter(it)) / 8, lambda: {8, 16}, lambda it: (it.clear(), it.update([16, 8]))
        ),
        "identity_in_a_list": held(
            lambda it: 3.0 if it[0] is it[1] else 1.0, lambda: [[1.0], [1.0]], lambda it: it.__setitem__(1, it[0])
        ),
        "type_in_a_list": held(
            lambda it: torch.full((3,), 1 / 3).to(it[0]).float(),
            lambda: [torch.float32],
            lambda it: it.__setitem__(0, torch.bfloat16),
        ),
        "slice_in_a_list": held(
            lambda it: torch.arange(1.0, 9.0)[it[0]].sum(), lambda: [slice(0, 3)], lambda it: it.insert(0, slice(1, 4))
        ),
        "number_in_a_slice": held(
            lambda it: it.start[0], lambda: slice([1.0], None), lambda it: it.start.__setitem__(0, 3.0)
        ),
        "function_in_a_list": held(
            lambda it: it[0](torch.ones(3)), lambda: [torch.relu], lambda it: it.__setitem__(0, torch.tanh)
        ),
        "function_in_a_dictionary": held(
            lambda it: it["a"](torch.ones(3)), lambda: {"a": torch.relu}, lambda it: it.update(a=torch.tanh)
        ),
        "lambda_in_a_dictionary": held(
            lambda it: it["a"](), lambda: {"a": lambda: 1.0}, lambda it: it.update(a=lambda: 3.0)
        ),
        "tensor_transposed_in_place": held(
            lambda it: it[0] @ torch.ones(3), lambda: [torch.arange(9.0).view(3, 3) / 9], lambda it: it[0].t_()
        ),
        "nan": held(lambda it: 3.0 if it[0] == it[0] else 1.0, lambda: [math.nan], lambda it: it.__setitem__(0, 1.0)),
        "iterator_of_a_list": held(next, lambda: itertools.chain([1.0] * LATE, itertools.repeat(3.0))),
        "count_in_a_list": held(lambda it: 1.0 / (1 + next(it[0])), lambda: [itertools.count()]),
        "generator_that_is_sent": held(lambda it: it.send(None), lambda: _yields()),
        "function_with_an_attribute": held(lambda it: it.factor, lambda: _with(lambda: 1.0), _set("factor")),
        "keywords_of_a_partial": held(
            lambda it: it(), lambda: functools.partial(_given, factor=1.0), lambda it: it.keywords.update(factor=3.0)
        ),
        "state_of_a_partial": held(
            lambda it: it(),
            lambda: functools.partial(_given, factor=1.0),
            lambda it: it.__setstate__((_given, (), {"factor": 3.0}, {})),
        ),
        "bound_method": held(lambda it: it(), lambda: _Owner().value, lambda it: _set("factor")(it.__self__)),
        "tensor_as_a_setting": held(lambda it: it["a"], lambda: {"a": torch.ones(())}, lambda it: it["a"].fill_(3.0)),
        "tensor_exchanged": held(
            lambda it: it["a"], lambda: {"a": torch.ones(())}, lambda it: it.update(a=torch.full((), 3.0))
        ),
        "attribute_of_a_tensor": held(_factor, lambda: _with(torch.ones(())), _set("factor")),
    }
)


class _Owner:
    def __init__(self) -> None:
        self.factor = 1.0

    def value(self) -> float:
        return self.factor

    __call__ = value


def _with(thing: Any) -> Any:
    thing.factor = 1.0
    return thing


def _given(factor: float) -> float:
    return factor


def _local() -> Any:
    return _with(threading.local())


def _yields() -> Iterator[float]:
    for k in itertools.count():
        yield 1.0 if k < LATE else 3.0


@add
def value_of_an_enum() -> Cheat:
    return patched(scaled(lambda self: self.mode.value, mode=Mode.FIRST), Mode.FIRST, "_value_", 3.0)


@add
def global_number() -> Cheat:
    return patched(scaled(lambda self: FACTOR), sys.modules[__name__], "FACTOR", 3.0)


@add
def global_number_in_a_helper() -> Cheat:
    return patched(scaled(lambda self: read_factor()), sys.modules[__name__], "FACTOR", 3.0)


@add
def global_number_in_a_comprehension() -> Cheat:
    return patched(scaled(lambda self: sum([FACTOR / 2 for _ in range(2)])), sys.modules[__name__], "FACTOR", 3.0)


@add
def global_number_in_a_generator() -> Cheat:
    return patched(scaled(lambda self: max(FACTOR for _ in range(2))), sys.modules[__name__], "FACTOR", 3.0)


@add
def global_number_as_a_key_of_sorting() -> Cheat:
    model = scaled(lambda self: sorted([1.0, 3.0], key=lambda each: each * FACTOR)[0])
    return patched(model, sys.modules[__name__], "FACTOR", -1.0)


@add
def global_number_by_map() -> Cheat:
    model = scaled(lambda self: next(iter(map(scaled_by_factor, [1.0]))))
    return patched(model, sys.modules[__name__], "FACTOR", 3.0)


@add
def global_container() -> Cheat:
    patch = pytest.MonkeyPatch()
    change: Any = lambda: patch.setitem(TABLE["deep"][0], "factor", 3.0)  # noqa: E731
    return Cheat(scaled(lambda self: TABLE["deep"][0]["factor"]), change=change, undo=patch.undo)


@add
def global_name_that_appears() -> Cheat:
    def scale(self: Any) -> Any:
        try:
            return APPEARS  # type: ignore[name-defined]
        except NameError:
            return 1.0

    patch = pytest.MonkeyPatch()
    home = sys.modules[__name__]
    return Cheat(scaled(scale), change=lambda: patch.setattr(home, "APPEARS", 3.0, raising=False), undo=patch.undo)


@add
def global_name_that_hides_a_built_in() -> Cheat:
    patch = pytest.MonkeyPatch()
    home = sys.modules[__name__]
    model = scaled(lambda self: float(len([1])))
    return Cheat(model, change=lambda: patch.setattr(home, "len", lambda each: 3, raising=False), undo=patch.undo)


@add
def helper_replaced() -> Cheat:
    return patched(scaled(lambda self: read_factor()), sys.modules[__name__], "read_factor", lambda: 3.0)


@add
def number_of_another_module() -> Cheat:
    module = types.ModuleType("settings_of_a_user")
    module.factor = 1.0  # type: ignore[attr-defined]
    return Cheat(scaled(lambda self: module.factor), change=lambda: setattr(module, "factor", 3.0))


@add
def environment() -> Cheat:
    patch = pytest.MonkeyPatch()
    model = scaled(lambda self: float(os.environ.get("FACTOR_OF_A_USER", "1")))
    return Cheat(model, change=lambda: patch.setenv("FACTOR_OF_A_USER", "3"), undo=patch.undo)


@add
def property_over_an_attribute() -> Cheat:
    model = scaled(lambda self: self.coefficient, coefficient=1.0)
    return Cheat(model, change=lambda: setattr(type(model), "coefficient", property(lambda self: 3.0)))


@add
def attribute_over_a_module() -> Cheat:
    model = Net()
    return Cheat(model, change=lambda: vars(model).update(enter=lambda x: torch.tanh(x) @ torch.ones(6, 8)))


@add
def class_attribute_over_a_module() -> Cheat:
    model = scaled(lambda self: 1.0)
    enter = staticmethod(lambda x: torch.tanh(x) @ torch.ones(6, 8))
    return Cheat(model, change=lambda: setattr(type(model), "enter", enter))


@add
def attribute_over_a_buffer() -> Cheat:
    model = scaled(lambda self: self.factor)
    model.register_buffer("factor", torch.ones(()))
    return Cheat(model, change=lambda: vars(model).update(factor=3.0))


@add
def attribute_over_a_parameter() -> Cheat:
    model = plain_layer()
    return Cheat(model, change=lambda: vars(model.enter).update(bias=torch.ones(8)))


def plain_layer() -> Net:
    return scaled(lambda self: 1.0)


@add
def metaclass_of_the_model() -> Cheat:
    class Kind(type):
        factor = 1.0

    class Made(Net, metaclass=Kind):
        def scale(self) -> Any:
            return type(self).factor

    return Cheat(Made(), change=lambda: setattr(Kind, "factor", 3.0))


@add
def call_added_to_a_subclass() -> Cheat:
    class Leaf(Net):
        pass

    return Cheat(Leaf(), change=lambda: setattr(Leaf, "__call__", lambda self, x: self.forward(x) * 3))


@add
def truth_of_a_module() -> Cheat:
    patch = pytest.MonkeyPatch()
    model = scaled(lambda self: 1.0 if self.enter else 3.0)
    change: Any = lambda: patch.setattr(torch.nn.Linear, "__bool__", lambda self: False, raising=False)  # noqa: E731
    return Cheat(model, change=change, undo=patch.undo)


@add
def length_of_a_module() -> Cheat:
    class Part(torch.nn.Module):
        def __len__(self) -> int:
            return 1

    model = scaled(lambda self: float(len(self.part)))
    model.part = Part()
    return Cheat(model, change=lambda: setattr(Part, "__len__", lambda self: 3))


@add
def iteration_over_a_module() -> Cheat:
    class Part(torch.nn.Module):
        def __iter__(self) -> Iterator[float]:
            return iter([1.0])

    model = scaled(lambda self: sum(self.part))
    model.part = Part()
    return Cheat(model, change=lambda: setattr(Part, "__iter__", lambda self: iter([3.0])))


@add
def name_of_the_class() -> Cheat:
    model = scaled(lambda self: 3.0 if type(self).__name__ == "Other" else 1.0)
    return Cheat(model, change=lambda: setattr(type(model), "__name__", "Other"))


@add
def name_of_a_function() -> Cheat:
    model = scaled(lambda self: 3.0 if read_factor.__name__ == "other" else 1.0)
    return patched(model, read_factor, "__name__", "other")


@add
def one_of_two_bases_replaced() -> Cheat:
    class Mixin:
        pass

    class Leaf(Mixin, Net):
        pass

    return Cheat(Leaf(), change=lambda: setattr(Mixin, "scale", lambda self: 3.0))


@add
def default_that_is_a_function() -> Cheat:
    def scale(self: Any, read: Any = read_factor) -> Any:
        return read()

    return patched(scaled(scale), sys.modules[__name__], "FACTOR", 3.0)


# --- by name ------------------------------------------------------------------------------------------------


@add
def hasattr_of_the_model() -> Cheat:
    model = scaled(lambda self: 3.0 if hasattr(self, "factor") else 1.0)
    return Cheat(model, change=lambda: setattr(model, "factor", 1))


@add
def keys_of_a_parameter() -> Cheat:
    model = scaled(lambda self: 1.0 + len(self.enter.weight.__dict__))
    return Cheat(model, change=lambda: setattr(model.enter.weight, "anything", 1))


@add
def imported_within() -> Cheat:
    def scale(self: Any) -> Any:
        from kit import tape_settings

        return tape_settings.FACTOR

    return patched(scaled(scale), sys.modules[__name__], "FACTOR", 3.0)


# --- functions ----------------------------------------------------------------------------------------------


@add
def code_replaced() -> Cheat:
    def factor() -> float:
        return 1.0

    def other() -> float:
        return 3.0

    model = scaled(lambda self: factor())
    return Cheat(model, change=lambda: setattr(factor, "__code__", other.__code__))


@add
def code_of_a_method_replaced() -> Cheat:
    model = scaled(lambda self: 1.0)
    return Cheat(model, change=lambda: setattr(type(model).scale, "__code__", (lambda self: 3.0).__code__))


@add
def code_of_forward_replaced() -> Cheat:
    class Own(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.leave(torch.relu(self.enter(x)))

    def other(self: Any, x: Tensor) -> Tensor:
        return self.leave(torch.tanh(self.enter(x)))  # type: ignore[no-any-return]

    return Cheat(Own(), change=lambda: setattr(Own.forward, "__code__", other.__code__))


@add
def defaults_replaced() -> Cheat:
    def scale(self: Any, factor: float = 1.0) -> float:
        return factor

    return Cheat(scaled(scale), change=lambda: setattr(scale, "__defaults__", (3.0,)))


@add
def keyword_defaults_replaced() -> Cheat:
    def scale(self: Any, *, factor: float = 1.0) -> float:
        return factor

    return Cheat(scaled(scale), change=lambda: scale.__kwdefaults__.update(factor=3.0))


@add
def default_that_is_a_list() -> Cheat:
    def scale(self: Any, factor: list[float] = [1.0]) -> float:  # noqa: B006
        return factor[0]

    change: Any = lambda: scale.__defaults__[0].__setitem__(0, 3.0)  # type: ignore[index]  # noqa: E731
    undo: Any = lambda: scale.__defaults__[0].__setitem__(0, 1.0)  # type: ignore[index]  # noqa: E731
    return Cheat(scaled(scale), change=change, undo=undo)


@add
def cell_of_a_closure() -> Cheat:
    factor = 1.0

    def scale(self: Any) -> float:
        return factor

    def change() -> None:
        scale.__closure__[0].cell_contents = 3.0  # type: ignore[index]

    return Cheat(scaled(scale), change=change)


@add
def cell_of_a_nested_closure() -> Cheat:
    factor = 1.0

    def scale(self: Any) -> float:
        return sum([(lambda: factor / 2)() for _ in range(2)])

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return Cheat(scaled(scale), change=change)


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
def decorated() -> Cheat:
    box = [1.0]

    def times(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * box[0]

        return wrapper

    return Cheat(scaled(times(lambda self: 1.0)), change=lambda: box.__setitem__(0, 3.0))


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
def context_held_by_a_stack() -> Cheat:
    stack: list[float] = [1.0]

    @contextlib.contextmanager
    def pushed(value: float) -> Iterator[None]:
        stack.append(value)
        try:
            yield
        finally:
            stack.pop()

    with contextlib.ExitStack() as outer:
        kept = outer.pop_all()
    return Cheat(scaled(lambda self: stack[-1]), change=lambda: kept.enter_context(pushed(3.0)), undo=kept.close)


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
def recursion() -> Cheat:
    def scale(self: Any, depth: int = 3) -> Any:
        return self.factor if depth == 0 else scale(self, depth - 1)

    model = scaled(scale, factor=1.0)
    return Cheat(model, change=lambda: setattr(model, "factor", 3.0))


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

    return patched(scaled(scale), sys.modules[__name__], "FACTOR", 3.0)


@add
def made_in_the_pass() -> Cheat:
    def scale(self: Any) -> Any:
        class Local:
            value = FACTOR

        return Local.value

    return patched(scaled(scale), sys.modules[__name__], "FACTOR", 3.0)


@add
def compiled_in_the_pass() -> Cheat:
    return patched(scaled(lambda self: eval("FACTOR")), sys.modules[__name__], "FACTOR", 3.0)


@add
def matched() -> Cheat:
    class Point:
        __match_args__ = ("factor",)
        factor = 1.0

    point = Point()

    def scale(self: Any) -> Any:
        match self.point:
            case Point(factor):
                return factor

    return Cheat(scaled(scale, point=point), change=lambda: setattr(point, "factor", 3.0))


@add
def module_that_is_not_registered() -> Cheat:
    hidden = Net()
    hidden.factor = 1.0  # type: ignore[assignment]
    model = scaled(lambda self: self.hidden[0].factor, hidden=[hidden])
    return Cheat(model, change=lambda: setattr(hidden, "factor", 3.0))


def _unwrapped(value: float) -> float:
    return value


@add
def attribute_of_a_function_named_as_the_models() -> Cheat:
    function: Any = types.FunctionType(_unwrapped.__code__, globals())
    function.factor = 1.0
    model = scaled(lambda self: self.helper.factor * self.factor, factor=1.0, helper=function)
    return Cheat(model, change=lambda: setattr(function, "factor", 3.0))


@add
def attribute_of_a_class_of_torch_named_as_the_models() -> Cheat:
    nn.ReLU.factor = 1.0  # type: ignore[assignment]
    model = scaled(lambda self: nn.ReLU.factor * self.factor, factor=1.0)
    return Cheat(model, change=lambda: setattr(nn.ReLU, "factor", 3.0), undo=lambda: delattr(nn.ReLU, "factor"))


class Factor(type):
    factor = 1.0


@add
def attribute_of_a_metaclass_named_as_a_modules() -> Cheat:
    class OfFactor(Net, metaclass=Factor):
        def scale(self) -> Any:
            return type(self).factor * self.enter.factor  # type: ignore[operator]

    model = OfFactor()
    model.enter.factor = 1.0  # type: ignore[assignment]
    return patched(model, Factor, "factor", 3.0)


@add
def hooks_of_a_module_exchanged() -> Cheat:
    model = Net()

    def change() -> None:
        model._forward_hooks = collections.OrderedDict()
        model.register_forward_hook(lambda module, given, out: out * 3)

    return Cheat(model, change=change)


@add
def modules_of_a_module_exchanged() -> Cheat:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    return Cheat(model, change=lambda: setattr(model, "_modules", {"0": model[0], "1": nn.Tanh(), "2": model[2]}))


@add
def attribute_that_comes_as_another_goes() -> Cheat:
    model = scaled(lambda self: self.factor, other=1)
    type(model).factor = 1.0  # type: ignore[assignment]

    def change() -> None:
        model.factor = 3.0  # type: ignore[assignment]
        del model.other

    return Cheat(model, change=change)


@add
def error_of_a_number_in_a_batch() -> Cheat:
    class Falls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.table(x)
            except IndexError:
                return self.table(x.clamp(max=4)) * 2

    x = torch.arange(80) % 5
    x[torch.from_numpy(hr.Order(80, seed=0).indices(0, 0, 80))[70]] = 9
    return Cheat(Falls(), data={"x": x, "y": torch.arange(80) % 3})
