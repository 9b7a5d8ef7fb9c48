"""Small trainings of many kinds, which tests stop, resume and compare bit for bit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn, optim
from torch.optim import lr_scheduler as rates

import headrace as hr
from headrace.loss import tally
from headrace.step.guard import DeviceGuard
from kit.resume_parts import (
    BATCH,
    DATA,
    MICRO,
    ROWS,
    VAL,
    Caches,
    Centers,
    Counts,
    Draws,
    Elsewhere,
    Ends,
    GoesOn,
    Images,
    Lonely,
    Narrow,
    Remembers,
    Scale,
    Twice,
    Unfreezes,
    X,
    network,
)

Make = Callable[..., optim.Optimizer]


@dataclass
class Case:
    """A trainer, its data and what else `fit` is given."""

    trainer: hr.Trainer
    train: Any = field(default_factory=lambda: DATA)
    val: Any = field(default_factory=lambda: VAL)
    options: dict[str, Any] = field(default_factory=dict)


def adam(params: Any) -> optim.Optimizer:
    return optim.Adam(params, lr=0.02)


def trainer(model: nn.Module, optimizer: Any = adam, loss: Any = None, **options: Any) -> hr.Trainer:
    """Everything at once: microbatches, a norm to clip to, a schedule, a metric."""
    usual = {"batch_size": BATCH, "microbatch": MICRO, "clip_norm": 0.5, "schedule": hr.Cosine(0.2)}
    usual |= {"metrics": ["accuracy"], "device": "cpu", "inputs": ["x"]}
    return hr.Trainer(model, hr.CrossEntropy() if loss is None else loss, optimizer, **(usual | options))


# --- the cases ----------------------------------------------------------------------------------------------


def several() -> Case:
    model = nn.ModuleDict({"a": network(), "b": network()})
    model.forward = lambda x: {"a": model["a"](x), "b": model["b"](x)}  # type: ignore[method-assign]
    losses = {"a": hr.CrossEntropy(output="a"), "b": hr.CrossEntropy(output="b", label_smoothing=0.1)}
    optimizers = {"a": adam(model["a"].parameters()), "b": optim.SGD(model["b"].parameters(), 0.05, 0.9)}
    return Case(trainer(model, optimizers, losses, metrics=()))


def joint() -> Case:
    model = network()
    params = list(model.parameters())
    muon = optim.Muon([p for p in params if p.ndim == 2], lr=0.02)
    return Case(trainer(model, [muon, optim.AdamW([p for p in params if p.ndim != 2], lr=0.02)]))


def half() -> Case:
    """The scale of the loss begins far too high and is still coming down when the run is stopped."""
    return Case(trainer(network(), loss=100 * hr.CrossEntropy(), precision="fp16", schedule=None))


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
    model = Lonely()
    model.rest.append(Scale())
    rest, last = list(model.rest[:-2].parameters()), list(model.rest[-2:].parameters())
    groups = [{"params": rest}, {"params": last, "lr": torch.tensor(0.05), "weight_decay": 0.1}]
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
    options = {"validate_every": "3 steps", "log_every": "2 steps", "every": "7 steps"}
    options["callbacks"] = [Counts(), hr.EarlyStopping(patience=4), hr.BestModel("val/accuracy", k=2), Counts()]
    metrics = ["accuracy", "confusion", "f1:macro", "error"]
    return Case(trainer(network(), metrics=metrics, schedule=hr.OneCycle(peak=0.4)), options=options)


def by_samples() -> Case:
    """The best is the first, and the model ends as it."""
    options = {"validate_every": "10 samples", "log_every": "7 samples", "every": "25 samples"}
    options["callbacks"] = [hr.EarlyStopping(mode="max", patience=50)]
    return Case(trainer(network(), schedule=None), options=options)


def optimizer(make: Make, **options: Any) -> Callable[[], Case]:
    return lambda: Case(trainer(network(), make, **options))


def scheduler(make: Callable[..., Any], **options: Any) -> Callable[[], Case]:
    def momentum(params: Any) -> optim.Optimizer:
        return optim.SGD(params, lr=0.1, momentum=0.9)

    return lambda: Case(trainer(network(), momentum, schedule=hr.Schedule(make, **options)))


CASES: dict[str, Callable[[], Case]] = {
    "table": lambda: Case(trainer(network())),
    "source that ends": lambda: Case(trainer(Lonely()), Ends()),
    "source that goes on": lambda: Case(trainer(Lonely()), GoesOn()),
    "source that ends, in macrobatches": lambda: Case(trainer(Lonely(), macrobatch=12), Ends()),
    "source that goes on, in macrobatches": lambda: Case(trainer(Lonely(), macrobatch=12), GoesOn()),
    "reader of one epoch": lambda: Case(trainer(network()), hr.Reader(hr.ArrayTable(DATA), max_epochs=1)),
    "table read by a thread": lambda: Case(trainer(network(), order="blocks", seed=5, macrobatch=8), Elsewhere()),
    "several optimizers": several,
    "several optimizers on one loss": joint,
    "fp16": half,
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
    "channels last": lambda: Case(trainer(Images())),
    "skipping": skipping,
    "guard of a device": on_device,
    "updates of its own": twice,
    "updates of its own, no arena": lambda: twice(arena=False),
    "unfrozen": lambda: Case(trainer(network()), options={"callbacks": [Unfreezes()]}),
    "metrics in blocks": in_blocks,
    "objective with parameters": with_objective,
    "as much as fits": lambda: Case(trainer(Narrow(), microbatch="auto")),
    "caches": lambda: Case(trainer(Caches())),
    "draws in a callback": lambda: Case(trainer(network(), schedule=None), options={"callbacks": [Draws()]}),
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
