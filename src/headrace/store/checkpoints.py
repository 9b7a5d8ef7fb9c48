"""The checkpoints of one run, in one directory: written whole, scanned by number, verified before use."""

import hashlib
import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path

import torch

from .. import __version__
from ..errors import CheckpointError, ConfigError, CorruptError
from . import disk
from .contents import COMMIT, MANIFEST, PIECE_BYTES, Contents, Manifest, Written, opened

_STEP = re.compile(r"step-(\d{12,18})")
_LEFTOVER = re.compile(r"\.(tmp|trash)-\d+-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Keep:
    """How many checkpoints stay: the last so many (`None`: all), besides those that `Store.save` is told to keep."""

    last: int | None = 3

    @classmethod
    def of(cls, keep: int | str) -> "Keep":
        if keep == "all":
            return cls(None)
        if not isinstance(keep, Integral) or isinstance(keep, bool) or keep < 1:
            raise ConfigError(f"keep= is a number of checkpoints, at least 1, or 'all'; got {keep!r}.", argument="keep")
        return cls(int(keep))


class Store:
    """Saves, lists, verifies and loads the checkpoints of a run.

    `save` returns when a checkpoint is certain to be on the disk; `load` returns nothing that is not verified.

    Checkpoints of other runs, and files of other people, are never touched. `run_id=None` reads those of any run.
    """

    def __init__(self, path: Path, run_id: str | None, keep: Keep | None = None) -> None:
        self.path, self._run_id, self._keep = path, run_id, keep or Keep(None)
        self._anchored = False  # whether the directory is certain to be on the disk

    def steps(self) -> list[int]:
        """The steps of everything here that is called a checkpoint, in order."""
        with disk.failing(f"looking for checkpoints in {self.path}", self.path):
            try:
                names = os.listdir(self.path)
            except FileNotFoundError:
                return []
        found = [(name, int(match[1])) for name in names if (match := _STEP.fullmatch(name))]
        return sorted(step for name, step in found if name == self.at(step).name)

    def at(self, step: int) -> Path:
        return self.path / f"step-{step:012d}"

    def save(
        self, contents: Contents, best: Sequence[int] = (), *, again: bool = False, overtakes: bool = False
    ) -> Path:
        """Writes a checkpoint, then deletes old ones. The steps in `best` stay.

        `again`: an earlier checkpoint of this step may be there; the two change places in one operation. `overtakes`:
        the training was started again from an earlier step, and later checkpoints are deleted too.
        """
        final = self.at(contents.step)
        with disk.failing(f"saving step {contents.step} in {self.path}", self.path, contents.nbytes):
            if not self._anchored:
                disk.make_dirs(self.path)
            self._anchored = True
            self.clean()
            beside = self.path / f".tmp-{contents.step}-{uuid.uuid4().hex}"
            disk.make_dir(beside)
            self._write(beside, contents)
            if again and self._is_own(contents.step):
                self._swap_in(beside, final)
            else:
                self._set_aside_unusable(contents.step)
                disk.rename(beside, final)
                disk.sync_dir(self.path)
            self._delete_old(contents.step, best, overtakes)
        return final

    def load(self, step: int, wanted: Callable[[str], bool] = lambda name: True) -> Contents:
        """One checkpoint; raises unless all of it that is wanted is as it was written."""
        with opened(self.at(step)) as directory:
            manifest = self._own(directory.manifest(), step)
            return directory.contents(manifest, wanted)

    def newest(self, wanted: Callable[[str], bool] = lambda name: True) -> Contents | None:
        """The last checkpoint that is as it was written; `None` only where there is none at all."""
        reasons = []
        steps = self.steps()
        for step in reversed(steps):
            try:
                found = self.load(step, wanted)
            except CorruptError as error:
                reasons.append(str(error))
                continue
            for reason in reasons:
                warnings.warn(f"{reason} Its bytes are kept; going on from {self.at(step).name}.", stacklevel=2)
            return found
        if reasons and self.steps() != steps:  # whoever writes them has let go of some meanwhile
            return self.newest(wanted)
        if reasons:
            listed = "\n  ".join(reasons)
            raise CheckpointError(
                f"none of the checkpoints in {self.path} can be used:\n  {listed}\n"
                "Restore one from a copy, or start again in another directory."
            )
        return None

    def manifest(self, step: int) -> Manifest:
        """What a checkpoint says of itself; its files are not looked at."""
        with opened(self.at(step)) as directory:
            return self._own(directory.manifest(), step)

    def verify(self, step: int) -> Manifest:
        """Raises unless every byte of a checkpoint is as it was written."""
        with opened(self.at(step)) as directory:
            manifest = self._own(directory.manifest(), step)
            directory.verify(manifest)
        return manifest

    def _own(self, manifest: Manifest, step: int) -> Manifest:
        if manifest.step != step:
            raise CorruptError(f"{self.at(step)} holds step {manifest.step}.")
        if self._run_id is not None and manifest.run_id != self._run_id:
            raise CorruptError(f"{self.at(step)} belongs to another run ({manifest.run_id[:40]!r}).")
        return manifest

    def _write(self, beside: Path, contents: Contents) -> None:
        files = tuple(_write_file(beside / name, pieces) for name, pieces in contents.files())
        made_by = {"headrace": __version__, "torch": torch.__version__}
        run, workers = self._run_id or "", contents.workers
        manifest = Manifest(run, contents.step, workers, files, contents.specs(), made_by).to_bytes()
        _write_file(beside / MANIFEST, iter([manifest]))
        _write_file(beside / COMMIT, iter([hashlib.sha256(manifest).hexdigest().encode() + b"\n"]))
        disk.sync_dir(beside)

    def _set_aside_unusable(self, step: int) -> None:
        """Renames a checkpoint of this step that cannot be used; raises if there is one that can."""
        final = self.at(step)
        if not os.path.lexists(final):
            return
        try:
            self.verify(step)
        except CorruptError:
            if (owner := self._run_of(step)) is not None and owner != self._run_id:
                raise CheckpointError(f"{final} belongs to another run. Move it away.") from None
            disk.rename(final, self.path / f"corrupt-{final.name}-{uuid.uuid4().hex[:8]}")
        else:
            raise CheckpointError(f"{final} is there already and is sound. A checkpoint is never overwritten.")

    def _swap_in(self, beside: Path, final: Path) -> None:
        """Puts a checkpoint in the place of one of the same step, where that is one operation.

        Elsewhere the other one stays: what follows its step is then done once more, and in the same way.
        """
        if disk.exchange(beside, final):
            disk.sync_dir(self.path)
        disk.remove_tree(beside)

    def _delete_old(self, newest: int, best: Sequence[int], overtakes: bool) -> None:
        """Deletes checkpoints of this run beyond those to keep, the oldest first."""
        for step in reversed(self.steps()) if overtakes else ():  # the last one first: it would be gone on from
            if step > newest and self._is_own(step):
                self._delete(step)
        if self._keep.last is None:
            return
        own = [step for step in self.steps() if step <= newest and self._is_own(step)]
        for step in own[: -self._keep.last]:
            if step not in best:
                self._delete(step)

    def _delete(self, step: int) -> None:
        trash = self.path / f".trash-{step}-{uuid.uuid4().hex}"
        disk.rename(self.at(step), trash)
        disk.sync_dir(self.path)
        disk.remove_tree(trash)

    def _is_own(self, step: int) -> bool:
        """Whether a checkpoint is one of this run's."""
        return self._run_of(step) == (self._run_id or "")

    def _run_of(self, step: int) -> str | None:
        """The run that a checkpoint says it belongs to, if its manifest is sound; a link belongs to none."""
        try:
            with opened(self.at(step)) as directory:
                return directory.manifest().run_id
        except CheckpointError:
            return None

    def clean(self) -> None:
        """Removes what saves and removals that were cut short have left; the run's lock keeps others out."""
        for name in os.listdir(self.path):
            if _LEFTOVER.fullmatch(name) and not (self.path / name).is_symlink():
                disk.remove_tree(self.path / name)


def _write_file(path: Path, pieces: Iterator[bytes | memoryview]) -> Written:
    digest, size = hashlib.sha256(), 0
    with disk.File(path, new=True) as file:
        for piece in pieces:
            for start in range(0, len(piece), PIECE_BYTES):
                part = piece[start : start + PIECE_BYTES]
                file.write(part)
                digest.update(part)
            size += len(piece)
        file.sync()
    return Written(path.name, size, digest.hexdigest())
