"""The power fails while a checkpoint is saved, or after: every place, and every mixture of what was not yet synced."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.crash_model import Recorder, Story, Tree, build
from kit.fault_harness import RUN, Died, Trace, contents_of, difference, goes_on, performing, scratch, sound, unsynced

from headrace.errors import HeadraceError
from headrace.store import disk
from headrace.store.checkpoints import Keep, Store

SAVES = {"all": (Keep(None), [1, 2]), "one": (Keep(1), [1, 2, 3]), "two": (Keep(2), [1, 2, 3, 4])}
PLACE = Path("run", "checkpoints")


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        yield path


def recorded(root: Path, keep: Keep, steps: list[int]) -> Story:
    """What saving these steps, one after the other and from nothing, does to a disk."""
    root.mkdir()
    story, recorder = Story(root), Recorder()
    with performing(recorder):
        for step in steps:
            Store(root / PLACE, RUN, keep).save(contents_of(step))
            recorder.returned(step)
    story.tell(recorder.log)
    assert story.left(len(story.changes), {}) == tree_of(root), "the model is not what happened"
    return story


def tree_of(root: Path) -> Tree:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in root.rglob("*")}


def survives(path: Path, keep: Keep, steps: list[int], promised: list[int]) -> None:
    """The last save that returned is there, or the one after it; whatever is called a checkpoint is one."""
    store = Store(path, RUN, keep)
    there = store.steps()
    sound(store, there)
    newest = store.newest()
    underway = steps[len(promised) : len(promised) + 1]
    if newest is None:
        assert promised == []
    else:
        assert newest.step in promised[-1:] + underway
        assert difference(newest, contents_of(newest.step)) == ""
    assert len(there) >= min(len(promised), keep.last or len(promised))


def crashes(story: Story, root: Path, check: Callable[[Path, list[int]], None], subsets: int = 20) -> tuple[int, int]:
    """Checks every disk that a crash may leave; how many there are, and how many of those have anything missing."""
    seen, missing = set(), 0
    for end, lost in story.crashes(subsets=subsets):
        tree, promised = story.left(end, lost), story.promised(end)
        key = hash((frozenset(tree.items()), tuple(promised)))
        if key in seen:
            continue
        seen.add(key)
        missing += bool(lost)
        build(tree, root)
        try:
            check(root / PLACE, promised)
        finally:
            shutil.rmtree(root)
    return len(seen), missing


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all", *[pytest.param(kind, marks=pytest.mark.slow) for kind in ("one", "two")]])
def test_a_save_that_returned_survives_any_loss_of_power(kind: str, root: Path) -> None:
    keep, steps = SAVES[kind]
    story = recorded(root / "disk", keep, steps)

    def check(path: Path, promised: list[int]) -> None:
        survives(path, keep, steps, promised)
        with performing(unsynced):
            goes_on(path, keep, 9)

    tried, missing = crashes(story, root / "after", check, subsets=60)

    assert story.promised(len(story.changes)) == steps
    assert tried > 80 * len(steps)  # different disks, of 60 random ones at each place
    assert missing > 50 * len(steps)


def test_the_last_save_survives_the_loss_of_everything_that_is_not_certain(root: Path) -> None:
    story = recorded(root / "disk", Keep(1), [1, 2])
    uncertain = {n: "empty" for n, _ in enumerate(story.changes)}
    *_, (end, lost) = (crash for crash in story.crashes(subsets=0) if crash[0] == len(story.changes))

    build(story.left(end, lost), root / "after")

    assert set(lost) < set(uncertain)
    survives(root / "after" / PLACE, Keep(1), [1, 2], [1, 2])


@pytest.mark.parametrize("missing", ["File.sync", "sync_dir"])
def test_a_save_that_does_not_sync_is_caught(missing: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the same crashes, of saves that skip one kind of sync."""
    if missing == "sync_dir":
        monkeypatch.setattr(disk, "sync_dir", lambda path: None)
    else:
        monkeypatch.setattr(disk.File, "sync", lambda file: None)
    story = recorded(root / "disk", Keep(None), [1])
    monkeypatch.undo()
    caught = []

    def check(path: Path, promised: list[int]) -> None:
        try:
            survives(path, Keep(None), [1], promised)
        except (AssertionError, HeadraceError, UserWarning) as error:
            caught.append(type(error))

    tried, _ = crashes(story, root / "after", check, subsets=2)

    assert tried > len(caught) > 5


@pytest.mark.parametrize("before", [None, b"the old bytes"])
def test_a_file_that_is_written_as_a_whole_is_the_old_one_or_the_new_and_the_new_once_that_is_promised(
    before: bytes | None, root: Path
) -> None:
    written = root / "disk"
    written.mkdir()
    if before is not None:
        (written / "file").write_bytes(before)
    (written / ".file.new").write_bytes(b"left over")
    story, recorder, seen = Story(written), Recorder(), set()
    with performing(recorder):
        disk.write_file(written / "file", b"the new bytes")
        recorder.returned(1)
    story.tell(recorder.log)
    for end, lost in story.crashes():
        found = story.left(end, lost).get("file")
        assert found in ([b"the new bytes"] if story.promised(end) else [before, b"the new bytes"])
        seen.add((found, bool(lost)))
    assert seen == {(before, True), (before, False), (b"the new bytes", True), (b"the new bytes", False)}


# What an earlier process made, it may not have synced: then a save that returns is lost with the directory it is in.
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["dies after", "fails at"])
def test_a_save_that_returned_survives_though_an_earlier_one_was_cut_short(moment: str, root: Path) -> None:
    (root / "traced").mkdir()
    trace = Trace()
    with performing(trace):
        Store(root / "traced" / PLACE, RUN).save(contents_of(1))
    there, lost_saves = set(), []
    for at, operation in enumerate(trace.operations):
        disk_now = root / str(at)
        disk_now.mkdir()
        story, recorder = Story(disk_now), Recorder()
        assert cut_short(disk_now / PLACE, recorder, at, moment), (at, operation)
        with performing(recorder):
            Store(disk_now / PLACE, RUN).save(contents_of(2))
        story.tell(recorder.log)
        for end, lost in story.crashes(subsets=0):
            if end < len(story.changes):
                continue
            build(story.left(end, lost), root / "after")
            newest = Store(root / "after" / PLACE, RUN).newest()
            shutil.rmtree(root / "after")
            if newest is None:
                lost_saves.append(f"{moment} {at} ({operation})")
            else:
                there.add(newest.step)
    assert there == {2}
    assert lost_saves == []


def cut_short(path: Path, recorder: Recorder, at: int, moment: str) -> bool:
    """Saves step 1 as a process that dies after an operation, or that meets an error at one; whether it did."""
    count = 0

    def perform(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count - 1 == at and moment == "fails at":
            raise OSError(5, "Input/output error", str(arguments[0]))
        result = recorder(operation, call, *arguments)
        if count - 1 == at:
            raise Died
        return result

    with performing(perform):
        try:
            Store(path, RUN).save(contents_of(1))
        except (Died, OSError):
            return True
    return False
