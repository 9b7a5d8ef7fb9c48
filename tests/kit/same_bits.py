"""Trainings whose bits are not to depend on the number of workers: models, and all that comes of them."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr
from kit.worker_cases import Share, told

ROWS, HELD_OUT, EPOCHS, PARTS = 203, 37, 2, 8
Bits = dict[str, Tensor]


def columns() -> dict[str, Tensor]:
    """Rows of 20 numbers, a class, two numbers to predict, labels of which most are missing, and weights of rows."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS + HELD_OUT, 20, generator=generator)
    y = x[:, :3].argmax(dim=1)
    some = torch.where(torch.arange(len(x)) % 3 > 0, -1, y)
    return {"x": x, "y": y, "number": x[:, :2].cos() + x[:, 2:4], "some": some, "by_row": x[:, 5].abs()}


def sequences() -> dict[str, hr.Ragged]:
    """Sequences of 1 to 6 items, with a label for each."""
    generator = torch.Generator().manual_seed(12)
    lengths = torch.randint(1, 7, (ROWS + HELD_OUT,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    tokens = torch.randint(0, 9, (int(offsets[-1]),), generator=generator)
    return {"tokens": hr.Ragged(tokens, offsets), "tags": hr.Ragged(tokens % 3, offsets)}


# --- models -----------------------------------------------------------------------------------------------


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, 3))


def numbers() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 24), nn.Tanh(), nn.Linear(24, 2))


def measured() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))


def convolutions() -> nn.Module:
    head = nn.Flatten(), nn.Linear(120, 3)
    return nn.Sequential(nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), *head)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward, self.out = nn.Linear(5, 16), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.layer(self.inward(x.view(-1, 4, 5))).mean(dim=1))


class Recurrent(nn.Module):
    """Labels every item of ragged sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.out = nn.Embedding(9, 8), nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 3)

    def forward(self, tokens: hr.Ragged) -> Any:
        states, _ = self.lstm(self.embedding(tokens.padded()))
        return tokens.with_padded(self.out(states))


class Noisy(nn.Module):
    """Draws from every generator that a process has."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(x * (1 + 0.1 * random.random()) + 0.1 * float(np.random.rand()) + 0.1 * torch.randn(()))


class Counting(nn.Module):
    """Has a counter that goes down, a flag that is lowered once, and a limit that begins infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(20, 3)
        self.register_buffer("left", torch.tensor(100))
        self.register_buffer("fresh", torch.tensor(True))
        self.register_buffer("low", torch.tensor(math.inf))

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.left -= 1
            self.fresh.fill_(False)
            self.low.copy_(torch.minimum(self.low, x.detach().min()))
        return self.out(x)


class Rare(nn.Module):
    """Has a parameter that only some parts of a batch reach."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.rare = nn.Linear(20, 3), nn.Linear(20, 3, bias=False)

    def forward(self, x: Tensor) -> Any:
        far = x[:, 0] > 1.6
        found = self.out(x)
        return torch.where(far[:, None], found + self.rare(x), found) if far.any() else found


# --- trainings --------------------------------------------------------------------------------------------


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


class Case(NamedTuple):
    model: Callable[[], nn.Module] = perceptron
    loss: Callable[[], Any] = hr.CrossEntropy
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adamw
    settings: Mapping[str, Any] = {}
    callbacks: Callable[[], list[hr.Callback]] = list
    batch: int = 48
    metrics: Any = ("accuracy", "auroc")
    loader: bool = False


