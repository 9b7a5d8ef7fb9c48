"""Data files in an object store: an S3 server over HTTP, and the copies on this machine."""

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.s3_server import Server, s3

import headrace as hr
from headrace.store.cache import cache_folder

X = np.arange(48, dtype=np.float32).reshape(12, 4)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3() as server:
        yield server


@pytest.fixture
def store(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The server, and an empty cache on this machine."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    server.log.clear()
    yield server
    server.rule = lambda method, key: ""


def write(url: str, x: np.ndarray[Any, Any]) -> None:
    import fsspec

    data = BytesIO()
    np.savez(data, x=x, y=np.arange(len(x)) % 2) if url.endswith(".npz") else np.save(data, x)
    fs, path = fsspec.core.url_to_fs(url)
    fs.pipe_file(path, data.getvalue())


def read(url: str) -> Any:
    table = hr.open_table(url)
    return table.rows(0, len(table))["x"].numpy()


def requests(store: Server) -> list[str]:
    """Those since they were asked for last, without uploads."""
    found = [line.split()[0] for line in store.log if not line.startswith("PUT")]
    store.log.clear()
    return found


def copies() -> list[Path]:
    return sorted((cache_folder() / "data").glob("*-*"))


def test_a_file_is_downloaded_once_and_again_after_it_has_changed(store: Server, tmp_path: Path) -> None:
    url = f"s3://bucket/{tmp_path.name}/x.npy"
    write(url, X)
    assert (read(url) == X).all()
    assert requests(store) == ["HEAD", "GET", "HEAD"]
    assert (read(url) == X).all()
    assert requests(store) == ["HEAD"]
    before = hr.open_table(url).fingerprint()
    write(url, X + 1)
    assert (read(url) == X + 1).all()
    assert hr.open_table(url).fingerprint() != before
    assert len(copies()) == 2


def test_a_copy_that_is_damaged_or_half_is_downloaded_again(store: Server, tmp_path: Path) -> None:
    url = f"s3://bucket/{tmp_path.name}/x.npy"
    write(url, X)
    read(url)
    for damage in (lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:-4], lambda data: b""):
        (copy,) = copies()
        copy.write_bytes(damage(copy.read_bytes()))
        assert (read(url) == X).all()
    (cache_folder() / "data" / ".new").write_bytes(b"half")  # as a process that was killed leaves it
    copies()[0].unlink()
    assert (read(url) == X).all()


def test_a_file_that_changes_while_it_is_downloaded_is_refused(store: Server, tmp_path: Path) -> None:
    url = f"s3://bucket/{tmp_path.name}/x.npy"
    write(url, X)

    def rule(method: str, key: str) -> str:
        if method == "GET":
            store.rule = lambda method, key: ""
            write(url, X + 1)
        return ""

    store.rule = rule
    with pytest.raises(hr.DataError, match=r"x\.npy cannot be read: it has been written to while it was read"):
        read(url)
    assert copies() == []
    assert (read(url) == X + 1).all()


def test_copies_have_a_limit(store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = [f"s3://bucket/{tmp_path.name}/{name}.npy" for name in "abc"]
    for url in urls:
        write(url, X)
    size = X.nbytes + 128
    monkeypatch.setenv("HEADRACE_CACHE_GB", str(2.5 * size / 1e9))
    for url in urls[:2]:
        read(url)
    first, second = sorted(copies(), key=lambda copy: copy.stat().st_mtime)
    os.utime(first)
    os.utime(second, (0, 0))
    read(urls[2])
    assert first in copies()
    assert second not in copies()
    monkeypatch.setenv("HEADRACE_CACHE_GB", str(1.5 * size / 1e9))
    for copy in copies():
        copy.unlink()
    assert (read(urls[0]) == X).all()
    assert copies() == [], "it would take more than half"


def test_all_files_of_a_folder_are_asked_for_in_one_list(store: Server, tmp_path: Path) -> None:
    for name in "abc":
        write(f"s3://bucket/{tmp_path.name}/parts/{name}.npy", X)
    for path in ("parts", "parts/*.npy"):
        read(f"s3://bucket/{tmp_path.name}/{path}")
        requests(store)
        assert len(read(f"s3://bucket/{tmp_path.name}/{path}")) == 36
        assert "GET" not in requests(store)
