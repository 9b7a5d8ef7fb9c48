"""Files and directories: nothing is replaced by accident, nothing is half there, and failures are told in full."""

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.fault_harness import Death, Died, Fail, Kill, Trace, in_child, performing
from kit.sampled import sampled

from headrace.errors import RunError
from headrace.store import disk


def full_directory(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("precious")


# --- files ------------------------------------------------------------------------------------------------


def operations(path: Path) -> list[str]:
    trace = Trace()
    with performing(trace):
        disk.write_file(path, b"the new bytes")
    path.unlink()
    return trace.operations


@pytest.mark.parametrize("before", [None, b"old", b""])
def test_write_file_that_is_killed_anywhere_leaves_the_old_bytes_or_the_new(
    before: bytes | None, tmp_path: Path
) -> None:
    """Some of the kills are real; after the others nothing is performed, as if they were."""
    path, seen = tmp_path / "file", []
    names = operations(path)
    places = [
        (at, when) for at, name in enumerate(names) for when in ("before", "half", "after")[:: 1 + (name != "write")]
    ]
    real = sampled(places, keep=[(names.index("write"), "half")], of=20)
    for at, when in places:
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)
        assert killed(path, at, when, (at, when) in real)
        seen.append(path.read_bytes() if path.exists() else None)
        disk.write_file(path, b"newer")
        assert path.read_bytes() == b"newer"
        assert os.listdir(tmp_path) == ["file"]
    assert seen == [before] * 8 + [b"the new bytes"] * 3


def killed(path: Path, at: int, when: str, really: bool) -> bool:
    def write() -> None:
        with performing((Kill if really else Death)(at=at, when=when)):
            disk.write_file(path, b"the new bytes")

    if really:
        return in_child(write).killed
    with pytest.raises(Died):
        write()
    return True


def test_write_file_that_fails_anywhere_leaves_the_old_bytes_or_the_new(tmp_path: Path) -> None:
    path, found = tmp_path / "file", []
    for at, _ in enumerate(operations(path)):
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
    assert path.read_bytes() == b"one one twotwo"
    with pytest.raises(FileExistsError, match="file"):
        disk.File(path, new=True)
    assert path.read_bytes() == b"one one twotwo"
    with disk.File(path, new=False) as growing:
        growing.truncate(3)
        growing.write(b"!")
    assert path.read_bytes() == b"one!"


@pytest.mark.parametrize("new", [False, True])
def test_a_file_is_not_made_through_a_link(new: bool, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="link"):
        disk.File(tmp_path / "link", new=new)
    assert (tmp_path / "outside").read_text() == "precious"


def test_a_file_is_closed_once_and_its_descriptor_is_not_inherited(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    opened = disk.File(tmp_path / "file", new=True)
    [fd] = {int(name) for name in os.listdir("/proc/self/fd") if (tmp_path / "file") == target(name)}
    assert not os.get_inheritable(fd)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) & 0o133 == 0
    opened.close()
    opened.close()
    assert set(os.listdir("/proc/self/fd")) == before


def target(name: str) -> Path | None:
    try:
        return Path(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        return None


def test_a_failure_names_the_file_though_the_call_got_a_descriptor(tmp_path: Path) -> None:
    growing = disk.File(tmp_path / "file", new=True)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, growing._fd)
    os.close(full)
    with growing, pytest.raises(OSError, match="No space left on device") as caught:
        growing.write(b"x")
    assert caught.value.filename == str(tmp_path / "file")


# --- directories ------------------------------------------------------------------------------------------


def test_remove_tree_never_follows_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    full_directory(precious)
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "file").write_text("")
    (tree / "deep" / "link").symlink_to(precious, target_is_directory=True)
    (tree / "link").symlink_to(precious / "inside")
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    disk.remove_tree(tree)
    assert not tree.exists()
    assert (precious / "inside").read_text() == "precious"


def test_remove_tree_of_a_link_leaves_what_it_points_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    full_directory(precious)
    (tmp_path / "link").symlink_to(precious)
    with contextlib.suppress(OSError):
        disk.remove_tree(tmp_path / "link")
    assert (precious / "inside").exists()


