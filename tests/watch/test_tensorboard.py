"""TensorBoard's files, read back with its own readers: every number once, at its step, whatever was interrupted."""

import math
from pathlib import Path
from typing import Any

import pytest
from kit import event_files, tracked
from kit.tracked import At, fail

import headrace as hr


def train(run: Path | None, *callbacks: hr.Callback, epochs: int = 4, **options: Any) -> hr.History:
    """Six updates an epoch, reports of single ones, validations in between, and a test."""
    given = {"log_every": "2 steps", "validate_every": "3 steps"} | options
    return tracked.train(*callbacks, run=run, epochs=epochs, **given)


def test_every_number_is_there_once_at_its_step(tmp_path: Path) -> None:
    history = train(tmp_path / "run", hr.TensorBoard())
    found = event_files.raw_curves(tmp_path / "run" / "tb")
    assert found == event_files.wanted(tmp_path / "run")
    assert found == event_files.shown(event_files.accumulator(tmp_path / "run" / "tb"))
    assert {"rate", "train/loss", "train/accuracy", "val/loss", "val/loss/cross_entropy", "test/loss"} <= set(found)
    assert "val/confusion" in history.rows[-1]
    assert not {"val/confusion", "step", "epoch", "samples"} & set(found)


def test_a_training_that_was_interrupted_and_went_on_shows_every_number_once(tmp_path: Path) -> None:
    run, tb = tmp_path / "run", tmp_path / "run" / "tb"
    with pytest.raises(InterruptedError):
        train(run, hr.TensorBoard(), At(14, fail))  # reports of 12 and 14 come after the last checkpoint, of step 10
    before, onlooker = event_files.times(tb), event_files.accumulator(tb)
    assert max(step for _, step in before) == 12
    event_files.shown(onlooker)
    train(run, hr.TensorBoard())
    assert event_files.raw_curves(tb) == event_files.wanted(run)
    assert event_files.shown(event_files.accumulator(tb)) == event_files.wanted(run)
    assert event_files.shown(onlooker) == event_files.wanted(run), "a TensorBoard that was looking on"
    after = event_files.times(tb)
    assert all(after[place] == wall for place, wall in before.items() if place[1] <= 10), "the times stay"


@pytest.mark.parametrize("batch", [1, 8, 20])
def test_a_training_that_was_asked_to_end_within_a_validation_shows_every_number_once(
    batch: int, tmp_path: Path
) -> None:
    class Asks(hr.Callback):
        """Whoever it is that asks, in the middle of a validation."""

        seen = 0

        def on_fit_start(self, info: hr.Info) -> None:
            info.trainer.model.register_forward_hook(lambda model, *_: self.count(info) if not model.training else None)

        def count(self, info: hr.Info) -> None:
            self.seen += 1
            if self.seen == batch:
                info.trainer.preempt()

    run = tmp_path / "run"
    with pytest.raises(SystemExit, match="143"):
        train(run, hr.TensorBoard(), Asks(), validate_every="1 epoch")
    train(run, hr.TensorBoard(), validate_every="1 epoch")
    assert event_files.raw_curves(run / "tb") == event_files.wanted(run)


def test_numbers_that_were_written_twice_would_be_noticed(tmp_path: Path) -> None:
    """The negative control: a writer that goes on in a file of its own, as most do."""
    run, tb = tmp_path / "run", tmp_path / "run" / "tb"
    with pytest.raises(InterruptedError):
        train(run, hr.TensorBoard(), At(14, fail))
    (kept,) = tb.iterdir()
    kept.rename(tb / f"{kept.name}.other")
    train(run, hr.TensorBoard())
    assert event_files.raw_curves(tb) != event_files.wanted(run)


def test_files_that_are_cut_short_or_garbage_are_no_harm(tmp_path: Path) -> None:
    run, tb = tmp_path / "run", tmp_path / "run" / "tb"
    train(run, hr.TensorBoard(), epochs=1)
    (path,) = tb.iterdir()
    data = path.read_bytes()
    for broken in (data[:-3], data[:200] + b"\xff" * 80 + data[280:], b"", b"\xff" * 500):
        for old in tb.iterdir():
            old.unlink()
        path.write_bytes(broken)
        train(run, hr.TensorBoard(), epochs=1)
        assert event_files.raw_curves(tb) == event_files.wanted(run)


def test_files_of_others_stay(tmp_path: Path) -> None:
    other = tmp_path / "run" / "tb" / "events.out.tfevents.1.host.1.0"
    train(tmp_path / "run", hr.TensorBoard(), epochs=1)
    other.write_bytes(b"of a writer of one's own")
    train(tmp_path / "run", hr.TensorBoard(), epochs=2)
    assert len(list(other.parent.iterdir())) == 2
    assert other.read_bytes() == b"of a writer of one's own"


def test_another_training_begins_anew(tmp_path: Path) -> None:
    board, tb = hr.TensorBoard(tmp_path / "curves"), tmp_path / "curves"
    train(None, board, epochs=3)
    first = event_files.times(tb)
    train(None, board, epochs=2)
    found = event_files.raw_curves(tb)
    assert [step for step, _ in found["train/loss"]] == [2, 4, 6, 8, 10, 12]
    assert min(event_files.times(tb).values()) > max(first.values())


def test_numbers_that_are_not_finite_or_not_32_bits_are_written(tmp_path: Path) -> None:
    class Notes(hr.Callback):
        def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
            info.log({"nan": math.nan, "infinity": -math.inf, "huge": 1e300, "of mine/α": 1})

    train(None, Notes(), hr.TensorBoard(tmp_path), epochs=1)
    found = event_files.shown(event_files.accumulator(tmp_path))
    assert math.isnan(found["nan"][0][1])
    assert found["infinity"] == [(6, -math.inf)]
    assert found["huge"] == [(6, math.inf)]
    assert found["of mine/α"] == [(6, 1.0)]


def test_a_report_that_corrects_another_takes_its_place(tmp_path: Path) -> None:
    class Corrects(hr.Callback):
        """Says of the last report that it was another, as workers do that hear late of each other."""

        def on_report(self, info: hr.Info, row: dict[str, Any]) -> None:
            if info.step == 6:
                info.history.rows[-1]["val/loss"] = 7.0
                board.on_report(info, info.history.rows[-1])

    board = hr.TensorBoard(tmp_path)
    train(None, board, Corrects(), epochs=2)
    found = event_files.raw_curves(tmp_path)
    assert dict(found["val/loss"])[6] == 7.0
    assert [step for step, _ in found["val/loss"]] == [3, 6, 9, 12]
