"""What is timed: ways to copy, save and verify one state, and to go on within an epoch; headrace's and others'."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import headrace as hr
from headrace.store.checkpoints import Store
from headrace.store.contents import Contents

CLASSES, FEATURES, BATCH = 10, 16, 128
Seen = np.ndarray | None
Timed = Callable[[], float]


def timed(work: Callable[[], object]) -> float:
    """Seconds of a call that pays neither for garbage of others nor for what they have still to write."""
    settle()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def settle() -> None:
    gc.collect()
    os.sync()


# --- copying, saving, verifying -------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """A perceptron and what Adam remembers of it, together three times the weights."""

    key: str
    layers: int
    width: int

    def model(self) -> nn.Module:
        """A fresh model, with the same first weights each time."""
        torch.manual_seed(0)
        hidden = [layer for _ in range(self.layers) for layer in (nn.Linear(self.width, self.width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(self.width, CLASSES))

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """Noise, with labels."""
        return torch.randn(count, self.width), torch.randint(CLASSES, (count,))

    def tensors(self) -> list[Tensor]:
        """The state after one step of a loop written by hand."""
        model = self.model()
        optimizer = torch.optim.Adam(model.parameters())
        x, y = self.rows(8)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        remembered = [value for state in optimizer.state.values() for value in state.values()]
        return [*model.state_dict().values(), *remembered]


STATES = (State("large", 3, 1664), State("small", 168, 222))


def copies(tensors: list[Tensor]) -> tuple[Timed, Timed]:
    """One copy of every tensor: as one would write it, and into the memory of an earlier copy."""
    rooms = [tensor.clone() for tensor in tensors]

    def clone() -> float:
        give_back_memory()  # headrace has malloc keep it in this process; a loop by hand finds it gone
        return timed(lambda: [tensor.clone() for tensor in tensors])

    def copy() -> float:
        return timed(lambda: [room.copy_(tensor) for room, tensor in zip(rooms, tensors, strict=True)])

    return clone, copy


def give_back_memory() -> None:
    """Has the C library give freed memory back to the system, where it is glibc."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


class CenterState(hr.Callback):
    """How long the last save has held the loop: from the moment it begins until the next update does."""

    def __init__(self) -> None:
        self.seconds, self._began = 0.0, 0.0

    def on_checkpoint(self, info: hr.Info) -> None:
        self._began = time.perf_counter()

    def update(self) -> None:
        """An update begins."""
        if self._began:
            self.seconds, self._began = time.perf_counter() - self._began, 0.0


class Watched(hr.Trainer):
    """Tells when an update begins."""

    held: CenterState

    def train_step(self, batch: hr.Batch) -> Any:
        self.held.update()
        return super().train_step(batch)


class Training:
    """A training by headrace, driven step by step, that saves on every other one."""

    def __init__(self, state: State, run: Path, *, wait: bool) -> None:
        model = state.model()
        trainer = Watched(model, nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters()), batch_size=8)
        self._hook = trainer.held = CenterState()
        self._steps = trainer.steps(
            state.rows(1024),
            epochs=1_000_000,
            log_every="1000000 steps",
            callbacks=[self._hook],
            run=hr.Run(run, every="2 steps", wait=wait),
        )
        self.run = run
        self.held()  # of step 0, when the optimizer has nothing to remember yet
        self.first = self.held()
        """Of the first save, whose copy is made in new memory."""

    def held(self) -> float:
        """All that the loop sees of a save, in seconds."""
        settle()
        next(self._steps)
        next(self._steps)
        for thread in threading.enumerate():  # the write goes on, and must not share the machine with what is next
            if thread.name == "headrace-save":
                thread.join()
        return self._hook.seconds


class Saved:
    """The last checkpoint of a run, to be saved again elsewhere: by headrace, and by hand."""

    def __init__(self, run: Path, scratch: Path) -> None:
        written = Store(run / "checkpoints", None)
        found = written.load(written.steps()[-1])
        own = {file: {name: t.clone() for name, t in tensors.items()} for file, tensors in found.tensors.items()}
        self._contents = Contents(1, found.documents, own)
        self._tensors = {f"{file}/{name}": t for file, tensors in own.items() for name, t in tensors.items()}
        self._store, self._path = Store(scratch / "store", "benchmark", None), scratch / "by-hand"
        self._store.save(self._contents)
        self._bytes = b"".join(path.read_bytes() for path in self._store.at(1).iterdir())
        self.size = len(self._bytes)

    def save(self) -> float:
        """All that `Store.save` does until a checkpoint is certain to be on the disk."""
        shutil.rmtree(self._store.at(1))
        return timed(lambda: self._store.save(self._contents))

    def by_hand(self) -> float:
        """The same tensors in one file, certain to be on the disk, and its sha256."""
        self._path.unlink(missing_ok=True)
        return timed(lambda: save_by_hand(self._tensors, self._path))

    def verify(self) -> float:
        """Every byte of a checkpoint, which the system still has in memory."""
        return timed(lambda: self._store.verify(1))

    def hash(self) -> float:
        """The same bytes, in the memory of this process."""
        return timed(lambda: hashlib.sha256(self._bytes).hexdigest())


def save_by_hand(tensors: Mapping[str, Tensor], path: Path) -> str:
    save_file(dict(tensors), path)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    return digest


def lightning_save(state: State, scratch: Path) -> Timed:
    """`Trainer.save_checkpoint` of the same model and optimizer. It does not wait for the disk, and hashes nothing."""
    x, y = state.rows(8)
    samples: Any = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    trainer, path = lightning_trainer(steps=1), scratch / "lightning.ckpt"
    trainer.fit(lightning_module(state.model()), DataLoader(samples, batch_size=8))

    def save() -> float:
        path.unlink(missing_ok=True)
        return timed(lambda: trainer.save_checkpoint(path))

    return save


