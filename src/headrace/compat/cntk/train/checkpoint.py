"""State in one file: tensors by name, and JSON for everything else, written whole or not at all."""

from pathlib import Path
from typing import Any

import torch

from ....errors import CheckpointError, CorruptError
from ....store import disk
from ....store.codec import Tensors, decode, encode, from_json, parse_tensors, tensor_pieces, to_json

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
