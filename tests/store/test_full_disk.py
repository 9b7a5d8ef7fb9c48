"""A disk that is full, broken or read-only at any operation of a save: told plainly, and no harm to what is there."""

import ctypes
import errno
import os
import resource
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from kit.fault_harness import (
    FULL,
    RUN,
    Fail,
    Trace,
    contents_of,
    difference,
    goes_on,
    hashes,
    in_child,
    performing,
    place,
    sound,
    unfinished,
)
from kit.sampled import sampled

from headrace.errors import RunError
from headrace.store.checkpoints import Keep, Store
from headrace.store.contents import Contents

OLD, NEW, NEXT = 1, 2, 3
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000


@pytest.fixture
def template(tmp_path: Path) -> Path:
    Store(tmp_path / "template", RUN).save(contents_of(OLD))
    return tmp_path / "template"


def operations(path: Path, keep: Keep) -> list[str]:
    trace = Trace()
    with performing(trace):
        Store(path, RUN, keep).save(contents_of(NEW))
    return trace.operations


def unharmed(path: Path, before: dict[str, str], may_retire: bool) -> None:
    """The checkpoint that was there is as it was; if it is gone, the one that replaces it is there."""
    store = Store(path, RUN)
    steps = store.steps()
    sound(store, steps)
    assert steps in ([OLD], [OLD, NEW], [NEW]) if may_retire else ([OLD], [OLD, NEW])
    if OLD in steps:
        assert hashes(store.at(OLD)) == before


def fails_anywhere(template: Path, tmp_path: Path, keep: Keep, lasting: bool) -> None:
    """Saves with an error at each operation in turn, another one at the next, and then without."""
    names = operations(shutil.copytree(template, tmp_path / "traced"), keep)
    before = hashes(place(Store(template, RUN), OLD))
    descriptors = len(os.listdir("/proc/self/fd"))
    codes = [*FULL]
    each = [(at, codes[at % len(codes)]) for at in range(len(names))]
    for at, code in sampled(product(range(len(names)), codes), keep=each, of=len(codes)):
        path, name = shutil.copytree(template, tmp_path / f"{at} {code}"), names[at]
        fail = Fail(at=at, code=code, lasting=lasting)
        with performing(fail), pytest.raises(RunError) as caught:
            Store(path, RUN, keep).save(contents_of(NEW))
        assert fail.fired == 1, (at, name, "a save goes on after an operation that failed")
        assert fail.retried_syncs == 0
        assert caught.value.errno == code
        assert str(path) in str(caught.value)
        unharmed(path, before, may_retire=keep.last is not None)
        goes_on(path, keep, NEXT)
        del caught
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(names) > 20


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
def test_an_error_at_any_operation_leaves_the_previous_checkpoint_as_it_was(
    lasting: bool, template: Path, tmp_path: Path
) -> None:
    fails_anywhere(template, tmp_path, Keep(None), lasting)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True])
def test_an_error_while_old_checkpoints_go_leaves_one_that_loads(lasting: bool, template: Path, tmp_path: Path) -> None:
    fails_anywhere(template, tmp_path, Keep(1), lasting)


# Once `errno` and `filename` are set on an OSError, Python makes its text of these and drops what it was made with.
@pytest.mark.parametrize("code", FULL, ids=FULL.get)
def test_the_error_names_the_file_the_reason_and_the_room(code: int, template: Path) -> None:
    fail = Fail(at=operations(template, Keep(None)).index("fsync"), code=code)
    with performing(fail), pytest.raises(RunError) as caught:
        Store(template, RUN).save(contents_of(NEXT))

    text = str(caught.value)
    assert fail.fired == 1
    assert os.strerror(code) in text
    assert f"step {NEXT}" in text
    assert str(fail.paths[-1]) in text
    assert "needed" in text
    assert "free" in text


def test_the_step_whose_save_failed_is_saved_by_the_next_try(template: Path, tmp_path: Path) -> None:
    for at, _ in enumerate(operations(shutil.copytree(template, tmp_path / "traced"), Keep(None))):
        path = shutil.copytree(template, tmp_path / str(at))
        with performing(Fail(at=at)), pytest.raises(RunError):
            Store(path, RUN).save(contents_of(NEW))
        Store(path, RUN).save(contents_of(NEW), again=True)
        sound(Store(path, RUN), [OLD, NEW])
        assert unfinished(path) == []


