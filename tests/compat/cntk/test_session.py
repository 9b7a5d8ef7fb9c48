"""Sessions: what is asked for, when something is due, which files are written, and how a killed one goes on."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace.compat.cntk as C
from headrace.compat.cntk.io import FULL_DATA_SWEEP, INFINITELY_REPEAT, MinibatchSource
from headrace.compat.cntk.train import DataUnit

SIZE = 69
WORDS = [[3, 4, 5, 4, 7, 12, 1], *[[60, 61]] * 9]
LABELS = [[3, 32, 36, 31, 38, 47, 1], *[[3, 32]] * 9]
Make = Callable[..., MinibatchSource]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Ten sequences, of seven items and of two each: 25 samples a sweep, in minibatches of four 7 4 4 4 4 2."""
    path = tmp_path / "data.txt"
    rows = zip(WORDS, LABELS, strict=True)
    path.write_text(
        "".join(
            f"{k}\t|S0 {w}:1 |# text\t|S1 {y}:1\n"
            for k, (ws, ys) in enumerate(rows)
            for w, y in zip(ws, ys, strict=True)
        )
    )

    def source(**options: Any) -> MinibatchSource:
        streams = C.io.StreamDefs(
            features=C.io.StreamDef(field="S0", shape=SIZE, is_sparse=True),
            labels=C.io.StreamDef(field="S1", shape=SIZE, is_sparse=True),
        )
        options = options or {"max_samples": FULL_DATA_SWEEP}
        return MinibatchSource(C.io.CTFDeserializer(str(path), streams), randomize=False, **options)

    return source


class Writer(C.cntk_py.ProgressWriter):  # type: ignore[misc]
    """Keeps what it is called with."""

    def __init__(self) -> None:
        super().__init__(1, 0, 1, 0, sys.maxsize, 0)
        self.summaries = 0
        self.tests: list[tuple[Any, int]] = []
        self.updates: list[Any] = []

    def on_write_training_update(self, samples: Any, updates: Any, aggregate_loss: Any, aggregate_metric: Any) -> None:
        count = samples[1] - samples[0]
        self.updates.append((self.summaries, (aggregate_loss[1] - aggregate_loss[0]) / count, count))

    def on_write_training_summary(self, *given: Any) -> None:
        self.summaries += 1

    def on_write_test_summary(
        self, samples: int, updates: int, summaries: int, aggregate_metric: Any, elapsed: int
    ) -> None:
        self.tests.append((aggregate_metric / samples * 100, samples))


def a_model(writer: Any = None, rate: Any = None) -> tuple[Any, Any, Any]:
    x, y = C.sequence.input_variable(SIZE), C.sequence.input_variable(SIZE)
    z = C.plus(x, C.reduce_sum(C.parameter(SIZE, init=10)), name="z")
    rate = rate or C.learning_parameter_schedule_per_sample([0.3, 0.2, 0.1, 0.0])
    measures = C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)
    return C.Trainer(z, measures, [C.sgd(z.parameters, rate)], writer), x, y


def trained(
    source: Any, writer: Any = None, size: Any = 4, rate: Any = None, trainer: Any = None, **options: Any
) -> Any:
    trainer, x, y = trainer or a_model(writer, rate)
    mapped = {x: source.streams.features, y: source.streams.labels}
    C.training_session(trainer, source, size, mapped, **options).train()
    return trainer


def test_a_session_ends_with_its_source_or_with_its_samples(make: Make) -> None:
    assert trained(make()).total_number_of_samples_seen == 25
    forever = make(max_samples=INFINITELY_REPEAT)
    assert trained(forever, max_samples=20).total_number_of_samples_seen == 21  # the last sequence is not cut


def test_the_last_minibatches_ask_for_what_is_left_only(make: Make) -> None:
    writer = Writer()
    trained(make(max_samples=INFINITELY_REPEAT), writer, max_samples=60)
    assert [count for *_, count in writer.updates] == [7, 4, 4, 4, 4, 2, 7, 4, 4, 4, 4, 2, 7, 2, 2]


def test_a_rate_of_zero_ends_a_session(make: Make) -> None:
    assert trained(make(max_samples=INFINITELY_REPEAT), max_samples=1000).total_number_of_samples_seen == 75


