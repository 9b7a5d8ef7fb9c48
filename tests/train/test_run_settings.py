"""Settings that differ from those of a run: told, one by one, and taken only by one who insists."""

import argparse
import enum
import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from kit import small
from kit.small import data, difference, drive, fit, state
from torch import nn
from torch.optim import lr_scheduler

import headrace as hr
from headrace.step import config
from headrace.store.checkpoints import Store

ROWS, BATCH = 20, 4  # five batches
X, Y = data(ROWS)
DATA = {"x": X, "y": Y, "z": (Y + 1) % 3}
adam = partial(torch.optim.Adam, lr=0.02)


def make(loss: Any = hr.CrossEntropy, **options: Any) -> hr.Trainer:
    return small.trainer(**{"loss": loss(), "optimizer": adam, "batch_size": BATCH, "inputs": ["x"]} | options)


def steps(trainer: hr.Trainer, run: Path, until: int | None = None, **options: Any) -> int:
    """The loop, left after so many steps or trained to its end; the step that it went on from."""
    return drive(trainer, DATA, DATA, until=until, run=run, **options)


def step_rates(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def cosine_rates(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 2)


def focal(alpha: float) -> Callable[[], Any]:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return alpha * nn.functional.cross_entropy(outputs, targets)

    return lambda: hr.RowMean(loss)


weighted = [partial(hr.CrossEntropy, class_weights=[1.0, 2.0, number]) for number in (3.0, 4.0)]
STEP, OTHERS = hr.Schedule(step_rates), [hr.Schedule(cosine_rates), hr.Schedule(step_rates, every="2 steps")]
SETTINGS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"optimizer": partial(adam, lr=0.04)}, "optimizer.*0.02.* in the run, .*0.04.* now"),
    ({}, {"optimizer": partial(adam, betas=(0.8, 0.99))}, "betas.*0.9 in the run, 0.8 now"),
    ({}, {"optimizer": partial(adam, weight_decay=0.1)}, "weight_decay.* now"),
    ({}, {"batch_size": 5}, "batch_size: 4 in the run, 5 now"),
    ({}, {"microbatch": 2}, "microbatch: None in the run, 2 now"),
    ({"microbatch": 2}, {"microbatch": "auto"}, "microbatch: 2 in the run, 'auto' now"),
    ({"clip_norm": 1.0}, {"clip_norm": 0.5}, "clip_norm: 1.0 in the run, 0.5 now"),
    ({}, {"clip_value": 0.5}, "clip_value: None in the run, 0.5 now"),
    ({}, {"precision": "bf16"}, "precision: 'fp32' in the run, 'bf16' now"),
    ({}, {"seed": 3}, "seed: 0 in the run, 3 now"),
    ({}, {"order": "none"}, "order: 'full' in the run, 'none' now"),
    ({}, {"target": "z"}, "target: 'y' in the run, 'z' now"),
    ({}, {"inputs": ["x", "z"]}, r"inputs: \['x'\] in the run, \['x', 'z'\] now"),
    ({}, {"deterministic": True}, "deterministic: False in the run, True now"),
    ({}, {"nonfinite": "skip"}, "nonfinite: 'stop' in the run, 'skip' now"),
    ({}, {"schedule": hr.Cosine()}, "schedule: None in the run"),
    ({"schedule": hr.Cosine()}, {}, "schedule: .* in the run, None now"),
    ({"schedule": hr.Cosine(0.1)}, {"schedule": hr.Cosine(0.2)}, "schedule.warmup: 0.1 .* 0.2 now"),
    ({"schedule": hr.Cosine(0.1)}, {"schedule": hr.Linear(0.1)}, "schedule.kind: 'Cosine' in the run, 'Linear' now"),
    ({"schedule": {0: 0.5}}, {"schedule": {0: 0.5, "9 steps": 0.1}}, "schedule.9 steps: None in the run, 0.1 now"),
    ({}, {"schedule": STEP}, "schedule: None in the run"),
    ({"schedule": STEP}, {}, "schedule: .*step_rates.* in the run, None now"),
    ({"schedule": STEP}, {"schedule": OTHERS[0]}, "schedule.*step_rates.*cosine_rates"),
    ({"schedule": STEP}, {"schedule": OTHERS[1]}, "schedule.every: '1 epoch' in the run, '2 steps' now"),
    ({}, {"loss": hr.Focal}, "loss.kind: 'CrossEntropy' in the run, 'Focal' now"),
    ({"loss": focal(0.25)}, {"loss": focal(75.0)}, r"loss.fn: '.*loss\(alpha=0.25\)' in the run, "),
    ({}, {"loss": partial(hr.CrossEntropy, target="z")}, "target"),
    ({"loss": weighted[0]}, {"loss": weighted[1]}, "class_weights"),
    (
        {"loss": nn.CrossEntropyLoss},
        {"loss": partial(nn.CrossEntropyLoss, label_smoothing=0.1)},
        "label_smoothing: 0.0 in the run, 0.1 now",
    ),
]


