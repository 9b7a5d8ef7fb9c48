"""Trainings that several workers make as one would: small models, with losses and settings of all kinds."""

import copy
import math
import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr
from headrace.engines.network import Network
from kit import bare_workers
from kit.small import Parts, same

ROWS, BATCH, EPOCHS = 43, 12, 2
UPDATES = 4  # in an epoch, the last of 7 rows
FEATURES, CLASSES = 20, 3
EXACT = 1e-12
PARTS, OF_PARTS, HELD_OUT = 8, 203, 37  # parts of a batch, and the rows that are trained on and scored in them

Options = dict[str, Any]
Found = dict[str, Any]
Bits = dict[str, Tensor]

# --- data -------------------------------------------------------------------------------------------------


def columns(rows: int = ROWS) -> dict[str, Any]:
    """Rows with a target of every kind; `row` is their number."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    y = (3 * x[:, 0].sin() + x[:, 1]).add(3).mul(0.5).long().clamp(0, CLASSES - 1)
    return {
        "x": x,
        "y": y,
        "some": torch.where(torch.arange(rows) % 4 > 0, -1, y),  # most labels are missing, all of some parts of a batch
        "number": x[:, :2].cos() + x[:, 2:4],
        "by_row": torch.rand(rows, generator=generator, dtype=torch.float64),
        "row": torch.arange(rows),
    }


def sequences(rows: int = ROWS, least: int = 0) -> dict[str, Any]:
    """Sequences of up to 6 items, with a label for every item."""
    generator = torch.Generator().manual_seed(12)
    lengths = torch.randint(least, 7, (rows,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    tokens = torch.randint(0, 9, (int(offsets[-1]),), generator=generator)
    return {"tokens": hr.Ragged(tokens, offsets), "tags": hr.Ragged(tokens % CLASSES, offsets)}


# --- models -----------------------------------------------------------------------------------------------


def perceptron(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, outputs))


def frozen() -> nn.Module:
    model = perceptron()
    model[0].bias.requires_grad_(False)  # type: ignore[index]
    return model


def measured() -> nn.Module:
    """Its rows meet in batch statistics, and it draws random numbers."""
    return nn.Sequential(nn.Linear(FEATURES, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3))


def convolutions() -> nn.Module:
    head = nn.Flatten(), nn.Linear(120, 3)
    return nn.Sequential(nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), *head)


def two_heads() -> nn.Module:
    """A class and two numbers."""

    def call(self: Any, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(x))
        return {"classes": self.classes(hidden), "numbers": self.numbers(hidden)}

    return Parts(call, body=nn.Linear(FEATURES, 6), classes=nn.Linear(6, CLASSES), numbers=nn.Linear(6, 2))


def gated() -> nn.Module:
    """Has a parameter that only some rows reach, and whole parts of a batch do not."""

    def call(self: Any, x: Tensor) -> Tensor:
        found: Tensor = self.out(x)
        far = x[:, 0] > 1.2
        return found.index_add(0, far.nonzero()[:, 0], self.rare(x[far])) if bool(far.any()) else found

    return Parts(call, out=nn.Linear(FEATURES, CLASSES), rare=nn.Linear(FEATURES, CLASSES, bias=False))


class Tagger(nn.Module):
    """A class for every item, by a layer that looks back at those before it."""

    def __init__(self, recurrent: bool = False) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 8), nn.Linear(8, CLASSES)
        self.lstm = nn.LSTM(8, 8, batch_first=True) if recurrent else None

    def forward(self, tokens: hr.Ragged) -> Any:
        embedded = self.embedding(tokens.padded())
        states = torch.tanh(embedded.cumsum(dim=1)) if self.lstm is None else self.lstm(embedded)[0]
        return tokens.with_padded(self.out(states))


def attention() -> nn.Module:
    def call(self: Any, x: Tensor) -> Any:
        return self.out(self.layer(self.inward(x.view(-1, 4, 5))).mean(dim=1))

    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return Parts(call, inward=nn.Linear(5, 16), out=nn.Linear(16, 3), layer=layer)


class Measured(nn.Module):
    """Takes away the mean of what it has seen, as a batch norm does, of a single row as well."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self: Any, x: Tensor) -> Any:
        if self.training:
            self.mean.lerp_(x.detach().mean(dim=0), 0.1)
            self.seen += 1
        return x - self.mean


