"""Learning rates that move: curves over the progress, torch's schedulers, and when each of them is asked."""

import copy
import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small
from kit.own_data import Pulled
from kit.small import data, drive, same, stop_and_resume
from torch import nn
from torch.optim import lr_scheduler as rates

import headrace as hr

ROWS, BATCH = 18, 4  # five batches, the last of 2
X, Y = DATA = data(ROWS)
COLUMNS = {"x": X, "y": Y}


def make(schedule: Any, rate: Any = 1.0, kind: Any = torch.optim.SGD, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    return small.trainer(
        nn.Linear(6, 3), **{"optimizer": partial(kind, lr=rate), "batch_size": BATCH, "schedule": schedule, **options}
    )


def down(progress: float) -> float:
    return 1 - progress


class Rates(hr.Callback):
    """The rates with which every update is made, and those that hold afterwards."""

    def __init__(self) -> None:
        self.used: list[float] = []

    def on_step_end(self, info: hr.Info) -> None:
        self.used.append(float(info.trainer.optimizer.param_groups[0]["lr"]))


def used(trainer: hr.Trainer, *sources: Any, **limits: Any) -> list[float]:
    seen = Rates()
    small.fit(trainer, *(sources or [DATA]), callbacks=[seen], **limits)
    return seen.used


# --- curves -------------------------------------------------------------------------------------------------

QUARTER = (1 + math.cos(math.pi / 4)) / 2
UP = {0.0: 0, 0.05: 0.25, 0.1: 0.5, 0.2: 1, 0.6: 0.55, 1.0: 0.1, 1.7: 0.1}
CURVES: list[tuple[Any, dict[float, float]]] = [
    (hr.Linear(0.2, floor=0.1), {**UP, 0.4: 0.775}),
    (hr.Cosine(0.2, floor=0.1), {**UP, 0.4: 0.1 + 0.9 * QUARTER}),
    (hr.WSD(0.1, decay=0.2, floor=0.1), {0: 0, 0.05: 0.5, 0.1: 1, 0.5: 1, 0.79: 1, 0.9: 0.55, 1.0: 0.1, 1.3: 0.1}),
    (hr.WSD(0.1, 0.2, shape="sqrt"), {0.85: 0.5}),
    (hr.WSD(0.1, 0.2, shape="cosine"), {0.85: QUARTER}),
    (hr.WSD(0.1, decay=0.0), {1.0: 1.0}),
    (hr.InverseSqrt(0.04), {0: 0, 0.02: 0.5, 0.04: 1, 0.16: 0.5, 1.0: 0.2}),
]


@pytest.mark.parametrize(("curve", "points"), CURVES)
def test_a_curve_goes_through_the_points_of_its_formula(curve: Any, points: dict[float, float]) -> None:
    assert [curve(progress) for progress in points] == pytest.approx([*points.values()])


def test_one_cycle_is_that_of_torch() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    theirs = rates.OneCycleLR(optimizer, 0.5, total_steps=101, cycle_momentum=False)
    ours = hr.OneCycle(peak=29.3 / 100)  # torch puts the peak at step 0.3 · 101 - 1
    for step in range(101):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * ours(step / 100), abs=2e-6)
        optimizer.step()
        if step < 100:
            theirs.step()


@pytest.mark.parametrize("limits", [{"steps": 20}, {"epochs": 4}, {"samples": 72}, {"epochs": 9, "steps": 20}])
def test_lengths_are_counted_in_updates_however_long_the_training_is(limits: dict[str, int]) -> None:
    """20 updates, in epochs of five: four of warm-up, then 8 of decay."""
    found = used(make(hr.WSD("4 steps", "8 steps")), **limits)
    expected = [k / 4 if k < 4 else 1.0 if k < 12 else (20 - k) / 8 for k in range(20)]
    # the last batch of an epoch is small, so samples only come close
    assert found == pytest.approx(expected, abs=0.12 if "samples" in limits else 1e-9)
    assert found == expected or "steps" not in limits


def test_a_cooldown_of_a_trunk_has_the_bits_of_the_training_that_ends_there(tmp_path: Path) -> None:
    def trainer() -> hr.Trainer:
        return make(hr.WSD("3 steps", decay="6 steps"), 0.1, torch.optim.AdamW)

    small.fit(trainer(), DATA, steps=31, run=tmp_path / "trunk", every="7 steps", keep=9)
    cooled, straight = trainer(), trainer()
    small.fit(cooled, DATA, steps=20, run=hr.Run(tmp_path / "cooled", parent=f"{tmp_path / 'trunk'}@14"))
    small.fit(straight, DATA, steps=20)
    assert same(cooled, straight)


