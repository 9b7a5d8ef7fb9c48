"""What a recorded pass depends on besides its batch. It is compared before an update is prepared."""

import collections
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.modules.module import _has_any_global_hook

from ...loss.base import Loss
from ...loss.objective import Objective
from . import allowed
from .allowed import functions_in, plain_torch, settings, where

_OF_A_PASS = {"_columns", "_seen", "_bound", "call", "loss", "_data_terms", "_main"}
"""Attributes of our objectives and terms that do not affect a pass, or that are compared separately."""
_LENGTH = 256
_PARTS: dict[type, tuple[str, ...]] = {
    functools.partial: ("func", "args", "keywords"),
    slice: ("start", "stop", "step"),
}
_BUILTIN = types.BuiltinFunctionType | types.MethodDescriptorType
_OF_MODULES = vars(nn.Module()).keys() - {"training"}
_TABLES = ("_modules", "_parameters", "_buffers")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
_ALWAYS = ("__call__", "__getattr__", "__getattribute__", "forward", "training")
"""Attributes of modules that every pass reads."""


class UnclearError(Exception):
    """Something that is not on the short list of what a recorded pass may read."""


@lru_cache(64)
def compiled(code: str, mode: str) -> types.CodeType:
    """The compiled form of code; models that are alike share it."""
    return compile(code, "<tape>", mode)


