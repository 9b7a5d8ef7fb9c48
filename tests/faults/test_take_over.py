"""A checkpoint takes the place of one of the same step, which knows less: one of the two is there, whatever happens."""

import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.crash_model import Recorder, Story, build
from kit.fault_harness import (
    LEFTOVERS,
    RUN,
    Fail,
    Kill,
    Trace,
    contents_again,
    contents_of,
    difference,
    goes_on,
    hashes,
    in_child,
    performing,
    scratch,
    sound,
)

from headrace import disk
from headrace.checkpoint import Keep, Store
from headrace.errors import CheckpointError, RunError

FIRST, STEP, NEXT = 1, 2, 3


class Refusing:
    """A C library on a file system that knows no flags of renameat2, as NFS knows none."""

    @staticmethod
    def renameat2(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1


STAYS = {"exchange": "new", "names only": "old"}
"""Which of the two is there in the end: the new one, where two names can change places in one operation."""


@pytest.fixture(params=["exchange", "names only"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "names only":
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Refusing())
    return str(request.param)


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        (path / "template").mkdir()
        for step in (FIRST, STEP):
            Store(path / "template", RUN).save(contents_of(step))
        yield path


def take_over(path: Path, keep: Keep) -> None:
    Store(path, RUN, keep).save(contents_again(STEP), again=True)


def operations(root: Path, keep: Keep) -> list[str]:
    trace = Trace()
    with performing(trace):
        take_over(shutil.copytree(root / "template", root / "traced"), keep)
    return trace.operations


def one_of_the_two(path: Path) -> str:
    """Which of the two is the newest."""
    newest = Store(path, RUN).newest()
    assert newest is not None
    found = [difference(newest, contents_of(STEP)) == "", difference(newest, contents_again(STEP)) == ""]
    assert sum(found) == 1, "neither of the two checkpoints of the step is there"
    return "new" if found[1] else "old"


def test_a_checkpoint_takes_the_place_of_one_of_the_same_step(how: str, root: Path) -> None:
    path = root / "template"
    take_over(path, Keep(1))
    assert one_of_the_two(path) == STAYS[how]
    assert os.listdir(path) == [f"step-{STEP:012d}"]
    with pytest.raises(CheckpointError, match="never overwritten"):
        Store(path, RUN).save(contents_of(STEP))


@pytest.mark.parametrize("keep", [Keep(1), Keep(None)])
def test_a_kill_anywhere_leaves_one_of_the_two(keep: Keep, how: str, root: Path) -> None:
    seen, lost = [], []
    for at, name in enumerate(operations(root, keep)):
        for when in ("before", "after"):
            path = shutil.copytree(root / "template", root / f"{at}-{when}")

            def save(path: Path = path, at: int = at, when: str = when) -> None:
                with performing(Kill(at=at, when=when)):
                    take_over(path, keep)

            assert in_child(save).killed
            try:
                seen.append(one_of_the_two(path))
            except AssertionError:
                lost.append((at, name, when))
                continue
            others = [entry for entry in os.listdir(path) if not entry.startswith("step-")]
            assert all(entry.startswith(LEFTOVERS) for entry in others)
            goes_on(path, keep, NEXT)
    assert lost == []
    assert len(seen) > 30
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {"old", STAYS[how]}


def test_an_error_anywhere_leaves_one_of_the_two_and_can_be_tried_again(how: str, root: Path) -> None:
    lost = []
    for at, name in enumerate(operations(root, Keep(None))):
        path = shutil.copytree(root / "template", root / str(at))
        before = hashes(path / f"step-{FIRST:012d}")
        with performing(Fail(at=at)), pytest.raises(RunError):
            take_over(path, Keep(None))
        try:
            one_of_the_two(path)
        except AssertionError:
            lost.append((at, name))
            continue
        take_over(path, Keep(None))
        assert one_of_the_two(path) == STAYS[how]
        assert hashes(path / f"step-{FIRST:012d}") == before
    assert lost == []


def test_a_loss_of_power_anywhere_leaves_one_of_the_two(how: str, root: Path) -> None:
    path = shutil.copytree(root / "template", root / "disk")
    story, recorder, seen, lost_both = Story(path), Recorder(), set(), 0
    with performing(recorder):
        take_over(path, Keep(1))
        recorder.returned(STEP)
    story.tell(recorder.log)
    for end, lost in story.crashes(subsets=5):
        build(story.left(end, lost), root / "after")
        try:
            seen.add(one_of_the_two(root / "after"))
            assert not story.promised(end) or one_of_the_two(root / "after") == STAYS[how]
        except AssertionError:
            lost_both += 1
        shutil.rmtree(root / "after")
    assert lost_both == 0
    assert seen == {"old", STAYS[how]}


def test_what_is_not_of_this_run_is_not_taken_over(how: str, root: Path) -> None:
    path = root / "other"
    Store(path, "another run").save(contents_of(STEP))
    before = hashes(Store(path, RUN).at(STEP))
    with pytest.raises(CheckpointError, match="belongs to another run"):
        take_over(path, Keep(1))
    assert hashes(Store(path, RUN).at(STEP)) == before


def test_where_there_is_none_of_the_step_it_is_a_save_like_any_other(how: str, root: Path) -> None:
    path = root / "fresh"
    Store(path, RUN).save(contents_of(STEP), again=True)
    sound(Store(path, RUN), [STEP])


def test_two_directories_change_names_in_one_operation(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert disk.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a" / "b").exists()
    assert (tmp_path / "b" / "a").exists()
    with pytest.raises(FileNotFoundError):
        disk.exchange(tmp_path / "a", tmp_path / "missing")
