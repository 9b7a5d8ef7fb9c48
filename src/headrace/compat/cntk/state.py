"""State in one file: tensors by name, and JSON for everything else, written whole or not at all."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError, CorruptError
from ...store import disk
from ...store.codec import Tensors, decode, encode, from_json, parse_tensors, tensor_pieces, to_json
from .variables import Variable

_JSON = "state.json"


def write_state(path: Path, state: Any) -> None:
    """Writes a state into a file, in place of what is there."""
    tensors: Tensors = {}
    plain = to_json(encode(state, tensors, "state"))
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    tensors[_JSON] = torch.frombuffer(bytearray(plain), dtype=torch.uint8)
    try:
        disk.make_dirs(path.absolute().parent)
        disk.write_file(path.absolute(), b"".join(bytes(piece) for piece in tensor_pieces(path.name, tensors)))
    except OSError as error:
        raise disk.failure(error, "the checkpoint", path, 0) from error


def read_state(path: Path) -> Any:
    """The state that a file holds."""
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint {path}. save_checkpoint(name) writes name and name.ckp.")
    try:
        data = disk.read_file(path.absolute(), path.stat().st_size)
    except OSError as error:
        raise disk.failure(error, "the checkpoint", path, 0) from error
    tensors = parse_tensors(data, path.name, 1 << 20)
    if _JSON not in tensors:
        raise CorruptError(f"{path} holds tensors, and no state of a training.")
    plain = from_json(tensors.pop(_JSON).numpy().tobytes(), path.name)
    return decode(plain, tensors)


def weights_of(nodes: Iterable[Variable]) -> dict[str, Tensor]:
    """The parameters and constants among nodes, by their place and name."""
    stored = [v for v in nodes if hasattr(v, "tensor")]
    return {f"{k} {v.name}".strip(): v.tensor.detach() for k, v in enumerate(stored)}


def load_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], path: Path) -> None:
    """Copies weights into a model's own; raises unless they are of a model like it."""
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if found != {name: tuple(tensor.shape) for name, tensor in own.items()}:
        raise CheckpointError(f"{path} is of another model: it has {found}. Make the model as it was.")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])
