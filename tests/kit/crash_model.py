"""What a disk may hold after the power fails: of the changes that were not synced any may be missing, in any mixture.

A `Recorder` performs operations and notes them; `Story` turns the notes into changes of directories (by their
number, not their name: what is renamed keeps what was done to it) and of files. A change of a directory is certain
once that directory is synced, the bytes of a file once the file is. The model promises less than most file systems do.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

Tree = dict[str, bytes | None]  # paths, and the bytes of files; None for a directory
Loss = dict[int, str]  # changes that are missing, and for those of bytes what is there instead

BYTES_LOST = ("empty", "half", "zeros")


@dataclass
class Recorder:
    """Performs operations for real and notes those that succeed."""

    log: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        noted = tuple(bytes(a) if isinstance(a, memoryview) else a for a in arguments)
        result = call(*arguments)
        self.log.append((operation, *noted, result))
        return result

    def returned(self, step: int) -> None:
        """A save has promised that this step is safe."""
        self.log.append(("returned", step))


@dataclass(frozen=True)
class Names:
    """A directory in which a name goes, a name comes, or both at once."""

    directory: int
    gone: str | None
    come: str | None
    what: int


@dataclass(frozen=True)
class Bytes:
    """Bytes of a file, from an offset on."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Synced:
    """From here on, everything before in this directory or this file is certain."""

    what: int


@dataclass(frozen=True)
class Returned:
    """A save returned."""

    step: int


Change = Names | Bytes | Synced | Returned


class Story:
    """A log of operations under `root`, beginning with what is there now, which is certain."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directories: dict[int, dict[str, int]] = {}
        self.files: dict[int, bytes] = {}
        self._count = 0
        self._made: dict[int, bytes] = {}  # files that the log creates, empty as they begin
        self._top = self._there(root)
        self.changes: list[Change] = []

    def tell(self, log: list[tuple[Any, ...]]) -> None:
        """Follows the log from the beginning to its end."""
        names = {number: dict(entries) for number, entries in self.directories.items()}
        lengths = {number: len(data) for number, data in self.files.items()}
        open_files: dict[int, int] = {}

        def find(path: Path) -> int:
            number = self._top
            for part in path.relative_to(self.root).parts:
                number = names[number][part]
            return number

        def rename(path: Path, gone: str | None, come: str | None, what: int) -> None:
            directory = find(path.parent)
            if gone is not None:
                del names[directory][gone]
            if come is not None:
                names[directory][come] = what
            self.changes.append(Names(directory, gone, come, what))

        for operation, *arguments in log:
            if operation == "returned":
                self.changes.append(Returned(arguments[0]))
                continue
            path = arguments[0]
            if operation == "make_dir":
                number = self._number()
                names[number] = {}
                rename(path, None, path.name, number)
            elif operation == "create":
                number = self._number()
                self._made[number], lengths[number] = b"", 0
                rename(path, None, path.name, number)
                open_files[arguments[-1]] = number
            elif operation == "write":
                number = open_files[arguments[1]]
                self.changes.append(Bytes(number, lengths[number], arguments[2]))
                lengths[number] += len(arguments[2])
            elif operation == "fsync":
                self.changes.append(Synced(open_files[arguments[1]]))
            elif operation == "sync_dir":
                if path.is_relative_to(self.root):
                    self.changes.append(Synced(find(path)))
            elif operation == "replace":
                assert path.parent == arguments[1].parent, "between directories it would be two changes"
                rename(path, path.name, arguments[1].name, find(path))
            elif operation in ("unlink", "remove_dir"):
                rename(path, path.name, None, find(path))
            else:
                raise NotImplementedError(operation)

    def crashes(self, subsets: int = 20, seed: int = 0) -> Iterator[tuple[int, Loss]]:
        """Every prefix of the changes, with: all that is not certain missing, each of it alone, and random subsets."""
        random, uncertain = Random(seed), list[int]()
        for end in range(len(self.changes) + 1):
            if end:
                uncertain = self._uncertain(uncertain, end - 1)
            yield from ((end, dict.fromkeys(uncertain, instead)) for instead in BYTES_LOST)
            yield from ((end, {n: instead}) for n in uncertain for instead in BYTES_LOST)
            for _ in range(subsets if uncertain else 0):
                yield end, {n: random.choice(BYTES_LOST) for n in uncertain if random.random() < 0.5}

    def promised(self, end: int) -> list[int]:
        """The steps whose saves have returned."""
        return [change.step for change in self.changes[:end] if isinstance(change, Returned)]

    def left(self, end: int, lost: Loss) -> Tree:
        """What is on the disk."""
        directories = {number: dict(entries) for number, entries in self.directories.items()}
        files = {**self.files, **self._made}
        for n, change in enumerate(self.changes[:end]):
            if isinstance(change, Names) and n not in lost:
                entries = directories.setdefault(change.directory, {})
                if change.gone is not None:
                    entries.pop(change.gone, None)
                if change.come is not None:
                    entries[change.come] = change.what
            elif isinstance(change, Bytes):
                data = _instead(change.data, lost.get(n))
                if data:
                    before = files[change.file][: change.offset].ljust(change.offset, b"\0")
                    files[change.file] = before + data
        tree: Tree = {}
        self._walk(self._top, "", directories, files, tree)
        return tree

    def _uncertain(self, before: list[int], n: int) -> list[int]:
        change = self.changes[n]
        if isinstance(change, Returned):
            return before
        if not isinstance(change, Synced):
            return [*before, n]
        return [k for k in before if change.what != _place(self.changes[k])]

    def _walk(
        self, number: int, path: str, directories: dict[int, dict[str, int]], files: dict[int, bytes], tree: Tree
    ) -> None:
        for name, what in directories.get(number, {}).items():
            here = f"{path}{name}"
            tree[here] = files.get(what)
            if what not in files:
                self._walk(what, f"{here}/", directories, files, tree)

    def _there(self, path: Path) -> int:
        number = self._number()
        if path.is_dir():
            self.directories[number] = {entry.name: self._there(entry) for entry in sorted(path.iterdir())}
        else:
            self.files[number] = path.read_bytes()
        return number

    def _number(self) -> int:
        self._count += 1
        return self._count


def build(tree: Tree, root: Path) -> None:
    """Makes the files and directories of a tree, for real."""
    root.mkdir()
    for path, data in tree.items():
        if data is None:
            os.mkdir(root / path)
        else:
            (root / path).write_bytes(data)


def _place(change: Change) -> int:
    return change.directory if isinstance(change, Names) else change.file if isinstance(change, Bytes) else -1


def _instead(data: bytes, lost: str | None) -> bytes:
    if lost is None:
        return data
    return {"empty": b"", "half": data[: len(data) // 2], "zeros": b"\0" * len(data)}[lost]
