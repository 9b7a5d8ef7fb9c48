"""Checkpoints made by somebody who wants to do harm, and who can compute a sha256: refused, and quickly."""

import hashlib
import json
import os
import pickle
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit.fault_harness import RUN, contents_of, difference, hashes, in_child, place, recommit, scratch, sound

from headrace.errors import CheckpointError, CorruptError, HeadraceError
from headrace.store.checkpoints import Store

GOOD, BAD = 1, 2
LIMIT_S = 10.0
FILES = ["COMMIT", "manifest.json", "model.safetensors", "rank-00000.json", "rank-00000.safetensors", "trainer.json"]
SECRET = b'"secret"'


@pytest.fixture
def store() -> Iterator[Store]:
    with scratch() as path:
        store = Store(path / "checkpoints", RUN)
        for step in (GOOD, BAD):
            store.save(contents_of(step))
        yield store


def told(store: Store) -> Any:
    return json.loads((place(store, BAD) / "manifest.json").read_bytes())


def tell(store: Store, manifest: Any) -> None:
    recommit(place(store, BAD), manifest=json.dumps(manifest).encode())


def entry(manifest: Any, name: str = "model.safetensors") -> Any:
    """What a manifest says of a file."""
    return next(entry for entry in manifest["files"] if entry["name"] == name)