@pytest.mark.parametrize(("was", "now", "told"), SETTINGS)
def test_a_setting_that_differs_is_named_with_both_values(was: Any, now: Any, told: str) -> None:
    found = config.differences(make(**was).resume_settings, make(**now).resume_settings)
    assert any(re.search(told, line) for line in found), found


def test_settings_of_one_of_several_optimizers_that_differ_are_named(tmp_path: Path) -> None:
    def trainer(beta: float) -> hr.Trainer:
        model = small.model()
        body, head = torch.optim.SGD(model[0].parameters()), adam(model[2].parameters(), betas=(beta, 0.99))
        return make(
            of=model, loss=lambda: {"a": hr.CrossEntropy(), "b": hr.CrossEntropy()}, optimizer={"a": body, "b": head}
        )

    steps(trainer(0.5), tmp_path / "run", 3)
    with pytest.raises(hr.CheckpointError, match=r"optimizer\.b\.groups\.0\.betas\.0: 0\.5 in the run, 0\.9 now"):
        steps(trainer(0.9), tmp_path / "run")


@pytest.mark.parametrize("number", [0, 3, 23, 27])
def test_a_setting_that_differs_is_listed_and_only_who_insists_goes_on_with_it(number: int, tmp_path: Path) -> None:
    was, now, told = SETTINGS[number]
    steps(make(**was), tmp_path / "run", 3, validate_every="2 steps", log_every="3 steps")
    trainer, run = make(**now), dict[str, Any](run=tmp_path / "run", validate_every="2 steps", log_every="3 steps")
    before = state(trainer)
    with pytest.raises(hr.CheckpointError, match=r"(?s)trained with other settings.*override=True") as caught:
        steps(trainer, tmp_path / "run")
    said = str(caught.value)
    for line in (told, "validate_every: '2 steps' in the run, '1 epoch' now", "log_every: '3 steps' in the run, '1 ep"):
        assert any(re.search(line, each) for each in said.splitlines()), said
    assert not (where := difference(trainer, before)), where
    assert steps(make(**was), until=4, **run) == 3
    assert steps(trainer, **run, override=True) == 4
    assert trainer.history.last["epoch"] == 2
    assert "overridden: " in (tmp_path / "run" / "log.txt").read_text()
    assert steps(make(**now), **run, epochs=3) == trainer.history.last["step"]


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_what_is_set_in_an_optimizer_between_two_trainings_is_a_setting_that_differs(
    name: str, trained: bool, tmp_path: Path
) -> None:
    def halve(info: hr.Info, row: Any) -> None:
        info.set_rate(info.rate / 2)  # which is saved with the run, and no difference

    options: dict[str, Any] = {"run": tmp_path / "run", "callbacks": [hr.Lambda(on_epoch_end=halve)]}
    fit(trainer := make(), DATA, epochs=1, **options)
    if trained:
        fit(trainer, DATA, epochs=2, **options)
    else:
        trainer = make()
    trainer.optimizer.param_groups[0][name] = 0.5
    with pytest.raises(hr.CheckpointError, match=rf"optimizer\.groups\.0\.{name}: .* in the run, 0\.5 now"):
        fit(trainer, DATA, epochs=3, **options)
    fit(trainer, DATA, epochs=3, **options, override=True)
    assert trainer.optimizer.param_groups[0][name] == (0.5 if name == "weight_decay" else 0.25 / (1 + (not trained)))


