"""How many checkpoints stay: those that are to be kept, always one that loads, and everything of somebody else."""

import os
from pathlib import Path
from typing import Any

import pytest
from kit.fault_harness import RUN, contents_of, difference, hashes, sound

from headrace.errors import ConfigError
from headrace.store.checkpoints import Store, checked_keep


def saved(path: Path, keep: int | None, steps: int, best: tuple[int, ...] = ()) -> Store:
    store = Store(path, RUN, keep)
    for step in range(1, steps + 1):
        store.save(contents_of(step), best=[b for b in best if b <= step])
    return store


@pytest.mark.parametrize(("keep", "there"), [(1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5]), ("all", [1, 2, 3, 4, 5])])
def test_the_last_so_many_stay(keep: Any, there: list[int], tmp_path: Path) -> None:
    sound(saved(tmp_path, checked_keep(keep), 5), there)


@pytest.mark.parametrize("keep", [0, -1, True, False, "x", "ALL", "", None, 1.0, [1]])
def test_a_number_that_would_keep_none_or_is_none_is_refused(keep: Any) -> None:
    with pytest.raises(ConfigError, match="at least 1, or 'all'") as caught:
        checked_keep(keep)
    assert repr(keep) in str(caught.value)


def test_the_best_steps_stay_as_long_as_they_are_the_best(tmp_path: Path) -> None:
    store = saved(tmp_path, 1, 5, best=(2, 4))
    sound(store, [2, 4, 5])
    store.save(contents_of(6), best=[4])
    sound(store, [4, 6])
    store.save(contents_of(7), best=[])
    sound(store, [7])


@pytest.mark.parametrize("step", [9_999, 999_999_999, 999_999_999_999])
def test_steps_are_ordered_as_numbers(step: int, tmp_path: Path) -> None:
    store = Store(tmp_path, RUN, 2)
    for number in (step - 1, step, step + 1):
        store.save(contents_of(number))
    newest = store.newest()
    assert newest is not None
    assert newest.step == step + 1
    assert store.steps() == [step, step + 1]


# --- what belongs to somebody else ------------------------------------------------------------------------


def snapshot(path: Path) -> dict[str, Any]:
    """Everything below a directory, links as what they say."""
    found: dict[str, Any] = {}
    for entry in sorted(path.rglob("*")):
        name = str(entry.relative_to(path))
        found[name] = os.readlink(entry) if entry.is_symlink() else entry.read_bytes() if entry.is_file() else None
    return found


@pytest.mark.parametrize("run", [RUN, None])
def test_what_other_runs_and_other_people_left_stays_as_it_is(run: str | None, tmp_path: Path) -> None:
    path, precious = tmp_path / "checkpoints", tmp_path / "precious"
    other = Store(path, "another run")
    for step in (1, 3):
        other.save(contents_of(step))
    Store(precious, run).save(contents_of(2))
    (path / "step-000000000002-000003").symlink_to(Store(precious, run).at(2))
    (path / "step-000000000004-000004").write_text("a file")
    names = ["step-000000000006", "step-6-7", "step-000000000003.bak", "STEP-000000000003", "xstep-000000000003"]
    names += ["step-٠٠٠٠٠٠٠٠٠٠٠٣", "step-000000000003 ", "step--00000000003", "step-" + "9" * 19]
    files = [path / name / "notes.txt" for name in names]
    inside = ["notes.txt", "model.safetensors/inside.json", "Trainer.json", ".hidden"]  # no unfinished saves of ours
    files += [path / f"step-000000000005-00000{number}" / name for number, name in enumerate(inside)]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("no checkpoint at all")
    (path / "step-000000000007-000007").symlink_to(precious)
    (path / "model-of-last-year.pt").write_bytes(b"\x80\x02")
    (path / "dangling").symlink_to(path / "nowhere")
    before, precious_before = snapshot(path), snapshot(precious)

    mine = Store(path, run, 1)
    for step in range(10, 14):
        mine.save(contents_of(step))

    after = snapshot(path)
    assert {name: after[name] for name in before} == before
    assert snapshot(precious) == precious_before
    assert mine.steps() == [1, 2, 3, 13]
    newest = mine.newest()
    assert newest is not None
    assert newest.step == 13


def test_a_corrupt_checkpoint_of_this_run_is_never_the_only_one_that_stays(tmp_path: Path) -> None:
    store = saved(tmp_path, 2, 3)
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
