"""State as JSON beside tensors: no pickle, nothing but plain values, and what does not fit is named.

JSON keeps None, booleans, integers, finite floats (exactly), text, lists and dicts with text as keys. Everything
else is a dict with a single key that begins with "$": `{"$tensor": name}` stands for a tensor kept elsewhere.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CheckpointError, CorruptError

Tensors = dict[str, Tensor]
INTEGER_BITS = 4096  # more than any generator's state has; Python does not write much longer ones
_KINDS = {"$tensor": str, "$array": str, "$float": str, "$tuple": list, "$items": list}


def encode(value: Any, tensors: Tensors, at: str, *, strict: bool = False) -> Any:
    """`value` for JSON; the tensors in it are added to `tensors` by names that begin with `at`.

    `strict` is for state of others: what JSON would not give back as it was (tuples, numbers as keys, values that
    are not finite) is refused there.
    """
    try:
        return _encoded(value, tensors, at, strict)
    except RecursionError:
        raise CheckpointError(f"state at {at!r} is nested too deeply to be saved, or holds itself.") from None


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """What `encode` was given; anything that it never gives is an error."""
    try:
        return _decoded(value, tensors)
    except (TypeError, ValueError, KeyError, RecursionError, RuntimeError) as error:
        if isinstance(error, CorruptError):
            raise
        raise CorruptError(f"state cannot be read: {type(error).__name__}: {error}") from None


def _encoded(value: Any, tensors: Tensors, at: str, strict: bool) -> Any:
    if value is None or isinstance(value, bool | str) or (type(value) is int and value.bit_length() <= INTEGER_BITS):
        return value
    if isinstance(value, Tensor | np.ndarray):
        return _tensor(value, tensors, at)
    if isinstance(value, list):
        return [_encoded(item, tensors, f"{at}/{k}", strict) for k, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _encoded(item, tensors, f"{at}/{key}", strict) for key, item in value.items()}
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if not strict:
        if isinstance(value, float):
            return {"$float": repr(float(value))}
        if isinstance(value, tuple):
            return {"$tuple": _encoded(list(value), tensors, at, strict)}
        if isinstance(value, Mapping):
            return {"$items": _encoded([[k, v] for k, v in value.items()], tensors, at, strict)}
        if isinstance(value, np.generic):
            return _encoded(value.item(), tensors, at, strict)
        if isinstance(value, int) and type(value) is not int:
            return _encoded(int(value), tensors, at, strict)
    raise CheckpointError(
        f"state at {at!r} holds {_named(value)}, which cannot be saved. "
        "None, booleans, integers, finite floats, text, tensors, arrays; lists and dicts (with text keys) of them."
    )


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {key: _decoded(item, tensors) for key, item in value.items()}
    (kind, inner), *_ = value.items()
    if kind in _KINDS and isinstance(inner, _KINDS[kind]):
        if kind in ("$tensor", "$array"):
            if inner not in tensors:
                raise CorruptError(f"the tensor {inner!r} is missing.")
            return tensors[inner] if kind == "$tensor" else tensors[inner].numpy()
        if kind == "$float":
            return float(inner)
        items = _decoded(inner, tensors)
        return tuple(items) if kind == "$tuple" else dict(items)
    raise CorruptError(f"{kind!r} is not a kind of value that this version knows.")


def _tensor(value: Tensor | Any, tensors: Tensors, at: str) -> dict[str, str]:
    name, copies = at, 1
    while name in tensors:
        copies += 1
        name = f"{at}~{copies}"
    if isinstance(value, Tensor):
        tensors[name] = value.detach() if value.requires_grad else value
        return {"$tensor": name}
    if value.dtype.kind not in "biufc":
        raise CheckpointError(f"state at {at!r} holds an array of {value.dtype}, which cannot be saved. Use numbers.")
    tensors[name] = torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("="), order="C"))
    return {"$array": name}


def _named(value: Any) -> str:
    if isinstance(value, int):
        return f"an integer of {value.bit_length():,} bits"
    if isinstance(value, float | tuple):
        return f"{value!r} ({type(value).__name__})"
    if isinstance(value, Mapping):
        return f"a dict with the keys {list(value)[:3]}"
    return f"a {type(value).__name__}"
