"""The power fails while a checkpoint is saved, or after: every place, and every mixture of what was not yet synced."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kit.crash_model import Story, Tree, build
from kit.fault_harness import RUN, Died, Trace, contents_of, difference, goes_on, performing, scratch, sound, unsynced
from kit.sampled import EVERY

from headrace.errors import HeadraceError
from headrace.store import disk
from headrace.store.checkpoints import Store

SAVES = {"all": (None, [1, 2]), "one": (1, [1, 2]), "two": (2, [1, 2, 3])}
SUBSETS = 60 if EVERY in os.environ else 12
"""Random ones of what was not yet synced, at each place."""
PLACE = Path("run", "checkpoints")


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        (path / "disk").mkdir()
        yield path


def recorded(root: Path, keep: int | None, steps: list[int]) -> Story:
    """What saving these steps, one after the other and from nothing, does to a disk."""
    with performing(story := Story(root / "disk")):
        for step in steps:
            Store(root / "disk" / PLACE, RUN, keep).save(contents_of(step))
            story.returned(step)
    there = {p: p.read_bytes() if p.is_file() else None for p in (root / "disk").rglob("*")}
    tree: Tree = {str(path.relative_to(root / "disk")): data for path, data in there.items()}
    assert story.left(len(story.changes), {}) == tree, "the model is not what happened"
    return story


def survives(path: Path, keep: int | None, steps: list[int], promised: list[int]) -> None:
    """The last save that returned is there, or the one after it; whatever is called a checkpoint is one."""
    store = Store(path, RUN, keep)
    there = store.steps()
    sound(store, there)
    newest = store.newest()
    if newest is None:
        assert promised == []
    else:
        assert newest.step in promised[-1:] + steps[len(promised) : len(promised) + 1]
        assert difference(newest, contents_of(newest.step)) == ""
    assert len(there) >= min(len(promised), keep or len(promised))


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
        build(tree, root / "after")
        try:
            check(root / "after" / PLACE, promised)
        finally:
            shutil.rmtree(root / "after")
    return len(seen), missing


@pytest.mark.parametrize("kind", SAVES)
def test_a_save_that_returned_survives_any_loss_of_power(kind: str, root: Path) -> None:
    keep, steps = SAVES[kind]
    story = recorded(root, keep, steps)

    def check(path: Path, promised: list[int]) -> None:
        survives(path, keep, steps, promised)
        with performing(unsynced):
            goes_on(path, keep, 9)

    tried, missing = crashes(story, root, check, subsets=SUBSETS)

    assert story.promised(len(story.changes)) == steps
    assert tried > (SUBSETS + 20) * len(steps)  # different disks
    assert missing > SUBSETS // 2 * len(steps)


@pytest.mark.parametrize("missing", ["File.sync", "sync_dir"])
def test_a_save_that_does_not_sync_is_caught(missing: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the same crashes, of saves that skip one kind of sync."""
    monkeypatch.setattr(f"headrace.store.disk.{missing}", lambda _: None)
    story = recorded(root, None, [1])
    monkeypatch.undo()
    caught = []

    def check(path: Path, promised: list[int]) -> None:
        try:
            survives(path, None, [1], promised)
        except (AssertionError, HeadraceError, UserWarning) as error:
            caught.append(type(error))

    tried, _ = crashes(story, root, check, subsets=2)

    assert tried > len(caught) > 5


@pytest.mark.parametrize("before", [None, b"the old bytes"])
def test_a_file_that_is_written_as_a_whole_is_the_old_one_or_the_new_and_the_new_once_that_is_promised(
    before: bytes | None, root: Path
) -> None:
    written = root / "disk"
    if before is not None:
        (written / "file").write_bytes(before)
    (written / ".file.new").write_bytes(b"left over")
    with performing(story := Story(written)):
        disk.write_file(written / "file", b"the new bytes")
        story.returned(1)
    seen = set()
    for end, lost in story.crashes():
        found = story.left(end, lost).get("file")
        assert found in ([b"the new bytes"] if story.promised(end) else [before, b"the new bytes"])
        seen.add((found, bool(lost)))
    assert seen == {(before, True), (before, False), (b"the new bytes", True), (b"the new bytes", False)}


# What an earlier process made, it may not have synced: then a save that returns is lost with the directory it is in.
@pytest.mark.parametrize("moment", ["dies after", "fails at"])
def test_a_save_that_returned_survives_though_an_earlier_one_was_cut_short(moment: str, root: Path) -> None:
    (root / "traced").mkdir()
    with performing(trace := Trace()):
        Store(root / "traced" / PLACE, RUN).save(contents_of(1))
    there = []
    for at, _ in enumerate(trace.operations):
        (root / str(at)).mkdir()
        story = Story(root / str(at))
        cut_short(root / str(at) / PLACE, story, at, moment)
        with performing(story):
            Store(root / str(at) / PLACE, RUN).save(contents_of(2))
        for end, lost in story.crashes(subsets=0):
            if end == len(story.changes):
                build(story.left(end, lost), root / "after")
                newest = Store(root / "after" / PLACE, RUN).newest()
                shutil.rmtree(root / "after")
                there.append(newest and newest.step)
    assert set(there) == {2}


def cut_short(path: Path, story: Story, at: int, moment: str) -> None:
    """Saves step 1 as a process that dies after an operation, or that meets an error at one."""
    count = 0

    def perform(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count - 1 == at and moment == "fails at":
            raise OSError(5, "Input/output error", str(arguments[0]))
        result = story(operation, call, *arguments)
        if count - 1 == at:
            raise Died
        return result

    with performing(perform), suppress(Died, HeadraceError):
        Store(path, RUN).save(contents_of(1))
        raise AssertionError("it was not cut short")
