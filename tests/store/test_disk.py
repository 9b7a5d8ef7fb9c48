"""Files and directories: nothing is replaced by accident, nothing is half there, and failures are told in full."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.fault_harness import Died, Fail, Trace, open_files, performing

from headrace.store import disk


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A directory of somebody else."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "inside").write_text("precious")
    return tmp_path / "precious"


# --- files ------------------------------------------------------------------------------------------------


def test_write_file_that_fails_anywhere_leaves_the_old_bytes_or_the_new(tmp_path: Path) -> None:
    path, found = tmp_path / "file", []
    with performing(trace := Trace()):
        disk.write_file(path, b"traced")
    for at, _ in enumerate(trace.operations):
        path.write_bytes(b"old")
        with performing(Fail(at=at)), pytest.raises(OSError, match="No space left on device"):
            disk.write_file(path, b"new")
        found.append(path.read_bytes())
        disk.write_file(path, b"newer")
        assert path.read_bytes() == b"newer"
        assert os.listdir(tmp_path) == ["file"]
    assert found == [b"old"] * 4 + [b"new"]


def test_a_new_file_is_new_and_a_file_that_grows_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text in (b"one ", b"two"):
        with disk.File(path, new=False) as growing:
            growing.write(text)
            growing.write(memoryview(text))
            growing.sync()
    with pytest.raises(FileExistsError, match="file"):
        disk.File(path, new=True)
    assert path.read_bytes() == b"one one twotwo"
    with disk.File(path, new=False) as growing:
        growing.truncate(3)
        growing.write(b"!")
    assert path.read_bytes() == b"one!"


@pytest.mark.parametrize("new", [False, True])
def test_a_file_is_not_made_through_a_link(new: bool, precious: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(precious / "inside")
    with pytest.raises(OSError, match="link"):
        disk.File(tmp_path / "link", new=new)
    assert (precious / "inside").read_text() == "precious"


# --- directories ------------------------------------------------------------------------------------------


def test_remove_tree_never_follows_a_link(precious: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "file").write_text("")
    (tree / "deep" / "link").symlink_to(precious, target_is_directory=True)
    (tree / "link").symlink_to(precious / "inside")
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    (tmp_path / "link").symlink_to(precious)
    for path in (tree, tmp_path / "link"):
        disk.remove_tree(path)
        assert not os.path.lexists(path)
    assert (precious / "inside").read_text() == "precious"


def test_make_dirs_makes_all_that_is_missing_and_syncs_each_name(precious: Path, tmp_path: Path) -> None:
    trace = Trace()
    with performing(trace):
        disk.make_dirs(tmp_path / "a" / "b")
        disk.make_dirs(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    done = list(zip(trace.operations, trace.paths, strict=True))
    assert [path for name, path in done if name == "make_dir"] == [tmp_path / "a", tmp_path / "a" / "b"]
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        assert ("sync_dir", path.parent) in done[done.index(("make_dir", path)) :]
    for path in (precious / "inside", precious / "inside" / "b"):
        with pytest.raises(OSError, match="inside"):
            disk.make_dirs(path)


def test_every_change_comes_through_perform(precious: Path, tmp_path: Path) -> None:
    """What the fault tests rest on: with a `perform` that does nothing, nothing changes."""

    def refuse(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        raise Died

    file, new = precious / "inside", tmp_path / "new"
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    changes: list[Callable[[], object]] = [
        lambda: disk.make_dir(new),
        lambda: disk.make_dirs(new / "deep"),
        lambda: disk.sync_dir(tmp_path),
        lambda: disk.replace(file, new),
        lambda: disk.link(file, new),
        lambda: disk.unlink(file),
        lambda: disk.remove_dir(tmp_path / "empty"),
        lambda: disk.remove_tree(precious),
        lambda: disk.write_file(file, b"new"),
        lambda: disk.File(new, new=True),
        lambda: disk.File(file, new=False),
    ]
    with performing(refuse):
        for change in changes:
            with pytest.raises(Died):
                change()
    assert sorted(tmp_path.rglob("*")) == before
    assert file.read_text() == "precious"


# --- blocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[], [0], [1], [disk.BLOCK_BYTES], [disk.BLOCK_BYTES - 1, 2, 0, disk.BLOCK_BYTES]])
def test_blocks_hold_the_same_bytes_and_are_written_as_they_are(lengths: list[int], tmp_path: Path) -> None:
    """Past the system's cache of files where it can do that: pytest's folder may be in memory, and the other is not."""
    pieces = [bytes([k + 1]) * length for k, length in enumerate(lengths)]
    odd = memoryview(bytearray(os.urandom(disk.BLOCK_BYTES + 1)))[1:]  # it does not begin where a page of memory does
    for path in (tmp_path / "file", Path(__file__).with_name(f".blocks-{os.getpid()}")):
        try:
            with disk.File(path, new=True) as file:
                for block in disk.blocks(iter(pieces)):
                    assert len(block) <= disk.BLOCK_BYTES
                    file.write(block)
                file.write(odd)
                file.sync()
            assert path.read_bytes() == b"".join(pieces) + odd
        finally:
            path.unlink(missing_ok=True)


def test_a_file_is_closed_once_and_its_descriptor_is_not_inherited(tmp_path: Path) -> None:
    before = open_files()
    opened = disk.File(tmp_path / "file", new=True)
    assert not os.get_inheritable(opened._fd)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) & 0o133 == 0
    opened.close()
    opened.close()
    assert open_files() == before


def test_a_failure_names_the_file_though_the_call_got_a_descriptor(tmp_path: Path) -> None:
    growing = disk.File(tmp_path / "file", new=True)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, growing._fd)
    os.close(full)
    with growing, pytest.raises(OSError, match="No space left on device") as caught:
        growing.write(b"x")
    assert caught.value.filename == str(tmp_path / "file")
