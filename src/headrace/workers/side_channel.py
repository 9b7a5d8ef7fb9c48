"""Values that workers exchange in a thread of their own, while the training uses the communicator."""

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import WorkerError


class SideChannel:
    """A process group for plain values. All workers call it in the same order, each in one thread."""

    def __init__(self, timeout_s: float) -> None:
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        self._count = dist.get_world_size()

    def all_gather(self, value: Any) -> list[Any]:
        """What every worker gave, in order, for all."""
        message = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._count)]
        try:
            dist.all_gather(sizes, torch.tensor([len(message)]), group=self._group)
            longest = max(map(int, sizes))
            rooms = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self._count)]
            dist.all_gather(rooms, torch.nn.functional.pad(message, (0, longest - len(message))), group=self._group)
        except RuntimeError as error:
            raise WorkerError(f"a worker was lost while a checkpoint was written: {error}") from error
        return [json.loads(bytes(room[: int(size)].tolist())) for room, size in zip(rooms, sizes, strict=True)]
