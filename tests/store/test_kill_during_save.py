"""A process that is killed while it saves: before, after and half way through each of its operations."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kit.fault_harness import (
    RUN,
    Death,
    Died,
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
    unfinished,
)
from kit.sampled import sampled

from headrace.errors import CorruptError
from headrace.store.checkpoints import Keep, Store

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


def places(names: list[str]) -> list[tuple[int, str]]:
    """Where a save can be ended: at which operation, and when."""
    moments = ("before", "half", "after")
    return [(n, when) for n, name in enumerate(names) for when in moments if when != "half" or name == "write"]


def left(path: Path, between: list[list[int]]) -> tuple[list[int], int]:
    """The steps that are left, all of them whole, and how many other things are; the next save works."""
    store = Store(path, RUN)
    steps = store.steps()
    assert steps in between
    sound(store, steps)
    newest = store.newest()
    if newest is None:
        assert steps == []
    else:
        assert difference(newest, contents_of(steps[-1])) == ""
    return steps, len(unfinished(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [kind if kind in ("first", "keeping one") else pytest.param(kind, marks=pytest.mark.slow) for kind in SAVES]
)
def test_a_save_that_ends_anywhere_leaves_the_old_or_the_new_checkpoint(kind: str, root: Path) -> None:
    """Nothing after that place is performed, as if the process had been killed there."""
    there, keep, between = SAVES[kind]
    template = prepared(root / "template", there)
    ends = places(operations(shutil.copytree(template, root / "traced"), keep))

    seen, leftovers = [], 0
    for at, when in ends:
        path = shutil.copytree(template, root / "run") / "run" / "checkpoints"
        with performing(death := Death(at=at, when=when)), suppress(Died):
            Store(path, RUN, keep).save(contents_of(NEW))
        assert death.dead, (at, when)
        steps, others = left(path, between)
        seen.append(steps)
        leftovers += others
        goes_on(path, keep, NEXT)
        shutil.rmtree(root / "run")

    assert len(seen) == len(ends) > 50
    assert leftovers > 20, "nothing was left behind, so the ends cannot have hit the save"
    assert [steps for n, steps in enumerate(seen) if n == 0 or seen[n - 1] != steps] == between


@pytest.mark.parametrize("kind", SAVES)
def test_a_process_that_is_killed_while_it_saves_leaves_the_old_or_the_new_checkpoint(kind: str, root: Path) -> None:
    there, keep, between = SAVES[kind]
    template = prepared(root / "template", there)
    names = operations(shutil.copytree(template, root / "traced"), keep)
    for at, when in sampled(places(names), keep=[(len(names) - 1 - names[::-1].index("replace"), "after")], of=60):
        path = shutil.copytree(template, root / "run") / "run" / "checkpoints"
        assert killed(path, keep, at, when).killed, (at, when)
        left(path, between)
        goes_on(path, keep, NEXT)
        shutil.rmtree(root / "run")


def test_a_save_is_whole_if_the_kill_comes_after_its_last_operation(root: Path) -> None:
    template = prepared(root / "template", [1, 2])
    names = operations(shutil.copytree(template, root / "traced"), Keep(1))
    path = template / "run" / "checkpoints"

    ending = killed(path, Keep(1), len(names), "before")

    assert not ending.killed
    sound(Store(path, RUN), [NEW])


def test_a_checkpoint_whose_commit_came_first_would_not_survive_a_kill(root: Path) -> None:
    """The negative control: the same kills, and a COMMIT that was there before the files that it vouches for."""
    template = prepared(root / "template", [1, 2])
    names = operations(shutil.copytree(template, root / "traced"), Keep(None))
    [commit] = [n for n, name in enumerate(names) if name == "replace"]
    broken = 0
    for at in range(names.index("create"), commit):
        path = shutil.copytree(template, root / str(at)) / "run" / "checkpoints"
        with performing(Death(at=at, when="after")), pytest.raises(Died):
            Store(path, RUN).save(contents_of(NEW))
        [name] = unfinished(path)
        (path / name / "COMMIT").write_bytes(b"0" * 64)
        try:
            sound(Store(path, RUN), [1, 2, NEW])
        except CorruptError:
            broken += 1
    assert broken == commit - names.index("create") == 20
