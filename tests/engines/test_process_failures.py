"""Processes that fail, are lost, hang or are asked to end: which is named, and all end."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from kit.process_workers import TIMEOUT_S, acted, launched, pids, raised, times
from kit.torch_workers import SOON_S, wait_until_gone

from headrace.engines.processes import GRACE_S

# --- failures -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_error_of_a_worker_is_the_caller_s_with_worker_step_and_traceback(tmp_path: Path) -> None:
    with launched(tmp_path, "raises", workers=3) as child:
        workers, (acts_s, _) = pids(child, 3), acted(child)
        when_s, what, notes = raised(child)
        wait_until_gone(workers)
    assert what == "WorkerError: worker 1 failed at step 5: ValueError: row 17 is not in the archive"
    assert len(notes) == 1
    assert notes[0].startswith("note worker 1 says: | Traceback")
    assert "in raises |" in notes[0]
    assert when_s - acts_s < SOON_S


@pytest.mark.slow
def test_an_error_of_our_own_keeps_its_class_and_is_not_tried_again(tmp_path: Path) -> None:
    with launched(tmp_path, "raises_ours", restarts=2) as child:
        workers = pids(child, 2)
        _, what, notes = raised(child)
        wait_until_gone(workers)
    assert what == "DataError: row 17 has no target."
    assert notes[0].startswith("note worker 1, at step 5, says: | Traceback")
    assert child.output == ""  # no second start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("is_killed", r"worker 1 was lost at step [45].*: it was killed \(SIGKILL\), as the system does when"),
        ("leaves", r"worker 1 ended with exit status 0 at step [45].*, and did not say why\."),
        pytest.param(
            "leaves_badly",
            r"worker 1 ended with exit status 7 at step [45].*, and did not say why\.",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["killed", "leaves", "leaves badly"],
)
def test_a_lost_worker_is_named_and_all_end(tmp_path: Path, how: str, said: str) -> None:
    with launched(tmp_path, how, workers=3) as child:
        workers, (acts_s, _) = pids(child, 3), acted(child)
        when_s, what, _ = raised(child)
        wait_until_gone(workers)
    assert re.match(f"WorkerError: {said}", what), what
    assert when_s - acts_s < SOON_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("is_stopped", r"worker 1 keeps the others waiting since step [45].*for more than 3 s; nothing has"),
        ("hangs_deaf", r"worker 1 keeps the others waiting since step 5 \(reading data\), for more than 3"),
    ],
    ids=["stopped", "hangs"],
)
def test_a_late_worker_is_named_and_all_end_after_the_timeout(tmp_path: Path, how: str, said: str) -> None:
    graces_s = 2 * GRACE_S  # that the late one has then: to end by itself, and once it is asked to
    with launched(tmp_path, how, workers=3) as child:
        workers, (acts_s, late) = pids(child, 3), acted(child)
        wait_until_gone([pid for pid in workers if pid != late], acts_s + TIMEOUT_S + SOON_S - time.monotonic())
        when_s, what, _ = raised(child)
        wait_until_gone(workers)
        waits_s, ends_s = min(times(child, "waits")), min(times(child, "ends"))
    assert re.match(f"WorkerError: {said}", what), what
    assert ends_s - waits_s > TIMEOUT_S, "nobody is given up before"
    assert graces_s < SOON_S
    assert when_s - ends_s < graces_s + SOON_S


@pytest.mark.slow
def test_a_worker_that_does_not_come_is_named(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="never_comes") as child:
        workers = pids(child, 2)
        what = raised(child)[1]
        wait_until_gone(workers)
    assert what == (
        f"WorkerError: worker 1 did not come to meet the others within {TIMEOUT_S:g} s: lost, or still starting. "
        "If that may take longer, raise timeout_s."
    )


@pytest.mark.slow
def test_an_exit_is_an_exit(tmp_path: Path) -> None:
    with launched(tmp_path, "exits", restarts=1) as child:
        assert raised(child)[1] == "SystemExit: 7"
    assert child.output == "headrace: worker 1 has ended by sys.exit(7), and so all workers end.\n"


@pytest.mark.slow
def test_an_exit_without_a_fault_is_one_too(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="exits_well") as child:
        assert raised(child)[1] == "SystemExit: 0"


@pytest.mark.slow
def test_a_worker_that_has_returned_and_does_not_end_is_ended(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="goes_on") as child:
        workers = pids(child, 2)
        assert child.until("result") == "done"
        assert child.ending() == 0
        wait_until_gone(workers)
    assert child.output == (
        f"headrace: worker 1 of this node returned {TIMEOUT_S:g} s ago and did not end, as when a thread goes on: "
        "ended now.\n"
    )


@pytest.mark.slow
def test_a_value_that_cannot_be_sent_back_is_said_to_be_so(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="returns_a_lock") as child:
        what = raised(child)[1]
    assert what.startswith("ConfigError: what main returned, a lock, cannot be sent back: TypeError: cannot pickle")


# --- signals --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "what"),
    [
        (signal.SIGINT, "KeyboardInterrupt"),
        (signal.SIGTERM, "SystemExit: 143"),
        pytest.param(signal.SIGUSR1, "SystemExit: 143", marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_passed_on_once_and_workers_end_by_themselves(tmp_path: Path, number: int, what: str) -> None:
    with launched(tmp_path, "", main="listens") as child:
        workers = pids(child, 2)
        os.killpg(child.pid, number)  # as a terminal does
        for _ in workers:
            assert child.until("heard") == f"[{int(number)}]"
        assert raised(child)[1].startswith(what)
        wait_until_gone(workers)


@pytest.mark.slow
def test_a_second_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    with launched(tmp_path, "deaf", main="listens") as child:
        workers = pids(child, 2)
        child.send(signal.SIGINT)
        for _ in workers:
            child.until("asked")  # the first one has been heard, and passed on
        asked_s = time.monotonic()
        child.send(signal.SIGINT)
        when_s, what, _ = raised(child)
        wait_until_gone(workers)
    assert what.startswith("KeyboardInterrupt")
    assert when_s - asked_s < SOON_S


@pytest.mark.slow
def test_workers_do_not_outlive_the_process_that_has_started_them(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="waits") as child:
        workers = pids(child, 2)
        child.send(signal.SIGKILL)
        wait_until_gone(workers)
