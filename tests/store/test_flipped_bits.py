"""Checkpoints whose bytes have changed on the disk: never loaded as if they had not, and never lost."""

import itertools
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import safetensors.torch
import torch
from kit.fault_harness import RUN, contents_of, difference, goes_on, hashes, place, rewrite, scratch, sound
from kit.sampled import sampled

from headrace.errors import CheckpointError, CorruptError
from headrace.store.checkpoints import Keep, Store

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


def outcome(store: Store) -> str:
    """What loading the damaged checkpoint comes to: "refused", "same" as it was written, or "wrong"."""
    try:
        found = store.load(BAD)
    except CheckpointError:
        return "refused"
    return "wrong" if difference(found, contents_of(BAD)) else "same"


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


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_bit_flipped_in_any_byte_is_never_loaded_silently_wrong(name: str, store: Store) -> None:
    path, random, outcomes = place(store, BAD) / name, Random(name), list[str]()
    data = path.read_bytes()
    for at in range(len(data)):
        with holding(path, flipped(data, at, random.randrange(8))):
            outcomes.append(outcome(store))
    assert "wrong" not in outcomes
    assert outcomes.count("refused") >= len(data) - (name == "COMMIT")  # the newline after it may be any white space


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_any_flipped_bit_is_named_by_verify(name: str, store: Store) -> None:
    path = place(store, BAD) / name
    data, same = path.read_bytes(), 0
    for at, bit in sampled(itertools.product(range(len(data)), range(8)), of=4):
        with holding(path, flipped(data, at, bit)):
            if outcome(store) == "same":
                same += 1
            else:
                named(store, name)
    assert same <= 8 * (name == "COMMIT")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_length_is_never_loaded_silently_wrong(name: str, store: Store) -> None:
    path, outcomes = place(store, BAD) / name, list[str]()
    data = path.read_bytes()
    for length in range(len(data)):
        with holding(path, data[:length]):
            outcomes.append(outcome(store))
    assert outcomes.count("refused") == len(data) - (name == "COMMIT")  # its newline is not needed
    assert "wrong" not in outcomes


def damages(store: Store) -> Iterator[tuple[str, bytes | None]]:
    """Files of a checkpoint and what they may hold instead."""
    for name in FILES:
        data = (place(store, BAD) / name).read_bytes()
        other = (place(store, GOOD) / name).read_bytes()
        yield name, None
        yield name, b""
        yield name, data + b"\0"
        yield name, data + data
        yield name, other
        yield name, other[: len(data)].ljust(len(data), b"\0")
        for start in range(0, len(data), 64):
            length = len(data[start : start + 64])
            zeroed = data[:start] + b"\0" * length + data[start + length :]
            if zeroed != data:
                yield name, zeroed


def test_whatever_happens_to_a_file_verify_names_it_and_load_refuses(store: Store) -> None:
    count = 0
    for name, data in damages(store):
        with holding(place(store, BAD) / name, data):
            assert outcome(store) == "refused", (name, data)
            named(store, name)
            count += 1
    assert count >= 60
    sound(store, [GOOD, BAD])


def test_two_files_in_each_others_place_are_refused(store: Store) -> None:
    held = {name: (place(store, BAD) / name).read_bytes() for name in FILES}
    pairs = list(itertools.combinations(FILES, 2))
    for one, other in pairs:
        with holding(place(store, BAD) / one, held[other]), holding(place(store, BAD) / other, held[one]):
            assert outcome(store) == "refused"
            named(store, one, other)
    assert len(pairs) == 15


def test_a_checkpoint_under_the_name_of_another_step_is_refused(store: Store) -> None:
    shutil.copytree(place(store, GOOD), store.path / "step-000000000007-000007")
    with pytest.raises(CorruptError, match=r"step-000000000007-000007 holds step 1"):
        store.load(7)
    with pytest.raises(CorruptError, match=r"step-000000000007-000007 holds step 1"):
        store.verify(7)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["flipped", "cut", "deleted"])
def test_the_newest_checkpoint_that_is_sound_is_used_with_one_warning(name: str, how: str, store: Store) -> None:
    path = place(store, BAD) / name
    data = path.read_bytes()
    if how == "deleted":
        path.unlink()
    else:
        path.write_bytes(flipped(data, 20, 3) if how == "flipped" else data[: len(data) // 2])
    before = hashes(place(store, BAD))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        newest = store.newest()

    assert newest is not None
    assert difference(newest, contents_of(GOOD)) == ""
    assert hashes(place(store, BAD)) == before
    if (name, how) == ("COMMIT", "deleted"):  # as a save that was cut short leaves it: it is no checkpoint
        assert caught == []
        return
    [warning] = caught
    assert str(place(store, BAD)) in str(warning.message)
    assert name in str(warning.message)
    assert "step-000000000001" in str(warning.message)


def test_a_corrupt_checkpoint_makes_way_and_keeps_its_bytes(store: Store) -> None:
    damaged = place(store, BAD)
    path = damaged / "model.safetensors"
    path.write_bytes(flipped(path.read_bytes(), 100, 0))
    before = hashes(damaged)

    store.save(contents_of(BAD))

    sound(store, [GOOD, BAD])
    assert hashes(damaged) == before
    goes_on(store.path, Keep(9), 3)
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
