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

from ..arena.own_optimizers import params_of, parts_of
from ..arena.sharding import local
from ..arena.vectors import plain_name
from ..errors import CheckpointError
from ..loss.objective import Objective, Supervised, losses_of
from ..store.codec import INTEGER_BITS, is_stored
from .holdings import DEEPEST, MOST_ITEMS, InPlace, inner_of, kept_by, why_lost

_PLAIN = (bool, int, float, str, type(None))
_OF_MODULES = frozenset(vars(nn.Module()))
_OF_OBJECTIVES = frozenset({"call", "loss", "_bound"})
_OF_PARTS = ("_parameters", "_buffers")
_ARRAYS = {np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)} | {
    np.dtype(name) for name in ("bool", "float16", "float32", "float64", "complex64")
}
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
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
        self._inner = [{place: params_of(each) for place, each in inner_of(o).items()} for o in self._optimizers]
        self._first = {place: (value, mark) for place, value, mark in self._each()}
        self._loaded: set[Place] = set()
        self._has_warned = False

    def state_dict(self) -> State:
        """What has changed; whether a value is the same object as at first goes with it."""
        found: State = {}
        for optimizer in () if self._has_warned else self._optimizers:
            if why := why_lost(optimizer):
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
        all_known |= {id(param) for optimizer in self._optimizers for param in params_of(optimizer)}
        for number, optimizer in enumerate(self._optimizers):
            inner = self._inner[number]
            for place, params in inner.items():
                yield f"optimizer {number}{place} parameters", InPlace(params), all_known
            copies = {_memory(param) for params in inner.values() for param in params if param.layout == torch.strided}
            for name, kept, is_state in kept_by(optimizer):
                yield f"optimizer {number}{name}", kept, all_known if is_state else all_known | copies


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
