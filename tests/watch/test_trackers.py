"""Records that others keep, and what all trackers share."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.tracked import At, fail, train

import headrace as hr
from headrace.watch import trackers
from headrace.watch.trackers import Tracker


class Far(Tracker):
    """A record that cannot be reached at times."""

    def __init__(self) -> None:
        self.record: list[int] = []
        self.ended: list[str] = []
        self.begun: list[str] = []
        self.reached = True
        self.changed = threading.Condition()
        self.refused = 0

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(is_so, 400)

    def begin(self, info: hr.Info) -> None:
        self.begun.append(self.id)
        self.id = self.id or "name"

    def send(self, rows: Any) -> None:
        with self.changed:
            self.changed.notify_all()
            if not self.reached:
                self.refused += 1
                raise OSError("nobody there")
            self.record += [row["step"] for row in rows if row["step"] not in self.record]

    def end(self, state: str) -> None:
        self.ended.append(state)


def test_reports_wait_until_the_record_can_be_reached(tmp_path: Path) -> None:
    far = Far()
    away = At(5, lambda info: (far.wait_until(lambda: far.record == [4]), setattr(far, "reached", False)))  # type: ignore[arg-type, func-returns-value]
    tried = At(7, lambda info: far.wait_until(lambda: far.refused > 0))
    back = At(11, lambda info: setattr(far, "reached", True))
    with pytest.warns(UserWarning, match="Far has not taken step 6, which is tried again: OSError: nobody") as caught:
        train(far, away, tried, back)
    assert len(caught) == 1
    assert far.record == [4, 6, 8, 12]
    assert far.ended == ["finished"]


def test_a_server_that_refuses_is_asked_again_after_a_pause_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "RETRY_S", 1000.0)
    far = Far()
    far.reached = False
    with pytest.warns(UserWarning, match="Far has not taken step 4, which is tried again: OSError: nobody there"):
        train(far, At(5, lambda info: far.wait_until(lambda: far.refused == 1)))
    assert far.refused == 2, "not once for each of the four reports"


class Hangs(Far):
    """A server that takes what it is sent and does not answer."""

    def send(self, rows: Any) -> None:
        with self.changed:
            self.refused += 1
            self.changed.notify_all()
        self.wait_until(lambda: self.reached)


def test_a_server_that_does_not_answer_holds_up_no_update_and_the_end_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trackers, "END_S", 0.1)
    far, steps = Hangs(), list[int]()
    far.reached = False
    asked = At(5, lambda info: far.wait_until(lambda: far.refused == 1))
    last = At(12, lambda info: steps.append(info.step))
    with pytest.warns(
        UserWarning, match="Hangs has not taken the last reports: TimeoutError: it does not answer"
    ) as said:
        history = train(far, asked, last)
    assert (len(said), len(history), steps, far.refused) == (1, 4, [12], 1)
    assert far.ended == [], "nobody is told that all has come"
    with far.changed:
        far.reached = True
        far.changed.notify_all()


def test_the_record_goes_on_where_the_training_does(tmp_path: Path) -> None:
    first, then = Far(), Far()
    with pytest.raises(InterruptedError):
        train(first, At(7, fail), run=tmp_path / "run")
    assert first.ended == ["failed"]
    train(then, run=tmp_path / "run")
    assert then.begun == ["name"]
    assert then.record == [4, 6, 8, 12]
    train(then, run=tmp_path / "another")
    assert then.begun == ["name", ""]


def test_a_record_that_cannot_begin_is_found_before_the_first_step() -> None:
    far = Far()
    far.begin = fail  # type: ignore[method-assign]
    with pytest.raises(hr.ConfigError, match="Far could not begin: InterruptedError: on purpose"):
        train(far)