def message(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except HeadraceError as error:
        return [type(error).__name__, str(error)]
    return ["", "it was loaded"]


def refused(store: Store, match: str = "", *, verified: bool = False) -> None:
    """Loading refuses, and verifying, and neither takes long; the checkpoint before is used instead.

    `verified`: the bytes are those that the manifest says.
    """
    began_s = time.process_time()
    for work in (partial(store.load, BAD), partial(store.verify, BAD))[: 1 if verified else 2]:
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


def test_what_the_helper_changes_is_loaded_where_it_does_no_harm(store: Store) -> None:
    """The negative control: COMMIT vouches for what `tell` and `recommit` write."""
    manifest = told(store)
    manifest["made_by"]["by"] = "somebody else"
    tell(store, manifest)
    sound(store, [GOOD, BAD])
    recommit(place(store, BAD), files={"trainer.json": b'{"step": 99}'})
    assert store.load(BAD).documents["trainer.json"] == {"step": 99}


# --- manifests --------------------------------------------------------------------------------------------

NAMES: list[Any] = ["../outside.json", "{}/outside.json", "a/b.json", "./trainer.json", "", ".", "..", ".hidden"]
NAMES += ["COMMIT", "manifest.json", "manifest.json/../trainer.json", "-rf", "trainer.json\n", "trainer.json\0"]
NAMES += ["Trainer.json", "δ.json", "a" * 101, "ⅻ.json", None, 1, ["trainer.json"], {"name": "trainer.json"}]
SIZES: list[Any] = [-1, 2**70, 10**30, 1.5, 1e3, "12", True, None, [12], {}]
SHAPES: list[Any] = [[1e999], [-1e999], [float("nan")], ["x"], [None], [[1]], None, 3, [1] * 100_000]
FORMATS: list[Any] = [0, -1, None, "1", 1.0, True, [1]]


def named(name: Any, manifest: Any, store: Store) -> None:
    name = name.format(store.path.parent) if isinstance(name, str) else name
    entry(manifest, "trainer.json").update(size=len(SECRET), sha256=hashlib.sha256(SECRET).hexdigest(), name=name)


Change = Callable[[Any, Store], object]
CHANGES: dict[str, tuple[str, list[Change]]] = {
    "a name that no file of a checkpoint has": (
        "is not what a file of a checkpoint is called",
        [partial(named, name) for name in NAMES],
    ),
    "a file twice": ("twice", [lambda manifest, store: manifest["files"].append(manifest["files"][0])]),
    "a size that is none": ("", [lambda m, store, size=size: m["files"][0].update(size=size) for size in SIZES]),  # type: ignore[misc]
    "a format that never was": ("format", [lambda m, store, n=n: m.update(format=n) for n in FORMATS]),  # type: ignore[misc]
    "more than 16 MiB": (
        "has more than 16,777,216 bytes",
        [lambda manifest, store: manifest["made_by"].update(padding="x" * (16 << 20))],
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_manifest_with_something_impossible_is_refused(what: str, store: Store) -> None:
    for folder in (store.path.parent, store.path):
        (folder / "outside.json").write_bytes(SECRET)
    match, changes = CHANGES[what]
    for change in changes:
        manifest = told(store)
        change(manifest, store)
        kept = (place(store, BAD) / "manifest.json").read_bytes()
        tell(store, manifest)
        refused(store, match)
        recommit(place(store, BAD), manifest=kept)


# --- things that are not files ----------------------------------------------------------------------------


def link_to_the_same_bytes(path: Path) -> None:
    outside = path.parents[2] / "outside"
    shutil.copy(path.parents[2] / "kept" / path.name, outside)
    path.symlink_to(outside)


def link_to_a_fifo(path: Path) -> None:
    os.mkfifo(path.parents[2] / "fifo")
    path.symlink_to(path.parents[2] / "fifo")


MAKERS: list[Callable[[Path], object]] = [os.mkfifo, Path.mkdir, link_to_the_same_bytes, link_to_a_fifo]


@pytest.mark.parametrize("make", [*MAKERS, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_not_a_regular_file_is_neither_read_nor_waited_for(
    make: Callable[[Path], object], store: Store
) -> None:
    """In a process that is ended if it waits."""
    bad, outside = place(store, BAD), store.path.parent
    kept = shutil.copytree(bad, outside / "kept")

    def check() -> None:
        for name in FILES:
            (bad / name).unlink()
            make(bad / name)
            refused(store, str(bad / name))
            for path in (bad, outside / "fifo", outside / "outside"):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            shutil.copytree(kept, bad)

    in_child(check)


def test_a_checkpoint_that_is_a_link_is_not_followed(store: Store) -> None:
    elsewhere, bad = store.path.parent / "elsewhere", place(store, BAD)
    bad.rename(elsewhere)
    bad.symlink_to(elsewhere)
    refused(store, str(bad))


@pytest.mark.parametrize("make", [os.mkfifo, Path.touch])
def test_what_is_no_directory_is_no_checkpoint_and_is_not_waited_for(
    make: Callable[[Path], object], store: Store
) -> None:
    bad = place(store, BAD)
    shutil.rmtree(bad)
    make(bad)
    in_child(lambda: sound(store, [GOOD]))
    assert "has no checkpoint of step 2" in in_child(lambda: message(lambda: store.load(BAD)))[1]


def test_a_file_in_place_of_the_directory_of_checkpoints_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a directory")
    for use in (Store.newest, partial(Store.save, contents=contents_of(1))):
        with pytest.raises(HeadraceError, match="checkpoints"):
            use(Store(tmp_path / "checkpoints", RUN))


# --- too much ---------------------------------------------------------------------------------------------


def test_a_commit_of_a_gigabyte_is_not_read(store: Store) -> None:
    os.truncate(place(store, BAD) / "COMMIT", 1 << 30)
    refused(store, "has more than 256 bytes")


LIMIT = 1 << 20
TOO_LONG = [(LIMIT + 1, 101), (LIMIT + 1, LIMIT + 1), (2**63, 101), (2**64 - 1, 101), (10**8, 10**8)]


@pytest.mark.parametrize(("length", "there"), TOO_LONG)
def test_a_header_that_is_too_long_is_not_parsed(length: int, there: int, store: Store) -> None:
    """It says that it is so long, and so much of it is there."""
    recommit(place(store, BAD), files={"model.safetensors": length.to_bytes(8, "little") + b"{" + b" " * (there - 1)})
    refused(store, f"a header of {length:,} bytes", verified=True)


@pytest.mark.parametrize("nest", [b"[", b'{"a":', b'{"files":['])
def test_deep_nesting_is_refused(nest: bytes, store: Store) -> None:
    recommit(place(store, BAD), files={"trainer.json": nest * 100_000})
    refused(store, "trainer.json", verified=True)
    recommit(place(store, BAD), manifest=nest * 100_000)
    refused(store, "manifest.json")


def test_a_tensor_of_an_impossible_shape_is_refused(store: Store) -> None:
    for shape in SHAPES:
        manifest = told(store)
        entry(manifest)["tensors"]["count"] = ["I64", shape]
        tell(store, manifest)
        refused(store, verified=True)
    for shape in ([2**40, 2**40], [2**62], [-1], [0, 2**63], [0, 2**62, 2**62], [0.5], ["1"]):
        header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
        entry(manifest)["tensors"] = {"w": ["F32", shape]}
        tell(store, manifest)
        recommit(place(store, BAD), files={"model.safetensors": len(header).to_bytes(8, "little") + header})
        refused(store, verified=True)


# --- other versions, other formats ------------------------------------------------------------------------


@pytest.mark.parametrize("number", [5, 10, 10**20])
def test_a_newer_format_is_named_and_nothing_older_is_taken_instead(number: int, store: Store) -> None:
    manifest = told(store) | {"format": number, "files": "quite another way to list them"}
    manifest["made_by"] = {"headrace": "1.0\x1b[2J\n\x07fine"}
    tell(store, manifest)
    for work in (store.newest, lambda: store.load(BAD), lambda: store.verify(BAD)):
        with pytest.raises(CheckpointError, match=rf"headrace '1\.0.*', in format {number}") as caught:
            work()
        assert not isinstance(caught.value, CorruptError)
        assert "Install a newer headrace" in str(caught.value)
        assert str(caught.value).isprintable()


def test_an_older_format_is_refused_in_one_sentence(store: Store) -> None:
    tell(store, told(store) | {"format": 1})
    with pytest.raises(CheckpointError, match=r"in format 1; this version reads format 4\. Use that version, or train"):
        store.load(BAD)
    for step in (GOOD, BAD):
        place(store, step).rename(store.path / f"step-{step:012d}")
    for work in (store.newest, store.steps, lambda: store.load(BAD)):
        with pytest.raises(CheckpointError, match=r"was written by an earlier headrace.*use that version, or train"):
            work()


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


def test_checkpoints_of_another_run_with_higher_numbers_are_told_and_stay_as_they_are(store: Store) -> None:
    other = Store(store.path, "another run")
    for step in (50, 60):
        other.save(contents_of(step))
    before = {path: hashes(path) for path in (place(store, 50), place(store, 60))}

    with pytest.warns(UserWarning, match="belongs to another run") as caught:
        newest = store.newest()
    mine = Store(store.path, RUN, 1)
    for step in (3, 4):
        mine.save(contents_of(step))

    assert newest is not None
    assert newest.step == BAD
    assert len(caught) == 2
    assert mine.steps() == [4, 50, 60]
    mine.save(contents_of(50), again=True, overtakes=True)
    assert difference(mine.load(50), contents_of(50)) == ""
    assert {path: hashes(path) for path in before} == before
