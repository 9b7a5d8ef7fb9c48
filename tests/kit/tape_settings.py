"""Models that read a setting somewhere in Python, which is changed late: objects, classes, containers, functions.

Each scales what the model returns, so that a pass which does not notice the change gives another loss.
"""

import abc
import array
import collections
import contextlib
import contextvars
import ctypes
import enum
import functools
import io
import itertools
import math
import operator
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
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


class Nested:
    inner = Config


FACTOR = 1.0
ALIAS = Config
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
def class_of_settings_by_its_global_name() -> Cheat:
    return patched(scaled(lambda self: Config.alpha), Config, "alpha", 3.0)


@add
def class_of_settings_by_an_alias() -> Cheat:
    return patched(scaled(lambda self: ALIAS.alpha), Config, "alpha", 3.0)


@add
def class_of_settings_by_a_local_name() -> Cheat:
    def scale(self: Any) -> Any:
        cfg = Config
        return cfg.alpha

    return patched(scaled(scale), Config, "alpha", 3.0)


@add
def class_of_settings_in_a_class() -> Cheat:
    return patched(scaled(lambda self: Nested.inner.alpha), Config, "alpha", 3.0)


@add
def object_of_a_class_of_settings() -> Cheat:
    return patched(scaled(lambda self: self.cfg.alpha, cfg=Config()), Config, "alpha", 3.0)


@add
def class_in_a_dictionary() -> Cheat:
    return patched(scaled(lambda self: self.cfg["it"].alpha, cfg={"it": Config}), Config, "alpha", 3.0)


@add
def class_as_a_default() -> Cheat:
    def scale(self: Any, cfg: Any = Config) -> Any:
        return cfg.alpha

    return patched(scaled(scale), Config, "alpha", 3.0)


@add
def class_of_a_closure() -> Cheat:
    class Local:
        alpha = 1.0

    return Cheat(scaled(lambda self: Local.alpha), change=lambda: setattr(Local, "alpha", 3.0))


@add
def shadowed_later() -> Cheat:
    model = scaled(lambda self: self.coefficient)
    type(model).coefficient = 1.0
    return Cheat(model, change=lambda: setattr(model, "coefficient", 3.0))


@add
def shadowed_later_in_settings() -> Cheat:
    cfg = Config()
    return Cheat(scaled(lambda self: self.cfg.alpha, cfg=cfg), change=lambda: setattr(cfg, "alpha", 3.0))


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


class Meta(type):
    factor = 1.0

    @property
    def seen(cls) -> float:
        return cls.factor


class OfMeta(metaclass=Meta):
    pass


@add
def metaclass() -> Cheat:
    return patched(scaled(lambda self: OfMeta.factor), Meta, "factor", 3.0)


@add
def property_of_a_metaclass() -> Cheat:
    return patched(scaled(lambda self: self.kind.seen, kind=OfMeta), Meta, "factor", 3.0)


@add
def getattr_of_the_model() -> Cheat:
    class Made(Net):
        def __getattr__(self, name: str) -> Any:
            return FACTOR if name == "factor" else super().__getattr__(name)

        def scale(self) -> Any:
            return self.factor

    return patched(Made(), sys.modules[__name__], "FACTOR", 3.0)


@add
def getattribute_of_the_model() -> Cheat:
    class Made(Net):
        def __getattribute__(self, name: str) -> Any:
            return FACTOR if name == "factor" else super().__getattribute__(name)

        def scale(self) -> Any:
            return self.factor

    return patched(Made(), sys.modules[__name__], "FACTOR", 3.0)


@add
def getattr_of_settings() -> Cheat:
    class Made:
        def __getattr__(self, name: str) -> Any:
            return FACTOR

    return patched(scaled(lambda self: self.cfg.factor, cfg=Made()), sys.modules[__name__], "FACTOR", 3.0)


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


@add
def operator_of_a_class() -> Cheat:
    class Factor:
        def __float__(self) -> float:
            return 1.0

    model = scaled(lambda self: float(self.factor), factor=Factor())
    return Cheat(model, change=lambda: setattr(Factor, "__float__", lambda self: 3.0))


