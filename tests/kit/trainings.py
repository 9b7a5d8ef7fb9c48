"""Small trainings of many kinds, made of parts that have state, which tests stop, resume and compare bit for bit."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler as rates

import headrace as hr
from headrace.loss import tally
from headrace.step.guard import DeviceGuard
from kit import own_data
from kit.small import Parts, adam, momentum

ROWS, BATCH, MICRO, EPOCHS = 38, 4, 2, 3
STEPS = EPOCHS * -(-ROWS // BATCH)
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y, IDS = X[:, :3].argmax(dim=1), torch.arange(ROWS)
DATA = {"x": X, "y": Y, "id": IDS}
VAL = {"x": X[:11], "y": Y[:11], "id": IDS[:11]}


class Ends(hr.Source):
    """Shuffles, and adds noise, by a generator that is part of its state; `None` at the end of an epoch."""

    rows, streams = ROWS - 1, (hr.Stream("x", (6,)), hr.Stream("y", (), "int64"), hr.Stream("id", (), "int64"))

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(7)
        self._order = torch.randperm(self.rows, generator=self._generator)
        self._at = 0

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


def in_blocks_elsewhere() -> hr.Table:
    """The same rows in blocks, read by a thread."""
    table = own_data.Elsewhere(DATA)
    table.block = 10
    return table


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def lonely() -> Any:
    """Tolerates a batch of one row, has a part that is frozen and one that is never used."""
    return Parts(
        lambda self, x: self.rest(self.frozen(x)),
        frozen=nn.Linear(6, 8).requires_grad_(False),
        unused=nn.Linear(3, 3),
        rest=nn.Sequential(nn.LayerNorm(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)),
    )


def images() -> Any:
    """Convolutions whose weights lie in memory with the channels last."""

    def call(self: Any, x: Tensor) -> Any:
        pixels = x.view(-1, 2, 3, 1).expand(-1, -1, -1, 3).contiguous(memory_format=torch.channels_last)
        return self.layers(pixels).mean(dim=(2, 3))

    layers = nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, (1, 2)))
    return Parts(call, layers=layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Remembers(nn.Module):
    """A buffer that is not saved with a model, and state that is no tensor; both change and both matter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("drift", torch.zeros(6), persistent=False)
        self.kept = SimpleNamespace(calls=0)

    def forward(self: Any, x: Tensor) -> Any:
        if self.training:
            self.drift += 0.01 * x.detach().mean(dim=0)
            self.kept.calls += 1
        return self.inner(x + self.drift + 1e-3 * self.kept.calls)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.kept.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.kept.calls = state["calls"]


