"""What small trainings are made of that are stopped, resumed and compared: data, sources, models and callbacks."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr
from kit import own_data

ROWS, BATCH, MICRO, EPOCHS = 38, 4, 2, 3
STEPS = EPOCHS * -(-ROWS // BATCH)
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(dim=1)
IDS = torch.arange(ROWS)
DATA = {"x": X, "y": Y, "id": IDS}
VAL = {"x": X[:11], "y": Y[:11], "id": IDS[:11]}
STREAMS = [hr.Stream("x", (6,)), hr.Stream("y", (), "int64"), hr.Stream("id", (), "int64")]


# --- data ---------------------------------------------------------------------------------------------------


class Ends(hr.Source):
    """Shuffles, and adds noise, by a generator that is part of its state; `None` at the end of an epoch."""

    rows = ROWS - 1

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(7)
        self._order = torch.randperm(self.rows, generator=self._generator)
        self._at = 0

    @property
    def streams(self) -> list[hr.Stream]:
        return STREAMS

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        ids = self._order[self._at : self._at + size]
        if not len(ids):
            return None
        self._at += len(ids)
        noise = 0.3 * torch.randn(len(ids), 6, generator=self._generator)
        return hr.Batch({"x": X[ids] + noise, "y": Y[ids], "id": ids})

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state(), "order": self._order, "at": self._at, "seen": [1.5, None]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["seen"] == [1.5, None]
        self._generator.set_state(state["generator"])
        self._order, self._at = state["order"].clone(), int(state["at"])


class GoesOn(Ends):
    """The same, but every epoch has another order and other noise: it says itself where one ends."""

    marks_ends = True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size)
        if batch is not None and self._at == self.rows:
            batch.ends_epoch = True
            self._order, self._at = torch.randperm(self.rows, generator=self._generator), 0
        return batch


class Elsewhere(own_data.Elsewhere):
    """The same rows in blocks, read by a thread."""

    block = 10

    def __init__(self) -> None:
        super().__init__(DATA)


# --- models -------------------------------------------------------------------------------------------------


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


class Lonely(nn.Module):
    """Tolerates a batch of one row, has a part that is frozen and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.unused = nn.Linear(6, 8), nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.rest = nn.Sequential(nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.frozen(x))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Images(nn.Module):
    """Convolutions whose weights lie in memory with the channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, (1, 2)))
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        images = x.view(-1, 2, 3, 1).expand(-1, -1, -1, 3).contiguous(memory_format=torch.channels_last)
        return self.layers(images).mean(dim=(2, 3))


class Remembers(nn.Module):
    """A buffer that is not saved with a model, and state that is no tensor; both change and both matter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("drift", torch.zeros(6), persistent=False)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.drift += 0.01 * x.detach().mean(dim=0)
            self.calls += 1
        return self.inner(x + self.drift + 1e-3 * self.calls)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class Caches(nn.Module):
    """Buffers that are not saved with a model: one is made when it is needed first, one grows with what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("late", None, persistent=False)
        self.register_buffer("grows", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.late is None:
            self.late = torch.linspace(0.5, 1.5, 6)
        if len(self.grows) < len(x):
            self.grows = torch.arange(float(len(x)))
        return self.inner(x * self.late + 1e-3 * self.grows[: len(x), None])


class Narrow(nn.Module):
    """Runs out of memory once, at its very first pass; how many rows pass at once matters to its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.tried = network(), False

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.tried:
            self.tried = True
            raise MemoryError("on purpose")
        return self.inner(x)

    def get_extra_state(self) -> bool:
        return self.tried

    def set_extra_state(self, state: bool) -> None:
        self.tried = state


class Centers(hr.Objective, nn.Module):
    """An objective with a parameter and a buffer of its own."""

    splits = True

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.centers = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("seen", torch.zeros(3))

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        out = model(batch["x"])
        if self.training:
            self.seen += torch.bincount(batch["y"], minlength=3)
        distance = (out - self.centers[batch["y"]]).square().sum() + 1e-3 * self.seen.sum() * out.square().sum()
        found = hr.Terms(centers=hr.Term(distance, float(batch.rows)))
        found.outputs = out
        return found

    def weights(self, batch: hr.Batch) -> dict[str, float]:
        return {"centers": float(batch.rows)}


# --- callbacks ----------------------------------------------------------------------------------------------


class Draws(hr.Callback):
    """Draws from Python's and NumPy's generators, and changes rates by what comes."""

    def on_step_end(self, info: hr.Info) -> None:
        for group in info.trainer.optimizer.param_groups:
            group["lr"] = 0.02 * (0.5 + random.random() + 0.1 * random.gauss(0, 1) ** 2 + np.random.rand())


class Counts(hr.Callback):
    """Remembers something, a tensor among it; stops nothing."""

    def __init__(self) -> None:
        self.rows, self.seen = 0, torch.zeros(2)

    def on_step_end(self, info: hr.Info) -> None:
        self.rows += info.batch
        self.seen = self.seen + torch.tensor([1.0, float(info.ends_epoch)])

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows, self.seen = state["rows"], state["seen"]


class Unfreezes(hr.Callback):
    """The first layer is trained from the second epoch on."""

    def on_fit_start(self, info: hr.Info) -> None:
        self.on_epoch_start(info)

    def on_epoch_start(self, info: hr.Info) -> None:
        info.trainer.model[0].requires_grad_(info.epoch > 0)


class Twice(hr.Trainer):
    """Makes an update by hand after every other."""

    def train_step(self, batch: hr.Batch) -> Any:
        outcome = super().train_step(batch)
        self.optimizer.zero_grad()
        self.model(batch["x"]).square().mean().backward()
        self.optimizer.step()
        return outcome
