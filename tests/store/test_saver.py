"""The saver writes beside the training, one thing at a time, and no failure is lost."""

import threading
import warnings
from pathlib import Path

import pytest
from kit.forked import start_script

from headrace.store.snapshot import Saver

LIMIT_S = 10.0


def test_a_write_goes_on_beside_its_caller_and_wait_waits_for_it() -> None:
    saver, go, order = Saver(), threading.Event(), list[str]()

    def write() -> None:
        assert go.wait(LIMIT_S)
        order.append("written")

    def wait() -> None:
        waiting.set()
        saver.wait()
        order.append("waited")

    waiting = threading.Event()
    saver.start(write)
    assert order == [], "start returned before the write was done"
    waiter = threading.Thread(target=wait)
    waiter.start()
    assert waiting.wait(LIMIT_S)
    assert order == []
    go.set()
    waiter.join(LIMIT_S)
    assert order == ["written", "waited"]


def test_the_next_write_begins_when_the_one_before_it_is_done() -> None:
    saver, under_way, most = Saver(), 0, 0
    lock = threading.Lock()

    def write() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        with lock:
            under_way -= 1

    for _ in range(200):
        saver.start(write)
    saver.wait()
    assert (under_way, most) == (0, 1)


def fail() -> None:
    raise OSError(28, "No space left on device")


def test_a_failure_surfaces_once_at_the_next_wait() -> None:
    saver = Saver()
    saver.start(fail)
    with pytest.raises(OSError, match="No space"):
        saver.wait()
    saver.wait()


def test_a_failure_surfaces_at_the_next_start_which_writes_nothing() -> None:
    saver, written = Saver(), list[int]()
    saver.start(fail)
    with pytest.raises(OSError, match="No space"):
        saver.start(lambda: written.append(1))
    assert written == []
    saver.start(lambda: written.append(2))
    saver.wait()
    assert written == [2]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, MemoryError])
def test_no_kind_of_failure_is_lost(kind: type[BaseException]) -> None:
    saver = Saver()

    def write() -> None:
        raise kind

    saver.start(write)
    with pytest.raises(kind):
        saver.wait()


def test_an_interpreter_that_ends_waits_for_the_write(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"""
import threading
from pathlib import Path
from headrace.store.snapshot import Saver, beside

def write():
    threading.main_thread().join()
    Path({str(tmp_path / "written")!r}).write_text(beside(lambda: "all of it")())

Saver().start(write)
""")
    with start_script(tmp_path / "script.py") as child:
        assert child.ending() == 0, child.output
    assert (tmp_path / "written").read_text() == "all of it"


def test_whoever_waits_for_long_is_told_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.store.snapshot.SLOW_S", 0.01)
    saver, told = Saver(), threading.Event()
    said = list[str]()

    def hear(message: Warning | str, *_: object) -> None:
        said.append(str(message))
        told.set()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", hear)
        saver.start(lambda: told.wait(LIMIT_S) and None)
        saver.wait()
    assert [line.partition(":")[0] for line in said] == ["the training has waited for its last checkpoint for 0.01 s"]