def test_settings_that_are_the_same_are_no_difference(tmp_path: Path) -> None:
    """The control: also those that are written differently, as tuples and lists are; metrics are none."""
    options = {"schedule": hr.OneCycle(), "clip_norm": 1.0, "loss": weighted[0], "metrics": ["accuracy", "error"]}
    steps(make(**options, optimizer=partial(adam, betas=(0.9, 0.99))), tmp_path / "run", 3)
    loss = partial(hr.CrossEntropy, class_weights=torch.tensor([1.0, 2.0, 3.0]))
    again = {**options, "loss": loss, "inputs": ("x",), "metrics": ["accuracy", "f1:macro"]}
    trainer = make(**again, optimizer=partial(adam, betas=[0.9, 0.99]))
    assert steps(trainer, tmp_path / "run") == 3
    assert {"train/accuracy", "train/f1:macro"} <= trainer.history.last.keys()
    assert "train/error" not in trainer.history.last


def test_how_often_it_saves_and_what_stays_may_change(tmp_path: Path) -> None:
    steps(make(), tmp_path / "run", 3, every="1 step", keep="all")
    steps(make(), tmp_path / "run", every="2 epochs", keep=1, wait=True)
    assert Store(tmp_path / "run" / "checkpoints", None).steps() == [10]


# --- what a loss holds ----------------------------------------------------------------------------------------


def power(exponent: Any) -> Callable[[Any, Any], Any]:
    def loss(outputs: Any, target: Any) -> Any:
        return (outputs - target).abs().pow(exponent).mean()

    return loss


def with_default(exponent: float) -> Callable[..., Any]:
    def loss(outputs: Any, target: Any, by: float = exponent, *, far: float = exponent) -> Any:
        return (outputs - target).abs().pow(by + far).mean()

    return loss


class Scaled:
    def __init__(self, scale: Any) -> None:
        self.scale, self._cache = scale, object()

    def __call__(self, outputs: Any, target: Any) -> Any:
        return self.scale * (outputs - target).square().mean()

    def mean(self, outputs: Any, target: Any) -> Any:
        return self(outputs, target)


class Within(nn.Module):
    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.loss = nn.CrossEntropyLoss(label_smoothing=smoothing)

    def forward(self, outputs: Any, target: Any) -> Any:
        return self.loss(outputs, target)


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True, slots=True)
class Slotted:
    width: int
    _hidden: int = 0


def lambdas() -> list[Callable[..., Any]]:
    return [lambda o, t: o + t, lambda o, t: o - t, lambda o, t: o * sum((1, 2)), lambda o, t: o * sum((1, 3))]


HELD: list[tuple[Any, Any]] = [
    *((0.25, 75.0), ((1, 2), (1, 3)), ([1.0], [2.0]), (power(1.0), power(2.0)), (b"a", b"b"), (1j, 2j)),
    *((torch.tensor([1.0]), torch.tensor([2.0])), (list(range(100)), list(range(101))), (range(3), range(9))),
    *((Fraction(1, 3), Fraction(2, 3)), (deque([1]), deque([2])), (np.float32(0.1), np.float32(0.2))),
    *((torch.zeros(100), torch.ones(100)), (torch.zeros(100), torch.zeros(10, 10))),
    (torch.zeros(100), torch.zeros(100, dtype=torch.float64)),
    (torch.zeros(100).index_fill(0, torch.tensor(99), 1), torch.zeros(100)),
    (partial(power, exponent=1.0), partial(power, exponent=2.0)),
]
"""What a function may find around it."""
LOSSES: list[tuple[Any, Any]] = [
    (hr.CrossEntropy(), 2 * hr.CrossEntropy()),
    (hr.CrossEntropy() + hr.L2Prior(0.1), hr.CrossEntropy() + hr.L2Prior(0.2)),
    (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))),
    (nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0)),
    (Within(0.1), Within(0.2)),
    (nn.Sequential(nn.Sequential(nn.Softmax(0))), nn.Sequential(nn.Sequential(nn.Softmax(1)))),
    *((power(one), power(other)) for one, other in HELD),
    (with_default(1.0), with_default(2.0)),
    (hr.RowMean(Scaled(1.0)), hr.RowMean(Scaled(2.0))),
    (hr.RowMean(Scaled([[[[1]]]])), hr.RowMean(Scaled([[[1]]]))),
    (hr.RowMean(Scaled(1.0).mean), hr.RowMean(Scaled(2.0).mean)),
    (hr.MSE() + hr.RowMean(power([{"b": [1]}])), hr.MSE() + hr.RowMean(power([{"b": [2]}]))),
    (lambdas()[0], lambdas()[1]),
    (lambdas()[2], lambdas()[3]),
    (eval("lambda o, t: o * sum((1, 2))"), eval("lambda o, t: o * sum((1, 3))")),
]