def test_make_dirs_makes_all_that_is_missing_and_syncs_each_name(tmp_path: Path) -> None:
    trace = Trace()
    with performing(trace):
        disk.make_dirs(tmp_path / "a" / "b")
        disk.make_dirs(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    done = list(zip(trace.operations, trace.paths, strict=True))
    assert [path for name, path in done if name == "make_dir"] == [tmp_path / "a", tmp_path / "a" / "b"]
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        assert ("sync_dir", path.parent) in done[done.index(("make_dir", path)) :]


def test_make_dirs_does_not_take_a_file_for_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    with pytest.raises(OSError, match="a"):
        disk.make_dirs(tmp_path / "a")
    with pytest.raises(OSError, match="a"):
        disk.make_dirs(tmp_path / "a" / "b")
    assert (tmp_path / "a").read_text() == "precious"


# --- telling ----------------------------------------------------------------------------------------------


def failure(code: int | None, path: str | None, where: Path) -> RunError:
    error = OSError("odd") if code is None else OSError(code, os.strerror(code), path)
    return disk.failure(error, "saving step 7", where, 12_345_678)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (12_345, "12.3 kB"), (999_500, "1 MB"), (999_999_999, "1 GB")],
)
def test_a_size_has_three_digits(count: float, text: str) -> None:
    assert disk.size(count) == text


def test_every_change_comes_through_perform(tmp_path: Path) -> None:
    """What the fault tests rest on: with a `perform` that does nothing, nothing changes."""

    def refuse(operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        raise Died

    (tmp_path / "file").write_text("here")
    (tmp_path / "directory").mkdir()
    before = sorted(tmp_path.rglob("*"))
    changes: list[Callable[[], object]] = [
        lambda: disk.make_dir(tmp_path / "new"),
        lambda: disk.make_dirs(tmp_path / "new" / "deep"),
        lambda: disk.sync_dir(tmp_path),
        lambda: disk.replace(tmp_path / "file", tmp_path / "other"),
        lambda: disk.link(tmp_path / "file", tmp_path / "other"),
        lambda: disk.unlink(tmp_path / "file"),
        lambda: disk.remove_dir(tmp_path / "directory"),
        lambda: disk.remove_tree(tmp_path / "directory"),
        lambda: disk.write_file(tmp_path / "file", b"new"),
        lambda: disk.File(tmp_path / "new", new=True),
        lambda: disk.File(tmp_path / "file", new=False),
    ]
    with performing(refuse):
        for change in changes:
            with pytest.raises(Died):
                change()
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "here"


# --- blocks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[], [0], [1], [disk.BLOCK_BYTES], [disk.BLOCK_BYTES - 1, 2, 0, disk.BLOCK_BYTES]])
def test_blocks_hold_the_same_bytes_and_are_written_as_they_are(lengths: list[int], tmp_path: Path) -> None:
    """Past the system's cache of files where it can do that: pytest's folder may be in memory, and the other is not."""
    pieces = [bytes([k + 1]) * length for k, length in enumerate(lengths)]
    for path in (tmp_path / "file", Path(__file__).with_name(f".blocks-{os.getpid()}")):
        try:
            with disk.File(path, new=True) as file:
                for block in disk.blocks(iter(pieces)):
                    assert len(block) <= disk.BLOCK_BYTES
                    file.write(block)
                file.sync()
            assert path.read_bytes() == b"".join(pieces)
        finally:
            path.unlink(missing_ok=True)


def test_a_block_that_does_not_begin_at_a_page_is_written_too(tmp_path: Path) -> None:
    data = memoryview(bytearray(os.urandom(disk.BLOCK_BYTES + 1)))[1:]
    path = Path(__file__).with_name(f".odd-{os.getpid()}")
    try:
        with disk.File(path, new=True) as file:
            file.write(b"x")
            file.write(data)
        assert path.read_bytes() == b"x" + data
    finally:
        path.unlink(missing_ok=True)