def noisy() -> nn.Module:
    """Draws random numbers, and measures its rows."""
    return nn.Sequential(nn.Linear(FEATURES, 6), Measured(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, CLASSES))


class Drawing(nn.Module):
    """Draws from every generator that a process has."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(FEATURES, 3)

    def forward(self, x: Tensor) -> Any:
        return self.out(x * (1 + 0.1 * random.random()) + 0.1 * float(np.random.rand()) + 0.1 * torch.randn(()))


class Counting(nn.Module):
    """Has a counter that goes down, a flag that is lowered once, and a limit that begins infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(FEATURES, 3)
        self.register_buffer("left", torch.tensor(100))
        self.register_buffer("fresh", torch.tensor(True))
        self.register_buffer("low", torch.tensor(math.inf))

    def forward(self: Any, x: Tensor) -> Any:
        if self.training:
            self.left -= 1
            self.fresh.fill_(False)
            self.low.copy_(torch.minimum(self.low, x.detach().min()))
        return self.out(x)


class Share:
    """The share of rows that are right, and how many there are: a metric that has no state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.rows, self.right = 0, 0

    def update(self, outputs: Tensor, target: Tensor) -> None:
        self.rows, self.right = self.rows + len(target), self.right + int((outputs.argmax(dim=1) == target).sum())

    def compute(self) -> dict[str, float]:
        return {"rows": self.rows, "share": self.right / max(1, self.rows)}


# --- what is trained --------------------------------------------------------------------------------------


def sgd(model: nn.Module, rate: float = 0.3, momentum: float = 0.9) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def by_head(model: Any) -> dict[str, torch.optim.Optimizer]:
    both = [*model.body.parameters()]
    return {
        "classes": torch.optim.SGD([*model.classes.parameters(), *both], lr=0.2, momentum=0.9),
        "numbers": torch.optim.Adam([*model.numbers.parameters()], lr=0.02),
    }


def several_terms() -> Any:
    numbers = hr.MSE(output="numbers", target="number", coefficient=0.3)
    return hr.CrossEntropy(output="classes", target="y") + numbers + hr.L2Prior(0.01)


def two_objectives() -> dict[str, Any]:
    return {
        "classes": hr.CrossEntropy(output="classes", target="y"),
        "numbers": hr.MSE(output="numbers", target="number", weight="by_row"),
    }


def all_three() -> Any:
    return hr.CrossEntropy(target="some", ignore_index=-1, class_weights=WEIGHTS, weight="by_row")


class Case(NamedTuple):
    """A model, what it learns from, and how; metrics, callbacks and `batch` are those of trainings in parts."""

    model: Callable[[], nn.Module] = perceptron
    loss: Callable[[], Any] = hr.CrossEntropy
    optimizer: Callable[[Any], Any] = sgd
    settings: Mapping[str, Any] = {}
    data: Callable[..., dict[str, Any]] = columns
    metrics: Any = ("accuracy", "auroc")
    callbacks: Callable[[], list[hr.Callback]] = list
    batch: int = 48


WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)  # sums of single precision differ in the 8th digit
ALIKE: dict[str, Case] = {
    "plain": Case(),
    "adam": Case(optimizer=adam),
    "several terms": Case(two_heads, several_terms, metrics=()),
    "class weights": Case(loss=lambda: hr.CrossEntropy(class_weights=WEIGHTS)),
    "ignored": Case(loss=lambda: hr.CrossEntropy(target="some", ignore_index=-1), metrics=()),
    "row weights": Case(loss=lambda: hr.CrossEntropy(weight="by_row")),
    "all three": Case(loss=all_three, metrics=()),
    "sums": Case(loss=lambda: hr.CrossEntropy(reduce="sum", coefficient=0.1)),
    "sequences": Case(Tagger, lambda: hr.CrossEntropy(target="tags"), data=sequences, metrics=()),
    "prior": Case(loss=lambda: hr.CrossEntropy(weight="by_row") + hr.L2Prior(0.1)),
    "clipped": Case(settings={"clip_norm": 0.05}),
    "clipped by value": Case(settings={"clip_value": 0.02}),
    "frozen": Case(frozen),
    "rare": Case(gated),
    "rare, adam": Case(gated, optimizer=adam),
    "two optimizers": Case(two_heads, two_objectives, by_head, metrics=()),
    "loose": Case(settings={"arena": False}),
    "torch's loss": Case(loss=nn.CrossEntropyLoss),
    "microbatches": Case(settings={"microbatch": 2}),
    "microbatches, all three": Case(loss=all_three, settings={"microbatch": 1}),
}
"""Rows do not meet, and no random numbers are drawn: any number of workers is as one, to rounding error."""
SHARED = ("plain", "adam", "several terms", "class weights", "ignored", "prior", "clipped", "rare, adam", "loose")
IN_PARTS: dict[str, Case] = {name: ALIKE[name] for name in SHARED} | {
    "a metric of one's own": Case(metrics={"share": Share()}),
    "BatchNorm, dropout": Case(measured, optimizer=adam, batch=52),
    "convolutions": Case(convolutions),
    "LSTM on ragged sequences": Case(
        partial(Tagger, True), lambda: hr.CrossEntropy(target="tags"), data=partial(sequences, least=1), metrics=()
    ),
    "transformer, dropout": Case(attention, optimizer=adam),
    "transformer without a tape": Case(attention, optimizer=adam, settings={"tape": False}),
    "numbers": Case(partial(perceptron, 2), lambda: hr.MSE(target="number"), metrics={"number": ["mae", "r2"]}),
    "bf16": Case(settings={"precision": "bf16"}),
    "fp16": Case(settings={"precision": "fp16"}),
    "averaged": Case(measured, optimizer=adam, callbacks=lambda: [hr.EMA(0.9)], batch=52),
    "uneven parts": Case(batch=45),
    "empty parts": Case(batch=7),
    "a part at a time": Case(settings={"microbatch": 6}),
    "two parts at a time": Case(settings={"microbatch": 12}),
    "every generator": Case(Drawing, metrics=()),
    "counters, empty parts": Case(Counting, batch=6),
    "a loader": Case(),
}
"""Trained in parts, they have the same bits on any number of workers."""
CASES = {**ALIKE, **IN_PARTS, "noisy": Case(noisy, optimizer=adam)}


def make(name: str, strategy: hr.Strategy | None = None, **settings: Any) -> hr.Trainer:
    """The trainer of a case, in double precision unless `dtype` is another; the same on every worker."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    case = CASES[name]
    model = case.model().to(settings.pop("dtype", torch.float64))
    given = {"batch_size": BATCH, "inputs": _inputs(case), **case.settings, **settings}
    optimizer = given.pop("optimizer", case.optimizer)(model)
    return hr.Trainer(model, case.loss(), optimizer, strategy=strategy, seed=5, **given)


