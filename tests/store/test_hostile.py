"""Checkpoints made by somebody who wants to do harm, and who can compute a sha256: refused, and quickly."""

import hashlib
import json
import os
import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from kit.fault_harness import RUN, contents_of, difference, hashes, in_child, place, recommit, scratch, sound

from headrace.errors import CheckpointError, CorruptError, HeadraceError
from headrace.store.checkpoints import Keep, Store

GOOD, BAD = 1, 2
LIMIT_S = 10.0
FILES = ["COMMIT", "manifest.json", "model.safetensors", "rank-00000.json", "rank-00000.safetensors", "trainer.json"]


@pytest.fixture
def store() -> Iterator[Store]:
    with scratch() as path:
        store = Store(path / "checkpoints", RUN)
        for step in (GOOD, BAD):
            store.save(contents_of(step))
        yield store


def told(store: Store) -> Any:
    return json.loads((place(store, BAD) / "manifest.json").read_bytes())


def of_model(manifest: Any) -> Any:
    """The entry of the file of weights."""
    return next(entry for entry in manifest["files"] if entry["name"] == "model.safetensors")


def tell(store: Store, manifest: Any) -> None:
    recommit(place(store, BAD), manifest=json.dumps(manifest).encode())


def refused(store: Store, match: str = "") -> None:
    """Loading and verifying refuse, and do not take long; the checkpoint before is used instead."""
    began_s = time.process_time()
    for work in (lambda: store.load(BAD), lambda: store.verify(BAD)):
        found = message(work)
        assert found[0] == "CorruptError", found
        assert match in found[1], found
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        newest = store.newest()
    assert newest is not None
    assert difference(newest, contents_of(GOOD)) == ""
    assert len(caught) == 1
    assert time.process_time() - began_s < LIMIT_S


def refuse_to_load(store: Store, match: str) -> None:
    began_s = time.process_time()
    found = message(lambda: store.load(BAD))
    assert found[0] == "CorruptError", found
    assert match in found[1], found
    assert time.process_time() - began_s < LIMIT_S


def each(check: Callable[[Any], None], cases: Iterable[Any]) -> None:
    """Checks all of the cases, and tells of all that fail."""
    failed = {}
    for case in cases:
        try:
            check(case)
        except AssertionError as error:
            failed[repr(case)[:80]] = str(error)[:200]
    assert failed == {}


