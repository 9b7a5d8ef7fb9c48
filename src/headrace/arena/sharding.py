"""Tensors of which each worker has a shard, as torch's `fully_shard` makes them, and modules that patterns name."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from ..errors import ConfigError, unknown


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a shard of a larger one."""
    return type(tensor.data).__name__ == "DTensor"  # the class is imported only where models are sharded


def local(tensor: Any) -> Tensor:
    """The elements that this worker has of a sharded tensor, in the same memory; any other tensor itself."""
    return tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def as_shard(part: Tensor, like: Any) -> Tensor:
    """The elements of this worker as a shard of a tensor like another one."""
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def fitted(value: Any, like: Tensor) -> Any:
    """A value as it is copied to a tensor: of a complete tensor, the part that belongs to a shard like this."""
    if not (isinstance(value, Tensor) and is_sharded(like)) or is_sharded(value) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    target: Any = like
    return distribute_tensor(value.to(like.device), target.device_mesh, target.placements, src_data_rank=None)


def modules_named(model: nn.Module, patterns: Sequence[str], argument: str) -> list[tuple[str, nn.Module]]:
    """The modules that patterns name, those within others first. "blocks.*" names the blocks, and nothing in them.

    Each pattern has to name a module; `argument` is what errors call the patterns.
    """
    names = [name for name, _ in model.named_modules() if name]
    found: set[str] = set()
    for pattern in patterns:
        if not isinstance(pattern, str) or not (named := {name for name in names if fnmatchcase(name, pattern)}):
            raise ConfigError(
                f"{argument}: no module is called so: {unknown('name', pattern, names)}", argument=argument
            )
        found |= {name for name in named if not named & set(_around(name))}
    modules = dict(model.named_modules())
    return [(name, modules[name]) for name in sorted(found, key=lambda name: (-name.count("."), names.index(name)))]


def _around(name: str) -> Iterable[str]:
    """The names of the modules that contain this one."""
    parts = name.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))