# --- by progress, and by lengths ------------------------------------------------------------------------------

TENTHS = [k / 10 for k in range(10)]


@pytest.mark.parametrize(
    ("limits", "progress"),
    [
        ({"epochs": 2}, TENTHS),
        ({"steps": 4}, [0, 0.25, 0.5, 0.75]),
        ({"samples": 20}, [0, 0.2, 0.4, 0.6, 0.8, 0.9]),
        ({"epochs": 2, "steps": 5}, TENTHS[::2]),
        ({"epochs": 1, "steps": 50}, TENTHS[::2]),
        ({"epochs": 1, "minutes": 1e9}, TENTHS[::2]),
    ],
)
def test_the_rate_of_an_update_is_that_of_the_progress_before_it(limits: Any, progress: list[float]) -> None:
    assert used(make(down), **limits) == pytest.approx([1 - p for p in progress])


@pytest.mark.parametrize("rows_of", ["rows", "take"])
def test_where_batches_change_their_size_progress_goes_by_rows(rows_of: str) -> None:
    source: Any = DATA
    trainer = make(down, batch_size={0: 4, "1 epoch": 6})
    if rows_of == "take":
        source = hr.head(hr.Reader(hr.ArrayTable(COLUMNS)), ROWS)
    before, first = 0, trainer.optimizer.param_groups[0]["lr"]
    for info in trainer.steps(source, epochs=2):
        assert info.rate == pytest.approx(first * (1 - before / (2 * ROWS)))
        before = info.samples


def test_where_no_source_counts_its_rows_the_first_epoch_tells_how_many_the_next_ones_have() -> None:
    later = [(ROWS * epoch + min(ROWS, BATCH * k)) / (3 * ROWS) for epoch in (1, 2) for k in range(5)]
    expected = [1 - 0.5 / 3] * 5 + [1 - progress for progress in later]
    assert used(make(down), Pulled(COLUMNS), epochs=3) == pytest.approx(expected)
    assert min(used(make(hr.Cosine()), Pulled(COLUMNS), epochs=3)) > 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({0: 0.5}, [0.5] * 10),
        ({0: 0.5, "1 epoch": 0.25}, [0.5] * 5 + [0.25] * 5),
        ({0: 0.5, "3 steps": 0.25, "8 steps": 0}, [0.5] * 3 + [0.25] * 5 + [0] * 2),
        ({0: 1, "7 samples": 2, "18 samples": 3}, [1] * 2 + [2] * 3 + [3] * 5),
        ({0: 1, "1 epoch": 2, "4 samples": 3}, [1] + [3] * 9),  # of those reached, the last one given
    ],
)
def test_rates_by_lengths_hold_from_the_first_batch_at_their_point(given: Any, expected: list[float]) -> None:
    assert used(make(given, rate=7.0)) == expected


@pytest.mark.parametrize("left", [2, 5, 8])
def test_progress_goes_on_where_it_was_with_batches_of_another_size(left: int, tmp_path: Path) -> None:
    drive(make(down), DATA, until=left, epochs=4, run=tmp_path / "run")
    found = used(make(down, batch_size=2), epochs=4, run=tmp_path / "run", override=True)  # nine batches
    assert found[0] == pytest.approx(1 - left / 20, abs=1 / 36)
    assert max(a - b for a, b in pairwise(found)) == pytest.approx(1 / 36)
    assert found[-1] == pytest.approx(1 / 36)


@pytest.mark.parametrize(
    ("schedule", "expected"), [(down, [2, 1.6, 1.2, 0.8, 0.4]), ({0: 1.0, "2 steps": 0.1}, [1, 1, 0.1, 0.1, 0.1])]
)
def test_other_groups_keep_their_ratio_and_another_training_begins_with_the_first_rate(
    schedule: Any, expected: list[float]
) -> None:
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(list[Any]([{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}]), lr=2.0)
    trainer = small.trainer(model, optimizer=optimizer, batch_size=BATCH, schedule=schedule)
    for _ in range(2):
        seen = [[group["lr"] for group in optimizer.param_groups] for _ in trainer.steps(DATA, epochs=1)]
        assert [first for first, _ in seen] == pytest.approx(expected)
        assert [other for _, other in seen] == pytest.approx([first / 4 for first in expected])
    optimizer.param_groups[1]["lr"] = 8.0  # four times the rate that the first group begins with
    seen = [[group["lr"] for group in optimizer.param_groups] for _ in trainer.steps(DATA, epochs=1)]
    assert [other for _, other in seen] == pytest.approx([first * 4 for first in expected])


