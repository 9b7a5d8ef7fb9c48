"""A model's buffers as they were, for the step that fails."""

import torch
from torch import Tensor, nn


class Buffers:
    """The copy of a model's buffers as they were after the last update that succeeded."""

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module._buffers, key)
            for module in model.modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._saved: list[tuple[Tensor, int, Tensor]] = []
        for owned, key in self._places:
            buffer = owned[key]
            assert buffer is not None
            self._saved.append((buffer, buffer._version, buffer.detach().clone()))

    def keep(self) -> None:
        """After an update: what has changed is the state to go back to from now on."""
        fresh, copies = [], []
        for k, ((owned, key), (buffer, version, copy)) in enumerate(zip(self._places, self._saved, strict=True)):
            now = owned[key]
            if now is None or (now is buffer and now._version == version):
                continue
            if (now.shape, now.dtype, now.device) != (copy.shape, copy.dtype, copy.device):
                copy = torch.empty_like(now)
            fresh.append(now)
            copies.append(copy)
            self._saved[k] = (now, now._version, copy)
        if fresh:
            torch._foreach_copy_(copies, fresh)

    def restore(self) -> None:
        """After a step that failed: as they were before it."""
        with torch.no_grad():
            for k, ((owned, key), (buffer, version, copy)) in enumerate(zip(self._places, self._saved, strict=True)):
                if owned[key] is not buffer or buffer._version != version:
                    owned[key] = buffer
                    buffer.copy_(copy)
                    self._saved[k] = (buffer, buffer._version, copy)

    def select(self, bad: Tensor) -> None:
        """As `restore` where the flag on the device says so, without asking the host."""
        for (owned, key), (_, _, copy) in zip(self._places, self._saved, strict=True):
            now = owned[key]
            if now is not None and now.shape == copy.shape:
                now.copy_(torch.where(bad, copy, now))
        self.keep()
