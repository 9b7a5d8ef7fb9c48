"""State that no `state_dict` has: plain attributes of modules and optimizers, and modules that a loss holds.

A `forward` may count its calls, lower a temperature, or keep a hidden state; a loss may be a module with a moving
center, or hold a teacher that follows the model.
"""

import hashlib
import random
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ..arena.own_optimizers import parts_of
from ..arena.sharding import is_sharded, local
from ..arena.vectors import plain_name
from ..errors import CheckpointError
from ..loss.objective import Objective, Supervised, losses_of
from ..store.codec import INTEGER_BITS, is_stored

_PLAIN = (bool, int, float, str, type(None))
_OF_MODULES = frozenset(vars(nn.Module()))
_OF_OBJECTIVES = frozenset({"call", "loss", "_bound"})
_OF_OPTIMIZERS = frozenset({"state", "param_groups"})
_OF_PARTS = ("_parameters", "_buffers")
_ARRAYS = {np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)} | {
    np.dtype(name) for name in ("bool", "float16", "float32", "float64", "complex64")
}
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
MOST_ITEMS, DEEPEST = 10_000, 8
"""The items of a container, and the containers within each other, that are looked at."""
Place = tuple[str, str]
"""Where an attribute is: the name of what has it, and its own."""
State = dict[str, dict[str, Any]]