def test_a_sync_that_failed_is_never_tried_again(template: Path) -> None:
    """It could succeed without the bytes being on the disk."""
    names = operations(template, Keep(None))
    syncs = [n for n, name in enumerate(names) if name == "fsync"]
    for at in syncs:
        fail = Fail(at=at, code=errno.EIO)
        with performing(fail):
            with pytest.raises(RunError):
                Store(template, RUN).save(contents_of(NEXT))
            Store(template, RUN).save(contents_of(NEXT))
        shutil.rmtree(Store(template, RUN).at(NEXT))
        assert fail.fired == 1
        assert fail.retried_syncs == 0
        assert fail.operations.count("fsync") == len(syncs) + syncs.index(at) + 1
    assert len(syncs) == 6


@pytest.mark.slow
def test_a_real_limit_on_the_size_of_files_leaves_the_previous_checkpoint_as_it_was(
    template: Path, tmp_path: Path
) -> None:
    before = hashes(place(Store(template, RUN), OLD))
    sizes = sorted({file.stat().st_size for file in (place(Store(template, RUN), OLD)).iterdir()})
    outcomes = []
    for number, limit in enumerate([0, 1, 50, *(size - 1 for size in sizes), sizes[-1] + 1000]):
        path = shutil.copytree(template, tmp_path / str(number))
        ending = in_child(lambda path=path, limit=limit: save_within(path, limit))
        outcomes.append(ending.value["first"])
        assert ending.value["second"] == "saved"
        sound(Store(path, RUN), [OLD, NEXT] if outcomes[-1] == "EFBIG" else [OLD, NEW, NEXT])
        assert hashes(place(Store(path, RUN), OLD)) == before
    assert outcomes == ["EFBIG"] * (len(outcomes) - 1) + ["saved"]


def save_within(path: Path, limit: int) -> dict[str, str]:
    """Saves with files no longer than `limit`, and once more without a limit. Python ignores SIGXFSZ."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    first = attempt(lambda: Store(path, RUN).save(contents_of(NEW)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return {"first": first, "second": attempt(lambda: goes_on(path, Keep(None), NEXT))}


def attempt(save: Callable[[], object]) -> str:
    try:
        save()
    except RunError as error:
        return errno.errorcode.get(error.errno or 0, "?")
    return "saved"


@pytest.mark.root
def test_a_disk_that_is_really_full_leaves_the_previous_checkpoint_and_is_used_again_once_there_is_room(
    tmp_path: Path,
) -> None:
    """A file system of 256 kB in memory, that only a child sees; each checkpoint takes about 100 kB."""
    (tmp_path / "small").mkdir()
    ending = in_child(lambda: fill(tmp_path / "small"))
    if isinstance(ending.value, str):
        pytest.skip(ending.value)
    assert ending.value == {"full": "ENOSPC", "there": [1, 2], "same": ["", ""], "after": [2, 4], "left": []}


def fill(path: Path) -> object:
    try:
        mount(path, "size=256k")
    except OSError as error:
        return f"no file system can be mounted here: {error}"
    store = Store(path / "checkpoints", RUN)
    store.save(big(1))
    store.save(big(2))
    full = attempt(lambda: store.save(big(3)))
    there = store.steps()
    same = [difference(store.load(step), big(step)) for step in there]
    shutil.rmtree(store.at(1))
    store.save(big(4))
    store.load(4)
    return {"full": full, "there": there, "same": same, "after": store.steps(), "left": unfinished(store.path)}


def big(step: int) -> Contents:
    return Contents(
        step, {"trainer.json": {"step": step}}, {"model.safetensors": {"w": torch.full((25_000,), float(step))}}
    )


def mount(path: Path, options: str) -> None:
    """A file system in memory, in a namespace of this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)

    def check(status: int) -> None:
        if status:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.unshare(CLONE_NEWNS | (0 if os.geteuid() == 0 else CLONE_NEWUSER)))
    check(libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None))  # MS_REC | MS_PRIVATE
    check(libc.mount(b"tmpfs", os.fsencode(path), b"tmpfs", 0, options.encode()))
