"""A batch size that changes on the way: the same batches however they are staged, and after any resume."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.sampled import sampled
from torch import Tensor, nn

import headrace as hr
from headrace import Ragged
from headrace.adapters import compose
from headrace.data.staging import Sizes
from headrace.length import Counters

ROWS = 50
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(dim=1)
LENGTHS = torch.arange(ROWS) * 7 % 5  # of the sequences "w": 0 to 4 items
WORDS = Ragged(torch.arange(int(LENGTHS.sum())), torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)]))
STREAMS = [hr.Stream("x", (6,)), hr.Stream("y", (), "int64")]

SAMPLES = {0: 4, "30 samples": 7, "90 samples": 16, "141 samples": 3}
EPOCHS = {0: 4, "1 epoch": 9, "2 epochs": 50, "3 epochs": 2}
BOTH = {0: 4, "1 epoch": 7, "120 samples": 5}
SCHEDULES = {"samples": SAMPLES, "epochs": EPOCHS, "both": BOTH}
MACROBATCHES = [1, 7, 1000, "64 kB", "auto"]


def sizes(schedule: Mapping[str | int, int], epochs: int, rows: int = ROWS) -> list[tuple[int, int]]:
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


class Elsewhere(hr.Table):
    """Rows that are not in the memory of the device: a thread reads them ahead."""

    thread_safe = True

    @property
    def streams(self) -> list[hr.Stream]:
        return STREAMS

    def __len__(self) -> int:
        return ROWS

    def take(self, indices: Tensor) -> hr.Batch:
        return hr.Batch({"x": X[indices], "y": Y[indices]})


class Pulled(hr.Source):
    """As a user writes it: `None` at the end of a pass."""

    def __init__(self) -> None:
        self.at = 0

    @property
    def streams(self) -> list[hr.Stream]:
        return STREAMS

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        rows = slice(self.at, min(ROWS, self.at + size))
        if rows.start == rows.stop:
            return None
        self.at = rows.stop
        return hr.Batch({"x": X[rows], "y": Y[rows]})

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Ahead(Pulled):
    """May be read in a thread, many batches at a time."""

    thread_safe = True
    shards = True


class Marks(Pulled):
    """Says itself where an epoch ends, and goes on."""

    marks_ends = True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size)
        if batch is not None and self.at == ROWS:
            self.at, batch.ends_epoch = 0, True
        return batch


class MarksAhead(Marks):
    """Both."""

    thread_safe = True
    shards = True


SOURCES: dict[str, Any] = {
    "arrays": lambda: (X, Y),
    "table": Elsewhere,
    "pulled": Pulled,
    "ahead": Ahead,
    "marks": Marks,
    "marks ahead": MarksAhead,
}


def make(batch_size: Any, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=batch_size, **options)


def weights(trainer: hr.Trainer) -> Tensor:
    return torch.cat([value.reshape(-1) for value in trainer.model.state_dict().values()])


def trace(trainer: hr.Trainer, data: Any, **options: Any) -> list[tuple[int, int]]:
    return [(info.samples, info.epoch) for info in trainer.steps(data, **options)]


# --- which sizes -------------------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("name", "macrobatch"), sampled(product(SCHEDULES, MACROBATCHES), keep=[("both", 7), ("samples", "auto")], of=4)
)
def test_staging_changes_no_bit(name: str, macrobatch: int | str) -> None:
    schedule = SCHEDULES[name]
    plain, staged = make(schedule, macrobatch=1), make(schedule, macrobatch=macrobatch)
    plain.fit((X, Y), epochs=4, progress=False)
    staged.fit(Elsewhere(), epochs=4, progress=False)
    assert torch.equal(weights(plain), weights(staged))


def test_one_size_for_ever_is_the_size_alone() -> None:
    one, other = make(7), make({0: 7, "99 epochs": 3})
    assert trace(one, (X, Y), epochs=2) == trace(other, (X, Y), epochs=2) == sizes({0: 7}, 2)
    assert torch.equal(weights(one), weights(other))


def test_a_batch_is_filled_with_rows_of_the_next_epoch_at_the_size_of_this_one() -> None:
    reader = hr.Reader(Elsewhere(), cross_epochs=True)
    seen = trace(make({0: 8, "1 epoch": 20}, macrobatch=1000), reader, epochs=3)
    assert [samples for samples, _ in seen] == [8, 16, 24, 32, 40, 48, 56, 76, 96, 116, 136, 156]
    assert [epoch for _, epoch in seen] == [samples // ROWS for samples, _ in seen]


class Meagre(Ahead):
    """Gives less than what is asked now and then, which it may."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        return super().next_batch(max(1, size - self.at % 3))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_a_source_that_gives_less_than_what_is_asked_gets_the_right_size_all_the_same(schedule: Any) -> None:
    expected = trace(make(schedule, macrobatch=1), Meagre(), epochs=4)
    assert expected != sizes(schedule, 4)
    for macrobatch in (7, 1000, "auto"):
        assert trace(make(schedule, macrobatch=macrobatch), Meagre(), epochs=4) == expected


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("macrobatch", [1, 1000])
def test_epochs_of_take_count_as_epochs(source: str, macrobatch: int) -> None:
    made = SOURCES[source]()
    made = compose.head(made if isinstance(made, hr.Source) else hr.Reader(compose.concat(made)), 20)
    seen = trace(make({0: 20, "1 epoch": 5, "3 epochs": 2}, macrobatch=macrobatch), made, epochs=2)
    assert seen == [(20, 1), (25, 1), (30, 1), (35, 1), (40, 2)]


