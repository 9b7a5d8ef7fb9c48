"""A disk that is full, broken or read-only at any operation of a save: told plainly, and no harm to what is there."""

import ctypes
import errno
import os
import resource
import shutil
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from kit.fault_harness import (
    CODES,
    RUN,
    Fail,
    Trace,
    contents_of,
    difference,
    goes_on,
    hashes,
    in_child,
    open_files,
    performing,
    place,
    sound,
    unfinished,
)
from kit.sampled import sampled

from headrace.errors import RunError
from headrace.store.checkpoints import Store
from headrace.store.contents import Contents

OLD, NEW, NEXT = 1, 2, 3
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000


@pytest.fixture
def template(tmp_path: Path) -> Path:
    Store(tmp_path / "template", RUN).save(contents_of(OLD))
    return tmp_path / "template"


@pytest.mark.parametrize("keep", [None, 1], ids=["all", "one"])
@pytest.mark.parametrize("lasting", [False, True])
def test_an_error_at_any_operation_leaves_the_previous_checkpoint_as_it_was(
    lasting: bool, keep: int | None, template: Path, tmp_path: Path
) -> None:
    """A save ends with the operation that failed: a sync that is tried again could succeed without the bytes."""
    with performing(trace := Trace()):
        Store(shutil.copytree(template, tmp_path / "traced"), RUN, keep).save(contents_of(NEW))
    names, before = trace.operations, hashes(place(Store(template, RUN), OLD))
    files = open_files()
    each = [(at, CODES[at % len(CODES)]) for at in range(len(names))]
    for at, code in sampled(product(range(len(names)), CODES), keep=each, of=len(CODES)):
        path = shutil.copytree(template, tmp_path / f"{at} {code}")
        fail, store = Fail(at=at, code=code, lasting=lasting), Store(path, RUN)
        with performing(fail), pytest.raises(RunError) as caught:
            Store(path, RUN, keep).save(contents_of(NEW))
        assert fail.fired == 1, (at, names[at], "a save goes on after an operation that failed")
        assert caught.value.errno == code
        for word in (f"step {NEW}", str(fail.paths[-1]), os.strerror(code), "needed", "free"):
            assert word in str(caught.value)
        del caught
        steps = store.steps()
        sound(store, steps)
        assert steps in [[OLD], [OLD, NEW], [NEW]][: 3 if keep else 2]
        assert OLD not in steps or hashes(store.at(OLD)) == before
        Store(path, RUN, keep).save(contents_of(NEW), again=True)
        sound(store, [NEW] if keep else [OLD, NEW])
        assert unfinished(path) == []
        assert open_files() == files
    assert len(names) > 20


def test_a_real_limit_on_the_size_of_files_leaves_the_previous_checkpoint_as_it_was(
    template: Path, tmp_path: Path
) -> None:
    before = hashes(place(Store(template, RUN), OLD))
    sizes = sorted({file.stat().st_size for file in (place(Store(template, RUN), OLD)).iterdir()})
    outcomes = []
    for number, limit in enumerate([0, 1, 50, *(size - 1 for size in sizes), sizes[-1] + 1000]):
        path = shutil.copytree(template, tmp_path / str(number))
        first, second = in_child(partial(save_within, path, limit))
        outcomes.append(first)
        assert second == "saved"
        sound(Store(path, RUN), [OLD, NEXT] if first == "EFBIG" else [OLD, NEW, NEXT])
        assert hashes(place(Store(path, RUN), OLD)) == before
    assert outcomes == ["EFBIG"] * (len(outcomes) - 1) + ["saved"]


def save_within(path: Path, limit: int) -> tuple[str, str]:
    """Saves with files no longer than `limit`, and once more without a limit. Python ignores SIGXFSZ."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    first = attempt(lambda: Store(path, RUN).save(contents_of(NEW)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return first, attempt(lambda: goes_on(path, None, NEXT))


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
    found = in_child(lambda: fill(tmp_path / "small"))
    if isinstance(found, str):
        pytest.skip(found)
    assert found == {"full": "ENOSPC", "there": [1, 2], "same": ["", ""], "after": [2, 4], "left": []}


def fill(path: Path) -> object:
    try:
        mount(path, "size=256k")
        (path / "checkpoints").mkdir()  # which a user may not be allowed even there
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
