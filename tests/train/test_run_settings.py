"""Settings that differ from those of a run: told, one by one, and taken only by one who insists."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.in_run import in_run
from kit.sampled import sampled
from kit.small import data, difference, model, state
from torch import nn
from torch.optim import lr_scheduler

import headrace as hr
from headrace.store.checkpoints import Store

ROWS, BATCH = 20, 4  # five batches
X, Y = data(ROWS)
DATA = {"x": X, "y": Y, "z": (Y + 1) % 3, "w": torch.rand(ROWS, generator=torch.Generator().manual_seed(2))}


def make(loss: Callable[[], Any] = hr.CrossEntropy, optimizer: Any = None, **options: Any) -> hr.Trainer:
    network = model()
    made = torch.optim.Adam(network.parameters(), lr=0.02) if optimizer is None else optimizer(network.parameters())
    return hr.Trainer(network, loss(), made, **{"batch_size": BATCH, "inputs": ["x"], "device": "cpu"} | options)


def steps(trainer: hr.Trainer, run: Path, until: int | None = None, **options: Any) -> list[hr.Info]:
    """The loop, left after so many steps or trained to its end; `info` of every step is the same object."""
    seen = []
    for info in trainer.steps(DATA, DATA, **in_run(run, **{"epochs": 2} | options)):
        seen.append(info)
        if info.step == until:
            break
    return seen


def adam(**options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda params: torch.optim.Adam(params, **{"lr": 0.02} | options)


def step_rates(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def cosine_rates(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, 2)


def of(term: type[hr.Loss], **options: Any) -> Callable[[], hr.Loss]:
    return lambda: term(**options)


def focal(alpha: float) -> Callable[[], Any]:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return alpha * nn.functional.cross_entropy(outputs, targets)

    return lambda: hr.RowMean(loss)


LOSSES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "another term": (hr.CrossEntropy, of(hr.Focal), "loss.kind: 'CrossEntropy' in the run, 'Focal' now"),
    "a variable around a function": (focal(0.25), focal(75.0), r"loss.fn: '.*loss\(alpha=0.25\)' in the run, "),
    "another target": (hr.CrossEntropy, of(hr.CrossEntropy, target="z"), "target"),
    "class weights": (
        of(hr.CrossEntropy, class_weights=[1.0, 2.0, 3.0]),
        of(hr.CrossEntropy, class_weights=[1.0, 2.0, 4.0]),
        "class_weights",
    ),
    "a loss of torch": (
        nn.CrossEntropyLoss,
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
        "label_smoothing: 0.0 in the run, 0.1 now",
    ),
}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rate": ({}, {"optimizer": adam(lr=0.04)}, "optimizer.*0.02.* in the run, .*0.04.* now"),
    "betas": ({}, {"optimizer": adam(betas=(0.8, 0.99))}, "betas.*0.9 in the run, 0.8 now"),
    "decay": ({}, {"optimizer": adam(weight_decay=0.1)}, "weight_decay.* now"),
    "batch_size": ({}, {"batch_size": 5}, "batch_size: 4 in the run, 5 now"),
    "microbatch": ({}, {"microbatch": 2}, "microbatch: None in the run, 2 now"),
    "microbatch auto": ({"microbatch": 2}, {"microbatch": "auto"}, "microbatch: 2 in the run, 'auto' now"),
    "clip_norm": ({"clip_norm": 1.0}, {"clip_norm": 0.5}, "clip_norm: 1.0 in the run, 0.5 now"),
    "clip_value": ({}, {"clip_value": 0.5}, "clip_value: None in the run, 0.5 now"),
    "precision": ({}, {"precision": "bf16"}, "precision: 'fp32' in the run, 'bf16' now"),
    "seed": ({}, {"seed": 3}, "seed: 0 in the run, 3 now"),
    "order": ({}, {"order": "none"}, "order: 'full' in the run, 'none' now"),
    "target": ({}, {"target": "z"}, "target: 'y' in the run, 'z' now"),
    "deterministic": ({}, {"deterministic": True}, "deterministic: False in the run, True now"),
    "nonfinite": ({}, {"nonfinite": "skip"}, "nonfinite: 'stop' in the run, 'skip' now"),
    "a schedule": ({}, {"schedule": hr.Cosine()}, "schedule: None in the run"),
    "no schedule": ({"schedule": hr.Cosine()}, {"schedule": None}, "schedule: .* in the run, None now"),
    "warm-up": (
        {"schedule": hr.Cosine(0.1)},
        {"schedule": hr.Cosine(0.2)},
        "schedule.warmup: 0.1 .* 0.2 now",
    ),
    "another curve": (
        {"schedule": hr.Cosine(0.1)},
        {"schedule": hr.Linear(0.1)},
        "schedule.kind: 'Cosine' in the run, 'Linear' now",
    ),
    "a scheduler": ({}, {"schedule": hr.Schedule(step_rates)}, "schedule: None in the run"),
    "no scheduler": (
        {"schedule": hr.Schedule(step_rates)},
        {"schedule": None},
        "schedule: .*step_rates.* in the run, None now",
    ),
    "another scheduler": (
        {"schedule": hr.Schedule(step_rates)},
        {"schedule": hr.Schedule(cosine_rates)},
        "schedule.*step_rates.*cosine_rates",
    ),
    "how often": (
        {"schedule": hr.Schedule(step_rates)},
        {"schedule": hr.Schedule(step_rates, every="2 steps")},
        "schedule.every: '1 epoch' in the run, '2 steps' now",
    ),
    **{name: ({"loss": was}, {"loss": now}, told) for name, (was, now, told) in LOSSES.items()},
}
SOME = sampled(
    SETTINGS,
    keep=(
        "rate",
        "a variable around a function",
        "batch_size",
        "another scheduler",
        "class weights",
        "a loss of torch",
    ),
    of=8,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_setting_that_differs_is_listed_and_only_who_insists_goes_on_with_it(name: str, tmp_path: Path) -> None:
    was, now, told = SETTINGS[name]
    steps(make(**was), tmp_path / "run", 3)
    trainer = make(**now)
    before = state(trainer)
    with pytest.raises(hr.CheckpointError, match=r"(?s)trained with other settings.*override=True") as caught:
        steps(trainer, tmp_path / "run")
    assert any(re.search(told, line) for line in str(caught.value).splitlines()), str(caught.value)
    assert not (where := difference(trainer, before)), where
    assert steps(make(**was), tmp_path / "run", 4)[0].resumed == 3
    assert steps(trainer, tmp_path / "run", override=True)[-1].resumed == 4
    assert trainer.history.last["epoch"] == 2
    assert "overridden: " in (tmp_path / "run" / "log.txt").read_text()
    again = steps(make(**now), tmp_path / "run", epochs=3)
    assert again[0].resumed == again[0].step - len(again)


def test_settings_that_are_the_same_are_no_difference(tmp_path: Path) -> None:
    """The control: also those that are written differently, as tuples and lists are."""
    options = {"schedule": hr.OneCycle(), "clip_norm": 1.0, "loss": of(hr.CrossEntropy, class_weights=[1.0, 2.0, 3.0])}
    steps(make(**options, optimizer=adam(betas=(0.9, 0.99))), tmp_path / "run", 3)
    again = {**options, "loss": of(hr.CrossEntropy, class_weights=torch.tensor([1.0, 2.0, 3.0])), "inputs": ("x",)}
    assert steps(make(**again, optimizer=adam(betas=[0.9, 0.99])), tmp_path / "run")[0].resumed == 3


def test_how_often_it_reports_is_a_setting(tmp_path: Path) -> None:
    steps(make(), tmp_path / "run", 3, validate_every="2 steps", log_every="3 steps")
    with pytest.raises(hr.CheckpointError) as caught:
        steps(make(), tmp_path / "run", validate_every="3 steps", log_every="1 epoch")
    assert "validate_every: '2 steps' in the run, '3 steps' now" in str(caught.value)
    assert "log_every: '3 steps' in the run, '1 epoch' now" in str(caught.value)


def test_how_often_it_saves_and_what_stays_may_change(tmp_path: Path) -> None:
    steps(make(), tmp_path / "run", 3, every="1 step", keep="all")
    steps(make(), tmp_path / "run", every="2 epochs", keep=1, wait=True)
    assert Store(tmp_path / "run" / "checkpoints", None).steps() == [10]


def test_metrics_may_change(tmp_path: Path) -> None:
    steps(make(metrics=["accuracy", "error"]), tmp_path / "run", 3)
    trainer = make(metrics=["accuracy", "f1:macro"])
    steps(trainer, tmp_path / "run")
    assert {"train/accuracy", "train/f1:macro"} <= trainer.history.last.keys()
    assert "train/error" not in trainer.history.last


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


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_limits_may_change_and_the_log_names_them(name: str, tmp_path: Path) -> None:
    was, now, told = LIMITS[name]
    steps(make(), tmp_path / "run", 3, **{"epochs": None} | was)
    seen = steps(make(), tmp_path / "run", **{"epochs": None} | now)
    ends = {"epochs": 5, "steps": 1, "samples": 1 / BATCH}
    assert seen[-1].step == min(-(-count * ends[unit] // 1) for unit, count in now.items())
    log = (tmp_path / "run" / "log.txt").read_text()
    assert [line for line in told if line not in log] == []
    assert ("limit in " in log) == bool(told)


def test_a_limit_that_has_been_passed_ends_the_training_where_it_stands(tmp_path: Path) -> None:
    steps(make(), tmp_path / "run", 8, epochs=3)
    trainer = make()
    assert steps(trainer, tmp_path / "run", epochs=1) == []
    assert trainer.history.stopped == "1 epoch reached"
    assert steps(make(), tmp_path / "run", epochs=3)[-1].step == 15


# --- what an override does ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule", [None, hr.Schedule(step_rates), hr.Schedule(lambda o: lr_scheduler.LambdaLR(o, lambda k: 0.5**k))]
)
def test_a_new_rate_is_the_rate_from_then_on(schedule: Any, tmp_path: Path) -> None:
    steps(make(schedule=schedule), tmp_path / "run", 3)
    trainer = make(schedule=schedule, optimizer=adam(lr=0.8))
    seen = [info.rate for info in trainer.steps(DATA, run=hr.Run(tmp_path / "run", override=True), epochs=3)]
    assert seen[:2] == [0.8, 0.8 if schedule is None else 0.4]  # `rate` is read after what was due at a step
    assert seen[2:7] == pytest.approx([0.8] * 5 if schedule is None else [0.4] * 4 + [0.2])


def test_a_new_rate_is_what_a_schedule_begins_with(tmp_path: Path) -> None:
    steps(make(schedule=hr.Linear(0.0)), tmp_path / "run", 4)
    trainer = make(schedule=hr.Linear(0.0), optimizer=adam(lr=1.0))
    seen = [info.rate for info in trainer.steps(DATA, run=hr.Run(tmp_path / "run", override=True), epochs=2)]
    assert seen == pytest.approx([0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_what_the_optimizer_remembers_survives_a_new_rate(tmp_path: Path) -> None:
    left, trainer = make(), make(optimizer=adam(lr=0.8))
    steps(left, tmp_path / "run", 3)
    for info in trainer.steps(DATA, DATA, run=hr.Run(tmp_path / "run", override=True), epochs=2):
        if info.step == 4:
            break
    assert {float(state["step"]) for state in trainer.optimizer.state.values()} == {4.0}


def test_another_batch_size_goes_on_at_the_row_where_it_was(tmp_path: Path) -> None:
    seen = []
    for info in make(order="none").steps(DATA, run=tmp_path / "run", epochs=1):
        if info.step == 3:
            break
    for info in make(order="none", batch_size=5).steps(DATA, run=hr.Run(tmp_path / "run", override=True), epochs=1):
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
    data = {"x": X, "y": Y}
    for epochs, name in enumerate(names, 1):
        for function in (half, cross_entropy):
            monkeypatch.setattr(function, "__module__", name)
        make(lambda: cross_entropy, schedule=half).fit(data, epochs=epochs, run=tmp_path / "run", progress=False)
    monkeypatch.setattr(half, "__qualname__", "another")
    with pytest.raises(hr.CheckpointError, match=r"schedule: '__main__\.half' in the run, '__main__\.another' now"):
        make(lambda: cross_entropy, schedule=half).fit(data, epochs=3, run=tmp_path / "run", progress=False)