# --- going on within an epoch ---------------------------------------------------------------------------------


class Way(Protocol):
    """A way to train, to stop within an epoch and to go on."""

    name: str
    rows: int

    def train(self, run: Path, steps: int, seen: Seen = None) -> float:
        """Trains from where `run` is, if it is there, until so many updates are made, and leaves it there.

        Gives the seconds from the call to the first of these updates; counts the rows used in `seen`.
        """


def computed(index: Tensor) -> dict[str, Tensor]:
    """Rows that are stored nowhere: each is a function of its number."""
    x = torch.sin(index.unsqueeze(1) * torch.arange(1, FEATURES + 1))
    return {"x": x, "y": index % CLASSES, "row": index}


def classifier() -> nn.Module:
    """A small model: what is timed is the data. The seed is set, as in a script that is started again."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


class Rows(hr.Table):
    """Computed rows for headrace."""

    streams = (hr.Stream("x", (FEATURES,)), hr.Stream("y", (), "int64"), hr.Stream("row", (), "int64"))

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch(computed(indices))


class Counting(hr.Trainer):
    """Counts the rows it trains on."""

    seen: Seen = None

    def train_step(self, batch: hr.Batch) -> Any:
        if self.seen is not None:
            self.seen[batch["row"].numpy()] += 1
        return super().train_step(batch)


class First(hr.Callback):
    """Notes when the first update was done; ends the training there, where that is wanted."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self._at = 0.0

    def on_step_end(self, info: hr.Info) -> None:
        self._at = self._at or time.perf_counter()
        if self._ends:
            info.stop("first update")

    def since(self, start: float) -> float:
        return self._at - start


class Headrace:
    """`fit(run=..., resume=...)`; with `jumps`, a run begins one step before where it is to stop."""

    name = "headrace"

    def __init__(self, rows: int, *, jumps: bool) -> None:
        self.rows, self._jumps = rows, jumps

    def train(self, run: Path, steps: int, seen: Seen = None) -> float:
        model, reader, first = classifier(), hr.Reader(Rows(self.rows)), First(ends=self._jumps)
        optimizer = torch.optim.Adam(model.parameters())
        trainer = Counting(model, nn.CrossEntropyLoss(), optimizer, batch_size=BATCH, inputs="x")
        trainer.seen = seen
        resume = "must" if run.exists() else "never"
        if self._jumps and resume == "never":
            reader.load_state_dict({**reader.state_dict(), "position": (steps - 1) * BATCH})
        start = time.perf_counter()
        trainer.fit(reader, steps=steps, run=hr.Run(run, resume=resume), callbacks=[first], progress=False)
        return first.since(start)


class Items(Dataset[Any]):
    """Computed rows for torch's loaders, a batch at a time."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, indices: list[int]) -> dict[str, Tensor]:
        return computed(torch.tensor(indices))


def items_loader(rows: int, *, stateful: bool) -> Any:
    """torch's loader, or torchdata's, which says where it stands."""
    kind: Any = DataLoader
    if stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader

        kind = StatefulDataLoader
    return kind(Items(rows), batch_size=BATCH, shuffle=True, collate_fn=lambda batch: batch)


class Lightning:
    """`fit(ckpt_path=...)` from a checkpoint saved after a batch."""

    def __init__(self, rows: int, *, stateful: bool) -> None:
        self.rows, self._stateful = rows, stateful
        self.name = "lightning, StatefulDataLoader" if stateful else "lightning, DataLoader"

    def train(self, run: Path, steps: int, seen: Seen = None) -> float:
        path = run / "last.ckpt"
        module, batches = lightning_module(classifier(), seen), items_loader(self.rows, stateful=self._stateful)
        trainer = lightning_trainer(steps, path)
        start = time.perf_counter()
        trainer.fit(module, batches, ckpt_path=path if path.exists() else None)
        return float(trainer.callbacks[0].at - start)


class Loader:
    """torchdata's loader alone: nothing is trained, an update is a batch."""

    name = "StatefulDataLoader alone"

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def train(self, run: Path, steps: int, seen: Seen = None) -> float:
        path = run / "loader.pt"
        torch.manual_seed(0)
        start, first = time.perf_counter(), 0.0
        loader = items_loader(self.rows, stateful=True)
        saved = torch.load(path) if path.exists() else {"steps": 0}
        if saved["steps"]:
            loader.load_state_dict(saved["loader"])
        for batch in islice(loader, steps - saved["steps"]):
            first = first or time.perf_counter()
            if seen is not None:
                seen[batch["row"].numpy()] += 1
        run.mkdir(exist_ok=True)
        torch.save({"steps": steps, "loader": loader.state_dict()}, path)
        return first - start


def lightning_module(model: nn.Module, seen: Seen = None) -> Any:
    """A module that trains on batches of "x" and "y" with Adam and logs nothing."""
    import lightning as pl

    class Module(pl.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            if seen is not None:
                seen[batch["row"].numpy()] += 1
            return nn.functional.cross_entropy(self.model(batch["x"]), batch["y"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    return Module()


def lightning_trainer(steps: int, path: Path | None = None) -> Any:
    """A trainer without its bar, its log and its summary; it saves to `path` after the last of so many steps."""
    import lightning as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Save(pl.Callback):  # type: ignore[misc, unused-ignore]
        at = 0.0

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            self.at = self.at or time.perf_counter()
            if path is not None and trainer.global_step == steps:
                path.parent.mkdir(exist_ok=True)
                trainer.save_checkpoint(path)

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pl.Trainer(max_steps=steps, accelerator="cpu", devices=1, callbacks=[Save()], **off)
