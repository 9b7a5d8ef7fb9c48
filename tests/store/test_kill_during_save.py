"""A process that is killed while it saves: before, after and half way through each of its operations."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from kit.fault_harness import (
    KILLED,
    RUN,
    Death,
    Died,
    Kill,
    Trace,
    contents_of,
    difference,
    goes_on,
    in_child,
    performing,
    scratch,
    sound,
    unfinished,
)
from kit.sampled import sampled

from headrace.errors import CorruptError
from headrace.store.checkpoints import Store

NEW, NEXT = 4, 5
SAVES = {  # what is there before, what is kept, and the steps that are there in between, one after the other
    "first": ([], None, [[], [4]]),
    "steady": ([1, 2], None, [[1, 2], [1, 2, 4]]),
    "keeping one": ([3], 1, [[3], [3, 4], [4]]),
    "keeping two": ([2, 3], 2, [[2, 3], [2, 3, 4], [3, 4]]),
    "keeping one of many": ([1, 2, 3], 1, [[1, 2, 3], [1, 2, 3, 4], [2, 3, 4], [3, 4], [4]]),
}


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        yield path


def prepared(root: Path, there: list[int]) -> Path:
    """A run with checkpoints of these steps; without any, neither their directory nor that of the run exists."""
    (root / "template").mkdir()
    for step in there:
        Store(root / "template" / "run" / "checkpoints", RUN).save(contents_of(step))
    return root / "template"


def operations(template: Path, keep: int | None) -> list[str]:
    """What the save consists of."""
    with performing(trace := Trace()), scratch() as path:
        Store(shutil.copytree(template, path / "traced") / "run" / "checkpoints", RUN, keep).save(contents_of(NEW))
    return trace.operations


def saves(path: Path, keep: int | None, killed: Kill) -> None:
    with performing(killed):
        Store(path, RUN, keep).save(contents_of(NEW))


@pytest.mark.parametrize("kind", SAVES)
def test_a_save_that_is_killed_anywhere_leaves_the_old_or_the_new_checkpoint(kind: str, root: Path) -> None:
    """Some of the kills are real; after the others nothing is performed, as if they were."""
    there, keep, between = SAVES[kind]
    template = prepared(root, there)
    names = operations(template, keep)
    moments = ("before", "half", "after")
    ends = [(n, when) for n, name in enumerate(names) for when in moments if when != "half" or name == "write"]
    real = sampled(ends, keep=[(len(names) - 1 - names[::-1].index("replace"), "after")], of=60)

    seen, leftovers = [], 0
    for at, when in ends:
        path = shutil.copytree(template, root / "run") / "run" / "checkpoints"
        if (at, when) in real:
            assert in_child(partial(saves, path, keep, Kill(at=at, when=when))) == KILLED
        else:
            death = Death(at=at, when=when)
            with suppress(Died):
                saves(path, keep, death)
            assert death.dead, (at, when)
        store = Store(path, RUN)
        seen.append(store.steps())
        sound(store, seen[-1])
        newest = store.newest()
        assert newest is not None if seen[-1] else newest is None
        assert newest is None or difference(newest, contents_of(seen[-1][-1])) == ""
        leftovers += len(unfinished(path))
        goes_on(path, keep, NEXT)
        assert store.steps() == [*seen[-1], NEXT][-(keep or 99) :], "and nothing else is left"
        shutil.rmtree(root / "run")

    assert len(seen) > 50
    assert leftovers > 20, "nothing was left behind, so the ends cannot have hit the save"
    assert [steps for n, steps in enumerate(seen) if n == 0 or seen[n - 1] != steps] == between


def test_a_save_is_complete_if_the_kill_comes_after_its_last_operation(root: Path) -> None:
    template = prepared(root, [1, 2])
    kill = Kill(at=len(operations(template, 1)))
    assert in_child(lambda: saves(template / "run" / "checkpoints", 1, kill)) is None
    sound(Store(template / "run" / "checkpoints", RUN), [NEW])


def test_a_checkpoint_whose_commit_came_first_would_not_survive_a_kill(root: Path) -> None:
    """The negative control: the same kills, and a COMMIT that was there before the files that it vouches for."""
    template = prepared(root, [1, 2])
    names = operations(template, None)
    [commit] = [n for n, name in enumerate(names) if name == "replace"]
    broken = 0
    for at in range(names.index("create"), commit):
        path = shutil.copytree(template, root / str(at)) / "run" / "checkpoints"
        with pytest.raises(Died):
            saves(path, None, Death(at=at, when="after"))
        [name] = unfinished(path)
        (path / name / "COMMIT").write_bytes(b"0" * 64)
        try:
            sound(Store(path, RUN), [1, 2, NEW])
        except CorruptError:
            broken += 1
    assert broken == commit - names.index("create") == 20