class Caches(nn.Module):
    """Buffers that are not saved with a model: one is made when it is needed first, one grows with what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.register_buffer("late", None, persistent=False)
        self.register_buffer("grows", torch.zeros(1), persistent=False)

    def forward(self: Any, x: Tensor) -> Any:
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

    def forward(self, x: Tensor) -> Any:
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

    def terms(self: Any, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        out = model(batch["x"])
        if self.training:
            self.seen += torch.bincount(batch["y"], minlength=3)
        distance = (out - self.centers[batch["y"]]).square().sum() + 1e-3 * self.seen.sum() * out.square().sum()
        found = hr.Terms(centers=hr.Term(distance, float(batch.rows)))
        found.outputs = out
        return found

    def weights(self, batch: hr.Batch) -> dict[str, float]:
        return {"centers": float(batch.rows)}


def draw(info: hr.Info) -> None:
    """Draws from Python's and NumPy's generators, and changes rates by what comes."""
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


def unfreeze(info: hr.Info) -> None:
    """The first layer is trained from the second epoch on."""
    info.trainer.model[0].requires_grad_(info.epoch > 0)


class Twice(hr.Trainer):
    """Makes an update by hand after every other."""

    def train_step(self, batch: hr.Batch) -> Any:
        outcome = super().train_step(batch)
        self.optimizer.zero_grad()
        self.model(batch["x"]).square().mean().backward()
        self.optimizer.step()
        return outcome


@dataclass
class Case:
    """A trainer, its data and what else `fit` is given."""

    trainer: hr.Trainer
    train: Any = field(default_factory=lambda: DATA)
    val: Any = field(default_factory=lambda: VAL)
    options: dict[str, Any] = field(default_factory=dict)


def trainer(model: nn.Module, optimizer: Any = adam, loss: Any = None, **options: Any) -> hr.Trainer:
    """Everything at once: microbatches, a norm to clip to, a schedule, a metric."""
    usual: dict[str, Any] = {"batch_size": BATCH, "microbatch": MICRO, "clip_norm": 0.5, "schedule": hr.Cosine(0.2)}
    usual |= {"metrics": ["accuracy"], "device": "cpu", "inputs": ["x"]}
    return hr.Trainer(model, hr.CrossEntropy() if loss is None else loss, optimizer, **(usual | options))


def several() -> Case:
    model = nn.ModuleDict({"a": network(), "b": network()})
    model.forward = lambda x: {name: model[name](x) for name in "ab"}
    losses = {"a": hr.CrossEntropy(output="a"), "b": hr.CrossEntropy(output="b", label_smoothing=0.1)}
    optimizers = {"a": adam(model["a"].parameters()), "b": optim.SGD(model["b"].parameters(), 0.05, 0.9)}
    return Case(trainer(model, optimizers, losses, metrics=()))


def joint() -> Case:
    model = network()
    params = list(model.parameters())
    muon = optim.Muon([p for p in params if p.ndim == 2], lr=0.02)
    return Case(trainer(model, [muon, optim.AdamW([p for p in params if p.ndim != 2], lr=0.02)]))


def skipping() -> Case:
    x = X.clone()
    x[[3, 20], 1] = float("nan")
    return Case(trainer(network(), nonfinite="skip"), {**DATA, "x": x})


def with_objective() -> Case:
    model, objective = Remembers(), Centers()
    optimizer = adam([*model.parameters(), *objective.parameters()])
    return Case(trainer(model, optimizer, objective, schedule=hr.Linear(0.3, floor=0.1)))


def of_groups() -> Case:
    """Rates that are tensors, several groups, and a parameter without dimensions."""
    model = lonely()
    model.rest.append(Parts(lambda self, x: x * self.scale, scale=nn.Parameter(torch.tensor(1.0))))
    rest, last = list(model.rest[:-2].parameters()), list(model.rest[-2:].parameters())
    groups: list[Any] = [{"params": rest}, {"params": last, "lr": torch.tensor(0.05), "weight_decay": 0.1}]
    return Case(trainer(model, optim.AdamW(groups, lr=torch.tensor(0.01)), microbatch=3))


def sparse() -> Case:
    """An embedding with sparse gradients, and an optimizer that knows them."""
    model = nn.Sequential(nn.Embedding(ROWS, 4, sparse=True), nn.Linear(4, 3))
    optimizers = {"rows": optim.SparseAdam(model[0].parameters(), lr=0.1), "rest": adam(model[1].parameters())}
    losses = {"rows": hr.CrossEntropy(), "rest": hr.CrossEntropy(label_smoothing=0.2)}
    return Case(trainer(model, optimizers, losses, inputs=["id"], metrics=()))


def on_device() -> Case:
    """The guard of a GPU, which works on a CPU as well: numbers wait until they are reported."""
    case = Case(trainer(network()))
    case.trainer.updates.guard = DeviceGuard(torch.device("cpu"))
    return case


def twice(**options: Any) -> Case:
    model = network()
    return Case(Twice(model, hr.CrossEntropy(), adam(model.parameters()), batch_size=BATCH, inputs=["x"], **options))


def in_blocks() -> Case:
    """Metrics are fed every batch; this process ends with the training."""
    tally.BLOCK_BYTES = 1
    return Case(trainer(network(), metrics=["accuracy", "auroc", "confusion", "f1:macro", "error"]))


def within_epochs() -> Case:
    options: dict[str, Any] = {"validate_every": "3 steps", "log_every": "2 steps", "every": "7 steps"}
    options["callbacks"] = [Counts(), hr.EarlyStopping(patience=4), hr.BestModel("val/accuracy", k=2), Counts()]
    metrics = ["accuracy", "confusion", "f1:macro", "error"]
    return Case(trainer(network(), metrics=metrics, schedule=hr.OneCycle(peak=0.4)), options=options)


def by_samples() -> Case:
    """The best is the first, and the model ends as it."""
    options: dict[str, Any] = {"validate_every": "10 samples", "log_every": "7 samples", "every": "25 samples"}
    options["callbacks"] = [hr.EarlyStopping(mode="max", patience=50)]
    return Case(trainer(network(), schedule=None), options=options)


def optimizer(make: Any, **options: Any) -> Callable[[], Case]:
    return lambda: Case(trainer(network(), make, **options))


def scheduler(make: Callable[..., Any], **options: Any) -> Callable[[], Case]:
    return lambda: Case(trainer(network(), momentum, schedule=hr.Schedule(make, **options)))


CASES: dict[str, Callable[[], Case]] = {
    "table": lambda: Case(trainer(network())),
    "source that ends": lambda: Case(trainer(lonely()), Ends()),
    "source that goes on": lambda: Case(trainer(lonely()), GoesOn()),
    "source that ends, in macrobatches": lambda: Case(trainer(lonely(), macrobatch=12), Ends()),
    "source that goes on, in macrobatches": lambda: Case(trainer(lonely(), macrobatch=12), GoesOn()),
    "reader of one epoch": lambda: Case(trainer(network()), hr.Reader(hr.ArrayTable(DATA), max_epochs=1)),
    "table read by a thread": lambda: Case(
        trainer(network(), order="blocks", seed=5, macrobatch=8), in_blocks_elsewhere()
    ),
    "several optimizers": several,
    "several optimizers on one loss": joint,
    # the scale of the loss begins far too high and is still coming down when the run is stopped
    "fp16": lambda: Case(trainer(network(), loss=100 * hr.CrossEntropy(), precision="fp16", schedule=None)),
    "bf16": lambda: Case(trainer(network(), precision="bf16")),
    "momentum": optimizer(lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)),
    "adamw": optimizer(lambda p: optim.AdamW(p, lr=0.02, amsgrad=True)),
    "nadam": optimizer(lambda p: optim.NAdam(p, lr=0.02)),
    "radam": optimizer(lambda p: optim.RAdam(p, lr=0.02)),
    "adamax": optimizer(lambda p: optim.Adamax(p, lr=0.02)),
    "adagrad": optimizer(lambda p: optim.Adagrad(p, lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1)),
    "adadelta": optimizer(lambda p: optim.Adadelta(p)),
    "rmsprop": optimizer(lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True)),
    "rprop": optimizer(lambda p: optim.Rprop(p, lr=0.01), schedule=None),
    "asgd": optimizer(lambda p: optim.ASGD(p, lr=0.05, t0=5)),
    "adafactor": optimizer(lambda p: optim.Adafactor(p, lr=0.05)),
    "no arena": optimizer(adam, arena=False),
    "groups": of_groups,
    "sparse": sparse,
    "channels last": lambda: Case(trainer(images())),
    "skipping": skipping,
    "guard of a device": on_device,
    "updates of its own": twice,
    "updates of its own, no arena": lambda: twice(arena=False),
    "unfrozen": lambda: Case(
        trainer(network()), options={"callbacks": [hr.Lambda(on_fit_start=unfreeze, on_epoch_start=unfreeze)]}
    ),
    "metrics in blocks": in_blocks,
    "objective with parameters": with_objective,
    "as much as fits": lambda: Case(trainer(Narrow(), microbatch="auto")),
    "caches": lambda: Case(trainer(Caches())),
    "draws in a callback": lambda: Case(
        trainer(network(), schedule=None), options={"callbacks": [hr.Lambda(on_step_end=draw)]}
    ),
    "reports within epochs": within_epochs,
    "reports by samples": by_samples,
    "step": scheduler(lambda o, n: rates.StepLR(o, 1, gamma=0.5)),
    "milestones": scheduler(lambda o, n: rates.MultiStepLR(o, [4, 9, 9, 22], gamma=0.5), every="1 step"),
    "cosine": scheduler(lambda o, n: rates.CosineAnnealingLR(o, n), every="1 step"),
    "restarts": scheduler(lambda o, n: rates.CosineAnnealingWarmRestarts(o, 7), every="1 step"),
    "torch's one cycle": scheduler(lambda o, n: rates.OneCycleLR(o, 0.2, total_steps=n + 1), every="1 step"),
    "cyclic": scheduler(lambda o, n: rates.CyclicLR(o, 0.01, 0.2, step_size_up=5), every="8 samples"),
    "plateau": scheduler(lambda o, n: rates.ReduceLROnPlateau(o, "max", factor=0.5, patience=0), every="2 epochs"),
    "plateau of steps": scheduler(lambda o, n: rates.ReduceLROnPlateau(o, "max", patience=0), monitor="val/accuracy"),
    "function": scheduler(lambda o, n: rates.LambdaLR(o, lambda k: 1 / (1 + k)), every="3 steps"),
    "one after the other": scheduler(
        lambda o, n: rates.SequentialLR(o, [rates.LinearLR(o, 0.1, total_iters=5), rates.MultiStepLR(o, [3, 8])], [6]),
        every="1 step",
    ),
    "two at once": scheduler(
        lambda o, n: rates.ChainedScheduler([rates.ExponentialLR(o, 0.95), rates.MultiStepLR(o, [3, 8], gamma=0.5)]),
        every="1 step",
    ),
}
