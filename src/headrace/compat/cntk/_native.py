"""Names of CNTK's: which module has each, and what to use in place of those that are not offered."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from ...errors import ConfigError

_INSTEAD = {
    "load_model": "Make the model again and restore its parameters: Trainer.restore_from_checkpoint(name), or "
    "z.restore(name).",
    "clone": "Make the function again; its parameters are those of the layers that it is made of.",
    "find_by_name": "Keep the function that is wanted in a variable.",
    "debugging": "Use Python's debugger: graphs are computed step by step by torch.",
    "Evaluator": "Make a Trainer with (loss, metric), and call its test_minibatch.",
    "StreamConfiguration": "Use StreamDef(field=, shape=).",
    "fmeasure": "Natively metrics=['f1'].",
    "universal": "Derive from UserLearner, or natively from torch.optim.Optimizer.",
    "CBFDeserializer": "Keep the text file: CTFDeserializer caches what it has parsed.",
    "NDArrayView": "Make a Value, or pass the array itself.",
    "io": "Natively read images with headrace.vision.ImageFiles, and speech as a Table of your own.",
    "io.transforms": "Natively change images with headrace.vision.Augment.",
    "TensorBoardProgressWriter": "Natively fit(callbacks=[hr.TensorBoard()]).",
    "sequence": "Write it with past_value, future_value and Recurrence.",
    "device": "Use cpu(), gpu(0) and use_default_device.",
    "logging": "Natively the report of a run has a summary of the model; use torch.profiler for traces.",
}
"""What to use in place of a name, or of the names of a module, that are not offered."""
_INSIDE = ("_native", "graph", "state")
"""Modules whose names are none of CNTK's."""
_ELSE = "Write it with the operations that are there, or as a torch module of a headrace Trainer."


class _NotOffered:
    """Stands for a name that is not offered: a program may import it, as long as it does not use it."""

    def __init__(self, name: str, path: str, module: str) -> None:
        self.__name__, self._path, self._instead = name, path, instead_of(name, module)
        self.__doc__ = f"Not offered. {self._instead}"

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ConfigError(f"{self._path} is not offered here. {self._instead}")

    __getitem__ = __mro_entries__ = __call__


def instead_of(name: str, module: str = "") -> str:
    """What to use in place of a name that is not offered, in a sentence."""
    return _INSTEAD.get(name) or _INSTEAD.get(module, _ELSE)


def lookup(module: str, *places: ModuleType | SimpleNamespace) -> Callable[[str], Any]:
    """The `__getattr__` of a module: it finds names that stand in other modules; others are `_NotOffered`."""
    prefix = f"cntk.{module}." if module else "cntk."
    nested = [vars(vars(place).get("__getattr__", lookup)).get("places", []) for place in places]
    places = (*places, *(each for listed in nested for each in listed))

    def find(name: str) -> Any:
        if name == "__all__":  # asked for by "from cntk.ops import *"
            own = sys.modules[f"{__package__}.{module}".rstrip(".")]
            return [each for place in (own, *places) for each in vars(place) if _is_public(place, each)]
        if name.startswith("_"):
            raise AttributeError(f"module {prefix[:-1]!r} has no attribute {name!r}")
        found = next((vars(place)[name] for place in places if name in vars(place)), None)
        return _NotOffered(name, prefix + name, module) if found is None else found

    vars(find)["places"] = places
    return find


def _is_public(place: ModuleType | SimpleNamespace, name: str) -> bool:
    """Whether a name is one of CNTK's, not of a library that a module imports, or of the inside of the dialect."""
    value = vars(place)[name]
    made = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    ours = made is None or (made.startswith(f"{__package__}.") and made.rpartition(".")[2] not in _INSIDE)
    return not name.startswith("_") and (ours or isinstance(place, SimpleNamespace))


def complete(package: str) -> None:
    """Lets every module of a package say which of its names are CNTK's, and which are not offered."""
    for path, module in list(sys.modules.items()):
        if path.startswith(f"{package}.") and "__getattr__" not in vars(module):
            setattr(module, "__getattr__", lookup(path.removeprefix(f"{package}.")))  # noqa: B010


def add_module(name: str, *places: ModuleType | SimpleNamespace) -> None:
    """Makes a module of CNTK's whose names stand in other modules here."""
    package, _, last = name.rpartition(".")
    own = f"{__package__}.{package}" if package else __package__
    module = sys.modules[f"{own}.{last}"] = ModuleType(f"{own}.{last}", f"The names of cntk.{name}.")
    setattr(module, "__getattr__", lookup(name, *places))  # noqa: B010
    setattr(sys.modules[own], last, module)