# --- items -------------------------------------------------------------------------------------------------


@pytest.mark.slow
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


@pytest.mark.slow
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
    whole = make(schedule, macrobatch=20)
    expected = trace(whole, SOURCES[source](), epochs=2)
    for step in sampled(range(1, len(expected)), of=4):
        run = tmp_path / f"run-{step}"
        first = make(schedule, macrobatch=20)
        for info in first.steps(SOURCES[source](), epochs=2, run=run):
            if info.step == step:
                break
        resumed = make(schedule, macrobatch=20)
        seen = trace(resumed, SOURCES[source](), epochs=2, run=hr.Run(run, resume="must"))
        assert seen == expected[step:]
        assert torch.equal(weights(resumed), weights(whole))


def test_resume_in_a_macrobatch_that_would_have_gone_on_has_the_next_size_at_its_row(tmp_path: Path) -> None:
    schedule = {0: 4, "10 samples": 6}  # changes after the third batch, in the middle of what was staged
    for step in (1, 2, 3, 4):
        run = tmp_path / f"run-{step}"
        for info in make(schedule, macrobatch=40).steps(Elsewhere(), steps=7, run=run):
            if info.step == step:
                break
        seen = trace(make(schedule, macrobatch=40), Elsewhere(), steps=7, run=run)
        assert [samples for samples, _ in seen] == [4, 8, 12, 18, 24, 30, 36][step:]


def test_another_schedule_is_another_run(tmp_path: Path) -> None:
    make({0: 4, "1 epoch": 8}).fit((X, Y), epochs=1, run=tmp_path / "run", progress=False)
    for other in (4, {0: 4, "2 epochs": 8}, {0: 4, "1 epoch": 9}):
        with pytest.raises(hr.CheckpointError, match="batch_size"):
            make(other).fit((X, Y), epochs=2, run=tmp_path / "run", progress=False)
    history = make({0: 4, "1 epoch": 8}).fit((X, Y), epochs=2, run=tmp_path / "run", progress=False)
    assert history.last["step"] == len(sizes({0: 4, "1 epoch": 8}, 2))


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


@pytest.mark.parametrize("progress", ["bar", "plain"])
def test_progress_is_shown_though_the_number_of_batches_is_not_known(
    progress: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make({0: 16, "1 epoch": 8}).fit((X, Y), epochs=2, progress=progress)
    assert "2" in capsys.readouterr().err


@pytest.mark.parametrize("schedule", ["epochs", "samples"])
def test_a_schedule_of_rates_goes_by_progress_whatever_the_sizes_are(schedule: str) -> None:
    sized = {0: 10, "1 epoch": 25} if schedule == "epochs" else {0: 10, "50 samples": 25}
    rates = [info.rate for info in make(sized, schedule=hr.Linear(0.5)).steps((X, Y), samples=100)]
    assert len(rates) == 7
    assert rates[0] < max(rates)


# --- a Feed alone ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("macrobatch", MACROBATCHES)
@pytest.mark.parametrize("kind", ["table", "marks", "marks ahead"])
def test_a_feed_alone_keeps_count_itself(kind: str, macrobatch: int | str) -> None:
    for name, schedule in SCHEDULES.items():
        made = SOURCES[kind]()
        source = made if isinstance(made, hr.Source) else hr.Reader(made)
        seen, samples = list[tuple[int, int]](), 0
        with hr.Feed(source, batch_size=schedule, macrobatch=macrobatch) as feed:
            for epoch in range(4):
                for batch in feed:
                    samples += batch.total
                    seen.append((samples, epoch + batch.ends_epoch))
        assert seen == sizes(schedule, 4), name


@pytest.mark.parametrize("macrobatch", MACROBATCHES)
@pytest.mark.parametrize("kind", [Pulled, Ahead])
def test_a_feed_of_a_source_that_is_rewound_keeps_count_too(kind: type[Pulled], macrobatch: int | str) -> None:
    for schedule in SCHEDULES.values():
        source, seen, samples = kind(), list[tuple[int, int]](), 0
        with hr.Feed(source, batch_size=schedule, macrobatch=macrobatch) as feed:
            for epoch in range(4):
                for batch in feed:
                    samples += batch.total
                    seen.append((samples, epoch + batch.ends_epoch))
                assert feed.finished
                source.at = 0
        assert seen == sizes(schedule, 4)


def test_an_epoch_that_was_left_goes_on_with_the_size_of_its_row() -> None:
    schedule = {0: 4, "10 samples": 6}
    with hr.Feed(hr.Reader(Elsewhere()), batch_size=schedule, macrobatch=40) as feed:
        found = [batch.rows for _, batch in zip(range(2), feed, strict=False)]
        found += [batch.rows for _, batch in zip(range(3), feed, strict=False)]
    assert found == [4, 4, 4, 6, 6]


def test_a_feed_with_one_size_may_be_given_any() -> None:
    for batch_size in (7, {0: 7}):
        feed = hr.Feed(hr.Reader(Elsewhere()), batch_size=batch_size)
        assert feed.batches == 8
        assert [batch.rows for batch in feed] == [7] * 7 + [1]