def of_loss(loss: Any) -> Any:
    return make(lambda: loss).resume_settings


@pytest.mark.parametrize(("one", "other"), LOSSES, ids=lambda value: type(value).__name__)
def test_whatever_a_loss_holds_is_a_setting(one: Any, other: Any) -> None:
    assert config.differences(of_loss(one), of_loss(other))
    assert of_loss(one) == of_loss(one)


def test_weights_that_a_function_holds_and_arguments_that_it_does_not_read_are_no_settings() -> None:
    """Weights are made anew, and loaded, when a run goes on."""
    for held in (lambda: nn.Parameter(torch.rand(2)), lambda: nn.Linear(2, 2), lambda: [nn.Parameter(torch.rand(2))]):
        assert of_loss(power(held())) == of_loss(power(held()))

    def with_arguments(alpha: float, epochs: int) -> Any:
        arguments = argparse.Namespace(alpha=alpha, epochs=epochs)
        return of_loss(lambda outputs, targets: ((outputs - targets) * arguments.alpha).square().mean())

    assert with_arguments(1.0, 10) == with_arguments(1.0, 20) != with_arguments(2.0, 10)


VALUES: list[tuple[Any, Any]] = [
    *((value, value) for value in (None, True, 0.1, "α")),
    ({1: (2,)}, {"1": [2]}),
    ({"b", "a", "c"}, ["a", "b", "c"]),
    (np.float64(0.1), 0.1),
    (np.array([[1, 2]]), [[1, 2]]),
    (torch.tensor(0.5), 0.5),
    (torch.bfloat16, "torch.bfloat16"),
    (torch.device("cpu"), "cpu"),
    (hr.Length(2, "epochs"), "2 epochs"),
    (Colour.RED, "Colour.RED"),
    (Scaled(0.5), {"kind": "Scaled", "scale": 0.5}),
    (Slotted(3), {"kind": "Slotted", "width": 3}),
]


def test_settings_are_shown_as_json_and_yaml_have_them() -> None:
    values, shown = zip(*VALUES, strict=True)
    found = of_loss(hr.RowMean(Scaled([*values])))
    assert found["loss"]["fn"] == {"kind": "Scaled", "scale": [*shown]}
    assert json.loads(json.dumps(found)) == yaml.safe_load(yaml.safe_dump(found)) == found
    loop = Scaled(1.0)
    loop.scale = {"self": loop}
    assert len(json.dumps(of_loss(hr.RowMean(loop)))) < 10_000


# --- limits -------------------------------------------------------------------------------------------------

