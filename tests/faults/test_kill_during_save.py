"""A process that is killed while it saves: before, after and half way through each of its operations."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.fault_harness import (
    LEFTOVERS,
    RUN,
    Ending,
    Kill,
    Trace,
    contents_of,
    difference,
    goes_on,
    in_child,
    performing,
    scratch,
    sound,
)

from headrace.checkpoint import Keep, Store

NEW, NEXT = 4, 5
SAVES = {  # what is there before, what is kept, and the steps that are there in between, one after the other
    "first": ([], Keep(None), [[], [4]]),
    "steady": ([1, 2], Keep(None), [[1, 2], [1, 2, 4]]),
    "keeping one": ([3], Keep(1), [[3], [3, 4], [4]]),
    "keeping two": ([2, 3], Keep(2), [[2, 3], [2, 3, 4], [3, 4]]),
    "keeping one of many": ([1, 2, 3], Keep(1), [[1, 2, 3], [1, 2, 3, 4], [2, 3, 4], [3, 4], [4]]),
}


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        yield path


def prepared(root: Path, there: list[int]) -> Path:
    """A run with checkpoints of these steps; without any, neither their directory nor that of the run exists."""
    root.mkdir()
    store = Store(root / "run" / "checkpoints", RUN)
    for step in there:
        store.save(contents_of(step))
    return root


def operations(root: Path, keep: Keep) -> list[str]:
    """What the save consists of."""
    trace = Trace()
    with performing(trace):
        Store(root / "run" / "checkpoints", RUN, keep).save(contents_of(NEW))
    return trace.operations


def killed(path: Path, keep: Keep, at: int, when: str) -> Ending:
    """Saves in a process that is killed at an operation."""

    def save() -> None:
        with performing(Kill(at=at, when=when)):
            Store(path, RUN, keep).save(contents_of(NEW))

    return in_child(save)


@pytest.mark.parametrize("kind", [*list(SAVES)[:-1], pytest.param(list(SAVES)[-1], marks=pytest.mark.slow)])
def test_a_save_killed_anywhere_leaves_the_old_or_the_new_checkpoint(kind: str, root: Path) -> None:
    there, keep, between = SAVES[kind]
    template = prepared(root / "template", there)
    names = operations(shutil.copytree(template, root / "traced"), keep)
    moments = ("before", "half", "after")
    kills = [(n, when) for n, name in enumerate(names) for when in moments if when != "half" or name == "write"]

    seen, leftovers = [], 0
    for number, (at, when) in enumerate(kills):
        path = shutil.copytree(template, root / str(number)) / "run" / "checkpoints"
        assert killed(path, keep, at, when).killed, (at, when)

        store = Store(path, RUN, keep)
        steps = store.steps()
        assert steps in between, (at, when)
        sound(store, steps)
        newest = store.newest()
        if newest is None:
            assert steps == []
        else:
            assert difference(newest, contents_of(steps[-1])) == ""
        others = [name for name in os.listdir(path) if not name.startswith("step-")] if path.is_dir() else []
        assert all(name.startswith(LEFTOVERS) for name in others), (at, when, others)
        seen.append(steps)
        leftovers += len(others)
        goes_on(path, keep, NEXT)
        shutil.rmtree(root / str(number))

    assert len(seen) == len(kills) > 50
    assert leftovers > 20, "the kills left nothing behind, so they cannot have hit the save"
    assert [steps for n, steps in enumerate(seen) if n == 0 or seen[n - 1] != steps] == between


def test_a_save_is_whole_if_the_kill_comes_after_its_last_operation(root: Path) -> None:
    template = prepared(root / "template", [1, 2])
    names = operations(shutil.copytree(template, root / "traced"), Keep(1))
    path = template / "run" / "checkpoints"

    ending = killed(path, Keep(1), len(names), "before")

    assert not ending.killed
    sound(Store(path, RUN), [NEW])


def test_a_checkpoint_written_in_place_would_not_survive_a_kill(root: Path) -> None:
    """The negative control: the same kills, in a store that gives the name before it writes."""
    template = prepared(root / "template", [1, 2])
    names = operations(shutil.copytree(template, root / "traced"), Keep(None))
    broken = 0
    for at in range(names.index("create"), names.index("rename")):
        path = shutil.copytree(template, root / str(at)) / "run" / "checkpoints"
        assert killed(path, Keep(None), at, "after").killed
        [beside] = path.glob(".tmp-*")
        beside.rename(Store(path, RUN).at(NEW))
        try:
            sound(Store(path, RUN), [1, 2, NEW])
        except ValueError:
            broken += 1
    assert broken == names.index("rename") - names.index("create") - len(["write", "fsync", "sync_dir"])