@pytest.mark.parametrize(
    ("frequency", "most", "count"),
    [
        (None, 60, 1),
        (10, 60, 6),
        (20, 60, 3),
        ((5, DataUnit.minibatch), 60, 3),
        ((2, DataUnit.minibatch), 60, 8),
        ((1, DataUnit.sweep), 75, 3),
    ],
)
def test_progress_is_summarized_every_so_often_and_for_the_rest_at_the_end(
    make: Make, frequency: Any, most: int, count: int
) -> None:
    writer = Writer()
    trained(make(max_samples=INFINITELY_REPEAT), writer, max_samples=most, progress_frequency=frequency)
    assert writer.summaries == count


def test_sweeps_are_counted_over_minibatches_that_cross_them(make: Make) -> None:
    writer, rate = Writer(), C.learning_parameter_schedule_per_sample(0.3)
    trainer = trained(
        make(max_sweeps=4), writer, 5, rate, max_samples=FULL_DATA_SWEEP, progress_frequency=(2, DataUnit.sweep)
    )
    assert trainer.total_number_of_samples_seen == 100
    assert writer.summaries == 2


@pytest.mark.parametrize(
    ("frequency", "most", "count"),
    [(None, 20, 1), (20, 60, 3), ((5, DataUnit.minibatch), 60, 3), ((1, DataUnit.sweep), 75, 3)],
)
def test_validation_is_made_every_so_often_over_the_whole_source(
    make: Make, frequency: Any, most: int, count: int
) -> None:
    writer = Writer()
    config = C.CrossValidationConfig(make(), frequency=frequency, minibatch_size=2)
    trained(make(max_samples=INFINITELY_REPEAT), writer, max_samples=most, cv_config=config)
    assert writer.tests == [(pytest.approx(92), 25)] * count


def test_a_callback_alone_is_told_the_index_and_zeros_and_may_stop_the_training(make: Make) -> None:
    told: list[Any] = []

    def callback(*given: Any) -> bool:
        told.append(given)
        return len(told) < 2

    config = C.CrossValidationConfig(frequency=20, callback=callback)
    trainer = trained(make(max_samples=INFINITELY_REPEAT), max_samples=60, cv_config=config)
    assert told == [(0, 0, 0, 0), (1, 0, 0, 0)]
    assert trainer.total_number_of_samples_seen == 40


def test_a_callback_is_told_the_mean_error_the_samples_and_the_minibatches(make: Make) -> None:
    told: list[Any] = []
    config = C.CrossValidationConfig(make(), minibatch_size=2, callback=lambda *given: told.append(given))
    trained(make(max_samples=INFINITELY_REPEAT), max_samples=20, cv_config=config)
    assert told == [(0, pytest.approx(0.92), 25, 10)]


def test_a_test_is_made_once_at_the_end_on_any_source_with_these_streams(make: Make) -> None:
    writer = Writer()
    trained(
        make(max_samples=INFINITELY_REPEAT), writer, max_samples=60, test_config=C.TestConfig(make(), minibatch_size=2)
    )
    assert writer.tests == [(pytest.approx(92), 25)]
    with pytest.warns(DeprecationWarning, match='"source" parameter is deprecated'):
        C.TestConfig(source=make())


def test_a_source_without_an_end_needs_a_limit(make: Make) -> None:
    forever = make(max_samples=INFINITELY_REPEAT)
    for what, options in (
        ("Train", {}),
        ("Test", {"max_samples": 10, "test_config": C.TestConfig(forever)}),
        ("Cross validation", {"max_samples": 10, "cv_config": C.CrossValidationConfig(forever)}),
    ):
        with pytest.raises(
            ValueError, match=f"{what} minibatch source must have a limited number of samples or sweeps"
        ):
            trained(make(max_samples=INFINITELY_REPEAT), **options)


def test_arrays_may_stand_in_place_of_a_source() -> None:
    x, y = C.input_variable(2), C.input_variable(2)
    z = C.layers.Dense(2)(x)
    trainer = C.Trainer(z, (C.cross_entropy_with_softmax(z, y), None), [C.sgd(z.parameters, 0.1)])
    data = np.random.rand(10, 2).astype(np.float32), np.eye(2, dtype=np.float32)[[0, 1] * 5]
    C.training_session(trainer, data, 4, None, max_samples=25).train()
    assert trainer.total_number_of_samples_seen == 25
    with pytest.raises(ValueError, match="the criterion has 2 arguments, and 1 arrays came"):
        C.training_session(trainer, data[0], 4, None, max_samples=25)


def test_sizes_may_follow_the_samples(make: Make) -> None:
    writer = Writer()
    trained(make(max_samples=INFINITELY_REPEAT), writer, C.minibatch_size_schedule([2, 6], 11), max_samples=25)
    assert [count for *_, count in writer.updates] == [7, 2, 2, 6, 6, 2]