class PassState:
    """What Python reads in the passes of a model and its objective, with its present values.

    It begins with what every pass depends on: which modules, parameters and buffers there are, and the settings of
    torch. A `Proof` adds what the code of a pass reads. `tensors` are those besides parameters and buffers. `trained`:
    whether there is a backward pass.
    """

    def __init__(self, model: nn.Module, objective: Objective, trained: bool) -> None:
        self.tensors: list[Tensor] = []
        self._space: dict[str, Any] = {}
        self._called: dict[int, str] = {}
        self._checks: dict[str, None] = {}  # expressions that are true as long as nothing has changed
        self._same: Callable[[], bool] | None = None
        self.functions: set[types.FunctionType] = set()
        """Functions that a pass may call."""
        self.names: set[str] = set()
        """Names of the attributes that the user's code reads."""
        holders = list(_objects(objective))
        found = [module for root in [model, *holders] if isinstance(root, nn.Module) for module in root.modules()]
        self.modules = list(dict.fromkeys(found))
        self.holders: list[Any] = [*self.modules, *(each for each in holders if not isinstance(each, nn.Module))]
        self._hooks = [vars(module)[name] for module in self.modules for name in _HOOKS]
        self._known = set(map(id, self.holders))
        self.kinds = list(dict.fromkeys(kind for each in self.holders for kind in _kinds_of(type(each))))
        """The classes of modules and terms, the classes of these classes, and others that a pass may ask for."""
        self._settings = settings()
        params = {param for root in self.modules for param in root._parameters.values() if param is not None}
        self._nodes = [get_gradient_edge(param).node for param in params if trained and param.requires_grad]
        """The nodes that add up gradients: a node that nobody has is freed, and its hooks with it."""
        for node in self._nodes:
            for register in (node.register_hook, node.register_prehook):
                handle: Any = register(lambda *_: None)
                self._hooks.append(handle.hooks_dict_ref())  # in which torch keeps all of them from now on
                handle.remove()
        self._of_tensors: set[str] = set()  # names of attributes of parameters and buffers
        self._keep_model()
        self.problem = ""
        """What is not on the list, if every pass may read it."""
        try:
            self._look_at_terms()
        except UnclearError as kind:
            self.problem = f"a module or a term holds something that may change unnoticed: {kind}"

    def is_plain(self) -> bool:
        """Whether no hook and no mode of torch changes what operations do."""
        return not (any(self._hooks) or _has_any_global_hook()) and plain_torch()

    def holds(self) -> bool:
        """Whether it is as it was."""
        if not self.is_plain() or settings() != self._settings:
            return False
        if self._same is None:
            code = f"lambda: {' and '.join(self._checks) or True}"
            self._same = eval(compiled(code, "eval"), self._space)  # of names that are made here
        try:
            return self._same()
        except (KeyError, IndexError, AttributeError, RuntimeError, ValueError):
            return False

    def others(self, params: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that are not among these parameters of the model."""
        known = set(map(id, params))
        return [tensor for tensor in self.memory() if id(tensor) not in known]

    def memory(self) -> list[Tensor]:
        """All tensors: parameters, buffers, and those that are held beside."""
        tables = [vars(module)[name] for module in self.modules for name in ("_parameters", "_buffers")]
        found = [tensor for table in tables for tensor in table.values() if tensor is not None]
        return [*found, *self.tensors]

    def keeps_gradient(self, param: Tensor) -> None:
        """A parameter keeps the tensor of its gradient, to which a pass adds."""
        self._is(param, ".grad", param.grad)

    # --- what a pass reads --------------------------------------------------------------------------------

    def attribute(self, name: str) -> None:
        """Adds an attribute that the user's code reads; which object it belongs to is not known.

        Raises unless everything that has such an attribute is on the list, and something has.
        """
        self.names.add(name)
        if name == "__name__":
            named: list[type | types.FunctionType] = [*self.kinds, Tensor, *self.functions]
            for each in named:
                self._checks[f"{self._name(each)}.__name__ == {each.__name__!r}"] = None
        elif name.startswith("__") or not (self._attribute(name) or name in allowed.attributes()):
            raise UnclearError(f"the attribute {name!r} of something that is not on the list")
        if name in allowed.CHANGING and any(not _is_ours(each) for each in self.holders[len(self.modules) :]):
            raise UnclearError(f"the attribute {name!r}, perhaps of a batch")
        if name in self._of_tensors:
            raise UnclearError(f"the attribute {name!r} of a tensor")

    def attribute_of_torch(self, name: str) -> None:
        """Adds an attribute that torch's code reads: what the modules have by this name is compared."""
        for module in self.modules:
            if name in vars(module) and name not in _OF_MODULES:
                with suppress(UnclearError) if name.startswith("_") else nullcontext():
                    self.value(vars(module), name)
        for kind in self.kinds:
            if isinstance(kind.__dict__.get(name), types.FunctionType):
                self.of_class(kind, name)

    def _attribute(self, name: str) -> bool:
        """Whether a module, a term or one of their classes has such an attribute; it is compared from now on."""
        known = False
        for holder in self.holders:
            space, is_module = vars(holder), isinstance(holder, nn.Module)
            if name in space and not (is_module and name in _OF_MODULES):
                if is_module or name not in _OF_A_PASS or not (_is_ours(holder) or _is_ours(space[name])):
                    self.value(space, name)
                known = True
            elif is_module:
                known = known or name in _TABLES or any(name in space[table] for table in _TABLES)
        for kind in self.kinds:
            if name in kind.__dict__:
                self.of_class(kind, name)
                known = True
        if name in Tensor.__dict__:
            self.of_class(Tensor, name)
        return known

    def value(self, owner: Mapping[str, Any], key: str) -> None:
        """Adds a variable or an attribute that a pass reads, with its content. Raises unless it is on the list."""
        self.check(owner[key])
        self.keeps(owner, key)

    def lacks(self, owner: Mapping[str, Any], key: str) -> None:
        """Adds that a name is missing: a new global variable would hide a built-in function."""
        self._same = None
        self._checks[f"{key!r} not in {self._name(owner)}"] = None

    def keeps(self, owner: Mapping[str, Any], key: str) -> None:
        """Adds that a name keeps its object."""
        self._is(owner, f"[{key!r}]", owner[key])

    def check(self, value: Any) -> None:
        """Raises unless a value is on the list; what can change in it is compared from now on."""
        kind = type(value)
        if kind in allowed.PLAIN or id(value) in self._known:
            return
        if kind is types.FunctionType:
            self.function(value)
        elif isinstance(value, type):
            self._class(value)
        elif kind is types.MethodType and id(value.__self__) in self._known:
            self.check(value.__func__)
        elif not (isinstance(value, _BUILTIN) and value in allowed.functions()):
            try:
                self._content(value)
            except RecursionError:
                raise UnclearError(f"{kind.__name__} nested deeply") from None
            self._known.add(id(value))

    def _content(self, value: Any) -> None:
        """Adds what a tensor or a container holds. Raises unless all of it is on the list."""
        kind, name, home = type(value), self._name(value), type(value).__module__  # named, it stays alive with its id
        if kind in allowed.TENSORS:
            if vars(value) or value.layout != torch.strided:
                raise UnclearError("a tensor with attributes, or a sparse one")
            self._stays(value)
            self._checks[f"{name}.requires_grad is {value.requires_grad}"] = None
            self.tensors.append(value)
            return
        if kind in _PARTS:
            parts = {f".{part}": getattr(value, part) for part in _PARTS[kind]}
        elif kind in (tuple, list, torch.Size) and len(value) <= _LENGTH:
            parts = {f"[{k}]": part for k, part in enumerate(value)}
            self._checks[f"len({name}) == {len(value)}"] = None
        elif kind in (dict, collections.OrderedDict) and len(value) <= _LENGTH:
            for key in value:
                self.check(key)
            parts = {f"[{self._name(key)}]": part for key, part in value.items()}
            self._checks[f"[*map(id, {name})] == {self._name([*map(id, value)])}"] = None
        else:
            raise UnclearError(kind.__qualname__ if home == "builtins" else f"{home}.{kind.__qualname__}")
        for place, part in parts.items():
            self._is(value, place, part)
            self.check(part)

    def function(self, function: types.FunctionType) -> None:
        """Adds a function that a pass may call; its code is analysed if it runs."""
        home = function.__globals__.get("__name__", "")
        if allowed.is_torch(home) and function not in allowed.functions():
            raise UnclearError(f"function {home}.{function.__name__}")
        if allowed.is_standard(home):
            raise UnclearError(f"function {home}.{function.__name__}")
        self.stays(function)

    def stays(self, function: types.FunctionType) -> None:
        """Adds that a function keeps its code, its closure and its defaults."""
        if function in self.functions:
            return
        self.functions.add(function)
        self._is(function, ".__code__", function.__code__)
        if function.__defaults__ is not None:  # otherwise each call gives all arguments
            self._is(function, ".__defaults__", function.__defaults__)
        if function.__kwdefaults__ is not None:
            self._is(function, ".__kwdefaults__", function.__kwdefaults__)
        if allowed.is_trusted(home := function.__globals__.get("__name__", "")):
            wraps = home == "torch.utils._contextlib"  # as torch.no_grad() does
            for cell in function.__closure__ or () if wraps else ():
                self._is(cell, ".cell_contents", cell.cell_contents)
                if isinstance(cell.cell_contents, types.FunctionType):
                    self.function(cell.cell_contents)
            return
        code, by_name = function.__code__, function.__kwdefaults__ or {}
        given = code.co_varnames[: code.co_argcount][-len(function.__defaults__ or ()) :]
        owner = [*zip(given, function.__defaults__ or (), strict=False), *by_name.items()]
        self._holds(by_name)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            value = getattr(cell, "cell_contents", None)  # an empty cell has no content
            self._is(cell, ".cell_contents", value)
            if name != "__class__":
                owner.append((name, value))
        for name, value in owner:
            try:
                self.check(value)
            except UnclearError as kind:
                raise UnclearError(f"{name!r} of {where(code)}, {kind}") from None

    def _keeps_class(self, kind: type) -> None:
        """A class keeps its bases, and gets no attributes."""
        self._checks[f"len({self._name(kind)}.__dict__) == {len(kind.__dict__)}"] = None
        self._is(kind, ".__mro__", kind.__mro__)

    # --- checks -------------------------------------------------------------------------------------------

    def _keep_model(self) -> None:
        """The modules, parameters and buffers of the model stay, and so do the classes of modules and terms."""
        for module in self.modules:
            for name in _TABLES:
                self._holds(vars(module)[name])
            for name in (*_TABLES, *_HOOKS):
                self.keeps(vars(module), name)
            params = [param for param in module._parameters.values() if param is not None]
            for param in params:
                self._watch(param)
            for tensor in [*params, *(buffer for buffer in module._buffers.values() if buffer is not None)]:
                self._stays(tensor)
        for holder in self.holders:
            self._is(holder, ".__class__", type(holder))
            self._checks[f"{self._name(vars(holder))}.keys() == {self._name(frozenset(vars(holder)))}"] = None
        for kind in [*self.kinds, Tensor]:
            self._keeps_class(kind)

    def _look_at_terms(self) -> None:
        """What objectives and terms hold, and what every pass reads of modules, is on the list and stays."""
        if any(isinstance(module, torch.jit.ScriptModule) for module in self.modules):
            raise UnclearError("a module of TorchScript")
        for holder in self.holders[len(self.modules) :]:
            self._attributes(holder)
        for name in _ALWAYS:
            self._attribute(name)

    def of_class(self, kind: type, name: str) -> None:
        """Adds an attribute of a class. Raises if the class is the user's and the attribute is not on the list."""
        value = kind.__dict__[name]
        self._same = None
        self._checks[f"{self._name(kind)}.__dict__[{name!r}] is {self._name(value)}"] = None
        functions = functions_in(value)
        for function in functions:
            self.stays(function)
        if not functions and not allowed.is_trusted(kind.__module__):
            self.check(value)

    def _class(self, kind: type) -> None:
        """Raises unless a class may be used: one of torch, headrace, Python or the model."""
        home = kind.__module__ or ""
        of_torch = allowed.is_torch(home) and (issubclass(kind, nn.Module) or kind in allowed.functions())
        ours = home.partition(".")[0] == "headrace"
        known = kind in self.kinds or (home == "builtins" and kind.__name__ in allowed.BUILTINS)
        if not (of_torch or ours or known or kind in allowed.PLAIN | allowed.CONTAINERS | allowed.TENSORS):
            raise UnclearError(f"class {kind.__qualname__}")
        for each in kind.__mro__[:-1] if of_torch or ours else ():
            if each not in self.kinds and each not in allowed.TENSORS:
                self._keeps_class(each)
                self.kinds.append(each)

    def _name(self, value: Any) -> str:
        """What a value is called in the checks."""
        name = self._called.setdefault(id(value), f"a{len(self._called)}")
        self._space[name] = value
        return name

    def _is(self, owner: Any, part: str, value: Any) -> None:
        """A part of an object stays the same one."""
        self._same = None
        self._checks[f"{self._name(owner)}{part} is {self._name(value)}"] = None

    def _holds(self, owner: Mapping[str, Any]) -> None:
        """Adds that a dictionary keeps its keys, their order and its objects."""
        self._checks[f"[*{self._name(owner)}] == {[*owner]}" if owner else f"not {self._name(owner)}"] = None
        for key, value in owner.items():
            self._is(owner, f"[{key!r}]", value)

    def _stays(self, tensor: Tensor) -> None:
        """Adds that a tensor keeps its memory, and gets no attributes."""
        name = self._name(tensor)
        self._checks[f"{name}.data_ptr() == {self._name(tensor.data_ptr())}"] = None  # one text for all models alike
        self._checks[f"{name}.stride() == {self._name(tensor.stride())}"] = None
        self._checks[f"{name}.shape == {self._name(tensor.shape)}"] = None
        self._checks[f"len({self._name(vars(tensor))}) == {len(vars(tensor))}"] = None
        self._of_tensors.update(vars(tensor))

    def _watch(self, param: nn.Parameter) -> None:
        """A parameter stays trained or frozen, and nobody listens to its gradient."""
        name = self._name(param)
        self._checks[f"{name}.requires_grad is {param.requires_grad}"] = None
        self._checks[f"not ({name}._backward_hooks or {name}._post_accumulate_grad_hooks)"] = None

    def _attributes(self, holder: Any) -> None:
        """Adds the attributes of an objective or a term: all of one of ours, of others those on the list."""
        ours = _is_ours(holder)
        for name, value in vars(holder).items():
            if name in _OF_A_PASS or isinstance(value, Loss | Objective | nn.Module):
                continue
            try:
                if isinstance(holder, Loss) and name.startswith("_"):
                    self.check(value)  # a copy of a setting, which is compared itself
                else:
                    self.value(vars(holder), name)
            except UnclearError:
                if ours:
                    raise


def _objects(holder: Any) -> Iterator[Any]:
    """An objective, the objectives and terms that it holds, and modules among what they hold."""
    yield holder
    for value in vars(holder).values():
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
            if isinstance(each, Loss | Objective):
                yield from _objects(each)
            elif isinstance(each, nn.Module):
                yield each


def _kinds_of(kind: type) -> Iterator[type]:
    """A class with those that it is made of, and its class, if somebody has made one."""
    yield from kind.__mro__[:-1]
    metaclass: type = type(kind)
    yield from (each for each in metaclass.__mro__[:-1] if each is not type)


def _is_ours(holder: Any) -> bool:
    """Whether this is an object of a class of headrace."""
    return type(holder).__module__.partition(".")[0] == "headrace"
