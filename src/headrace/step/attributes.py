"""State that is no part of a model's `state_dict`: plain attributes of modules, and modules that a loss holds.

A `forward` may count its calls, lower a temperature, or keep a hidden state; a loss may be a module with a moving
center, or hold a teacher that follows the model.
"""

import random
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..arena.sharding import local
from ..arena.vectors import plain_name
from ..loss.objective import Objective, Supervised, losses_of
from ..store.codec import is_stored

_PLAIN = (bool, int, float, str, type(None))
_OF_MODULES = frozenset(vars(nn.Module()))
_OF_OBJECTIVES = frozenset({"call", "loss", "_bound"})
_OF_PARTS = ("_parameters", "_buffers")
MOST_ITEMS = 10_000
"""The items of a container whose items are looked at."""
Place = tuple[str, str]
"""Where an attribute is: the name of what has it, and its own."""
State = dict[str, dict[str, Any]]


class Attributes:
    """Finds what has changed since it was made, and puts that into the same objects of another process.

    Values are numbers, strings, tensors, arrays, random generators, and lists, tuples and dicts of these. What is part
    of a graph is left out, since a pass makes it anew; so is what shares memory with a parameter or a buffer.
    """

    def __init__(self, modules: Sequence[nn.Module], objectives: Iterable[Objective], device: torch.device) -> None:
        self._modules, self._objectives, self._device = modules, list(objectives), device
        self._first = {place: (value, mark) for place, value, mark in self._each()}
        self._loaded: set[Place] = set()

    def state_dict(self) -> State:
        """What has changed; whether a value is the same object as at first goes with it."""
        found: State = {}
        for place, value, mark in self._each():
            first, before = self._first.get(place, (None, ()))
            if mark != before or place in self._loaded:
                saved = {"same": value is first, "away": any(map(_is_away, tree_leaves(value))), "value": _saved(value)}
                found.setdefault(place[0], {})[place[1]] = saved
        return found

    def load_state_dict(self, state: State) -> None:
        """Goes back to a state."""
        known = self._known()
        for owner, attributes in self._owners():
            for name, saved in state.get(owner, {}).items():
                now = attributes.get(name)
                if not _is_left_out(name, attributes) and (name not in attributes or _mark(now, known)):
                    value = tree_map(_to(self._device), saved["value"]) if saved["away"] else saved["value"]
                    attributes[name] = _restored(value, now, saved["same"])
                    self._loaded.add((owner, name))

    def _each(self) -> Iterator[tuple[Place, Any, Any]]:
        known = self._known()
        for owner, attributes in self._owners():
            for name, value in attributes.items():
                if not _is_left_out(name, attributes) and (mark := _mark(value, known)):
                    yield (owner, name), value, mark

    def _known(self) -> set[int]:
        """The memory of the parameters and buffers that are saved as such."""
        tensors = (each for module in self._modules for each in (*module.parameters(), *module.buffers()))
        return {_memory(each) for each in tensors if each.layout == torch.strided} - {0}

    def _owners(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The dicts that hold attributes, by name."""
        known = {part for module in self._modules for part in module.modules()}
        for number, module in enumerate(self._modules):
            for name, part in module.named_modules():
                yield f"{number} {plain_name(name)}", vars(part)
        for number, held in enumerate(_held_by(self._objectives)):
            if not isinstance(held, nn.Module):
                yield f"loss {number}", vars(held)
                continue
            for name, part in held.named_modules():
                if part not in known:
                    yield f"loss {number} {name}", vars(part)
                    yield from ((f"loss {number} {name} {of}", vars(part)[of]) for of in _OF_PARTS)


def _held_by(objectives: Iterable[Objective]) -> Iterator[Any]:
    """Objectives of the user's, and modules that they or functions of a loss hold."""
    for objective in objectives:
        for loss in losses_of(objective):
            function = getattr(loss, "fn", None)
            held = getattr(function, "__self__", function)
            if isinstance(held, nn.Module):
                yield held
        if not isinstance(objective, Supervised | nn.Module):
            yield objective
            yield from (value for value in vars(objective).values() if isinstance(value, nn.Module))


def _is_left_out(name: str, attributes: Mapping[str, Any]) -> bool:
    """Whether this is torch's or the library's, or a weight that is made of parameters in each pass."""
    if name in _OF_MODULES or name in _OF_OBJECTIVES or name.startswith("_headrace"):
        return True
    params = attributes.get("_parameters")
    return isinstance(params, Mapping) and any(f"{name}_{of}" in params for of in ("orig", "v", "g"))


def _mark(value: Any, known: Container[int]) -> Any:
    """Something that differs once a value has changed; nothing for a value that is not looked at.

    `known`: the memory of tensors that are saved otherwise.
    """
    kind = type(value)
    if kind in _PLAIN or isinstance(value, np.generic):
        return kind, repr(value)
    if isinstance(value, Tensor):
        return _mark_of_tensor(value, known)
    if kind is np.ndarray and value.dtype.kind in "biufc":
        return kind, value.shape, value.tobytes()
    if isinstance(value, torch.Generator):
        return kind, value.get_state().numpy().tobytes()
    if isinstance(value, np.random.Generator):
        return kind, repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return kind, repr([part.tobytes() if isinstance(part, np.ndarray) else part for part in value.get_state()])
    if kind is random.Random:
        return kind, value.getstate()
    if kind not in (list, tuple, dict) or len(value) > MOST_ITEMS:
        return ()
    items = [each for pair in value.items() for each in pair] if kind is dict else value
    marks = [_mark(item, known) for item in items]
    return (kind, tuple(marks)) if all(marks) else ()


def _mark_of_tensor(tensor: Tensor, known: Container[int]) -> Any:
    """By its object and its version, and by a sum: what is written through `.data` has no version."""
    is_parameter = isinstance(tensor, nn.Parameter)
    if not is_parameter and (type(tensor) is not Tensor or tensor.requires_grad):
        return ()
    if tensor.layout != torch.strided or tensor.device.type == "meta" or not is_stored(tensor.dtype):
        return ()
    if _memory(tensor) in known:
        return ()
    plain = tensor.detach()
    total = plain.double().sum() if plain.is_floating_point() else plain.count_nonzero()
    return id(tensor), 0 if tensor.is_inference() else tensor._version, tensor.data_ptr(), repr(total.item())


def _memory(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; 0 if it has none of its own, as one that stands for others has not."""
    try:
        return local(tensor.detach()).untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def _is_away(leaf: Any) -> bool:
    """Whether it is a tensor on a device."""
    return isinstance(leaf, Tensor) and leaf.device.type != "cpu"


def _to(device: torch.device) -> Callable[[Any], Any]:
    return lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf


def _saved(value: Any) -> Any:
    """A value as a checkpoint stores it."""
    if isinstance(value, torch.Generator):
        return {"torch": value.get_state()}
    if isinstance(value, np.random.Generator):
        return {"numpy": value.bit_generator.state}
    if isinstance(value, np.random.RandomState):
        return {"legacy": value.get_state(legacy=False)}
    if isinstance(value, random.Random):
        return {"python": value.getstate()}
    return {"plain": np.asarray(value) if isinstance(value, np.generic) else value}


def _restored(saved: Mapping[str, Any], now: Any, same: bool) -> Any:
    """A value that was saved; `same`: in the object that is there, which others may share."""
    [(kind, value)] = saved.items()
    if kind != "plain":
        return _moved(now, kind, value)
    if isinstance(value, np.ndarray) and not value.ndim:
        return value[()]
    is_like = isinstance(now, type(value)) and getattr(now, "shape", None) == getattr(value, "shape", None)
    if isinstance(now, nn.Parameter) and is_like:
        now.data.copy_(value)
    elif not same or not is_like:
        return value
    elif isinstance(now, Tensor):
        now.copy_(value)
    elif isinstance(now, np.ndarray):
        now[...] = value
    elif isinstance(now, list):
        now[:] = value
    elif isinstance(now, dict):
        now.clear()
        now.update(value)
    else:
        return value
    return now


def _moved(now: Any, kind: str, state: Any) -> Any:
    """A random generator at a state; one that is not there yet is made."""
    if kind == "torch":
        moved = now if isinstance(now, torch.Generator) else torch.Generator()
        moved.set_state(state)
        return moved
    if kind == "python":
        drawn = now if isinstance(now, random.Random) else random.Random()
        drawn.setstate(state)
        return drawn
    if kind == "legacy":
        old = now if isinstance(now, np.random.RandomState) else np.random.RandomState()
        old.set_state(state)
        return old
    kinds = {kind.__name__: kind for kind in np.random.BitGenerator.__subclasses__()}
    generator = now if isinstance(now, np.random.Generator) else np.random.Generator(kinds[state["bit_generator"]]())
    generator.bit_generator.state = state
    return generator
