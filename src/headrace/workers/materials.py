"""Gives a part of a model on the "meta" device its values: by a function, or from files of weights."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..arena.sharding import is_sharded
from ..arena.vectors import owners
from ..errors import ConfigError, ModelError
from .comm import Comm

Init = Callable[[nn.Module], None] | str | Path


def materialize(name: str, part: nn.Module, device: torch.device, init: Init | None, comm: Comm) -> None:
    """A part of a model, in which nothing is sharded but other parts, gets the values that it has on worker 0."""
    prefix = f"{name}." * bool(name)
    empty = _make_room(part, device)
    if empty and init is None:
        raise ModelError(
            f"the model is on the 'meta' device and has no values ({prefix}{next(iter(empty))}, ...). Say how it "
            "begins: hr.Sharded(init=...), a function of a module or a path of safetensors."
        )
    with torch.no_grad():
        if callable(init):
            for module in dict.fromkeys(module for module, _ in empty.values()):
                init(module)
        elif init is not None:
            _read(Path(init), {prefix + each: tensor for each, (_, tensor) in empty.items()})
        for tensor in [*part.parameters(), *part.buffers()]:
            if not is_sharded(tensor):
                tensor.data = tensor.data.to(device)
                dense = tensor.data.contiguous()
                comm.broadcast(dense.view(-1))
                tensor.data.copy_(dense)


def _make_room(part: nn.Module, device: torch.device) -> dict[str, tuple[nn.Module, Tensor]]:
    """Gives tensors on "meta" memory; those that had none by name, and the modules that have them."""
    filled: dict[str, tuple[nn.Module, Tensor]] = {}
    modules = {id(each._parameters): each for each in part.modules()}
    for param, (name, places) in owners(part).items():
        if param.is_meta and not is_sharded(param):
            made = nn.Parameter(torch.empty_like(param, device=device), requires_grad=param.requires_grad)
            for owned, key in places:  # in all of them, so that tied ones stay so
                owned[key] = made
            filled[name] = modules[id(places[0][0])], made
    for name, buffer in list(part.named_buffers()):
        if buffer.is_meta:
            parent, _, key = name.rpartition(".")
            module = part.get_submodule(parent)
            module._buffers[key] = torch.empty_like(buffer, device=device)
            filled[name] = module, module._buffers[key]  # type: ignore[assignment]
    return filled


def _read(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Reads tensors by their names from a file, or from all files in a folder; no other is read."""
    missing = dict(tensors)
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with _opened(file) as content:
            for name in missing.keys() & set(content.keys()):
                value, tensor = content.get_slice(name), missing.pop(name)
                if list(value.get_shape()) != list(tensor.shape):
                    shape = list(value.get_shape())
                    raise ModelError(f"init={str(path)!r}: {name!r} is {shape} there, and {list(tensor.shape)} here.")
                tensor.copy_(content.get_tensor(name))
    if missing:
        raise ModelError(f"init={str(path)!r} lacks {', '.join(sorted(missing)[:5])}, which the model has.")


def _opened(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except (OSError, ValueError) as error:
        raise ConfigError(f"init={str(file)!r} cannot be read: {error}", argument="init") from None