def _inputs(case: Case) -> str:
    return "x" if case.data is columns else "tokens"


class CutError(Exception):
    """A training ends in the middle, as by an error of anybody's."""


class Log(hr.Callback):
    """What every update has been; an error in the middle of one of them."""

    def __init__(self, cut: int | None = None) -> None:
        self.losses: list[float] = []
        self.resumed = 0
        self._cut = cut

    def on_fit_start(self, info: hr.Info) -> None:
        self.resumed = info.resumed

    def on_step_end(self, info: hr.Info) -> None:
        self.losses.append(info.losses["total_loss"])
        if info.step == self._cut:
            raise CutError


def train(name: str, strategy: hr.Strategy | None, fit: Options, settings: Options) -> Found:
    """In a worker: fits, and returns all that has come of it."""
    trainer = make(name, strategy, **settings)
    own = ("rows", "cut", "predict")
    given = {"epochs": EPOCHS, "progress": False} | {key: value for key, value in fit.items() if key not in own}
    data = CASES[name].data
    log = Log(fit.get("cut"))
    if "val" in given:
        given["val"] = data(given["val"])
    history = trainer.fit(data(fit.get("rows", ROWS)), callbacks=[log], **given)
    weights = {key: value.detach().clone() for key, value in trainer.model.state_dict().items()}
    found = {"weights": weights, "history": untimed(history), "losses": log.losses, "resumed": log.resumed}
    if "predict" in fit:
        found["predicted"] = trainer.predict(data(fit["predict"]), batch_size=4)
        found["scores"] = trainer.validate(data(fit["predict"]), batch_size=4)
    return found


