"""A checkpoint takes the place of one of the same step, which knows less: one of the two is there, whatever happens."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kit.crash_model import Story, build
from kit.fault_harness import (
    RUN,
    Death,
    Died,
    Fail,
    Trace,
    contents_again,
    contents_of,
    difference,
    goes_on,
    hashes,
    performing,
    place,
    scratch,
)

from headrace.errors import RunError
from headrace.store.checkpoints import Store

FIRST, STEP, NEXT = 1, 2, 3


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch() as path:
        (path / "template").mkdir()
        for step in (FIRST, STEP):
            Store(path / "template", RUN).save(contents_of(step))
        yield path


def take_over(path: Path, keep: int | None) -> None:
    Store(path, RUN, keep).save(contents_again(STEP), again=True)


def one_of_the_two(path: Path) -> str:
    """Which of the two is the newest."""
    newest = Store(path, RUN).newest()
    assert newest is not None
    found = [difference(newest, contents_of(STEP)) == "", difference(newest, contents_again(STEP)) == ""]
    assert sum(found) == 1, "neither of the two checkpoints of the step is there"
    return "new" if found[1] else "old"


def test_a_checkpoint_takes_the_place_of_one_of_the_same_step(root: Path) -> None:
    path = root / "template"
    take_over(path, 1)
    assert one_of_the_two(path) == "new"
    assert os.listdir(path) == [f"step-{STEP:012d}-000003"]


def operations(root: Path, keep: int | None) -> list[str]:
    trace = Trace()
    with performing(trace):
        take_over(shutil.copytree(root / "template", root / "traced"), keep)
    return trace.operations


@pytest.mark.parametrize("keep", [1, None])
def test_an_end_anywhere_leaves_one_of_the_two(keep: int | None, root: Path) -> None:
    """Nothing after that place is performed, as if the process had been killed there."""
    seen, lost = [], []
    count = len(operations(root, keep))
    for at, when in [*((n, "before") for n in range(count)), (count - 1, "after")]:
        path = shutil.copytree(root / "template", root / f"{at}-{when}")
        with performing(death := Death(at=at, when=when)), suppress(Died):
            take_over(path, keep)
        assert death.dead, (at, when)
        try:
            seen.append(one_of_the_two(path))
            goes_on(path, keep, NEXT)  # and clears away what was left over
        except AssertionError as error:
            lost.append((at, when, error))
    assert lost == []
    assert len(seen) > 15
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == {"old", "new"}


def test_an_error_anywhere_leaves_one_of_the_two_and_can_be_tried_again(root: Path) -> None:
    lost = []
    for at, name in enumerate(operations(root, None)):
        path = shutil.copytree(root / "template", root / str(at))
        before = hashes(first := place(Store(path, RUN), FIRST))
        with performing(Fail(at=at)), pytest.raises(RunError):
            take_over(path, None)
        try:
            one_of_the_two(path)
        except AssertionError:
            lost.append((at, name))
            continue
        take_over(path, None)
        assert one_of_the_two(path) == "new"
        assert hashes(first) == before
    assert lost == []


def test_a_loss_of_power_anywhere_leaves_one_of_the_two(root: Path) -> None:
    path = shutil.copytree(root / "template", root / "disk")
    with performing(story := Story(path)):
        take_over(path, 1)
        story.returned(STEP)
    found = dict[tuple[object, ...], str]()  # many a loss leaves the same as another
    for end, lost in story.crashes(subsets=5):
        tree = story.left(end, lost)
        key = tuple(sorted(tree.items()))
        if key not in found:
            build(tree, root / "after")
            try:
                found[key] = one_of_the_two(root / "after")
            except AssertionError:
                found[key] = "neither"
            shutil.rmtree(root / "after")
        assert not story.promised(end) or found[key] == "new"
    assert set(found.values()) == {"old", "new"}


def test_what_is_not_of_this_run_stays_as_it_is(root: Path) -> None:
    path = root / "other"
    other = Store(path, "another run").save(contents_of(STEP))
    before = hashes(other)
    take_over(path, 1)
    assert one_of_the_two(path) == "new"
    assert hashes(other) == before