@pytest.mark.parametrize(
    ("schedule", "last"), [(hr.Linear(0), [0.1, 0.05]), ({0: 1.0, "5 steps": 0.4}, [0.4, 0.2])], ids=str
)
@pytest.mark.parametrize("several", [False, True])
def test_a_group_that_is_added_later_follows_the_schedule_from_its_own_rate(
    schedule: Any, last: list[float], several: bool
) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    optimizers = [torch.optim.SGD([param], lr=1.0) for param in model[1].parameters()]
    chosen = optimizers if several else torch.optim.SGD(model[1].parameters(), lr=1.0)
    trainer = small.trainer(model, optimizer=chosen, batch_size=BATCH, schedule=schedule)
    for info in trainer.steps(DATA, steps=10):
        if info.step == 3:
            model[0].requires_grad_(True)
            member = optimizers[0] if several else trainer.optimizer
            member.add_param_group({"params": [*model[0].parameters()], "lr": 0.5})
    found = [group["lr"] for group in trainer.optimizer.param_groups]
    assert found == pytest.approx([last[0]] * (len(found) - 1) + [last[1]])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (down, [1.0, 0.9, 0.8, 0.7, 0.6]),
        (hr.Schedule(lambda o, n: rates.LambdaLR(o, lambda k: 1 - k / 10), every="1 step"), [1.0, 0.9, 0.8, 0.7, 0.6]),
        (hr.Schedule(lambda optimizer: rates.StepLR(optimizer, 1)), [1.0] * 5),
    ],
)
@pytest.mark.parametrize("second", ["the same trainer", "another", "another of two optimizers", "a copy"])
def test_a_rate_that_is_set_between_two_trainings_is_what_the_schedule_begins_with(
    second: str, schedule: Any, expected: list[float]
) -> None:
    trainer = make(schedule, rate=0.1)
    optimizer: Any = trainer.optimizer
    if "two" in second:
        optimizer = [torch.optim.SGD([parameter], lr=0.1) for parameter in trainer.model.parameters()]
        trainer = small.trainer(trainer.model, optimizer=optimizer, batch_size=BATCH, schedule=schedule)
    limits = {"epochs": 2} if isinstance(schedule, hr.Schedule) else {"steps": 10}
    first = used(trainer, **limits)
    if second == "a copy":  # as a worker gets one
        trainer, untouched = copy.deepcopy(trainer), copy.deepcopy(trainer)
        assert used(untouched, **limits) == first
    trainer.optimizer.param_groups[0]["lr"] = 0.01
    if "another" in second:
        trainer.release()
        trainer = small.trainer(trainer.model, optimizer=optimizer, batch_size=BATCH, schedule=schedule)
    if schedule is down:  # a training that is refused does not take it
        with pytest.raises(hr.ConfigError, match="minutes vary"):
            used(trainer, minutes=1.0)
    found = used(trainer, **limits)
    assert found[:5] == pytest.approx([0.01 * factor for factor in expected])
    assert found == pytest.approx([0.1 * rate for rate in first])
    assert used(trainer, **limits) == pytest.approx(found), "one that is left alone begins anew where it began"


def test_a_rate_that_is_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(1.0)
    trainer = make(down, rate, torch.optim.Adam)
    assert used(trainer, epochs=1) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2])
    assert trainer.optimizer.param_groups[0]["lr"] is rate


# --- torch's ------------------------------------------------------------------------------------------------


def halving(optimizer: torch.optim.Optimizer, total: int | None) -> Any:
    return rates.StepLR(optimizer, 1, gamma=0.5)


def optional_total(optimizer: torch.optim.Optimizer, total: int | None = None) -> Any:
    return rates.LinearLR(optimizer, 1.0, 0.0, total_iters=total or 1)


