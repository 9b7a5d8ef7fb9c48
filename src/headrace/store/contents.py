"""The files of a checkpoint and its manifest, which lists them with the hashes of their bytes.

Nothing that is read is believed before it is checked.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, CorruptError
from . import disk, system
from .codec import dtype_name, from_json, parse_tensors, tensor_pieces, to_json
from .shape import COUNT, DICT, TEXT, Kind, check, each
from .shards import LAYOUT, SHARD, WHOLE, RowPart, place_of, read, shard_file
from .snapshot import beside

MODEL, OPTIMIZER = "model.safetensors", "optim.safetensors"
TRAINER, TRAINER_TENSORS = "trainer.json", "trainer.safetensors"
FORMAT = 4
MANIFEST, COMMIT = "manifest.json", "COMMIT"
MANIFEST_BYTES = 16 << 20
FILES_MAX = 100_000
PIECE_BYTES = 1 << 20
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_OF_WORKER = re.compile(r"rank-\d+\.json")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None and value not in (MANIFEST, COMMIT)


def _is_spec(value: Any) -> bool:
    pair = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], list)
    return pair and all(map(COUNT.holds, value[1]))


_CALLED = Kind("what a file of a checkpoint is called", _is_name)
_SPEC = Kind("a dtype and a shape", _is_spec)
_MANIFEST = {
    "run_id": TEXT,
    "step": COUNT,
    "world": COUNT,
    "made_by": DICT,
    "files": [{"name": _CALLED, "size": COUNT, "sha256": TEXT, "tensors": each(_SPEC)}],
}


Pieces = Callable[[], Iterator[disk.Bytes]]
"""Gives the bytes of a file, piece by piece, as often as they are needed."""
Specs = dict[str, tuple[str, list[int]]]
"""The dtype and the shape of every tensor of a file, by name."""


@dataclass(slots=True)
class Contents:
    """A checkpoint in memory. `documents` are values for JSON; `tensors` the files of tensors."""

    step: int
    documents: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    shapes: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    """Of tensors that workers have written in parts, by file and name, the complete shape."""

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for file in self.tensors.values() for tensor in file.values())

    @property
    def workers(self) -> int:
        """How many workers have something of their own here; at least one."""
        return max(1, sum(bool(_OF_WORKER.fullmatch(name)) for name in self.documents))

    def where(self, file: str, part: str = "") -> str:
        """A file of this checkpoint, and a part of it, for messages."""
        return f"the checkpoint of step {self.step}, {file}" + (f": {part}" if part else "")

    def document(self, file: str) -> dict[str, Any]:
        """A document that has to be there, as a dict."""
        found: dict[str, Any] = check(self.documents.get(file), DICT, self.where(file))
        return found

    def tensors_of(self, file: str) -> dict[str, Tensor]:
        """The tensors of a file that has to be there."""
        if file not in self.tensors:
            raise CorruptError(f"{self.where(file)} is missing.")
        return self.tensors[file]

    def files(self) -> Iterator[tuple[str, Pieces]]:
        """Every file and its bytes, piece by piece."""
        for name, tensors in self.tensors.items():
            yield name, partial(tensor_pieces, name, tensors)
        for name, document in self.documents.items():
            yield name, partial(iter, [to_json(document)])


def divided(contents: Contents, part: RowPart, leads: bool) -> Contents:
    """What one worker writes of a checkpoint: its part of sharded tensors and, if it `leads`, all else."""
    tensors, shapes = contents.tensors, contents.shapes
    mine = {shard_file(part.index, file): {name: tensors[file][name] for name in of} for file, of in shapes.items()}
    if not leads:
        return Contents(contents.step, {}, mine)
    rest = {
        file: {name: tensor for name, tensor in of.items() if name not in shapes.get(file, {})}
        for file, of in tensors.items()
    }
    layout = {file: {name: place_of(shape, part.count) for name, shape in of.items()} for file, of in shapes.items()}
    return Contents(contents.step, {**contents.documents, LAYOUT: layout}, rest | mine)


def rank_files(rank_number: int) -> tuple[str, str]:
    """Where a worker keeps what is its own: documents and tensors."""
    return f"rank-{rank_number:05d}.json", f"rank-{rank_number:05d}.safetensors"


@dataclass(frozen=True, slots=True)
class Written:
    """A file of a checkpoint: its length, the hash of its bytes, and the dtypes and shapes of its tensors."""

    name: str
    size: int
    sha256: str
    tensors: Specs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts that a checkpoint holds about itself."""

    run_id: str
    step: int
    world: int
    files: tuple[Written, ...]
    made_by: dict[str, str]

    def to_bytes(self) -> bytes:
        return to_json({"format": FORMAT, **asdict(self)})