LIMITS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "grown": ({"epochs": 2}, {"epochs": 3}, ["limit in epochs: 2 in the run, 3 now"]),
    "both grown": ({"epochs": 2, "steps": 8}, {"epochs": 4, "steps": 9}, ["limit in epochs: 2 in the run, 4 now"]),
    "the same": ({"samples": 30}, {"samples": 30}, []),
    "fewer": ({"epochs": 3}, {"epochs": 2}, ["limit in epochs: 3 in the run, 2 now"]),
    "one fewer": ({"epochs": 2, "steps": 8}, {"epochs": 9, "steps": 7}, ["limit in steps: 8 in the run, 7 now"]),
    "another unit": ({"epochs": 2}, {"steps": 10}, ["limit in epochs: 2 in the run, None now"]),
    "one more": ({"epochs": 2}, {"epochs": 2, "steps": 9}, ["limit in steps: None in the run, 9 now"]),
    "one less": ({"epochs": 2, "steps": 9}, {"epochs": 2}, ["limit in steps: 9 in the run, None now"]),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_may_change_and_the_log_names_them(name: str, tmp_path: Path) -> None:
    was, now, told = LIMITS[name]
    steps(make(), tmp_path / "run", 3, **was)
    trainer = make()
    steps(trainer, tmp_path / "run", **now)
    ends = {"epochs": 5, "steps": 1, "samples": 1 / BATCH}
    assert trainer.history.last["step"] == min(-(-count * ends[unit] // 1) for unit, count in now.items())
    log = (tmp_path / "run" / "log.txt").read_text()
    assert [line for line in told if line not in log] == []
    assert ("limit in " in log) == bool(told)


def test_a_limit_that_has_been_passed_ends_the_training_where_it_stands(tmp_path: Path) -> None:
    steps(make(), tmp_path / "run", 8, epochs=3)
    trainer = make()
    assert list(trainer.steps(DATA, DATA, epochs=1, run=tmp_path / "run")) == []
    assert trainer.history.stopped == "1 epoch reached"
    assert fit(make(), DATA, DATA, epochs=3, run=tmp_path / "run").last["step"] == 15


# --- what an override does ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "rate", "expected"),
    [
        (None, 0.8, [0.8] * 12),
        (STEP, 0.8, [0.8, 0.4, *[0.4] * 4, *[0.2] * 5, 0.1]),  # `rate` is read after what was due at a step
        (hr.Schedule(lambda o: lr_scheduler.LambdaLR(o, lambda k: 0.5**k)), 0.8, [0.8, *[0.4] * 5, *[0.2] * 5, 0.1]),
        (hr.Linear(0.0), 1.0, [1 - step / 15 for step in range(3, 15)]),
    ],
)
def test_a_new_rate_is_the_rate_or_what_a_schedule_begins_with_from_then_on(
    schedule: Any, rate: float, expected: list[float], tmp_path: Path
) -> None:
    steps(make(schedule=schedule), tmp_path / "run", 3, epochs=3)
    trainer = make(schedule=schedule, optimizer=partial(adam, lr=rate))
    run = hr.Run(tmp_path / "run", override=True)
    seen = [info.rate for info in trainer.steps(DATA, DATA, run=run, epochs=3)]
    assert seen == pytest.approx(expected)
    assert {float(state["step"]) for state in trainer.optimizer.state.values()} == {15.0}, "it remembers the rest"


def test_another_batch_size_goes_on_at_the_row_where_it_was(tmp_path: Path) -> None:
    seen = []
    steps(make(order="none"), tmp_path / "run", 3, epochs=1)
    run = hr.Run(tmp_path / "run", override=True)
    for info in make(order="none", batch_size=5).steps(DATA, DATA, run=run, epochs=1):
        assert info.outcome is not None
        seen += [part.rows for _, part in info.outcome.outputs]
    assert (seen, info.samples) == ([5, 3], ROWS)


# --- functions of a script ----------------------------------------------------------------------------------


def half(progress: float) -> float:
    return 0.5


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize("names", [("__main__", "__mp_main__"), ("__mp_main__", "__main__")])
def test_a_script_s_functions_are_the_same_in_the_processes_that_it_starts(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They import it under another name."""
    for epochs, name in enumerate(names, 1):
        for function in (half, cross_entropy):
            monkeypatch.setattr(function, "__module__", name)
        fit(make(lambda: cross_entropy, schedule=half), DATA, epochs=epochs, run=tmp_path / "run")
    monkeypatch.setattr(half, "__qualname__", "another")
    with pytest.raises(hr.CheckpointError, match=r"schedule: '__main__\.half' in the run, '__main__\.another' now"):
        fit(make(lambda: cross_entropy, schedule=half), DATA, epochs=3, run=tmp_path / "run")