WEIGHTS = [0.2, 0.3, 0.5]
CASES = {
    "perceptron": Case(),
    "a metric of one's own": Case(metrics={"share": Share()}),
    "momentum, clipped": Case(optimizer=sgd, settings={"clip_norm": 0.5}),
    "BatchNorm, dropout": Case(measured, batch=52),
    "convolutions": Case(convolutions, optimizer=sgd),
    "LSTM on ragged sequences": Case(Recurrent, lambda: hr.CrossEntropy(target="tags"), metrics=()),
    "transformer, dropout": Case(Attention),
    "transformer without a tape": Case(Attention, settings={"tape": False}),
    "numbers": Case(numbers, lambda: hr.MSE(target="number"), metrics={"number": ["mae", "r2"]}),
    "bf16": Case(settings={"precision": "bf16"}),
    "fp16": Case(settings={"precision": "fp16"}),
    "averaged": Case(measured, callbacks=lambda: [hr.EMA(0.9)], batch=52),
    "class weights": Case(loss=lambda: hr.CrossEntropy(class_weights=WEIGHTS)),
    "ignored labels": Case(loss=lambda: hr.CrossEntropy(target="some", ignore_index=-1), metrics=()),
    "row weights and a prior": Case(loss=lambda: hr.CrossEntropy(weight="by_row") + hr.L2Prior(0.1)),
    "uneven parts": Case(batch=45),
    "empty parts": Case(batch=7),
    "a part at a time": Case(settings={"microbatch": 6}),
    "two parts at a time": Case(settings={"microbatch": 12}),
    "loose": Case(optimizer=sgd, settings={"arena": False}),
    "every generator": Case(Noisy, metrics=()),
    "rare": Case(Rare),
    "counters, empty parts": Case(Counting, batch=3),
    "a loader": Case(loader=True),
}


def train(name: str, fit: Mapping[str, Any], parts: int | None = PARTS, **settings: Any) -> Bits:
    """In a worker: everything that comes of a training, as tensors."""
    case = CASES[name]
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = case.model()
    given = {
        "inputs": "tokens" if case.model is Recurrent else "x",
        "metrics": case.metrics,
        **case.settings,
        **settings,
    }
    strategy = hr.Synchronous(parts=parts)
    trainer = hr.Trainer(model, case.loss(), case.optimizer(model), batch_size=case.batch, strategy=strategy, **given)
    data: Any = sequences() if case.model is Recurrent else columns()
    known: Any = {key: column[:ROWS] for key, column in data.items()}
    held_out: Any = {key: column[ROWS:] for key, column in data.items()}
    if case.loader:
        order = torch.Generator().manual_seed(4)
        rows = TensorDataset(data["x"][:ROWS], data["y"][:ROWS])
        known = DataLoader(rows, batch_size=case.batch, shuffle=True, generator=order)
        trainer = hr.Trainer(model, case.loss(), case.optimizer(model), strategy=strategy, metrics=case.metrics)
        held_out = (data["x"][ROWS:], data["y"][ROWS:])
    given = {"epochs": EPOCHS, **fit}
    callbacks = [*case.callbacks(), *given.pop("callbacks", ())]
    history = trainer.fit(known, val=held_out, progress=False, callbacks=callbacks, **given)
    return bits_of(trainer, history)


def bits_of(trainer: hr.Trainer, history: hr.History) -> Bits:
    """Weights, buffers, what the optimizer remembers, and every number of the history."""
    found = {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}
    for number, state in enumerate(trainer.optimizer.state.values()):
        found |= {f"state {number} {name}": torch.as_tensor(value).clone() for name, value in state.items()}
    rows = told(history)
    for key in sorted({key for row in rows for key in row}):
        numbers = [row.get(key, math.nan) for row in rows]
        if all(isinstance(number, int | float) for number in numbers):
            found[f"reported {key}"] = torch.tensor(numbers, dtype=torch.float64)
        else:
            found[f"reported {key}"] = torch.frombuffer(bytearray(repr(numbers).encode()), dtype=torch.uint8)
    return found


def differing(one: Bits, other: Bits) -> list[str]:
    """What is not the same to the last bit."""
    return [
        n for n in one.keys() | other.keys() if n not in one or n not in other or _bytes(one[n]) != _bytes(other[n])
    ]


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
