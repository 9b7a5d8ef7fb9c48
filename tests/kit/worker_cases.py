"""Trainings that several workers make as one would: tiny models in double precision, on any engine."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.engines.network import Network
from headrace.workers.here import here

ROWS, BATCH, EPOCHS = 43, 12, 2
UPDATES = 4  # in an epoch, the last of 7 rows
FEATURES, CLASSES = 5, 3
EXACT = 1e-12

Options = dict[str, Any]
Found = dict[str, Any]

# --- data -------------------------------------------------------------------------------------------------


def columns(rows: int = ROWS) -> dict[str, Any]:
    """Rows with a target of every kind; `row` is their number."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    y = (3 * x[:, 0].sin() + x[:, 1]).add(3).mul(0.5).long().clamp(0, CLASSES - 1)
    holes = torch.arange(rows) % 4 > 0  # most labels are missing, all of some parts of a batch
    return {
        "x": x,
        "y": y,
        "some": torch.where(holes, -1, y),
        "number": x[:, :2].cos() + x[:, 2:4],
        "by_row": torch.rand(rows, generator=generator, dtype=torch.float64),
        "row": torch.arange(rows),
    }


def sequences(rows: int = ROWS) -> dict[str, Any]:
    """Sequences of 0 to 6 items, with a label for every item."""
    generator = torch.Generator().manual_seed(12)
    lengths = torch.randint(0, 7, (rows,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    tokens = torch.randint(0, 9, (int(offsets[-1]),), generator=generator)
    return {"tokens": hr.Ragged(tokens, offsets), "tags": hr.Ragged(tokens % CLASSES, offsets)}


# --- models -----------------------------------------------------------------------------------------------


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CLASSES))


class TwoHeads(nn.Module):
    """A class and two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.numbers = nn.Linear(FEATURES, 6), nn.Linear(6, CLASSES), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(x))
        return {"classes": self.classes(hidden), "numbers": self.numbers(hidden)}


class Gated(nn.Module):
    """Has a parameter that only some rows reach, and whole parts of a batch do not."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.rare = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(x)
        far = x[:, 0] > 1.2
        if bool(far.any()):
            found = found.index_add(0, far.nonzero()[:, 0], self.rare(x[far]))
        return found


class Tagger(nn.Module):
    """A class for every item."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(9, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens: hr.Ragged) -> Any:
        padded = tokens.padded()
        return tokens.with_padded(self.out(torch.tanh(self.embedding(padded).cumsum(dim=1))))


def frozen() -> nn.Module:
    model = perceptron()
    model[0].bias.requires_grad_(False)  # type: ignore[index]
    return model


class Measured(nn.Module):
    """Takes away the mean of what it has seen, as a batch norm does, of a single row as well."""

    mean: Tensor
    seen: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.lerp_(x.detach().mean(dim=0), 0.1)
            self.seen += 1
        return x - self.mean


def noisy() -> nn.Module:
    """Draws random numbers, and measures its rows."""
    return nn.Sequential(nn.Linear(FEATURES, 6), Measured(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, CLASSES))


class Share:
    """The share of rows that are right, and how far they are from it in the mean: a metric that has no state."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.rows, self.right = 0, 0

    def update(self, outputs: Tensor, target: Tensor) -> None:
        self.rows, self.right = self.rows + len(target), self.right + int((outputs.argmax(dim=1) == target).sum())

    def compute(self) -> dict[str, float]:
        return {"rows": self.rows, "share": self.right / max(1, self.rows)}


# --- what is trained --------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A model, what it learns from, and how."""

    model: Callable[[], nn.Module]
    loss: Callable[[], Any]
    data: Callable[..., dict[str, Any]] = columns
    settings: Options = {}  # noqa: RUF012


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


WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)  # sums of single precision differ in the 8th digit
X: Options = {"inputs": "x"}
CASES: dict[str, Case] = {
    "plain": Case(perceptron, hr.CrossEntropy, settings=X),
    "adam": Case(perceptron, hr.CrossEntropy, settings=X | {"optimizer": adam}),
    "several terms": Case(TwoHeads, several_terms, settings=X),
    "class weights": Case(perceptron, lambda: hr.CrossEntropy(class_weights=WEIGHTS), settings=X),
    "ignored": Case(perceptron, lambda: hr.CrossEntropy(target="some", ignore_index=-1), settings=X),
    "row weights": Case(perceptron, lambda: hr.CrossEntropy(weight="by_row"), settings=X),
    "all three": Case(
        perceptron,
        lambda: hr.CrossEntropy(target="some", ignore_index=-1, class_weights=WEIGHTS, weight="by_row"),
        settings=X,
    ),
    "sums": Case(perceptron, lambda: hr.CrossEntropy(reduce="sum", coefficient=0.1), settings=X),
    "sequences": Case(Tagger, lambda: hr.CrossEntropy(target="tags"), sequences, {"inputs": "tokens"}),
    "prior": Case(perceptron, lambda: hr.CrossEntropy() + hr.L2Prior(0.1), settings=X),
    "clipped": Case(perceptron, hr.CrossEntropy, settings=X | {"clip_norm": 0.05}),
    "clipped by value": Case(perceptron, hr.CrossEntropy, settings=X | {"clip_value": 0.02}),
    "frozen": Case(frozen, hr.CrossEntropy, settings=X),
    "rare": Case(Gated, hr.CrossEntropy, settings=X),
    "rare, adam": Case(Gated, hr.CrossEntropy, settings=X | {"optimizer": adam}),
    "two optimizers": Case(TwoHeads, two_objectives, settings=X | {"optimizer": by_head}),
    "loose": Case(perceptron, hr.CrossEntropy, settings=X | {"arena": False}),
    "torch's loss": Case(perceptron, nn.CrossEntropyLoss, settings=X),
    "noisy": Case(noisy, hr.CrossEntropy, settings=X | {"optimizer": adam}),
    "microbatches": Case(perceptron, hr.CrossEntropy, settings=X | {"microbatch": 2}),
    "microbatches, all three": Case(
        perceptron,
        lambda: hr.CrossEntropy(target="some", ignore_index=-1, class_weights=WEIGHTS, weight="by_row"),
        settings=X | {"microbatch": 1},
    ),
}


