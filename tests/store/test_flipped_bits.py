"""Checkpoints whose bytes have changed on the disk: never loaded as if they had not, and never lost."""

import itertools
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest
import safetensors.torch
import torch
from kit.fault_harness import RUN, contents_of, difference, goes_on, hashes, place, rewrite, scratch, sound
from kit.sampled import sampled

from headrace.errors import CheckpointError, CorruptError
from headrace.store.checkpoints import Store

GOOD, BAD = 1, 2
FILES = ["COMMIT", "manifest.json", "model.safetensors", "rank-00000.json", "rank-00000.safetensors", "trainer.json"]


@pytest.fixture
def store() -> Iterator[Store]:
    with scratch() as path:
        store = Store(path / "checkpoints", RUN)
        for step in (GOOD, BAD):
            store.save(contents_of(step))
        assert sorted(os.listdir(place(store, BAD))) == FILES
        assert sum(file.stat().st_size for file in place(store, BAD).iterdir()) < 8000
        yield store


@contextmanager
def holding(path: Path, data: bytes | None) -> Iterator[None]:
    """A file holds other bytes, or is not there, for a while."""
    before = path.read_bytes()
    if data is None:
        path.unlink()
    else:
        rewrite(path, data)
    try:
        yield
    finally:
        rewrite(path, before)


def refused(store: Store) -> bool:
    """Whether loading the damaged checkpoint is refused; if it is not, it has to be as it was written."""
    try:
        found = store.load(BAD)
    except CheckpointError:
        return True
    assert difference(found, contents_of(BAD)) == "", "silently wrong"
    return False


def named(store: Store, *files: str) -> None:
    """`verify` refuses, and names one of these files; of a manifest and a COMMIT that differ it names the former.

    Without COMMIT it is no checkpoint.
    """
    with pytest.raises(CorruptError) as caught:
        store.verify(BAD)
    if not (place(store, BAD) / "COMMIT").exists():
        assert f"{store.path} has no checkpoint of step {BAD}" in str(caught.value)
        return
    known = [*files, *(["manifest.json"] if "COMMIT" in files else [])]
    assert any(str(place(store, BAD) / file) in str(caught.value) for file in known), (files, str(caught.value))


def flipped(data: bytes, at: int, bit: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


@pytest.mark.parametrize("name", FILES)
def test_a_bit_flipped_in_any_byte_is_never_loaded_silently_wrong(name: str, store: Store) -> None:
    path, random, missed = place(store, BAD) / name, Random(name), 0
    data = path.read_bytes()
    every = 1 if name in ("COMMIT", "manifest.json") else 4  # the others are hashed as they are
    some_bytes = {(at, random.randrange(8)) for at in range(0, len(data), every)}
    for at, bit in sampled(itertools.product(range(len(data)), range(8)), keep=some_bytes, of=64):
        with holding(path, flipped(data, at, bit)):
            if not refused(store):
                missed += 1
            elif at % 4 == 0:
                named(store, name)
    assert missed <= 8 * (name == "COMMIT")  # the newline at its end may be any white space


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_length_is_never_loaded_silently_wrong(name: str, store: Store) -> None:
    path, count = place(store, BAD) / name, 0
    data = path.read_bytes()
    lengths = sampled(range(len(data)), keep=[*range(9), *range(len(data) - 9, len(data))], of=4)
    for length in lengths:
        with holding(path, data[:length]):
            count += refused(store)
    assert count == len(lengths) - (name == "COMMIT")  # its newline is not needed


def damages(store: Store) -> Iterator[dict[str, bytes | None]]:
    """Files of a checkpoint, and what they may hold instead."""
    held = {name: (place(store, BAD) / name).read_bytes() for name in FILES}
    for name, data in held.items():
        other = (place(store, GOOD) / name).read_bytes()
        for changed in (None, b"", data + b"\0", data + data, other, other[: len(data)].ljust(len(data), b"\0")):
            yield {name: changed}
        for start in range(0, len(data), 64):
            zeroed = data[:start] + b"\0" * len(data[start : start + 64]) + data[start + 64 :]
            if zeroed != data:
                yield {name: zeroed}
    for one, other_name in itertools.combinations(FILES, 2):
        yield {one: held[other_name], other_name: held[one]}


def test_whatever_happens_to_files_verify_names_one_and_load_refuses(store: Store) -> None:
    count = 0
    for files in damages(store):
        with ExitStack() as changed:
            for name, data in files.items():
                changed.enter_context(holding(place(store, BAD) / name, data))
            assert refused(store), files
            named(store, *files)
            count += 1
    assert count >= 75
    sound(store, [GOOD, BAD])


def test_a_checkpoint_under_the_name_of_another_step_is_refused(store: Store) -> None:
    shutil.copytree(place(store, GOOD), store.path / "step-000000000007-000007")
    for use in (store.load, store.verify):
        with pytest.raises(CorruptError, match=r"step-000000000007-000007 holds step 1"):
            use(7)


@pytest.mark.parametrize("name", FILES)
def test_the_newest_checkpoint_that_is_sound_is_used_with_one_warning(name: str, store: Store) -> None:
    path = place(store, BAD) / name
    data = path.read_bytes()
    for damaged in (flipped(data, 20, 3), data[: len(data) // 2], None):
        with holding(path, damaged), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            before, newest = hashes(place(store, BAD)), store.newest()
            assert hashes(place(store, BAD)) == before
        assert newest is not None
        assert difference(newest, contents_of(GOOD)) == ""
        if name == "COMMIT" and damaged is None:  # as a save that was cut short leaves it: it is no checkpoint
            assert caught == []
            continue
        [warning] = caught
        for word in (str(place(store, BAD)), name, "step-000000000001"):
            assert word in str(warning.message)


def test_a_corrupt_checkpoint_makes_way_and_keeps_its_bytes(store: Store) -> None:
    damaged = place(store, BAD)
    path = damaged / "model.safetensors"
    path.write_bytes(flipped(path.read_bytes(), 100, 0))
    before = hashes(damaged)

    store.save(contents_of(BAD))

    sound(store, [GOOD, BAD])
    assert hashes(damaged) == before
    goes_on(store.path, 9, 3)
    assert hashes(damaged) == before


def test_where_all_are_corrupt_each_reason_is_told_and_nothing_starts_from_zero(store: Store) -> None:
    (place(store, GOOD) / "COMMIT").write_bytes(b"")
    (place(store, BAD) / "trainer.json").write_bytes(b"{}")

    with pytest.raises(CheckpointError) as caught:
        store.newest()

    assert not isinstance(caught.value, CorruptError)
    for file in (place(store, GOOD) / "manifest.json", place(store, BAD) / "trainer.json"):
        assert str(file) in str(caught.value)


def test_the_files_alone_would_be_loaded_silently_wrong(store: Store, tmp_path: Path) -> None:
    """The negative control: what the manifest is for."""
    data, wrong = (place(store, BAD) / "model.safetensors").read_bytes(), 0
    for at in range(len(data)):
        (tmp_path / "flipped").write_bytes(flipped(data, at, 0))
        try:
            found = safetensors.torch.load_file(tmp_path / "flipped")
        except Exception:
            continue  # noticed, by luck: the header is the only part of the file that is checked
        expected = contents_of(BAD).tensors["model.safetensors"]
        wrong += not all(name in found and torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert wrong > 20
