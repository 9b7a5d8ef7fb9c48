"""Names a fit by a digest of all that it is made of, so that the same fit finds its run again."""

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..watch.callback import Callback

PLAIN = (NoneType, bool, int, float, complex, str, bytes)
NBYTES = 6
HOMES_IN_0_1_0 = {
    "headrace.callback.average": "EMA SWA",
    "headrace.callback.base": "Callback",
    "headrace.callback.best": "BestModel EarlyStopping",
    "headrace.callback.csv": "CSV",
    "headrace.callback.freeze": "Freeze",
    "headrace.callback.hooks": "Lambda",
    "headrace.callback.logfile": "LogFile",
    "headrace.callback.mlflow": "MLflow",
    "headrace.callback.profile": "Profile",
    "headrace.callback.progress": "Progress",
    "headrace.callback.rates": "LearningRateMonitor",
    "headrace.callback.tensorboard": "TensorBoard",
    "headrace.callback.timer": "Timer",
    "headrace.callback.wandb": "WandB",
    "headrace.loss.base": "Loss Term",
    "headrace.loss.classes": "CrossEntropy Focal",
    "headrace.loss.elements": "BinaryCrossEntropy Huber L1 MSE",
    "headrace.loss.prior": "L2Prior",
    "headrace.loss.translate": "RowMean",
    "headrace.schedule": "OneCycle Schedule WarmupCosine WarmupLinear",
}
"""Where public classes were in version 0.1.0: a fit that it began is found wherever they are now."""
_HOME_OF = {name: home for home, names in HOMES_IN_0_1_0.items() for name in names.split()}


def digest(*values: Any) -> str:
    """Twelve hexadecimal digits, the same for the same values in every process.

    Objects count by what they hold, callbacks by what they were made with; functions and classes by their names, or by
    their code if they cannot be imported.
    """
    found = hashlib.blake2b(digest_size=NBYTES)
    for piece in _pieces(values, ()):
        found.update(piece)
    return found.hexdigest()


def _pieces(value: Any, within: tuple[int, ...]) -> Iterator[bytes | memoryview]:
    """A value and all that it holds, one after the other; `within` are those that hold it."""
    kind = type(value)
    if id(value) in within:
        yield f"holder {within.index(id(value))}\n".encode()
        return
    held = _held(value)
    yield f"{_name(kind)} {len(held)}\n".encode()
    if isinstance(held, bytes | memoryview):
        yield held
        return
    for part in held:
        yield from _pieces(part, (*within, id(value)))


def _held(value: Any) -> Any:
    """The bytes of a value, or a list of the values that make it what it is."""
    if isinstance(value, PLAIN):
        return repr(value).encode()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [str(value.dtype), value.shape, np.ascontiguousarray(value).reshape(-1).view(np.uint8).data]
    if isinstance(value, memoryview):
        return value
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, Mapping):
        return [*value.items()]
    if isinstance(value, set | frozenset):  # which have another order in each process
        return sorted(map(digest, value))
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    try:
        return _taken_apart(value)
    except Exception:  # a lock, a file: it counts by its kind
        return []


def _taken_apart(value: Any) -> list[Any]:
    """As a copy of it would be made."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return [str(value.dtype), [*value.shape], value.requires_grad, data]
    if isinstance(value, np.random.RandomState):
        return [value.get_state()]
    if isinstance(value, type | FunctionType):
        name = _name(value)
        return [name] if _can_be_imported(value) else [name, *_body(value)]
    if isinstance(value, Callback) and (settings := _settings(value)) is not None:
        return [type(value), settings]
    parts = value.__reduce_ex__(2)
    return [parts] if isinstance(parts, str) else [*parts[:3], *([*items] for items in parts[3:5] if items is not None)]


def _settings(callback: Callback) -> dict[str, Any] | None:
    """What a callback was made with, if it keeps all of that by name: what else it holds may be of a fit before."""
    held, names = vars(callback), inspect.signature(type(callback)).parameters
    kept = {name: name if name in held else f"_{name}" for name in names}
    return {name: held[at] for name, at in kept.items()} if held.keys() >= {*kept.values()} else None


def _name(value: type | FunctionType) -> str:
    """The module and the name of a class or a function; of those of the library, the module in version 0.1.0."""
    module, name = value.__module__, value.__qualname__
    if module.startswith("headrace."):
        module = _HOME_OF.get(name, module)
    return f"{module}.{name}"


def _can_be_imported(value: Any) -> bool:
    """Whether its name tells which it is."""
    return value.__module__ != "__main__" and "<" not in value.__qualname__


def _body(value: Any) -> list[Any]:
    """What a function or a class does."""
    if isinstance(value, type):
        unwrapped = [(name, getattr(member, "__func__", member)) for name, member in vars(value).items()]
        return [value.__bases__, [(name, member) for name, member in unwrapped if _is_own(name, member)]]
    function: Any = inspect.unwrap(value)  # torch wraps a method `step` once there is an object
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    return [function.__code__, function.__defaults__, function.__kwdefaults__, closure]


def _is_own(name: str, member: Any) -> bool:
    """Whether a member of a class is its author's: a method, or a setting."""
    setting = isinstance(member, (*PLAIN, list, tuple, dict)) and not name.startswith("__")
    return setting or isinstance(member, FunctionType)
