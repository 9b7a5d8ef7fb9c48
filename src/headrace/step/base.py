"""The frozen base of a model, which `hr.Run(checkpoint="trainable")` does not save: a checkpoint has its hash."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..arena.sharding import is_sharded, local
from ..arena.vectors import plain_name
from ..errors import CheckpointError

MODULUS = 1 << 128
Base = Mapping[str, Any]
"""The names of the tensors of a base, and their hash."""


def base_of(model: nn.Module, names: Collection[str], join: Callable[[list[str]], list[str]] | None = None) -> Base:
    """The base that consists of these tensors.

    Its hash is the sum of the hashes of all rows, so that workers with shards can add up theirs; `join` gathers what
    each worker has found.
    """
    total = 0
    tensors = {plain_name(name): value for name, value in model.state_dict().items() if plain_name(name) in names}
    for name, value in tensors.items():
        first = _first_row(value)
        rows = local(value).detach().cpu().contiguous()
        for number, row in enumerate(rows.reshape(len(rows) if rows.ndim else 1, -1) if rows.numel() else ()):
            digest = hashlib.blake2b(f"{name}/{first + number}".encode(), digest_size=16)
            digest.update(row.contiguous().view(torch.uint8).numpy().data)
            total += int.from_bytes(digest.digest(), "little")
    parts = [f"{total % MODULUS:032x}"] if join is None else join([f"{total % MODULUS:032x}"])
    return {"names": sorted(tensors), "hash": f"{sum(int(part, 16) for part in parts) % MODULUS:032x}"}


def completed(saved: Mapping[str, Any], base: Base | None, model: nn.Module, join: Any = None) -> Mapping[str, Any]:
    """Saved weights with those of the base, which the model has; raises if that has another base."""
    if base is None:
        return saved
    own = base_of(model, base["names"], join)
    if own != base:
        missing = sorted(set(base["names"]) - set(own["names"]))
        why = f"the model lacks {', '.join(missing[:3])}" if missing else "its values are others"
        raise CheckpointError(
            "the checkpoint holds what was trained, without the frozen base, and the model has another base than it was "
            f"trained on: {why}. Load the weights of that base into the model first."
        )
    state = {plain_name(name): value for name, value in model.state_dict().items()}
    return {**{name: state[name] for name in base["names"]}, **saved}


def _first_row(tensor: Any) -> int:
    """The row of the complete tensor with which this worker's part begins."""
    if not is_sharded(tensor):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]
    return int(offset[0])