def run(
    workers: int,
    name: str = "plain",
    strategy: hr.Strategy | None = None,
    *,
    engine: str = "local",
    fit: Options | None = None,
    network: Network | None = None,
    **settings: Any,
) -> Found:
    """What worker 0 returns of a training by so many workers."""
    options: Options = {} if engine == "local" else {"timeout_s": 400.0}
    arguments = (name, copy.deepcopy(strategy), fit or {}, settings)
    found: Found = hr.launch(train, *arguments, workers=workers, engine=engine, network=network, **options)
    return found


def apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The largest difference between the weights that two trainings have come to."""
    assert a["weights"].keys() == b["weights"].keys()
    return bare_workers.apart(a["weights"], b["weights"])


def untimed(history: hr.History) -> list[dict[str, Any]]:
    """A history without what depends on the clock."""
    timed = ("rate", "seconds", "minutes", "samples_per_s", "time")
    return [{k: v for k, v in row.items() if not any(part in k for part in timed)} for row in history.rows]


# --- in parts ---------------------------------------------------------------------------------------------


def train_in_parts(name: str, fit: Mapping[str, Any], parts: int | None = PARTS) -> Bits:
    """In a worker: everything that comes of a training in single precision, as tensors."""
    case = CASES[name]
    settings = {"dtype": torch.float32, "batch_size": case.batch, "metrics": case.metrics}
    data = case.data(OF_PARTS + HELD_OUT)
    data = {
        key: value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
        for key, value in data.items()
    }
    known: Any = {key: column[:OF_PARTS] for key, column in data.items()}
    held_out: Any = {key: column[OF_PARTS:] for key, column in data.items()}
    if name == "a loader":
        settings |= {"batch_size": None, "inputs": None}
        rows, order = TensorDataset(known["x"], known["y"]), torch.Generator().manual_seed(4)
        known, held_out = (
            DataLoader(rows, batch_size=case.batch, shuffle=True, generator=order),
            (held_out["x"], held_out["y"]),
        )
    trainer = make(name, hr.Synchronous(parts=parts), **settings)
    given = {"epochs": EPOCHS, **fit}
    callbacks = [*case.callbacks(), *given.pop("callbacks", ())]
    history = trainer.fit(known, val=held_out, progress=False, callbacks=callbacks, **given)
    found = {key: tensor.detach().clone() for key, tensor in trainer.model.state_dict().items()}
    for number, state in enumerate(trainer.optimizer.state.values()):
        found |= {f"state {number} {key}": torch.as_tensor(value).clone() for key, value in state.items()}
    rows_told = untimed(history)
    for key in sorted({key for row in rows_told for key in row}):
        numbers = [row.get(key, math.nan) for row in rows_told]
        if all(isinstance(number, int | float) for number in numbers):
            found[f"reported {key}"] = torch.tensor(numbers, dtype=torch.float64)
        else:
            found[f"reported {key}"] = torch.frombuffer(bytearray(repr(numbers).encode()), dtype=torch.uint8)
    return found


def differing(one: Bits, other: Bits) -> list[str]:
    """What is not the same to the last bit."""
    return sorted(name for name in one.keys() | other.keys() if not same(one.get(name), other.get(name)))