def write_files(directory: Path, contents: Contents) -> list[Written]:
    """Writes files into the directory of a checkpoint: what `Store.commit` has to know of them."""
    written = []
    for name, pieces in contents.files():
        size, sha256 = write_file(directory / name, pieces)
        written.append(Written(name, size, sha256, _specs(name, contents.tensors.get(name, {}))))
    return written


def write_file(path: Path, pieces: Pieces) -> tuple[int, str]:
    """Writes a new file and makes certain that it is on the disk: its length and its sha256."""
    with disk.File(path, new=True) as file:
        sha256, size = beside(partial(_sha256, pieces)), 0  # while the disk is waited for
        for block in disk.blocks(pieces()):
            file.write(block)
            size += len(block)
        file.sync()
    return size, sha256()


def _sha256(pieces: Pieces) -> str:
    digest = hashlib.sha256()
    for piece in pieces():
        digest.update(piece)
    return digest.hexdigest()


class Opened:
    """A checkpoint directory, open for reading: its names are looked up in it and nowhere else."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path, self._descriptor = path, descriptor

    def manifest(self) -> Manifest:
        """The manifest, once COMMIT vouches for its bytes."""
        commit = self._read(COMMIT, 256)
        data = self._read(MANIFEST, MANIFEST_BYTES)
        if commit.strip() != hashlib.sha256(data).hexdigest().encode():
            raise CorruptError(f"{self.path / MANIFEST} is not what {COMMIT} says: its sha256 differs.")
        return parse_manifest(data, self.path)

    def verify(self, manifest: Manifest) -> None:
        """Raises unless every file has the bytes that were written."""
        for written in manifest.files:
            for _ in self.blocks(written):
                pass

    def blocks(self, written: Written) -> Iterator[memoryview]:
        """The bytes of a file, in blocks that are valid until the next one; raises unless they are as written."""
        digest, count = hashlib.sha256(), 0
        room = memoryview(bytearray(min(PIECE_BYTES, written.size) or 1))
        with (
            self._open(written.name, written.size) as descriptor,
            open(descriptor, "rb", buffering=0, closefd=False) as file,
        ):
            while length := file.readinto(room):
                digest.update(room[:length])
                count += length
                yield room[:length]
        self._check(written, count, digest.hexdigest())

    def contents(
        self, manifest: Manifest, wanted: Callable[[str], bool] = lambda name: True, part: RowPart = WHOLE
    ) -> Contents:
        """What the files hold, and `part` of what is sharded; the bytes that are hashed are those that are parsed."""
        contents = Contents(manifest.step)
        for written in manifest.files:
            if written.name.startswith(SHARD) or not (wanted(written.name) or written.name == LAYOUT):
                continue
            data = self._read(written.name, written.size, exactly=written.size)
            self._check(written, len(data), hashlib.sha256(data).hexdigest())
            if written.name.endswith(".json"):
                contents.documents[written.name] = from_json(data, str(self.path / written.name))
            elif written.name.endswith(".safetensors"):
                tensors = parse_tensors(data, str(self.path / written.name), len(written.tensors))
                if _specs(written.name, tensors) != written.tensors:
                    raise CorruptError(f"{self.path / written.name} holds other tensors than {MANIFEST} says.")
                contents.tensors[written.name] = tensors
        if (layout := contents.documents.pop(LAYOUT, None)) is not None:
            files = {written.name: written for written in manifest.files}
            found, contents.shapes = read(self, files, layout, list(contents.tensors), part)
            for file, tensors in found.items():
                contents.tensors[file] |= tensors
        return contents

    def _check(self, written: Written, length: int, sha256: str) -> None:
        path = self.path / written.name
        if length != written.size:
            raise CorruptError(f"{path} has {length:,} bytes, {written.size:,} were written.")
        if sha256 != written.sha256:
            raise CorruptError(f"{path} is not what was written: its sha256 differs.")

    def _read(self, name: str, limit: int, exactly: int | None = None) -> bytes:
        with self._open(name, exactly) as descriptor:
            pieces, count = [], 0
            while count <= limit and (piece := os.read(descriptor, limit + 1 - count)):
                pieces.append(piece)
                count += len(piece)
        if count > limit:
            raise CorruptError(f"{self.path / name} has more than {limit:,} bytes.")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @contextmanager
    def _open(self, name: str, size: int | None) -> Iterator[int]:
        """A regular file of this directory, of this size if one is given."""
        path = self.path / name
        try:
            inside = path if self._descriptor is None else name
            descriptor = disk.open_regular(inside, os.O_RDONLY, dir_fd=self._descriptor)
        except disk.NotRegularError:
            raise CorruptError(f"{path} is not a regular file.") from None
        except OSError as error:
            raise CorruptError(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from None
        try:
            found = os.fstat(descriptor).st_size
            if size is not None and found != size:
                raise CorruptError(f"{path} has {found:,} bytes, {size:,} were written.")
            yield descriptor
        except OSError as error:
            raise CorruptError(f"{path} cannot be read: {os.strerror(error.errno or 0)}.") from None
        finally:
            os.close(descriptor)


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Opens a checkpoint directory; one that is a link is not followed."""
    if not (directory := system.flags("O_DIRECTORY")):  # Windows opens no directories
        if path.is_symlink() or not path.is_dir():
            raise CorruptError(f"{path} is not a directory that can be read: it is a link, a file, or not there.")
        yield Opened(path, None)
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | directory | system.flags("O_NOFOLLOW", "O_CLOEXEC"))
    except OSError as error:
        raise CorruptError(f"{path} is not a directory that can be read: {os.strerror(error.errno or 0)}.") from None
    try:
        yield Opened(path, descriptor)
    finally:
        os.close(descriptor)


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest that these bytes are, of the checkpoint in this directory."""
    where = path / MANIFEST
    found = from_json(data, str(where))
    if not isinstance(found, dict) or type(found.get("format")) is not int or found["format"] < 1:
        raise CorruptError(f"{where} has no format number.")
    if found["format"] != FORMAT:
        made_by = found.get("made_by")
        version = made_by.get("headrace") if isinstance(made_by, dict) else None
        newer = found["format"] > FORMAT
        raise CheckpointError(
            f"{path} was written by headrace {str(version)[:40]!r}, in format {found['format']}; this version reads "
            f"format {FORMAT}. {'Install a newer headrace.' if newer else 'Use that version, or train again.'}"
        )
    check(found, _MANIFEST, str(where))
    files = tuple(
        Written(entry["name"], entry["size"], entry["sha256"], {k: (v[0], v[1]) for k, v in entry["tensors"].items()})
        for entry in found["files"]
    )
    if len({written.name for written in files}) != len(files) or len(files) > FILES_MAX:
        raise CorruptError(f"{where} names a file twice, or too many.")
    return Manifest(found["run_id"], found["step"], found["world"], files, found["made_by"])


def _specs(file: str, tensors: Mapping[str, Tensor]) -> Specs:
    return {name: (dtype_name(file, name, tensor), list(tensor.shape)) for name, tensor in tensors.items()}
