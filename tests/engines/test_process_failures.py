"""Processes that fail, are lost, hang or are asked to end: which is named, and all end."""

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.forked import Child
from kit.process_workers import launched, pids, raised
from kit.sampled import nightly
from kit.torch_workers import TIMEOUT_S, times, wait_until_gone

pytestmark = pytest.mark.slow

# --- failures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "text", "note"),
    [
        ("raises", r"WorkerError: worker 1 failed at step 5: ValueError: row 17 is not in the archive$", "worker 1 "),
        ("raises_ours", r"DataError: row 17 has no target\.$", "worker 1, at step 5, "),
        ("is_killed", r"WorkerError: worker 1 was lost at step [45].*: it was killed \(SIGKILL\), as the system", ""),
        ("leaves", r"WorkerError: worker 1 ended with exit status 0 at step [45].*, and did not say why\.", ""),
    ],
)
def test_a_lost_worker_is_named_and_all_end(tmp_path: Path, how: str, text: str, note: str) -> None:
    with launched(tmp_path, how, workers=3, restarts=2 if how == "raises_ours" else 0) as child:
        workers = pids(child, 3)
        what, notes = raised(child)
        wait_until_gone(workers)
    assert re.match(text, what), what
    if note:
        assert len(notes) == 1
        assert notes[0].startswith(f"note {note}says: | Traceback")
        assert f"in {how} |" in notes[0]
        assert child.output == "", "no second start, for an error of our own"


HANGING = [
    ("hangs_deaf", r"worker 1 keeps the others waiting since step 5 \(reading data\), for more than 3"),
    *nightly(("is_stopped", r"worker 1 keeps the others waiting since step [45].*for more than 3 s; nothing has")),
]
NEVER = "WorkerError: worker 1 did not come to meet the others within 3 s: lost, or still starting. "
NEVER += "If that may take longer, raise timeout_s."
RETURNED = f"headrace: worker 1 of this node returned {TIMEOUT_S:g} s ago and did not end, as when a thread goes on: "
RETURNED += "ended now.\n"


def test_a_worker_that_hangs_never_comes_or_does_not_end_is_named_and_all_end_after_the_timeout(tmp_path: Path) -> None:
    """Of three launches, each of which waits for its timeout while the next ones start."""
    with ExitStack() as stack:

        def waiting(how: str, count: int, main: str) -> tuple[Child, list[int]]:
            child = stack.enter_context(launched(tmp_path, how, workers=count, main=main))
            return child, pids(child, count)

        hanging = []
        for how, text in HANGING:
            child, workers = waiting(how, 3, "steps_of_training")
            child.until("waits")
            hanging.append((child, workers, text))
        (never, stopped), (going_on, returned) = waiting("", 2, "never_comes"), waiting("", 2, "goes_on")
        for child, workers, text in hanging:
            what, _ = raised(child)
            wait_until_gone(workers)
            assert re.match(f"WorkerError: {text}", what), what
            assert min(times(child.told, "lost")) - min(times(child.told, "waits")) > TIMEOUT_S, "nobody before"
        assert raised(never)[0].startswith(NEVER)
        wait_until_gone(stopped)
        assert going_on.until("result") == "done"
        assert going_on.ending() == 0
        wait_until_gone(returned)
        assert going_on.output == RETURNED


@pytest.mark.parametrize(
    ("main", "how", "text", "output"),
    [
        (
            *("steps_of_training", "exits"),
            "SystemExit: 7",
            "headrace: worker 1 has ended by sys.exit(7), and so all workers end.\n",
        ),
        ("exits_well", "", "SystemExit: 0", ""),
        (
            *("returns_a_lock", ""),
            "ConfigError: what main returned, a lock, cannot be sent back: TypeError: cannot pickle",
            "",
        ),
    ],
)
def test_workers_that_exit_or_that_return_what_cannot_be_sent(
    main: str, how: str, text: str, output: str, tmp_path: Path
) -> None:
    with launched(tmp_path, how, main=main) as child:
        what = raised(child)[0]
        wait_until_gone([int(line.split()[1]) for line in child.told if line.startswith("pid")])
    assert what.startswith(text), what
    assert not output or child.output == output


def test_workers_start_again_after_a_failure(tmp_path: Path) -> None:
    with launched(tmp_path, "raises_once", restarts=2) as child:
        assert child.until("result") == "done"
        assert child.ending() == 0
    assert len([line for line in child.told if line.startswith("pid")]) == 4
    assert child.output.splitlines() == [
        "headrace: worker 1 failed at step 5: ValueError: a bad start",
        "headrace: all workers start again (1 of 2).",
    ]


# --- signals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "what"),
    [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "SystemExit: 143"), (signal.SIGUSR1, "SystemExit: 143")],
)
def test_a_signal_is_passed_on_once_and_workers_end_by_themselves(tmp_path: Path, number: int, what: str) -> None:
    with launched(tmp_path, "", main="listens") as child:
        workers = pids(child, 2)
        os.killpg(child.pid, number)  # as a terminal does
        for _ in workers:
            assert child.until("heard") == f"[{int(number)}]"
        assert raised(child)[0].startswith(what)
        wait_until_gone(workers)


def test_a_second_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    with launched(tmp_path, "deaf", main="listens") as child:
        workers = pids(child, 2)
        child.send(signal.SIGINT)
        for _ in workers:
            child.until("asked")  # the first one has been heard, and passed on
        child.send(signal.SIGINT)
        what, _ = raised(child)
        wait_until_gone(workers)
    assert what.startswith("KeyboardInterrupt")


def test_workers_do_not_outlive_the_process_that_has_started_them(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="waits") as child:
        workers = pids(child, 2)
        child.send(signal.SIGKILL)
        wait_until_gone(workers)
