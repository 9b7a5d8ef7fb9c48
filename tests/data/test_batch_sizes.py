"""A batch size that changes on the way: the same batches however they are staged, and after any resume."""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.own_data import Elsewhere, Pulled
from kit.sampled import sampled
from kit.small import data, stop_and_resume, trainer

import headrace as hr
from headrace import Ragged
from headrace.adapters import compose
from headrace.data.staging import Sizes
from headrace.length import Counters

ROWS = 50
X, Y = data()
LENGTHS = torch.arange(ROWS) * 7 % 5  # of the sequences "w": 0 to 4 items
WORDS = Ragged(torch.arange(int(LENGTHS.sum())), torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)]))

SAMPLES = {0: 4, "30 samples": 7, "90 samples": 16, "141 samples": 3}
EPOCHS = {0: 4, "1 epoch": 9, "2 epochs": 50, "3 epochs": 2}
BOTH = {0: 4, "1 epoch": 7, "120 samples": 5}
SCHEDULES: dict[str, dict[Any, int]] = {"samples": SAMPLES, "epochs": EPOCHS, "both": BOTH}
MACROBATCHES = [1, 7, 1000, "auto"]


def sizes(schedule: Mapping[Any, int], epochs: int, rows: int = ROWS) -> list[tuple[int, int]]:
    """Rows and epochs so far after every batch, by the sentence in `Sizes`: the last point reached counts."""
    found, samples, epoch, left = list[tuple[int, int]](), 0, 0, rows
    while epoch < epochs:
        size = schedule[0]
        for key, other in schedule.items():
            number, unit = str(key).split() if key else ("0", "samples")
            if {"epoch": epoch, "sample": samples}[unit.removesuffix("s")] >= int(number):
                size = other
        taken = min(size, left)
        samples, left = samples + taken, left - taken
        if not left:
            epoch, left = epoch + 1, rows
        found.append((samples, epoch))
    return found


# --- sources -----------------------------------------------------------------------------------------------


COLUMNS = {"x": X, "y": Y}


