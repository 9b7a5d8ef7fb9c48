"""The frozen base of a model, which `hr.Run(checkpoint="trainable")` does not save: a checkpoint has its hash."""

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from ..arena.sharding import is_sharded, local
from ..arena.vectors import plain_name
from ..errors import CheckpointError
from ..workers.strategy import Strategy

MODULUS = 1 << 128
Base = Mapping[str, Any]
"""The names of the tensors of a base, and their hash."""


def base_of(model: nn.Module, names: Collection[str], strategy: Strategy) -> Base:
    """The base that consists of these tensors.

    Its hash is the sum of the hashes of all rows, so that workers with shards add up theirs. They call this together.
    """
    sharded = common = 0
    tensors = {plain_name(name): value for name, value in model.state_dict().items() if plain_name(name) in names}
    for name, value in tensors.items():
        if is_sharded(value):
            sharded += _hash(name, local(value), strategy.part.of(value.shape[0])[0])
        else:
            common += _hash(name, value, 0)
    return {"names": sorted(tensors), "hash": f"{strategy.add_up(sharded, common) % MODULUS:032x}"}


def completed(
    saved: Mapping[str, Any], base: Base | None, model: nn.Module, strategy: Strategy | None
) -> Mapping[str, Any]:
    """Saved weights with those of the base, which the model has; raises if it has another one.

    Without a strategy only names are compared.
    """
    if base is None:
        return saved
    state = {plain_name(name): value for name, value in model.state_dict().items()}
    missing = sorted(set(base["names"]) - set(state))
    if missing or (strategy is not None and base_of(model, base["names"], strategy) != base):
        why = f"it has no {', '.join(missing[:3])}" if missing else "its values differ"
        raise CheckpointError(
            "the checkpoint has what was trained, without the frozen base, and this model has another base than the "
            f"one that was trained on: {why}. Load that base into the model first."
        )
    return {**{name: state[name] for name in base["names"]}, **saved}


def _hash(name: str, value: torch.Tensor, first: int) -> int:
    """The sum of the hashes of rows, of which the first has this number."""
    rows = value.detach().cpu().contiguous()
    rows = rows.reshape(len(rows) if rows.ndim else 1, -1)
    total = 0
    for number, row in enumerate(rows.view(torch.uint8).numpy() if rows.numel() else ()):
        digest = hashlib.blake2b(f"{name}/{first + number}/".encode(), digest_size=16)
        digest.update(row.data)
        total += int.from_bytes(digest.digest(), "little")
    return total