@add
def item_of_a_class() -> Cheat:
    class Settings:
        def __getitem__(self, key: str) -> Any:
            return FACTOR

    return patched(scaled(lambda self: self.cfg["a"], cfg=Settings()), sys.modules[__name__], "FACTOR", 3.0)


@add
def truth_of_an_object() -> Cheat:
    class Flag:
        on = True

        def __bool__(self) -> bool:
            return self.on

    flag = Flag()
    return Cheat(scaled(lambda self: 1.0 if self.flag else 3.0, flag=flag), change=lambda: setattr(flag, "on", False))


@add
def equality_of_an_object() -> Cheat:
    class Kind:
        name = "a"

        def __eq__(self, other: object) -> bool:
            return self.name == other

        __hash__ = None  # type: ignore[assignment]

    kind = Kind()
    model = scaled(lambda self: 1.0 if self.kind == "a" else 3.0, kind=kind)
    return Cheat(model, change=lambda: setattr(kind, "name", "b"))


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


class Integer(int):
    pass


class Float(float):
    def __mul__(self, other: Any) -> Any:
        return other * FACTOR

    __rmul__ = __mul__


class Text(str):
    pass


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
        "deep_in_a_dataclass": held(lambda it: it.deep["a"][0], Record, lambda it: it.deep["a"].__setitem__(0, 3.0)),
        "frozen_dataclass": held(_factor, Frozen, lambda it: object.__setattr__(it, "factor", 3.0)),
        "slots_of_a_dataclass": held(_factor, Slotted, _set("factor")),
        "slots": held(_factor, BySlots, _set("factor")),
        "namespace": held(_factor, lambda: types.SimpleNamespace(factor=1.0), _set("factor")),
        "structure_of_c": held(_factor, lambda: Structure(1.0), _set("factor")),
        "number_of_c": held(lambda it: it.value, lambda: ctypes.c_double(1.0), _set("value")),
        "array_of_c": held(
            lambda it: it[0], lambda: (ctypes.c_double * 2)(1.0, 1.0), lambda it: it.__setitem__(0, 3.0)
        ),
        "array_of_python": held(lambda it: it[0], lambda: array.array("d", [1.0]), lambda it: it.__setitem__(0, 3.0)),
        "bytes_that_change": held(lambda it: it[0], lambda: bytearray([1]), lambda it: it.__setitem__(0, 3)),
        "view_of_memory": held(lambda it: it[0], lambda: memoryview(bytearray([1])), lambda it: it.__setitem__(0, 3)),
        "array_of_numpy": held(lambda it: float(it[0]), lambda: np.ones(2), lambda it: it.__setitem__(0, 3.0)),
        "number_in_an_array": held(float, lambda: np.ones(()), lambda it: it.fill(3.0)),
        "record_of_numpy": held(
            lambda it: float(it["a"]), lambda: np.ones((), dtype=[("a", "f4")]), lambda it: it.__setitem__("a", 3.0)
        ),
        "weak_reference": held(
            lambda it: it[1]().alpha, lambda: (c := Config(), weakref.ref(c)), lambda it: setattr(it[0], "alpha", 3.0)
        ),
        "weak_proxy": held(
            lambda it: it[1].alpha, lambda: (c := Config(), weakref.proxy(c)), lambda it: setattr(it[0], "alpha", 3.0)
        ),
        "thread_local": held(lambda it: it.factor, lambda: _local(), _set("factor")),
        "context_variable": held(
            lambda it: it.get(), lambda: contextvars.ContextVar("factor", default=1.0), lambda it: it.set(3.0)
        ),
        "attribute_of_an_integer": held(_factor, lambda: _with(Integer(1)), _set("factor")),
        "attribute_of_a_text": held(_factor, lambda: _with(Text("a")), _set("factor")),
        "attribute_of_a_tuple": held(lambda it: it.extra, lambda: Pair(1, 2), _set("extra")),
        "list_in_a_tuple": held(lambda it: it[0][0], lambda: ([1.0],), lambda it: it[0].__setitem__(0, 3.0)),
        "list_in_a_named_tuple": held(lambda it: it.a[0], lambda: Pair([1.0], 2), lambda it: it.a.__setitem__(0, 3.0)),
        "ordered_dictionary": held(
            lambda it: it["a"], lambda: collections.OrderedDict(a=1.0), lambda it: it.update(a=3.0)
        ),
        "default_dictionary": held(
            lambda it: it["a"], lambda: collections.defaultdict(lambda: 1.0), lambda it: it.update(a=3.0)
        ),
        "default_of_a_dictionary": held(
            lambda it: it["b"] if "b" in it else it.default_factory(),
            lambda: collections.defaultdict(lambda: 1.0),
            lambda it: setattr(it, "default_factory", lambda: 3.0),
        ),
        "counter": held(lambda it: it["a"], lambda: collections.Counter("a"), lambda it: it.update("aa")),
        "deque": held(lambda it: it[0], lambda: collections.deque([1.0]), lambda it: it.appendleft(3.0)),
        "chain_of_maps": held(
            lambda it: it["a"], lambda: collections.ChainMap({}, {"a": 1.0}), lambda it: it.maps[1].update(a=3.0)
        ),
        "proxy_of_a_map": held(
            lambda it: it[1]["a"],
            lambda: (d := {"a": 1.0}, types.MappingProxyType(d)),
            lambda it: it[0].update(a=3.0),
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
        "nested_very_deep": held(
            lambda it: it[0][0][0][0][0][0][0][0],
            lambda: [[[[[[[[1.0]]]]]]]],
            lambda it: it[0][0][0][0][0][0][0].__setitem__(0, 3.0),
        ),
        "at_the_end_of_a_long_list": held(lambda it: it[-1], lambda: [1.0] * 400, lambda it: it.__setitem__(-1, 3.0)),
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
        "fraction": held(lambda it: float(it[0]), lambda: [Fraction(1)], lambda it: it.__setitem__(0, Fraction(3))),
        "list_that_contains_itself": held(lambda it: it[0], lambda: _itself(), lambda it: it.__setitem__(0, 3.0)),
        "iterator_of_a_list": held(next, lambda: itertools.chain([1.0] * LATE, itertools.repeat(3.0))),
        "cycle": held(next, lambda: itertools.cycle([1.0, 1.0, 1.0, 3.0])),
        "count_in_a_list": held(lambda it: 1.0 / (1 + next(it[0])), lambda: [itertools.count()]),
        "generator_of_python": held(next, lambda: (1.0 / (1 + k) for k in itertools.count())),
        "generator_that_is_sent": held(lambda it: it.send(None), lambda: _yields()),
        "popped": held(lambda it: it.pop(), lambda: [3.0] * 40 + [1.0] * LATE),
        "file_in_memory": held(lambda it: 1.0 + len(it.read(1)), lambda: io.StringIO("a" * LATE)),
        "function_with_an_attribute": held(lambda it: it.factor, lambda: _with(lambda: 1.0), _set("factor")),
        "keywords_of_a_partial": held(
            lambda it: it(), lambda: functools.partial(_given, factor=1.0), lambda it: it.keywords.update(factor=3.0)
        ),
        "state_of_a_partial": held(
            lambda it: it(),
            lambda: functools.partial(_given, factor=1.0),
            lambda it: it.__setstate__((_given, (), {"factor": 3.0}, {})),
        ),
        "attribute_getter": held(
            lambda it: it[0](it[1]), lambda: (operator.attrgetter("alpha"), Config()), lambda it: _set("alpha")(it[1])
        ),
        "bound_method": held(lambda it: it(), lambda: _Owner().value, lambda it: _set("factor")(it.__self__)),
        "method_of_a_container": held(
            lambda it: it(0), lambda: [1.0].__getitem__, lambda it: it.__self__.__setitem__(0, 3.0)
        ),
        "callable_object": held(lambda it: it(), lambda: _Owner(), _set("factor")),
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


def _itself() -> list[Any]:
    made: list[Any] = [1.0]
    made.append(made)
    return made


def _yields() -> Iterator[float]:
    for k in itertools.count():
        yield 1.0 if k < LATE else 3.0


@add
def value_of_an_enum() -> Cheat:
    return patched(scaled(lambda self: self.mode.value, mode=Mode.FIRST), Mode.FIRST, "_value_", 3.0)


@add
def attribute_of_an_enum() -> Cheat:
    patch = pytest.MonkeyPatch()
    patch.setattr(Mode.FIRST, "factor", 1.0, raising=False)
    model = scaled(lambda self: self.mode.factor, mode=Mode.FIRST)
    return Cheat(model, change=lambda: patch.setattr(Mode.FIRST, "factor", 3.0), undo=patch.undo)


@add
def attribute_of_an_integer_of_an_enum() -> Cheat:
    patch = pytest.MonkeyPatch()
    patch.setattr(Scale.FIRST, "factor", 1.0, raising=False)
    model = scaled(lambda self: Scale.FIRST.factor)
    return Cheat(model, change=lambda: patch.setattr(Scale.FIRST, "factor", 3.0), undo=patch.undo)


@add
def float_with_a_product_of_its_own() -> Cheat:
    return patched(scaled(lambda self: self.factor * 1.0, factor=Float(1.0)), sys.modules[__name__], "FACTOR", 3.0)


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
def global_number_in_a_nested_function() -> Cheat:
    def scale(self: Any) -> Any:
        def inner() -> Any:
            return (lambda: FACTOR)()

        return inner()

    return patched(scaled(scale), sys.modules[__name__], "FACTOR", 3.0)


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
def environment_by_a_function() -> Cheat:
    patch = pytest.MonkeyPatch()
    model = scaled(lambda self: float(os.getenv("FACTOR_OF_A_USER", "1")))
    return Cheat(model, change=lambda: patch.setenv("FACTOR_OF_A_USER", "3"), undo=patch.undo)


@add
def limit_of_recursion() -> Cheat:
    before = sys.getrecursionlimit()
    return Cheat(
        scaled(lambda self: float(sys.getrecursionlimit() - before + 1)),
        change=lambda: sys.setrecursionlimit(before + 2),
        undo=lambda: sys.setrecursionlimit(before),
    )


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
def slot_of_the_model() -> Cheat:
    class Slots(Net):
        __slots__ = ("factor",)

        def scale(self) -> Any:
            return self.factor

    model = Slots()
    model.factor = 1.0
    return Cheat(model, change=lambda: setattr(model, "factor", 3.0))


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
def getattribute_added_late() -> Cheat:
    def get(self: Any, name: str) -> Any:
        return 3.0 if name == "factor" else object.__getattribute__(self, name)

    model = scaled(lambda self: self.factor, factor=1.0)
    return Cheat(model, change=lambda: setattr(type(model), "__getattribute__", get))


@add
def getattr_added_late() -> Cheat:
    class Leaf(Net):
        def scale(self) -> Any:
            return self.enter.bias.mean() + 1

    def get(self: Any, name: str) -> Any:
        return Net.__getattr__(
            self, "leave" if name == "enter" and sys._getframe(1).f_code.co_name == "scale" else name
        )

    return Cheat(Leaf(), change=lambda: setattr(Leaf, "__getattr__", get))


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
def class_registered_late() -> Cheat:
    class Kind(abc.ABC):  # noqa: B024
        pass

    class Part(torch.nn.Module):
        pass

    model = scaled(lambda self: 3.0 if isinstance(self.part, Kind) else 1.0)
    model.part = Part()
    return Cheat(model, change=lambda: Kind.register(Part))


@add
def instance_by_a_metaclass() -> Cheat:
    class Kind(type):
        factor = 1.0

        def __instancecheck__(cls, instance: Any) -> bool:
            return cls.factor > 1

    class Made(metaclass=Kind):
        pass

    return Cheat(
        scaled(lambda self: 3.0 if isinstance(self, Made) else 1.0), change=lambda: setattr(Kind, "factor", 3.0)
    )


@add
def name_of_the_class() -> Cheat:
    model = scaled(lambda self: 3.0 if type(self).__name__ == "Other" else 1.0)
    return Cheat(model, change=lambda: setattr(type(model), "__name__", "Other"))


@add
def text_of_the_class() -> Cheat:
    model = scaled(lambda self: 3.0 if self.__doc__ == "other" else 1.0)
    return Cheat(model, change=lambda: setattr(type(model), "__doc__", "other"))


@add
def name_of_a_function() -> Cheat:
    model = scaled(lambda self: 3.0 if read_factor.__name__ == "other" else 1.0)
    return patched(model, read_factor, "__name__", "other")


@add
def annotations_of_the_class() -> Cheat:
    model = scaled(lambda self: 1.0 + 2 * len(self.__annotations__))
    type(model).__annotations__ = {}
    return Cheat(model, change=lambda: type(model).__annotations__.update(factor=float))


@add
def one_of_two_bases_replaced() -> Cheat:
    class Mixin:
        pass

    class Leaf(Mixin, Net):
        pass

    return Cheat(Leaf(), change=lambda: setattr(Mixin, "scale", lambda self: 3.0))


@add
def partial_method() -> Cheat:
    def of(self: Any, factors: list[float]) -> float:
        return factors[0]

    factors, model = [1.0], scaled(lambda self: self.part())
    type(model).of, type(model).part = of, functools.partialmethod(of, factors)
    return Cheat(model, change=lambda: factors.__setitem__(0, 3.0))


@add
def default_that_is_a_function() -> Cheat:
    def scale(self: Any, read: Any = read_factor) -> Any:
        return read()

    return patched(scaled(scale), sys.modules[__name__], "FACTOR", 3.0)


@add
def computed_by_a_thread() -> Cheat:
    """Operations of another thread, of which that of the training sees the result."""

    class Threads(Net):
        def forward(self, x: Tensor) -> Tensor:
            made: list[Tensor] = []
            thread = threading.Thread(target=lambda: made.append(torch.relu(self.enter(x))))
            thread.start()
            thread.join()
            return self.leave(made[0])

    return Cheat(Threads())


@add
def constant_computed_by_a_thread() -> Cheat:
    def scale(self: Any) -> Any:
        made: list[float] = []
        thread = threading.Thread(target=lambda: made.append(FACTOR))
        thread.start()
        thread.join()
        return made[0]

    return patched(scaled(scale), sys.modules[__name__], "FACTOR", 3.0)


# --- by name ------------------------------------------------------------------------------------------------


@add
def getattr_of_a_parameter() -> Cheat:
    model = scaled(lambda self: getattr(self.enter.weight, "factor", 1.0))
    return Cheat(model, change=lambda: setattr(model.enter.weight, "factor", 3.0))


@add
def hasattr_of_a_parameter() -> Cheat:
    model = scaled(lambda self: 3.0 if hasattr(self.enter.weight, "factor") else 1.0)
    return Cheat(model, change=lambda: setattr(model.enter.weight, "factor", 1))


@add
def hasattr_of_the_model() -> Cheat:
    model = scaled(lambda self: 3.0 if hasattr(self, "factor") else 1.0)
    return Cheat(model, change=lambda: setattr(model, "factor", 1))


@add
def hasattr_of_the_class() -> Cheat:
    model = scaled(lambda self: 3.0 if hasattr(self, "factor") else 1.0)
    return Cheat(model, change=lambda: setattr(type(model), "factor", 1))


@add
def attribute_that_is_not_there_yet() -> Cheat:
    def scale(self: Any) -> Any:
        try:
            return self.factor
        except AttributeError:
            return 1.0

    model = scaled(scale)
    return Cheat(model, change=lambda: setattr(type(model), "factor", 3.0))


@add
def attribute_of_a_parameter_that_is_not_there_yet() -> Cheat:
    def scale(self: Any) -> Any:
        try:
            return self.enter.weight.factor
        except AttributeError:
            return 1.0

    model = scaled(scale)
    return Cheat(model, change=lambda: setattr(model.enter.weight, "factor", 3.0))


@add
def keys_of_a_parameter() -> Cheat:
    model = scaled(lambda self: 1.0 + len(self.enter.weight.__dict__))
    return Cheat(model, change=lambda: setattr(model.enter.weight, "anything", 1))


@add
def attribute_of_a_buffer() -> Cheat:
    model = scaled(lambda self: self.seen.factor)
    model.register_buffer("seen", _with(torch.ones(3)))
    return Cheat(model, change=lambda: setattr(model.seen, "factor", 3.0))


@add
def dictionary_of_the_model() -> Cheat:
    model = scaled(lambda self: self.__dict__.get("factor", 1.0))
    return Cheat(model, change=lambda: setattr(model, "factor", 3.0))


@add
def vars_of_the_class() -> Cheat:
    model = scaled(lambda self: vars(type(self)).get("factor", 1.0))
    return Cheat(model, change=lambda: setattr(type(model), "factor", 3.0))


@add
def globals_by_name() -> Cheat:
    return patched(scaled(lambda self: globals()["FACTOR"]), sys.modules[__name__], "FACTOR", 3.0)


@add
def module_by_name() -> Cheat:
    return patched(scaled(lambda self: sys.modules[__name__].FACTOR), sys.modules[__name__], "FACTOR", 3.0)


@add
def frame_of_the_caller() -> Cheat:
    model = scaled(lambda self: sys._getframe(0).f_globals["FACTOR"])
    return patched(model, sys.modules[__name__], "FACTOR", 3.0)


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
def attribute_of_a_function() -> Cheat:
    def scale(self: Any) -> Any:
        return read_factor.factor  # type: ignore[attr-defined]

    patch = pytest.MonkeyPatch()
    patch.setattr(read_factor, "factor", 1.0, raising=False)
    return Cheat(scaled(scale), change=lambda: patch.setattr(read_factor, "factor", 3.0), undo=patch.undo)


@add
def attribute_of_a_method() -> Cheat:
    model = scaled(lambda self: self.scale.factor)
    type(model).scale.factor = 1.0
    return Cheat(model, change=lambda: setattr(type(model).scale, "factor", 3.0))


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
def dispatched_by_type() -> Cheat:
    @functools.singledispatch
    def factor(value: Any) -> float:
        return 1.0

    return Cheat(scaled(lambda self: factor(1)), change=lambda: factor.register(int, lambda value: 3.0))


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
def context_of_a_class() -> Cheat:
    class Entered:
        factor = 1.0

        def __enter__(self) -> float:
            return self.factor

        def __exit__(self, *error: object) -> None: ...

    entered = Entered()

    def scale(self: Any) -> float:
        with entered as factor:
            return factor

    return Cheat(scaled(scale), change=lambda: setattr(entered, "factor", 3.0))


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
def error_of_a_class() -> Cheat:
    class OwnError(Exception):
        factor = 1.0

    def scale(self: Any) -> Any:
        try:
            raise OwnError
        except OwnError as caught:
            return caught.factor

    return Cheat(scaled(scale), change=lambda: setattr(OwnError, "factor", 3.0))


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
def formatted() -> Cheat:
    class Shown:
        text = "1"

        def __str__(self) -> str:
            return self.text

    shown = Shown()
    return Cheat(scaled(lambda self: float(f"{self.shown}"), shown=shown), change=lambda: setattr(shown, "text", "3"))


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


@add
def mode_of_a_module_that_is_not_registered() -> Cheat:
    hidden = torch.nn.Dropout(0.5)
    model = scaled(lambda self: self.hidden[0](torch.ones(3)), hidden=[hidden])
    return Cheat(model, change=hidden.eval)


@add
def random_numbers_of_torch_by_a_number() -> Cheat:
    return Cheat(scaled(lambda self: torch.rand(()).item()))


@add
def number_of_the_call() -> Cheat:
    class Counts(Net):
        calls: ClassVar[int] = 0

        def __init__(self) -> None:
            super().__init__()
            type(self).calls = 0

        def scale(self) -> Any:
            Counts.calls += 1
            return 1.0 if Counts.calls < LATE else 3.0

    return Cheat(Counts())


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
def attribute_named_in_a_text() -> Cheat:
    model = scaled(lambda self: float("{0.factor}".format(self)), factor=1.0)  # noqa: UP030, UP032
    return Cheat(model, change=lambda: setattr(model, "factor", 3.0))


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