class Attributes:
    """Finds what has changed since it was made, or was loaded, and puts that into the same objects of another process.

    Values are numbers, strings, tensors, arrays, random generators, and lists, tuples and dicts of numbers, strings,
    tensors and arrays; of a tensor that a pass has made, its numbers without the graph. An optimizer may also keep
    dicts by its parameters, and other optimizers, with parameters of their own. Other leaves that require a gradient
    are left out, and what shares memory with a parameter or a buffer; so is whatever a checkpoint cannot hold.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        objectives: Iterable[Objective],
        optimizers: Iterable[Optimizer],
        device: torch.device,
    ) -> None:
        self._modules, self._objectives, self._device = modules, list(objectives), device
        parts = [part for optimizer in optimizers for part in parts_of(optimizer)]
        self._optimizers = [part for part in parts if not type(part).__module__.startswith(("torch.", "headrace."))]
        self._inner = [{place: _params_of(each) for place, each in inner_of(o).items()} for o in self._optimizers]
        self._first = {place: (value, mark) for place, value, mark in self._each()}
        self._loaded: set[Place] = set()
        self._has_warned = False

    def state_dict(self) -> State:
        """What has changed; whether a value is the same object as at first goes with it."""
        found: State = {}
        for optimizer in () if self._has_warned else self._optimizers:
            if why := _why_lost(optimizer):
                self._has_warned = True
                warnings.warn(
                    f"{type(optimizer).__name__} keeps something beside its state, which is not saved: the run can be "
                    f"resumed, but not exactly. {why}",
                    stacklevel=2,
                )
        for place, value, mark in self._each():
            first, before = self._first.get(place, (None, ()))
            if mark != before or place in self._loaded:
                away = [*map(_is_away, tree_leaves(value))]
                saved = {"same": value is first, "away": away if any(away) else [], "value": _saved(value)}
                found.setdefault(place[0], {})[place[1]] = saved
        return found

    def load_state_dict(self, state: State) -> None:
        """Goes back to a state."""
        missing = dict.fromkeys(owner for owner in state if owner.startswith("optimizer ") and self._optimizers)
        for owner, attributes, known in self._owners():
            missing.pop(owner, None)
            for name, saved in state.get(owner, {}).items():
                now = attributes.get(name)
                is_saved_otherwise = isinstance(now, Tensor | list | tuple | dict) and not _mark(now, known)
                if not _is_left_out(name, attributes) and not is_saved_otherwise:
                    attributes[name] = _restored(self._moved_away(saved["value"], saved["away"]), now, saved["same"])
                    self._loaded.add((owner, name))
        if missing:
            names = ", ".join(repr(owner.split(" ", 2)[-1]) for owner in missing)
            warnings.warn(
                f"The run goes on, but not exactly: the optimizer has not made {names} yet, and what was saved of it "
                "is lost. Make it together with the optimizer.",
                stacklevel=2,
            )

    def _moved_away(self, value: Any, away: Sequence[bool]) -> Any:
        """A value whose tensors are on the device where they were there when it was saved."""
        if not away:
            return value
        leaves, form = tree_flatten(value)
        return tree_unflatten([x.to(self._device) if there else x for x, there in zip(leaves, away, strict=True)], form)

    def _each(self) -> Iterator[tuple[Place, Any, Any]]:
        for owner, attributes, known in self._owners():
            for name, value in attributes.items():
                if not _is_left_out(name, attributes) and (mark := _mark(value, known)):
                    yield (owner, name), value, mark

    def _owners(self) -> Iterator[tuple[str, MutableMapping[Any, Any], set[int]]]:
        """The dicts that hold attributes, by name, each with the memory of what is saved otherwise."""
        known = _memories(self._modules)
        held = [*_held_by(self._objectives)]
        all_known = known | _memories([each for each in held if isinstance(each, nn.Module)])
        parts = {part for module in self._modules for part in module.modules()}
        for number, module in enumerate(self._modules):
            for name, part in module.named_modules():
                yield f"{number} {plain_name(name)}", vars(part), known
        for number, each in enumerate(held):
            if not isinstance(each, nn.Module):
                yield f"loss {number}", vars(each), all_known
                continue
            for name, part in each.named_modules():
                if part not in parts:
                    yield f"loss {number} {name}", vars(part), all_known
                    yield from ((f"loss {number} {name} {of}", vars(part)[of], known) for of in _OF_PARTS)
        all_known |= {id(param) for optimizer in self._optimizers for param in _params_of(optimizer)}
        for number, optimizer in enumerate(self._optimizers):
            inner = self._inner[number]
            for place, params in inner.items():
                yield f"optimizer {number}{place} parameters", InPlace(params), all_known
            copies = {_memory(param) for params in inner.values() for param in params if param.layout == torch.strided}
            for name, kept, is_state in _kept_by(optimizer):
                yield f"optimizer {number}{name}", kept, all_known if is_state else all_known | copies


class Renamed(MutableMapping[str, Any]):
    """Values of a dict under names of their own: `keys` are its keys by these, parameters or whole numbers."""

    def __init__(self, kept: MutableMapping[Any, Any], keys: Mapping[str, Any]) -> None:
        known = {(isinstance(key, Tensor), hash(key)) for key in kept}  # to compare a tensor would be an operation
        self._kept, self._keys = kept, keys
        self._found = {name: key for name, key in keys.items() if (isinstance(key, Tensor), hash(key)) in known}

    def __getitem__(self, name: str) -> Any:
        return self._kept[self._found[name]]

    def __setitem__(self, name: str, value: Any) -> None:
        self._found[name] = self._keys.get(name, name)
        self._kept[self._found[name]] = value

    def __delitem__(self, name: str) -> None:
        del self._kept[self._found.pop(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class InPlace(dict[str, Tensor]):
    """Tensors by name, without their graph. A value that is set is written into the tensor that is there."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__((str(number), tensor.detach()) for number, tensor in enumerate(tensors))

    def __setitem__(self, name: str, value: Tensor) -> None:
        if name in self and self[name].shape == value.shape:
            self[name].copy_(value)


def inner_of(optimizer: Optimizer) -> dict[str, Optimizer]:
    """The optimizers that one of one's own holds, and these in turn, by their places in it."""
    places, found = [("", optimizer)], dict[str, Optimizer]()
    for place, each in places:
        for name, inner in _within(each):
            if isinstance(inner, Optimizer) and inner not in (optimizer, *found.values()):
                found[place + name] = inner
                places.append((place + name, inner))
    return found