def message(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except HeadraceError as error:
        return [type(error).__name__, str(error)]
    return ["", "it was loaded"]


def test_what_the_helper_changes_is_loaded_where_it_does_no_harm(store: Store) -> None:
    """The negative control: COMMIT vouches for what `tell` and `recommit` write."""
    manifest = told(store)
    manifest["made_by"]["by"] = "somebody else"
    tell(store, manifest)
    sound(store, [GOOD, BAD])
    recommit(place(store, BAD), files={"trainer.json": b'{"step": 99}'})
    assert store.load(BAD).documents["trainer.json"] == {"step": 99}


# --- names ------------------------------------------------------------------------------------------------


NAMES: list[Any] = ["../outside.json", "{}/outside.json", "a/b.json", "./trainer.json", "", ".", "..", ".hidden"]
NAMES += ["COMMIT", "manifest.json", "manifest.json/../trainer.json", "-rf", "trainer.json\n", "trainer.json\0"]
NAMES += ["Trainer.json", "δ.json", "a" * 101, "ⅻ.json", None, 1, ["trainer.json"], {"name": "trainer.json"}]


def test_a_name_that_no_file_of_a_checkpoint_has_is_refused(store: Store) -> None:
    secret, manifest = b'"secret"', told(store)
    for folder in (store.path.parent, store.path):
        (folder / "outside.json").write_bytes(secret)
    [entry] = [entry for entry in manifest["files"] if entry["name"] == "trainer.json"]
    entry.update(size=len(secret), sha256=hashlib.sha256(secret).hexdigest())

    def check(name: Any) -> None:
        entry["name"] = name.format(store.path.parent) if isinstance(name, str) else name
        tell(store, manifest)
        refused(store, "which no file of a checkpoint is called")

    each(check, NAMES)


def test_a_file_that_is_named_twice_is_refused(store: Store) -> None:
    manifest = told(store)
    manifest["files"].append(manifest["files"][0])
    tell(store, manifest)
    refused(store, "twice")


def test_a_size_that_is_none_is_refused(store: Store) -> None:
    manifest = told(store)

    def check(size: object) -> None:
        manifest["files"][0]["size"] = size
        tell(store, manifest)
        refused(store)

    each(check, [-1, 2**70, 10**30, 1.5, 1e3, "12", True, None, [12], {}])


# --- things that are not files ----------------------------------------------------------------------------


def fifo(path: Path, store: Store) -> None:
    os.mkfifo(path)


def directory(path: Path, store: Store) -> None:
    path.mkdir()


def link_to_the_same_bytes(path: Path, store: Store) -> None:
    outside = store.path.parent / "outside"
    shutil.copy(store.path.parent / "kept" / path.name, outside)
    path.symlink_to(outside)


def link_to_a_fifo(path: Path, store: Store) -> None:
    os.mkfifo(store.path.parent / "fifo")
    path.symlink_to(store.path.parent / "fifo")


def link_to_zeros(path: Path, store: Store) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.slow
@pytest.mark.parametrize("make", [fifo, directory, link_to_the_same_bytes, link_to_a_fifo, link_to_zeros])
def test_what_is_not_a_regular_file_is_neither_read_nor_waited_for(
    make: Callable[[Path, Store], None], store: Store
) -> None:
    """In a process that is ended if it waits."""
    bad = place(store, BAD)
    kept = shutil.copytree(bad, store.path.parent / "kept")

    def check(name: str) -> None:
        (bad / name).unlink()
        make(bad / name, store)
        refused(store, str(bad / name))
        for path in (bad, store.path.parent / "fifo", store.path.parent / "outside"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        shutil.copytree(kept, bad)

    in_child(lambda: each(check, FILES), LIMIT_S)


def test_a_checkpoint_that_is_a_link_is_not_followed(store: Store) -> None:
    elsewhere, bad = store.path.parent / "elsewhere", place(store, BAD)
    bad.rename(elsewhere)
    bad.symlink_to(elsewhere)
    refused(store, str(bad))


@pytest.mark.parametrize("make", ["fifo", "file"])
def test_what_is_no_directory_is_no_checkpoint_and_is_not_waited_for(make: str, store: Store) -> None:
    bad = place(store, BAD)
    shutil.rmtree(bad)
    if make == "fifo":
        os.mkfifo(bad)
    else:
        bad.write_text("{}")
    in_child(lambda: sound(store, [GOOD]), LIMIT_S)
    in_child(lambda: refuse_to_load(store, "has no checkpoint of step 2"), LIMIT_S)


def test_a_file_in_place_of_the_directory_of_checkpoints_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a directory")
    with pytest.raises(HeadraceError, match="checkpoints"):
        Store(tmp_path / "checkpoints", RUN).newest()
    with pytest.raises(HeadraceError, match="checkpoints"):
        Store(tmp_path / "checkpoints", RUN).save(contents_of(1))


# --- too much ---------------------------------------------------------------------------------------------


def test_a_manifest_of_more_than_16_mib_is_not_parsed(store: Store) -> None:
    manifest = told(store)
    manifest["made_by"]["padding"] = "x" * (16 << 20)
    tell(store, manifest)
    refused(store, "has more than 16,777,216 bytes")


def test_a_commit_of_a_gigabyte_is_not_read(store: Store) -> None:
    os.truncate(place(store, BAD) / "COMMIT", 1 << 30)
    refused(store, "has more than 256 bytes")


def too_long(store: Store, length: int, there: int) -> None:
    """A header that says that it is so long, of which so much is there."""
    recommit(place(store, BAD), files={"model.safetensors": length.to_bytes(8, "little") + b"{" + b" " * (there - 1)})
    refuse_to_load(store, f"a header of {length:,} bytes")
    with pytest.warns(UserWarning, match="model.safetensors"):
        assert store.newest() is not None


def test_a_header_that_is_too_long_is_not_parsed(store: Store) -> None:
    limit = 1 << 20
    each(
        lambda told: too_long(store, *told), [(limit + 1, 101), (limit + 1, limit + 1), (2**63, 101), (2**64 - 1, 101)]
    )


@pytest.mark.slow
def test_a_header_of_a_hundred_megabytes_is_not_parsed(store: Store) -> None:
    too_long(store, 10**8, 10**8)


def test_deep_nesting_is_refused(store: Store) -> None:
    manifest = (place(store, BAD) / "manifest.json").read_bytes()

    def check(case: tuple[str, bytes]) -> None:
        name, nest = case
        deep = nest * 100_000
        recommit(place(store, BAD), manifest=manifest if name == "trainer.json" else deep)
        if name == "trainer.json":
            recommit(place(store, BAD), files={name: deep})
        refuse_to_load(store, name)

    each(check, product(["manifest.json", "trainer.json"], [b"[", b'{"a":', b'{"files":[']))


def test_a_manifest_that_tells_an_impossible_shape_is_refused(store: Store) -> None:
    manifest = told(store)

    def check(shape: object) -> None:
        of_model(manifest)["tensors"]["count"] = ["I64", shape]
        tell(store, manifest)
        refuse_to_load(store, "")

    each(check, [[1e999], [-1e999], [float("nan")], ["x"], [None], [[1]], None, 3, [1] * 100_000])


def test_a_tensor_of_impossible_size_is_refused(store: Store) -> None:
    manifest = told(store)

    def check(shape: list[Any]) -> None:
        header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        of_model(manifest)["tensors"] = {"w": ["F32", shape]}
        tell(store, manifest)
        recommit(place(store, BAD), files={"model.safetensors": len(header).to_bytes(8, "little") + header})
        refuse_to_load(store, "")

    each(check, [[2**40, 2**40], [2**62], [-1], [0, 2**63], [0, 2**62, 2**62], [0.5], ["1"]])


# --- other versions, other formats ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [5, 10, 10**20])
def test_a_newer_format_is_named_and_nothing_older_is_taken_instead(number: int, store: Store) -> None:
    manifest = told(store)
    manifest["format"] = number
    manifest["files"] = "quite another way to list them"
    manifest["made_by"] = {"headrace": "99.1"}
    tell(store, manifest)
    for work in (store.newest, lambda: store.load(BAD), lambda: store.verify(BAD)):
        with pytest.raises(CheckpointError, match=rf"headrace '?99\.1'?, in format {number}") as caught:
            work()
        assert not isinstance(caught.value, CorruptError)
        assert "Install a newer headrace" in str(caught.value)


def test_an_older_format_is_refused_in_one_sentence(store: Store) -> None:
    manifest = told(store)
    manifest["format"] = 1
    tell(store, manifest)
    with pytest.raises(CheckpointError, match=r"in format 1; this version reads format 4\. Use that version, or train"):
        store.load(BAD)


def test_a_run_of_the_layout_of_earlier_versions_is_refused_in_one_sentence(store: Store) -> None:
    for step in (GOOD, BAD):
        place(store, step).rename(store.path / f"step-{step:012d}")
    for work in (store.newest, store.steps, lambda: store.load(BAD)):
        with pytest.raises(
            CheckpointError, match=r"was written by an earlier headrace.*use that version, or train again"
        ):
            work()


def test_a_format_that_never_was_is_refused(store: Store) -> None:
    manifest = told(store)

    def check(number: object) -> None:
        manifest["format"] = number
        tell(store, manifest)
        refused(store, "format")

    each(check, [0, -1, None, "1", 1.0, True, [1]])


def test_no_message_carries_control_characters_of_a_manifest(store: Store) -> None:
    manifest = told(store)
    manifest.update(format=5, made_by={"headrace": "1.0\x1b[2J\n\x07fine"})
    tell(store, manifest)
    with pytest.raises(CheckpointError) as caught:
        store.load(BAD)
    assert all(character.isprintable() for character in str(caught.value))


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.json"])
def test_a_pickle_is_never_executed(name: str, store: Store, tmp_path: Path) -> None:
    trap = pickle.dumps(Touch(str(tmp_path / "executed")))
    recommit(place(store, BAD), files={name: trap})
    with pytest.raises(CorruptError, match=name):
        store.load(BAD)
    assert not (tmp_path / "executed").exists()
    pickle.loads(trap)
    assert (tmp_path / "executed").exists()


# --- other runs -------------------------------------------------------------------------------------------


def test_checkpoints_of_another_run_with_higher_numbers_are_told_and_stay_as_they_are(store: Store) -> None:
    other = Store(store.path, "another run")
    for step in (50, 60):
        other.save(contents_of(step))
    before = {path: hashes(path) for path in (place(store, 50), place(store, 60))}

    with pytest.warns(UserWarning, match="belongs to another run") as caught:
        newest = store.newest()
    mine = Store(store.path, RUN, Keep(1))
    for step in (3, 4):
        mine.save(contents_of(step))

    assert newest is not None
    assert newest.step == BAD
    assert len(caught) == 2
    assert mine.steps() == [4, 50, 60]
    assert {path: hashes(path) for path in before} == before
    mine.save(contents_of(50), again=True, overtakes=True)
    assert difference(mine.load(50), contents_of(50)) == ""
    assert {path: hashes(path) for path in before} == before


@pytest.mark.parametrize("step", [9_999, 999_999_999, 999_999_999_999])
def test_steps_are_ordered_as_numbers(step: int, tmp_path: Path) -> None:
    store = Store(tmp_path, RUN, Keep(2))
    for number in (step - 1, step, step + 1):
        store.save(contents_of(number))
    newest = store.newest()
    assert newest is not None
    assert newest.step == step + 1
    assert store.steps() == [step, step + 1]


def test_names_that_are_almost_those_of_checkpoints_are_not(store: Store) -> None:
    names = ["step-3", "step-0000000000003", "step-000000000003.bak", "STEP-000000000003", "step-٠٠٠٠٠٠٠٠٠٠٠٣"]
    for name in [*names, "step-000000000003 ", "xstep-000000000003", "step--00000000003", "step-" + "9" * 19]:
        (store.path / name).mkdir()
    sound(store, [GOOD, BAD])
    assert store.newest() is not None
