"""The saver writes beside the training, one thing at a time, and no failure is lost."""

import threading
import warnings
from pathlib import Path

import pytest
from kit.forked import start_script

from headrace.store.snapshot import Saver

LIMIT_S = 200.0


def test_writes_go_on_beside_their_caller_one_after_the_other_and_wait_waits_for_them() -> None:
    saver, go, order = Saver(), threading.Event(), list[str]()

    def write(name: str) -> None:
        order.append(f"{name} begins")
        assert go.wait(LIMIT_S)
        order.append(f"{name} is done")

    saver.start(lambda: write("one"))
    assert "one is done" not in order, "start returned before the write was done"
    threading.Timer(0.05, go.set).start()
    saver.start(lambda: write("two"))
    assert order[:2] == ["one begins", "one is done"], "the next one waits"
    saver.wait()
    assert order[2:] == ["two begins", "two is done"]


@pytest.mark.parametrize("kind", [OSError, SystemExit, KeyboardInterrupt, MemoryError])
def test_a_failure_of_any_kind_surfaces_once_at_the_next_wait_or_start_which_writes_nothing(
    kind: type[BaseException],
) -> None:
    def fail() -> None:
        raise kind("No space left on device")

    saver, written = Saver(), list[int]()
    saver.start(fail)
    with pytest.raises(kind, match="No space"):
        saver.wait()
    saver.wait()
    saver.start(fail)
    with pytest.raises(kind, match="No space"):
        saver.start(lambda: written.append(1))
    assert written == []
    saver.start(lambda: written.append(2))
    saver.wait()
    assert written == [2]


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
    saver, told, said = Saver(), threading.Event(), list[str]()

    def hear(message: Warning | str, *_: object) -> None:
        said.append(str(message))
        told.set()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", hear)
        saver.start(lambda: told.wait(LIMIT_S))
        saver.wait()
    assert [line.partition(":")[0] for line in said] == ["the training has waited for its last checkpoint for 0.01 s"]