def _within(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """The attributes of an optimizer, and what their lists, tuples and dicts hold, by place."""
    found = [(f" {name}", value) for name, value in vars(optimizer).items() if name not in _OF_OPTIMIZERS]
    for place, value in found:
        if isinstance(value, list | tuple | dict) and len(value) <= MOST_ITEMS and place.count(" ") <= DEEPEST:
            keys = value if isinstance(value, dict) else range(len(value))
            names = (key if isinstance(key, str) else number for number, key in enumerate(keys))
            held = value.values() if isinstance(value, dict) else value
            found += [(f"{place} {name}", each) for name, each in zip(names, held, strict=True)]
    yield from found


def _params_of(optimizer: Optimizer) -> list[Tensor]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _named_params(optimizer: Optimizer) -> dict[str, Tensor]:
    """The parameters of an optimizer and of those that it holds, by name."""
    every = {"": optimizer, **inner_of(optimizer)}.items()
    found = {param: f"{place} {number}" for place, o in reversed(every) for number, param in enumerate(_params_of(o))}
    return {name: param for param, name in found.items()}


def _why_lost(optimizer: Optimizer) -> str:
    """Why something that an optimizer of one's own keeps is not saved, and what to do; nothing if all of it is."""
    params, inner = {*_named_params(optimizer).values()}, inner_of(optimizer).values()
    values = [value for each in (optimizer, *inner) for _, value in _within(each)] + [each.state for each in inner]
    dicts = [value for value in values if isinstance(value, dict) and value is not optimizer.state]
    keys = [key for each in dicts for key in each if isinstance(key, Tensor)]
    if any(key not in params for key in keys):
        return (
            "With elementwise = True, an optimizer gets a vector in place of several parameters. Keep in "
            "self.state[parameter] what it remembers, or remove elementwise."
        )
    if (keys or inner) and any(map(is_sharded, params)):
        return "Of a sharded model only what is in self.state[parameter] is saved: keep there what it remembers."
    return ""


def _kept_by(optimizer: Optimizer) -> Iterator[tuple[str, MutableMapping[Any, Any], bool]]:
    """The dicts of an optimizer of one's own that are not its state by parameters, by name; whether they are state."""
    params = _named_params(optimizer)
    for place, each in {"": optimizer, **inner_of(optimizer)}.items():
        yield place, Renamed(vars(each), {key: key for key in vars(each) if key not in _OF_OPTIMIZERS}), False
        yield f"{place} state", each.state, True
        for name, value in _within(each):
            if isinstance(value, dict):
                yield f"{place}{name} by parameter", Renamed(value, params), False
                yield f"{place}{name} by id", Renamed(value, {key: id(param) for key, param in params.items()}), False
        if each is not optimizer and each.state is not optimizer.state:
            yield f"{place} by parameter", Renamed(each.state, params), True
            for number, group in enumerate(each.param_groups):
                yield (
                    f"{place} group {number}",
                    Renamed(group, {name: name for name in group if name != "params"}),
                    True,
                )


def _memories(modules: Iterable[nn.Module]) -> set[int]:
    """The memory of parameters and buffers."""
    tensors = (each for module in modules for each in (*module.parameters(), *module.buffers()))
    return {_memory(each) for each in tensors if each.layout == torch.strided} - {0}


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


def _is_left_out(name: Any, attributes: Mapping[Any, Any]) -> bool:
    """Whether this is torch's or the library's, of a parameter, or a weight that parameters make in each pass."""
    if not isinstance(name, str) or name in _OF_MODULES | _OF_OBJECTIVES or name.startswith("_headrace"):
        return True
    params = attributes.get("_parameters")
    return isinstance(params, Mapping) and any(f"{name}_{of}" in params for of in ("orig", "v", "g"))


def _mark(value: Any, known: Container[int], depth: int = 0) -> Any:
    """Something that differs once a value has changed; nothing for a value that is not looked at.

    `known`: the memory of tensors that are saved otherwise, and the ids of parameters, which another process has not.
    """
    kind = type(value)
    if kind is int:
        return (kind, value) if value.bit_length() <= INTEGER_BITS and value not in known else ()
    if kind in _PLAIN:
        return kind, repr(value)
    if isinstance(value, Tensor):
        return _mark_of_tensor(value, known)
    if kind is np.ndarray or isinstance(value, np.generic):
        if value.dtype not in _ARRAYS:
            return ()
        return kind, value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest()
    if kind in (list, tuple, dict):
        if len(value) > MOST_ITEMS or depth > DEEPEST:
            return ()
        items = [each for pair in value.items() for each in pair] if kind is dict else value
        marks = [_mark(item, known, depth + 1) for item in items]
        return (kind, tuple(marks)) if all(marks) else ()
    state = {} if depth else _of_generator(value)
    return _mark(state, known) if state else ()


def _of_generator(value: Any) -> dict[str, Any]:
    """The state of a random generator, by its kind; nothing for anything else."""
    if isinstance(value, torch.Generator):
        return {"torch": [value.get_state().numpy(), value.device.type]}
    if isinstance(value, np.random.Generator):
        return {"numpy": value.bit_generator.state}
    if isinstance(value, np.random.RandomState) and type(value._bit_generator) is np.random.MT19937:
        return {"legacy": value.get_state(legacy=False)}
    return {"python": value.getstate()} if type(value) is random.Random else {}


def _mark_of_tensor(tensor: Tensor, known: Container[int]) -> Any:
    """By its object and its version, and by a sum: what is written through `.data` has no version."""
    is_parameter = isinstance(tensor, nn.Parameter)
    if not is_parameter and (type(tensor) is not Tensor or (tensor.requires_grad and tensor.is_leaf)):
        return ()
    if tensor.layout != torch.strided or tensor.device.type == "meta" or not is_stored(tensor.dtype):
        return ()
    if _memory(tensor) in known or torch._debug_has_internal_overlap(tensor) == 1:  # several elements in one place
        return ()
    plain = tensor.detach()
    whole = not (plain.is_floating_point() or plain.is_complex())
    total = plain.long().sum() if whole else plain.sum(dtype=torch.complex128 if plain.is_complex() else torch.float64)
    return id(tensor), 0 if tensor.is_inference() else tensor._version, repr(total.item())


def _memory(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; 0 if it has none of its own, as one that stands for others has not."""
    try:
        return local(tensor.detach()).untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def _is_away(leaf: Any) -> bool:
    """Whether it is a tensor on a device."""
    return isinstance(leaf, Tensor) and leaf.device.type != "cpu"


def _saved(value: Any) -> Any:
    """A value as a checkpoint stores it."""
    if isinstance(value, np.generic):
        return {"number": np.asarray(value)}
    return _of_generator(value) or {"plain": value}


def _restored(saved: Mapping[str, Any], now: Any, same: bool) -> Any:
    """A value that was saved; `same`: in the object that is there, which others may share."""
    [(kind, value)] = saved.items()
    if kind == "number":
        return value[()]
    if kind != "plain":
        return _moved(now, kind, value)
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
    """A random generator at a state; one that is not there yet, or is of another kind, is made."""
    if kind == "torch":
        state, device = state
        moved = now if isinstance(now, torch.Generator) and now.device.type == device else torch.Generator(device)
        moved.set_state(torch.from_numpy(state))
        return moved
    if kind == "python":
        drawn = now if isinstance(now, random.Random) else random.Random()
        drawn.setstate(state)
        return drawn
    if kind == "legacy":
        old = now if isinstance(now, np.random.RandomState) else np.random.RandomState()
        old.set_state(state)
        return old
    name = state["bit_generator"]
    if not isinstance(now, np.random.Generator) or type(now.bit_generator).__name__ != name:
        if name not in _BIT_GENERATORS:
            raise CheckpointError(f"the random generator {name!r} is none of NumPy's, and cannot be made again.")
        now = np.random.Generator(getattr(np.random, name)())
    now.bit_generator.state = state
    return now
