"""A checkpoint in an object store: its large files, and a zip of all others, which is written last.

The name of the zip contains the hash that COMMIT holds, so that a list of names tells what is complete. The zip is not
compressed, and unpacked beside the large files it gives the directory of the checkpoint.
"""

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from ..errors import CorruptError, RunError
from . import disk
from .contents import COMMIT, MANIFEST, MANIFEST_BYTES, opened, parse_manifest
from .place import Place
from .remote import READ_BYTES, Object, Remote
from .run import CHECKPOINTS

ZIP_BYTES = 8 << 20  # that the files in a zip have together
_ZIP = re.compile(rf"{COMMIT}-([0-9a-f]{{64}})\.zip")


def upload(remote: Remote, path: Path, before_commit: Callable[[], None]) -> list[str]:
    """Uploads a checkpoint, `before_commit` being called before the zip; the names of its objects."""
    sizes = {name: (path / name).stat().st_size for name in os.listdir(path)}
    always = {COMMIT, MANIFEST}
    names = sorted(sizes, key=lambda name: (name not in always, sizes[name]))
    total = dict(zip(names, accumulate(sizes[name] for name in names), strict=True))
    large = [name for name in names if total[name] > ZIP_BYTES and name not in always]
    for name in large:
        remote.upload(path / name, f"{CHECKPOINTS}/{path.name}/{name}")
    packed = BytesIO()
    with ZipFile(packed, "w", ZIP_STORED) as archive:
        for name in names[: len(names) - len(large)]:
            archive.writestr(ZipInfo(name), (path / name).read_bytes())
    commit = f"{COMMIT}-{(path / COMMIT).read_text().strip()}.zip"
    before_commit()
    remote.write(f"{CHECKPOINTS}/{path.name}/{commit}", packed.getvalue())
    return [*large, commit]


def places_in(objects: Mapping[str, Object]) -> dict[str, list[str]]:
    """The names of objects in the directories of checkpoints."""
    found: dict[str, list[str]] = {}
    for name in objects:
        parts = name.split("/")
        if len(parts) == 3 and parts[0] == CHECKPOINTS and Place.of(parts[1]) is not None:
            found.setdefault(parts[1], []).append(parts[2])
    return found


def sha256_in(place: str, names: list[str]) -> str | None:
    """The hash of the manifest, from the name of the zip; `None` if there is none: the checkpoint is not complete."""
    found = [match[1] for name in names if (match := _ZIP.fullmatch(name))]
    if COMMIT in names or len(found) > 1:
        raise RunError(
            f"{CHECKPOINTS}/{place} has an object {COMMIT}, as an earlier layout had. Train again in another run."
            if COMMIT in names
            else f"{CHECKPOINTS}/{place} has {len(found)} objects {COMMIT}-*.zip: two trainings have been mixed. "
            "Remove the directory, or copy one of the runs to another place."
        )
    return found[0] if found else None


def is_here(path: Path, sha256: str | None) -> bool:
    """Whether a directory is a checkpoint whose COMMIT holds this hash."""
    with suppress(OSError):
        return path.is_dir() and disk.read_file(path / COMMIT, 256).decode(errors="replace").strip() == sha256
    return False


def download(remote: Remote, path: Path, objects: Mapping[str, Object], sha256: str) -> None:
    """Downloads a checkpoint. One that is damaged is read twice more; whoever loads it refuses it then."""
    for is_last in (False, False, True):
        disk.make_dirs(path)
        try:
            _download(remote, path, objects, sha256)
            break
        except CorruptError as error:
            if not is_last:
                disk.remove_tree(path)
                continue
            warnings.warn(
                f"the checkpoint {path.name} in {remote.url} is damaged: {error} It was read three times, and is not "
                "used. Put it back from a copy, or remove its directory from the store.",
                stacklevel=2,
            )
    disk.write_file(path / COMMIT, f"{sha256}\n".encode())


def _download(remote: Remote, path: Path, objects: Mapping[str, Object], sha256: str) -> None:
    """Downloads and verifies a checkpoint. Only files that the manifest names, with their lengths, are written."""
    commit = f"{CHECKPOINTS}/{path.name}/{COMMIT}-{sha256}.zip"
    if objects[commit].size > READ_BYTES:
        raise CorruptError(f"{commit} in {remote.url} has {objects[commit].size:,} bytes, too many.")
    data = remote.read(commit)
    if data is None:
        raise FileNotFoundError(commit)
    files = _unpacked(data, f"{commit} in {remote.url}")
    text = files.get(MANIFEST, b"")
    if hashlib.sha256(text).hexdigest() != sha256 or len(text) > MANIFEST_BYTES:
        raise CorruptError(f"{MANIFEST} in {commit} in {remote.url} is not what the name says: its sha256 differs.")
    manifest = parse_manifest(text, path)
    _write(path / MANIFEST, text)
    for written in manifest.files:
        name = f"{CHECKPOINTS}/{path.name}/{written.name}"
        if written.name in files:
            _write(path / written.name, files[written.name])
        elif name in objects and objects[name].size == written.size:
            remote.download(name, path / written.name, written.size)
            with disk.File(path / written.name, new=False) as file:
                file.sync()
    with opened(path) as directory:
        directory.verify(manifest)


def _unpacked(data: bytes, where: str) -> dict[str, bytes]:
    """The files of a zip that may come from anybody: together they are not longer than it is."""
    try:
        with ZipFile(BytesIO(data)) as archive:
            members = archive.infolist()
            if any(each.compress_type != ZIP_STORED for each in members):
                raise BadZipFile("a file in it is compressed")
            if sum(each.file_size for each in members) > len(data):
                raise BadZipFile("it is shorter than the files in it")
            return {each.filename: archive.read(each) for each in members}
    except Exception as error:  # zipfile raises many kinds
        raise CorruptError(f"{where} cannot be read: {error}") from None


def _write(path: Path, data: bytes) -> None:
    with disk.File(path, new=True) as file:
        file.write(data)
        file.sync()
