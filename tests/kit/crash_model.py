"""What a disk may hold after the power fails: of the changes that were not synced any may be missing, in any mixture.

A directory is known by a number and not by its name: what is renamed keeps what was done to it. A change of a directory
is certain once that directory is synced, the bytes of a file once the file is. Most file systems promise more.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

Tree = dict[str, bytes | None]  # paths, and the bytes of files; None for a directory
Loss = dict[int, str]  # changes that are missing, and for those of bytes what is there instead

BYTES_LOST = ("empty", "half", "zeros")


class Change(NamedTuple):
    """What has happened to a directory or a file, by its number.

    "names": a name goes, a name comes, or both at once, and what has that name. "bytes": an offset, and the bytes from
    there on. "synced": all before is certain. "returned": the save of this step has returned.
    """

    kind: str
    of: int
    what: tuple[Any, ...] = ()


class Story:
    """Performs operations under `root`, and tells what they change; what is there when it begins is certain."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changes: list[Change] = []
        self._count = 0
        self._directories: dict[int, dict[str, int]] = {}  # when it begins
        self._files: dict[int, bytes] = {}  # when it begins, and those that it makes, which begin empty
        self._top = self._there(root)
        self._names = {number: dict(entries) for number, entries in self._directories.items()}  # now
        self._lengths = {number: len(data) for number, data in self._files.items()}
        self._opened: dict[int, int] = {}  # files by their descriptors

    def __call__(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        result, path = call(*arguments), arguments[0]
        if operation == "make_dir":
            self._names[number := self._number()] = {}
            self._rename(path, None, path.name, number)
        elif operation == "create":
            number = self._opened[result] = self._number()
            self._files[number], self._lengths[number] = b"", 0
            self._rename(path, None, path.name, number)
        elif operation == "write":
            number, data = self._opened[arguments[1]], bytes(arguments[2])
            self.changes.append(Change("bytes", number, (self._lengths[number], data)))
            self._lengths[number] += len(data)
        elif operation == "fsync":
            self.changes.append(Change("synced", self._opened[arguments[1]]))
        elif operation == "sync_dir":
            if path.is_relative_to(self.root):
                self.changes.append(Change("synced", self._find(path)))
        elif operation == "replace":
            assert path.parent == arguments[1].parent, "between directories it would be two changes"
            self._rename(path, path.name, arguments[1].name, self._find(path))
        elif operation in ("unlink", "remove_dir"):
            self._rename(path, path.name, None, self._find(path))
        else:
            raise NotImplementedError(operation)
        return result

    def returned(self, step: int) -> None:
        """A save has promised that this step is safe."""
        self.changes.append(Change("returned", step))

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
        return [change.of for change in self.changes[:end] if change.kind == "returned"]

    def left(self, end: int, lost: Loss) -> Tree:
        """What is on the disk."""
        directories = {number: dict(entries) for number, entries in self._directories.items()}
        files = dict(self._files)
        for n, change in enumerate(self.changes[:end]):
            if change.kind == "names" and n not in lost:
                gone, come, number = change.what
                entries = directories.setdefault(change.of, {})
                entries.pop(gone, None)
                if come is not None:
                    entries[come] = number
            elif change.kind == "bytes":
                offset, data = change.what
                if data := _instead(data, lost.get(n)):
                    files[change.of] = files[change.of][:offset].ljust(offset, b"\0") + data
        tree: Tree = {}

        def walk(number: int, path: str) -> None:
            for name, what in directories.get(number, {}).items():
                tree[path + name] = files.get(what)
                if what not in files:
                    walk(what, f"{path}{name}/")

        walk(self._top, "")
        return tree

    def _uncertain(self, before: list[int], n: int) -> list[int]:
        change = self.changes[n]
        if change.kind == "synced":
            return [k for k in before if self.changes[k].of != change.of]
        return before if change.kind == "returned" else [*before, n]

    def _rename(self, path: Path, gone: str | None, come: str | None, number: int) -> None:
        directory = self._find(path.parent)
        self._names[directory].pop(gone or "", None)
        if come is not None:
            self._names[directory][come] = number
        self.changes.append(Change("names", directory, (gone, come, number)))

    def _find(self, path: Path) -> int:
        number = self._top
        for part in path.relative_to(self.root).parts:
            number = self._names[number][part]
        return number

    def _there(self, path: Path) -> int:
        number = self._number()
        if path.is_dir():
            self._directories[number] = {entry.name: self._there(entry) for entry in sorted(path.iterdir())}
        else:
            self._files[number] = path.read_bytes()
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


def _instead(data: bytes, lost: str | None) -> bytes:
    if lost is None:
        return data
    return {"empty": b"", "half": data[: len(data) // 2], "zeros": b"\0" * len(data)}[lost]