MAKERS: list[tuple[Any, str, list[float]]] = [
    (lambda optimizer: rates.StepLR(optimizer, 1, gamma=0.5), "1 epoch", [1.0] * 5 + [0.5] * 5),
    (lambda o, gamma=0.5: rates.StepLR(o, 1, gamma), "1 epoch", [1.0] * 5 + [0.5] * 5),
    (partial(rates.StepLR, step_size=1, gamma=0.5), "1 epoch", [1.0] * 5 + [0.5] * 5),
    (partial(rates.LinearLR, start_factor=0.5, total_iters=1), "1 epoch", [0.5] * 5 + [1.0] * 5),
    (lambda o, total: rates.LinearLR(o, 1.0, 0.0, total_iters=total // 10), "1 epoch", [1.0] * 5 + [0.0] * 5),
    (optional_total, "1 epoch", [1.0] * 5 + [0.0] * 5),  # it does not require the total of steps
    (rates.ReduceLROnPlateau, "1 epoch", [1.0] * 10),
    (lambda o: rates.CyclicLR(o, 0.25, 0.5, 1, cycle_momentum=False), "1 step", [0.25, 0.5] * 5),  # by its own rates
    (halving, "1 step", [2.0**-k for k in range(10)]),
    (halving, "2 steps", [2.0 ** -(k // 2) for k in range(10)]),
    (halving, "2 epochs", [1.0] * 10),
    (halving, "9 samples", [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]),
]


@pytest.mark.parametrize(("make_scheduler", "every", "expected"), MAKERS)
def test_a_scheduler_is_made_with_the_arguments_that_it_requires_and_steps_as_often_as_it_is_told(
    make_scheduler: Any, every: str, expected: list[float]
) -> None:
    assert used(make(hr.Schedule(make_scheduler, every=every)), DATA, DATA) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        ({"epochs": 3}, 15),
        ({"steps": 7}, 7),
        ({"epochs": 3, "steps": 50}, 15),
        ({"samples": 100}, None),
        ({"epochs": 2, "minutes": 5}, 10),
    ],
)
def test_it_is_told_how_many_updates_there_will_be_where_that_is_known(limits: Any, total: int | None) -> None:
    told: list[int | None] = []

    def make_scheduler(optimizer: torch.optim.Optimizer, steps: int | None) -> Any:
        told.append(steps)
        return rates.LambdaLR(optimizer, lambda k: 1.0)

    drive(make(hr.Schedule(make_scheduler)), DATA, until=1, **limits)
    assert told == [total]


def falls(every: str = "1 epoch", monitor: str = "val/loss") -> hr.Schedule:
    """Half the rate with each number after the first: a loss is never much larger than it was."""

    def make_scheduler(optimizer: torch.optim.Optimizer) -> Any:
        return rates.ReduceLROnPlateau(optimizer, "max", patience=0, threshold=9.0, factor=0.5)

    return hr.Schedule(make_scheduler, every=every, monitor=monitor)


@pytest.mark.parametrize(
    ("every", "validate_every", "told"),
    [
        ("1 epoch", "2 epochs", [10, 20, 30]),
        ("1 epoch", "3 steps", [6, 12, 15, 21, 27, 30]),  # the first measurement after each epoch
        ("2 epochs", "1 epoch", [10, 20, 30]),
        ("1 step", "1 epoch", [5, 10, 15, 20, 25, 30]),
        ("3 epochs", "2 epochs", [20, 30]),
        ("1 epoch", None, [5, 10, 15, 20, 25, 30]),  # by the training's own loss
    ],
)
def test_a_plateau_waits_until_its_number_is_measured_and_is_told_each_number_once(
    every: str, validate_every: str | None, told: list[int]
) -> None:
    trainer, found = make(falls(every, "val/loss" if validate_every else "train/loss")), list[Any]()
    val = {"val": DATA, "validate_every": validate_every} if validate_every else {}
    for info in trainer.steps(DATA, epochs=6, **val):
        if info.rate < (found[-1][1] if found else 1.0):
            found.append((info.step, info.rate))
    assert [step for step, _ in found] == told[1:], "the first number is the best so far"


RESUMED: dict[str, tuple[Any, Any, list[int]]] = {
    "by what the first epoch has told": (lambda: down, lambda: Pulled(COLUMNS), [2, 5, 8]),
    "by lengths": (lambda: {0: 0.5, "1 epoch": 0.25, "8 steps": 0.125}, lambda: DATA, [2, 5, 8]),
    "a plateau that waits": (falls, lambda: DATA, [11]),  # due with update 10; its number comes with update 12
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_schedule_goes_on_after_any_step(name: str, tmp_path: Path) -> None:
    schedule, source, steps = RESUMED[name]
    how: dict[str, Any] = {"epochs": 3, "validate_every": "4 steps", "every": "1 step"}
    resumed = stop_and_resume(lambda: make(schedule()), steps, tmp_path, source, DATA, **how)
    if schedule is falls:
        assert {row["rate"] for row in resumed.history if row["step"] > 12} == {0.5}
