"""How many checkpoints stay: those that are to be kept, always one that loads, and everything of somebody else."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kit.fault_harness import RUN, Died, Trace, contents_of, difference, goes_on, hashes, performing, sound

from headrace.errors import ConfigError
from headrace.store.checkpoints import Keep, Store


def saved(path: Path, keep: Keep, steps: int, best: tuple[int, ...] = ()) -> Store:
    store = Store(path, RUN, keep)
    for step in range(1, steps + 1):
        store.save(contents_of(step), best=[b for b in best if b <= step])
    return store


@pytest.mark.parametrize(("keep", "there"), [(1, [5]), (2, [4, 5]), (5, [1, 2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_last_so_many_stay(keep: int, there: list[int], tmp_path: Path) -> None:
    sound(saved(tmp_path, Keep.of(keep), 5), there)


def test_all_stay_where_all_are_kept(tmp_path: Path) -> None:
    sound(saved(tmp_path, Keep.of("all"), 5), [1, 2, 3, 4, 5])


@pytest.mark.parametrize("keep", [0, -1, True, False, "x", "ALL", "", None, 1.0, [1]])
def test_a_number_that_would_keep_none_or_is_none_is_refused(keep: Any) -> None:
    with pytest.raises(ConfigError, match="at least 1, or 'all'") as caught:
        Keep.of(keep)
    assert repr(keep) in str(caught.value)


def test_the_best_steps_stay_as_long_as_they_are_the_best(tmp_path: Path) -> None:
    store = saved(tmp_path, Keep(1), 5, best=(2, 4))
    sound(store, [2, 4, 5])
    store.save(contents_of(6), best=[4])
    sound(store, [4, 6])
    store.save(contents_of(7), best=[])
    sound(store, [7])


class Watch:
    """Looks for the newest checkpoint after each operation, as a reader who knows nothing of the writer."""

    def __init__(self, path: Path) -> None:
        self.path, self.last, self.found = path, 0, list[int]()

    def __call__(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        result = call(*arguments)
        newest = Store(self.path, RUN).newest()
        if newest is not None or self.last:
            assert newest is not None
            assert newest.step in (self.last, self.last + 1)
            assert difference(newest, contents_of(newest.step)) == ""
            self.found.append(newest.step)
        return result


@pytest.mark.parametrize("keep", [1, 2, "all"])
def test_at_every_operation_there_is_a_checkpoint_that_loads(keep: int | str, tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    with performing(watch):
        for step in range(1, 5):
            Store(tmp_path, RUN, Keep.of(keep)).save(contents_of(step))
            watch.last = step
    assert len(watch.found) > 60
    assert set(watch.found) == {1, 2, 3, 4}


@dataclass
class Cut(Trace):
    """The process ends after so many of the operations that give names and take them."""

    after: int = 0

    def __call__(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        result = call(*arguments)
        if operation in ("replace", "sync_dir", "unlink", "remove_dir"):
            self.operations.append(operation)
            if len(self.operations) == self.after:
                raise Died
        return result


def test_a_removal_that_is_cut_short_anywhere_is_finished_by_the_next_save(tmp_path: Path) -> None:
    template = saved(tmp_path / "template", Keep(None), 3).path
    whole = Cut()
    with performing(whole):
        Store(shutil.copytree(template, tmp_path / "whole"), RUN, Keep(1)).save(contents_of(4))
    assert whole.operations.count("unlink") == 3 * 6

    for after in range(1, len(whole.operations) + 1):
        path = shutil.copytree(template, tmp_path / str(after))
        with performing(Cut(after=after)), pytest.raises(Died):
            Store(path, RUN, Keep(1)).save(contents_of(4))
        sound(Store(path, RUN), Store(path, RUN).steps())
        goes_on(path, Keep(1), 5)
        sound(Store(path, RUN), [5])


# --- what belongs to somebody else ------------------------------------------------------------------------


def snapshot(path: Path) -> dict[str, Any]:
    """Everything below a directory, links as what they say."""
    found: dict[str, Any] = {}
    for entry in sorted(path.rglob("*")):
        name = str(entry.relative_to(path))
        found[name] = os.readlink(entry) if entry.is_symlink() else entry.read_bytes() if entry.is_file() else None
    return found


def test_what_other_runs_and_other_people_left_stays_as_it_is(tmp_path: Path) -> None:
    path, precious = tmp_path / "checkpoints", tmp_path / "precious"
    other = Store(path, "another run")
    for step in (1, 3):
        other.save(contents_of(step))
    Store(precious, RUN).save(contents_of(2))
    (path / "step-000000000002-000003").symlink_to(Store(precious, RUN).at(2))
    (path / "step-000000000004-000004").write_text("a file")
    for name in ("step-000000000005-000005", "step-000000000006", "step-6-7"):
        (path / name).mkdir()
        (path / name / "notes.txt").write_text("no checkpoint at all")
    (path / "step-000000000007-000007").symlink_to(precious)
    (path / "model-of-last-year.pt").write_bytes(b"\x80\x02")
    (path / "dangling").symlink_to(path / "nowhere")
    before, precious_before = snapshot(path), snapshot(precious)

    mine = Store(path, RUN, Keep(1))
    for step in range(10, 14):
        mine.save(contents_of(step))

    after = snapshot(path)
    assert {name: after[name] for name in before} == before
    assert snapshot(precious) == precious_before
    assert mine.steps() == [1, 2, 3, 13]
    newest = mine.newest()
    assert newest is not None
    assert newest.step == 13


@pytest.mark.parametrize("name", ["notes.txt", "model.safetensors/inside.json", "Trainer.json", ".hidden"])
def test_a_directory_of_somebody_else_is_not_taken_for_an_unfinished_save(name: str, tmp_path: Path) -> None:
    mine = tmp_path / "step-000000000002-000001" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    saved(tmp_path, Keep(1), 2)
    assert mine.read_text() == "mine"


def test_a_store_without_a_run_removes_nothing_that_is_no_checkpoint(tmp_path: Path) -> None:
    path, precious = tmp_path / "checkpoints", tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("ten years of work")
    store = Store(path, None, Keep(1))
    store.save(contents_of(5))
    (path / "step-000000000001-000008").symlink_to(precious)
    (path / "step-000000000002-000009").mkdir()
    (path / "step-000000000002-000009" / "notes.txt").write_text("mine")
    try:
        store.save(contents_of(6))
    finally:
        assert (precious / "thesis.tex").exists()
        assert (path / "step-000000000002-000009" / "notes.txt").exists()
    assert store.steps() == [6]


def test_a_corrupt_checkpoint_of_this_run_is_never_the_only_one_that_stays(tmp_path: Path) -> None:
    store = saved(tmp_path, Keep(2), 3)
    with open(store.at(3) / "model.safetensors", "r+b") as file:
        file.write(b"\0")
    before = hashes(store.at(3))
    with pytest.warns(UserWarning, match="model.safetensors"):
        assert store.newest() is not None
    assert hashes(store.at(3)) == before

    store.save(contents_of(4))
    newest = store.newest()
    assert newest is not None
    assert difference(newest, contents_of(4)) == ""