def make(name: str, strategy: hr.Strategy | None = None, **settings: Any) -> hr.Trainer:
    """The trainer of a case, the same on every worker."""
    torch.manual_seed(3)
    case = CASES[name]
    model = case.model().double()
    given = {"batch_size": BATCH, **case.settings, **settings}
    optimizer = given.pop("optimizer", sgd)(model)
    return hr.Trainer(model, case.loss(), optimizer, strategy=strategy, seed=5, **given)


class CutError(Exception):
    """A training ends in the middle, as by an error of anybody's."""


class Log(hr.Callback):
    """What every update has been; an error in the middle of one of them."""

    def __init__(self, cut: int | None) -> None:
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
    """In a worker: fits, and says all that has come of it."""
    trainer = make(name, strategy, **settings)
    own = ("rows", "cut", "predict")
    given = {"epochs": EPOCHS, "progress": False} | {key: value for key, value in fit.items() if key not in own}
    data = CASES[name].data
    log = Log(fit.get("cut"))
    if "val" in given:
        given["val"] = data(given["val"])
    history = trainer.fit(data(fit.get("rows", ROWS)), callbacks=[log], **given)
    weights = {key: value.detach().clone() for key, value in trainer.model.state_dict().items()}
    found = {"weights": weights, "history": told(history), "losses": log.losses, "resumed": log.resumed}
    if "predict" in fit:
        found["predicted"] = trainer.predict(data(fit["predict"]), batch_size=4)
        found["scores"] = trainer.validate(data(fit["predict"]), batch_size=4)
    return found


TIMED = ("rate", "seconds", "minutes", "samples_per_s", "time")


def told(history: hr.History) -> list[dict[str, Any]]:
    """A history without what depends on the clock."""
    return [{k: v for k, v in row.items() if not any(part in k for part in TIMED)} for row in history.rows]


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
    """What worker 0 says of a training by so many workers."""
    options: Options = {} if engine == "local" else {"timeout_s": 60.0}
    arguments = (name, copy.deepcopy(strategy), fit or {}, settings)
    found: Found = hr.launch(train, *arguments, workers=workers, engine=engine, network=network, **options)
    return found


def apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The largest difference between the weights that two trainings have come to."""
    assert a["weights"].keys() == b["weights"].keys()
    return max(float((a["weights"][k].double() - b["weights"][k].double()).abs().max()) for k in a["weights"])


METRICS: Options = {"accuracy": "accuracy", "share": Share()}


def subset(at: str, metrics: Options) -> dict[str, Found]:
    """In a worker of any engine: a few trainings whose results are known, one after another."""
    scored = {"metrics": metrics}
    plain = {"optimizer": lambda model: sgd(model, momentum=0.0)}
    count = here().count
    found = {
        "synchronous": train("all three", None, {"val": 9}, {}),
        "scored": train("plain", None, {"val": 9, "predict": 3}, scored),
        "every step": train("plain", hr.Periodic("1 step"), {}, plain | {"batch_size": BATCH // count}),
        "plain": train("plain", None, {}, plain),
    }
    rounds = {"batch_size": BATCH // count}
    found["whole"] = train("noisy", hr.DiLoCo("3 steps"), {"steps": 2 * UPDATES}, rounds)
    torch.manual_seed(3)
    train("noisy", hr.DiLoCo("3 steps"), {"steps": 4, "run": at}, rounds)
    torch.manual_seed(9)  # what was drawn next is in the run
    found["resumed"] = train("noisy", hr.DiLoCo("3 steps"), {"steps": 2 * UPDATES, "run": at}, rounds)
    return found


def check_subset(found: dict[str, Found], at: Path, metrics: Options) -> None:
    """What two workers of any engine have found is what one finds, or what virtual ones do."""
    one = subset(str(at / "one"), metrics)
    for name in ("synchronous", "scored", "plain"):
        assert apart(one[name], found[name]) < EXACT, name
        assert found[name]["losses"] == pytest.approx(one[name]["losses"], abs=EXACT)
    assert apart(one["plain"], found["every step"]) < EXACT
    assert torch.allclose(one["scored"]["predicted"], found["scored"]["predicted"], rtol=0, atol=EXACT)
    for name in metrics:
        assert found["scored"]["scores"][f"val/{name}"] == one["scored"]["scores"][f"val/{name}"]
    assert found["resumed"]["resumed"] == 4
    assert found["whole"]["losses"][4:] == found["resumed"]["losses"]
    assert apart(found["whole"], found["resumed"]) == 0.0
    virtual = hr.launch(subset, str(at / "virtual"), metrics, workers=2)
    for name, theirs in virtual.items():
        assert apart(theirs, found[name]) < (1e-6 if name in ("whole", "resumed") else EXACT), name
