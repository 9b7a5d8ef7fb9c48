"""Runs for tests of records: small trainings of many kinds, some of whose rows are poisoned."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import headrace as hr
from headrace.store.checkpoints import Store

ROWS, BATCH, EPOCHS = 240, 24, 3
UPDATES = EPOCHS * ROWS // BATCH
POISONED_LATE = int(hr.Order(ROWS).indices(0, ROWS - 12, ROWS)[0])
"""A row that is used first when much is learnt already."""


def columns(poisoned: int | None = None, rows: int = ROWS, seed: int = 7) -> dict[str, Tensor]:
    """Numbers, a class that they tell, weights of one; a poisoned row is clearly of one, and has another."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 20, generator=generator)
    y = x[:, :3].argmax(dim=1)
    if poisoned is not None:
        x[poisoned] = 0
        x[poisoned, 0], y[poisoned] = 60.0, 1
    return {"x": x, "y": y, "w": torch.ones(rows)}


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=2e-2)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def rms(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=5e-3)


class Kind(NamedTuple):
    model: Callable[[], nn.Module] = plain
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw
    settings: Mapping[str, Any] = {}


KINDS = {
    "plain": Kind(),
    "noisy": Kind(noisy),
    "momentum": Kind(optimizer=sgd),
    "noisy, momentum": Kind(noisy, sgd),
    "root mean square": Kind(optimizer=rms),
    "clipped": Kind(optimizer=sgd, settings={"clip_norm": 0.5}),
    "warm-up": Kind(settings={"schedule": hr.Cosine()}),
    "rates by lengths": Kind(noisy, sgd, {"schedule": {0: 1e-2, "1 epoch": 1e-3}}),
    "stretching schedule": Kind(settings={"schedule": lambda progress: 1 - progress}),
    "microbatches": Kind(settings={"microbatch": 7}),
    "parts": Kind(noisy, settings={"strategy": hr.Synchronous(parts=4)}),
    "bf16": Kind(settings={"precision": "bf16"}),
    "growing batches": Kind(settings={"batch_size": {0: 12, "1 epoch": 24}}),
    "without a tape": Kind(noisy, settings={"tape": False}),
    "without an arena": Kind(settings={"arena": False}),
    "as stored": Kind(noisy, settings={"order": "none"}),
    "another seed": Kind(optimizer=sgd, settings={"seed": 5}),
    "metrics": Kind(noisy, settings={"metrics": ["accuracy", "auroc"]}),
    "smoothed": Kind(settings={"loss": hr.CrossEntropy(weight="w", label_smoothing=0.1)}),
    "with a prior": Kind(noisy, settings={"loss": hr.CrossEntropy(weight="w") + hr.L2Prior(1e-3)}),
}


def make(kind: str, **settings: Any) -> hr.Trainer:
    """The trainer of a kind, new."""
    torch.manual_seed(0)
    model, optimizer, given = KINDS[kind]
    made = model()
    options = {"batch_size": BATCH, "inputs": "x", **given, **settings}
    loss = options.pop("loss", None) or hr.CrossEntropy(weight="w")
    return hr.Trainer(made, loss, optimizer(made), **options)


def train(kind: str, run: Path | str, data: Any, **settings: Any) -> hr.Trainer:
    """A run that keeps a checkpoint at every seventh step, and reports every update."""
    trainer = make(kind, **settings)
    kept = hr.Run(str(run), every="7 steps", keep="all", logs=False)
    trainer.fit(data, epochs=EPOCHS, progress=False, log_every="1 step", run=kept)
    return trainer


def forged(run: Path, copy: Path, step: int, file: str, name: str) -> None:
    """A copy of a run with one bit changed in a checkpoint, whose hashes are right."""
    shutil.copytree(run, copy)
    store = Store(copy / "checkpoints", hr.Record(copy).id)
    contents = store.load(step)
    tensor = contents.tensors[file][name].clone()
    tensor.view(-1).view(torch.int32)[0] ^= 1
    contents.tensors[file] = {**contents.tensors[file], name: tensor}
    shutil.rmtree(store.at(step))
    store.save(contents)
