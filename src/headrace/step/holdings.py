"""What an optimizer of one's own keeps beside its state by parameters: attributes, dicts, and other optimizers."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..arena.own_optimizers import params_of
from ..arena.sharding import is_sharded

MOST_ITEMS, DEEPEST = 10_000, 8
"""The items of a container, and the containers within each other, that are looked at."""
_TORCHS = frozenset({"state", "param_groups"})
"""Attributes of an optimizer that are saved by its parameters."""


class Renamed(MutableMapping[str, Any]):
    """A dict whose keys are parameters or their ids, seen by names: `keys` has the key of each name."""

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
    found = [(f" {name}", value) for name, value in vars(optimizer).items() if name not in _TORCHS]
    for place, value in found:
        if isinstance(value, list | tuple | dict) and len(value) <= MOST_ITEMS and place.count(" ") <= DEEPEST:
            keys = value if isinstance(value, dict) else range(len(value))
            names = (key if isinstance(key, str) else number for number, key in enumerate(keys))
            held = value.values() if isinstance(value, dict) else value
            found += [(f"{place} {name}", each) for name, each in zip(names, held, strict=True)]
    yield from found


def _with_inner(optimizer: Optimizer) -> tuple[dict[str, Optimizer], dict[str, Tensor]]:
    """An optimizer and those that it holds, by place, and the parameters of all of them, by name."""
    every = {"": optimizer, **inner_of(optimizer)}
    places = reversed(every.items())
    names = {param: f"{place} {number}" for place, each in places for number, param in enumerate(params_of(each))}
    return every, {name: param for param, name in names.items()}


def why_lost(optimizer: Optimizer) -> str:
    """Why something that an optimizer of one's own keeps is not saved, and what to do; nothing if all of it is."""
    every, named = _with_inner(optimizer)
    params = {*named.values()}
    values = [value for each in every.values() for value in (each.state, *(held for _, held in _within(each)))]
    dicts = [value for value in values if isinstance(value, dict) and value is not optimizer.state]
    keys = [key for each in dicts for key in each if isinstance(key, Tensor)]
    if any(key not in params for key in keys):
        return (
            "With elementwise = True, an optimizer gets a vector in place of several parameters. Keep in "
            "self.state[parameter] what it remembers, or remove elementwise."
        )
    if (keys or len(every) > 1) and any(map(is_sharded, params)):
        return "Of a sharded model only what is in self.state[parameter] is saved: keep there what it remembers."
    return ""


def kept_by(optimizer: Optimizer) -> Iterator[tuple[str, MutableMapping[Any, Any], bool]]:
    """The dicts of an optimizer of one's own that are not its state by parameters, by name; whether they are state."""
    every, params = _with_inner(optimizer)
    for place, each in every.items():
        yield place, Renamed(vars(each), {key: key for key in vars(each) if key not in _TORCHS}), False
        yield f"{place} state", each.state, True
        for name, value in _within(each):
            if isinstance(value, dict):
                yield f"{place}{name} by parameter", Renamed(value, params), False
                yield f"{place}{name} by id", Renamed(value, {key: id(param) for key, param in params.items()}), False
        if each is not optimizer and each.state is not optimizer.state:
            yield f"{place} by parameter", Renamed(each.state, params), True
            for number, group in enumerate(each.param_groups):
                settings = Renamed(group, {name: name for name in group if name != "params"})
                yield f"{place} group {number}", settings, True
