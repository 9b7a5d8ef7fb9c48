"""What Python may read in a pass: described so that a change is noticed before the next replay."""

import functools
import sys
import types
from collections.abc import Callable, Container, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ...loss.base import Loss
from ...loss.objective import Objective

_OF_A_PASS = {"_columns", "_seen", "_bound", "call", "loss", "_data_terms", "_main"}
"""What our objectives and terms remember that decides nothing, or is looked into by itself."""
DEPTH, LENGTH = 6, 256
_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), slice, range, type),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout, Enum),
    *(types.FunctionType, types.BuiltinFunctionType),
)
_OF_MODULES = vars(nn.Module()).keys() - {"training"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


class UnclearError(Exception):
    """Something that may change without being noticed."""


def describe(value: Any, tensors: list[Tensor] | None = None, depth: int = DEPTH) -> Any:
    """What can be compared with a later description of the same; tensors are known by who they are and their version.

    They are added to `tensors`. Raises `UnclearError` on anything that cannot be looked into.
    """
    if isinstance(value, Tensor):
        if tensors is not None:
            tensors.append(value)
        return id(value), value._version, value.requires_grad
    if isinstance(value, _PLAIN):
        return value
    if depth == 0 or isinstance(value, nn.Module):
        raise UnclearError(type(value).__name__)
    if type(value) in (tuple, list, torch.Size, set, frozenset) and len(value) <= LENGTH:
        if isinstance(value, set | frozenset):
            return frozenset(describe(each, tensors, depth - 1) for each in value)
        return len(value), tuple(describe(each, tensors, depth - 1) for each in value)
    if isinstance(value, Mapping) and hasattr(value, "items") and type(value).__module__ in ("builtins", "collections"):
        if len(value) <= LENGTH:
            return tuple((describe(k, tensors, depth - 1), describe(v, tensors, depth - 1)) for k, v in value.items())
    elif isinstance(value, types.MethodType):
        return value.__func__, describe(value.__self__, tensors, depth - 1)
    elif isinstance(value, functools.partial) and isinstance(value.func, types.FunctionType | types.MethodType):
        return describe((value.func, value.args, value.keywords), tensors, depth - 1)
    elif _is_record(value):
        own = {name: each for kind in reversed(type(value).__mro__[:-1]) for name, each in data_of(kind)}
        return id(value), describe({**own, **vars(value)}, tensors, depth - 1)
    raise UnclearError(type(value).__name__)


def _is_record(value: Any) -> bool:
    """Whether it holds attributes and nothing else, as an object with settings does."""
    home = type(value).__module__.partition(".")[0]
    ours = home not in sys.stdlib_module_names or home in ("__main__", "types", "argparse")
    known = not callable(value) or isinstance(type(value).__call__, types.FunctionType)
    return ours and known and hasattr(value, "__dict__")


def data_of(kind: type) -> Iterator[tuple[str, Any]]:
    """What a class holds, but for what Python puts there and for properties."""
    for name, value in vars(kind).items():
        if not name.startswith("__") and (callable(value) or not hasattr(value, "__get__")):
            yield name, value.__func__ if isinstance(value, staticmethod) else value


@lru_cache(64)
def compiled(code: str, mode: str) -> types.CodeType:
    """Code of a model's, which is that of another model like it, too."""
    return compile(code, "<tape>", mode)


class PassState:
    """The state of a model and of its objective that a pass may depend on, as it is now.

    `tensors` are those that it holds beside parameters and buffers. `unclear` says which attributes, by name, hold
    something that cannot be looked into.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        self.tensors: list[Tensor] = []
        self.unclear: dict[str, str] = {}
        self._space: dict[str, Any] = {}
        self._called: dict[int, str] = {}
        self._checks: dict[str, None] = {}  # expressions that are true as long as nothing has changed
        self._deep: list[tuple[Callable[[], Any], Any]] = []
        self._hooks: list[Any] = []
        self._known: set[Any] = set()
        self._same: Callable[[], bool] | None = None
        holders = list(_objects(objective))
        found = [module for root in [model, *holders] if isinstance(root, nn.Module) for module in root.modules()]
        self.modules = list(dict.fromkeys(found))
        self._known.update(map(id, self.modules))
        self._is(torch.get_default_dtype, "()", torch.get_default_dtype())
        for module in self.modules:
            self._hooks += [vars(module)[name] for name in _HOOKS]
            self._holds(module._modules)
            self._holds(module._parameters)
            self._holds(module._buffers)
            self._is(module, ".__class__", type(module))
            self._attributes(module, _OF_MODULES)
            for param in module._parameters.values():
                if param is not None:
                    self._watch(param)
                    self._stays(param)
                    for name, value in vars(param).items():
                        self._look_into(name, vars(param), value)
            for buffer in module._buffers.values():
                if buffer is not None:
                    self._stays(buffer)
        for holder in holders:
            if not isinstance(holder, nn.Module):
                self._attributes(holder, _OF_A_PASS)

    def add(self, read: Callable[[], Any]) -> None:
        """Something else that Python reads: a global variable, say."""
        self._deep.append((read, describe(read(), self.tensors)))

    def keeps(self, held: Mapping[str, Any], key: str) -> None:
        """What has a name goes on having it."""
        self._is(held, f"[{key!r}]", held[key])
        self._same = None

    def holds(self) -> bool:
        """Whether it is as it was."""
        if any(self._hooks) or _has_any_global_hook() or torch.is_anomaly_enabled() or not _plain_torch():
            return False
        if self._same is None:
            code = f"lambda: {' and '.join(self._checks) or True}"
            self._same = eval(compiled(code, "eval"), self._space)  # of names that are made here
        try:
            if not self._same():
                return False
            for read, seen in self._deep:
                if describe(read()) != seen:
                    return False
        except (KeyError, AttributeError, UnclearError, RuntimeError):
            return False
        return True

    def _name(self, value: Any) -> str:
        """What a value is called in the checks."""
        name = self._called.setdefault(id(value), f"a{len(self._called)}")
        self._space[name] = value
        return name

    def _is(self, held: Any, part: str, value: Any) -> None:
        """A part of an object stays the same one."""
        self._checks[f"{self._name(held)}{part} is {self._name(value)}"] = None

    def _holds(self, held: Mapping[str, Any]) -> None:
        """A dictionary of objects, which stay the same ones."""
        if held:
            self._checks[f"len({self._name(held)}) == {len(held)}"] = None
            for key, value in held.items():
                self._is(held, f"[{key!r}]", value)

    def _stays(self, tensor: Tensor) -> None:
        """A tensor stays in its place in memory."""
        self._checks[f"{self._name(tensor)}.data_ptr() == {self._name(tensor.data_ptr())}"] = None

    def _watch(self, param: nn.Parameter) -> None:
        """A parameter stays trained or frozen, and nobody listens to its gradient."""
        name = self._name(param)
        self._checks[f"{name}.requires_grad is {param.requires_grad}"] = None
        self._checks[f"{name}._backward_hooks is {name}._post_accumulate_grad_hooks is None"] = None

    def _attributes(self, holder: Any, apart: Container[str]) -> None:
        """What an object has in itself, and what its class holds that is no method."""
        space = vars(holder)
        self._checks[f"len({self._name(space)}) == {len(space)}"] = None
        for name, value in space.items():
            if name in apart or (name[0] == "_" and type(holder).__module__.startswith("torch.nn")):
                continue
            if isinstance(holder, Loss) and name[0] == "_":
                describe(value, self.tensors)  # copies of what has been set, which is looked at
            elif not isinstance(value, Loss | Objective | nn.Module):
                self._look_into(name, space, value)
        for kind in type(holder).__mro__:
            home = (kind.__module__ or "").partition(".")[0]
            if home not in ("torch", "headrace", "builtins", "abc") and kind not in self._known:
                self._known.add(kind)
                for name, value in data_of(kind):
                    self._look_into(name, vars(kind), value)

    def _look_into(self, name: str, space: Mapping[str, Any], value: Any) -> None:
        """An attribute stays the object that it is; one that can change is looked into, once."""
        ours = isinstance(value, types.MethodType) and id(value.__self__) in self._known
        if not ours and not is_plain(value) and id(value) not in self._known:
            self._known.add(id(value))
            try:
                self._deep.append((lambda: value, describe(value, self.tensors)))
            except UnclearError as kind:
                self.unclear.setdefault(name, str(kind))
                return
        self.keeps(space, name)


def _objects(holder: Any) -> Iterator[Any]:
    """An objective, the objectives and terms that it holds, and modules among what they hold."""
    yield holder
    for value in vars(holder).values():
        for each in value.values() if isinstance(value, dict) else [value]:
            if isinstance(each, Loss | Objective):
                yield from _objects(each)
            elif isinstance(each, nn.Module):
                yield each


def is_plain(value: Any) -> bool:
    """Whether it is what it is for ever."""
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | frozenset) and all(map(is_plain, value)))


def _plain_torch() -> bool:
    """Whether nobody listens to torch's operations or changes what they do."""
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._is_any_autocast_enabled()
    )