class Meagre(Pulled):
    """Gives less than what is asked now and then, which it may."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        return super().next_batch(max(1, size - self.at % 3))


AHEAD: dict[str, Any] = {"thread_safe": True, "shards": True}
SOURCES: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (X, Y),
    "table": lambda: Elsewhere(COLUMNS),
    "pulled": lambda: Pulled(COLUMNS),
    "ahead": lambda: Pulled(COLUMNS, **AHEAD),
    "marks": lambda: Pulled(COLUMNS, ends="flag"),
    "marks ahead": lambda: Pulled(COLUMNS, ends="flag", **AHEAD),
}


def make(batch_size: Any, **options: Any) -> hr.Trainer:
    return trainer(batch_size=batch_size, **options)


def trace(trainer: hr.Trainer, data: Any, **options: Any) -> list[tuple[int, int]]:
    return [(info.samples, info.epoch) for info in trainer.steps(data, **options)]


# --- which sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "schedule", "macrobatch"),
    sampled(
        product(SOURCES, SCHEDULES, MACROBATCHES),
        keep=[
            *[("table", schedule, macrobatch) for schedule in ("samples", "both") for macrobatch in (7, 1000)],
            *[(source, "epochs", "auto") for source in SOURCES],
        ],
        of=10,
    ),
)
def test_batches_have_the_sizes_of_the_schedule_whatever_is_staged(
    source: str, schedule: str, macrobatch: int | str
) -> None:
    trainer = make(SCHEDULES[schedule], macrobatch=macrobatch)
    assert trace(trainer, SOURCES[source](), epochs=4) == sizes(SCHEDULES[schedule], 4)


def test_a_batch_is_filled_with_rows_of_the_next_epoch_at_the_size_of_this_one() -> None:
    reader = hr.Reader(Elsewhere(COLUMNS), cross_epochs=True)
    seen = trace(make({0: 8, "1 epoch": 20}, macrobatch=1000), reader, epochs=3)
    assert [samples for samples, _ in seen] == [8, 16, 24, 32, 40, 48, 56, 76, 96, 116, 136, 156]
    assert [epoch for _, epoch in seen] == [samples // ROWS for samples, _ in seen]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_source_that_gives_less_than_what_is_asked_gets_the_right_size_all_the_same(schedule: Any) -> None:
    expected = trace(make(schedule, macrobatch=1), Meagre(COLUMNS, **AHEAD), epochs=4)
    assert expected != sizes(schedule, 4)
    for macrobatch in (7, 1000, "auto"):
        assert trace(make(schedule, macrobatch=macrobatch), Meagre(COLUMNS, **AHEAD), epochs=4) == expected


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("macrobatch", [1, 1000])
def test_epochs_of_take_count_as_epochs(source: str, macrobatch: int) -> None:
    made = SOURCES[source]()
    made = compose.head(made if isinstance(made, hr.Source) else hr.Reader(compose.concat(made)), 20)
    seen = trace(make({0: 20, "1 epoch": 5, "3 epochs": 2}, macrobatch=macrobatch), made, epochs=2)
    assert seen == [(20, 1), (25, 1), (30, 1), (35, 1), (40, 2)]


# --- items -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "macrobatch"), sampled(product(SCHEDULES, MACROBATCHES), keep=[("both", 7), ("epochs", "auto")], of=4)
)
def test_a_size_may_count_items_and_the_points_count_rows(name: str, macrobatch: int | str) -> None:
    schedule = SCHEDULES[name]
    table = hr.ArrayTable({"x": X, "y": Y, "w": WORDS})
    reader = hr.Reader(table, count="w", seed=3)
    trainer = make(schedule, macrobatch=macrobatch, inputs="x")
    seen = trace(trainer, reader, epochs=4)
    plain, expected, samples, epoch = hr.Reader(table, count="w", seed=3), list[tuple[int, int]](), 0, 0
    while epoch < 4:
        size = Sizes(schedule).at(Counters(samples=samples, epochs=epoch))
        batch = plain.next_batch(size)
        assert batch is not None
        samples, epoch = samples + batch.rows, epoch + batch.ends_epoch
        expected.append((samples, epoch))
    assert seen == expected
    assert len(set(expected)) > 20


# --- resume ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name"),
    sampled(
        product(["arrays", "table", "pulled", "ahead", "marks"], ["one size", "samples", "epochs"]),
        keep=[("table", "samples"), ("marks", "epochs")],
        of=8,
    ),
)
def test_resume_after_any_step_gives_the_weights_of_a_training_never_stopped(
    source: str, name: str, tmp_path: Path
) -> None:
    schedule = {"one size": {0: 5}, **SCHEDULES}[name]
    steps = sampled(range(1, len(sizes(schedule, 2))), of=4)
    stop_and_resume(lambda: make(schedule, macrobatch=20), steps, tmp_path, SOURCES[source], epochs=2)


# --- beside the training -----------------------------------------------------------------------------------


def test_validation_and_prediction_use_the_first_size() -> None:
    trainer, seen = make({0: 6, "1 epoch": 25}), list[int]()
    trainer.model.register_forward_hook(lambda m, x, out: None if m.training else seen.append(len(out)))
    trainer.fit((X, Y), (X[:20], Y[:20]), epochs=2, progress=False)
    assert seen == [6, 6, 6, 2] * 2
    seen.clear()
    trainer.validate((X[:20], Y[:20]))
    trainer.predict(X[:8])
    assert seen == [6, 6, 6, 2, 6, 2]
    seen.clear()
    trainer.validate((X[:20], Y[:20]), batch_size=15)
    assert seen == [15, 5]


def test_info_says_how_many_batches_an_epoch_has_only_where_they_are_always_as_many() -> None:
    for batch_size, known in ((16, 4), ({0: 16}, 4), ({0: 16, "1 epoch": 8}, None)):
        for info in make(batch_size).steps((X, Y), epochs=1):
            assert info.batches == known


# --- a Feed by itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize("macrobatch", MACROBATCHES)
@pytest.mark.parametrize("kind", ["table", "pulled", "ahead", "marks", "marks ahead"])
def test_a_feed_counts_rows_and_epochs_itself(kind: str, macrobatch: int | str) -> None:
    for name, schedule in SCHEDULES.items():
        made = SOURCES[kind]()
        source = made if isinstance(made, hr.Source) else hr.Reader(made)
        seen, samples = list[tuple[int, int]](), 0
        with hr.Feed(source, batch_size=schedule, macrobatch=macrobatch) as feed:
            for epoch in range(4):
                for batch in feed:
                    samples += batch.total
                    seen.append((samples, epoch + batch.ends_epoch))
                if feed.finished:
                    source.load_state_dict({"at": 0})
        assert seen == sizes(schedule, 4), name


def test_an_epoch_that_was_left_goes_on_with_the_size_of_its_row() -> None:
    schedule = {0: 4, "10 samples": 6}
    with hr.Feed(hr.Reader(Elsewhere(COLUMNS)), batch_size=schedule, macrobatch=40) as feed:
        found = [batch.rows for _, batch in zip(range(2), feed, strict=False)]
        found += [batch.rows for _, batch in zip(range(3), feed, strict=False)]
    assert found == [4, 4, 4, 6, 6]


# --- a schedule --------------------------------------------------------------------------------------------


WRONG: list[tuple[Any, str]] = [
    ("32", "got '32'"),
    ({}, r"begins with a value for 0"),
    ({"5 epochs": 64}, r"begins with a value for 0, as in .*got \{'5 epochs': 64\}"),
    ({0: 32, "5 epochs": 0}, "greater than 0, got 0"),
    ({0: 32, "10 epochs": 128, "5 epochs": 64}, "batch_size= has '5 epochs' after a later point"),
    ({0: 32, "1 epoch": 128, "9 samples": 1, "1 epochs": 64}, "has '1 epoch' after a later point, or twice"),
    ({0: 32, "5 epochs": 64.0}, "got 64.0"),
    ({0: 32, "5": 64}, r"number and a unit.*got '5'"),
    ({0: 32, "5 eposch": 64}, r"unknown unit 'eposch'"),
    ({0: 32, "0 epochs": 64}, r"batch_size= is greater than 0"),
    ({0: 32, "1.5 epochs": 64}, r"batch_size= counts whole epochs"),
    ({0: 32, "5 steps": 64}, r"changes after epochs or samples, got '5 steps': steps depend on the size itself"),
    ({0: 32, "5 min": 64}, r"minutes differ from run to run"),
    ([(0, 32)], "got"),
]


@pytest.mark.parametrize(("size", "error"), WRONG)
def test_a_trainer_refuses_a_size_that_cannot_be(size: Any, error: str) -> None:
    with pytest.raises(hr.ConfigError, match=error):
        make(size)