# --- checkpoints ------------------------------------------------------------------------------------------------


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith("saved")}


@pytest.mark.parametrize(("frequency", "most"), [(35, 60), ((9, DataUnit.minibatch), 60), ((2, DataUnit.sweep), 75)])
def test_all_checkpoints_may_be_kept_by_their_numbers(make: Make, tmp_path: Path, frequency: Any, most: int) -> None:
    config = C.CheckpointConfig(str(tmp_path / "saved"), frequency, preserve_all=True)
    trained(make(max_samples=INFINITELY_REPEAT), max_samples=most, checkpoint_config=config)
    assert files(tmp_path) == {"saved", "saved.ckp", "saved0", "saved0.ckp", "saved1", "saved1.ckp"}


def test_one_checkpoint_is_written_at_the_end_where_no_frequency_is_said(make: Make, tmp_path: Path) -> None:
    trained(make(), checkpoint_config=C.CheckpointConfig(str(tmp_path / "saved")))
    assert files(tmp_path) == {"saved", "saved.ckp"}
    with pytest.raises(ValueError, match="cannot be specified without checkpoint_filename"):
        C.CheckpointConfig(None, 10)


def test_a_session_that_has_ended_is_not_trained_again(make: Make, tmp_path: Path) -> None:
    writer = Writer()
    model = a_model(writer)
    for frequency in (20, 35):
        writer.updates, writer.summaries = [], 0
        config = C.CheckpointConfig(str(tmp_path / "saved"), frequency)
        options = {"max_samples": 60, "progress_frequency": 20, "checkpoint_config": config}
        trained(make(max_samples=INFINITELY_REPEAT), trainer=model, **options)
    assert writer.updates == []
    assert writer.summaries == 0
    assert files(tmp_path) == {"saved", "saved.ckp"}


@pytest.mark.parametrize("renamed", [False, True])
def test_a_session_goes_on_from_the_checkpoint_with_the_largest_number(
    make: Make, tmp_path: Path, renamed: bool
) -> None:
    writer = Writer()
    model = a_model(writer)

    def run() -> None:
        config = C.CheckpointConfig(str(tmp_path / "saved"), 20, preserve_all=True)
        options = {"max_samples": 60, "progress_frequency": 20, "checkpoint_config": config}
        trained(make(max_samples=INFINITELY_REPEAT), trainer=model, **options)

    run()
    assert files(tmp_path) == {f"saved{k}{end}" for k in ("", 0, 1, 2) for end in ("", ".ckp")}
    wanted = [update for update in writer.updates if update[0] == 2]
    for name in files(tmp_path) - {"saved1", "saved1.ckp"}:
        (tmp_path / name).unlink()
    if renamed:
        (tmp_path / "saved1").rename(tmp_path / "saved")
        (tmp_path / "saved1.ckp").rename(tmp_path / "saved.ckp")
    writer.updates, writer.summaries = [], 2
    run()
    assert writer.updates == wanted
    left = ("", 2) if renamed else ("", 1, 2)
    assert files(tmp_path) == {f"saved{k}{end}" for k in left for end in ("", ".ckp")}


def test_every_checkpoint_leads_to_the_same_weights(make: Make, tmp_path: Path) -> None:
    def model() -> Any:
        torch.manual_seed(1)
        x, y = C.sequence.input_variable(SIZE, is_sparse=True), C.sequence.input_variable(SIZE)
        z = C.layers.Sequential([C.layers.Embedding(4), C.layers.Recurrence(C.layers.GRU(5)), C.layers.Dense(SIZE)])(x)
        learner = C.momentum_sgd(z.parameters, C.learning_parameter_schedule_per_sample([0.1, 0.05]), 0.9)
        return C.Trainer(z, (C.cross_entropy_with_softmax(z, y), C.classification_error(z, y)), [learner]), x, y

    def weights(folder: str) -> Any:
        config = C.CheckpointConfig(str(tmp_path / folder / "saved"), (1, DataUnit.minibatch), preserve_all=True)
        trainer = trained(
            make(max_samples=INFINITELY_REPEAT), trainer=model(), max_samples=40, checkpoint_config=config
        )
        return np.concatenate([p.value.ravel() for p in trainer.model.parameters])

    whole = weights("whole")
    for number in range(9):
        there = tmp_path / f"from{number}"
        there.mkdir()
        for end in ("", ".ckp"):
            (there / f"saved{number}{end}").write_bytes((tmp_path / "whole" / f"saved{number}{end}").read_bytes())
        assert np.array_equal(weights(there.name), whole)
