"""The checkpoints of one run, in one directory: written in place, valid once COMMIT is there, verified before use."""

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path

import torch

from .. import __version__
from ..errors import CheckpointError, ConfigError, CorruptError
from . import disk
from .contents import COMMIT, FORMAT, MANIFEST, NAME, Contents, Manifest, Written, opened, write_file, write_files
from .place import Place
from .shards import WHOLE, RowPart

_OF_EARLIER_VERSIONS = re.compile(r"step-\d{12,18}")


def checked_keep(keep: int | str) -> int | None:
    """How many checkpoints stay: the last so many, or `None` for all."""
    if keep == "all":
        return None
    if not isinstance(keep, Integral) or isinstance(keep, bool) or keep < 1:
        raise ConfigError(f"keep= is a number of checkpoints, at least 1, or 'all'; got {keep!r}.", argument="keep")
    return int(keep)


class Store:
    """Saves, lists, verifies and loads the checkpoints of a run.

    A checkpoint is a directory. Its files are written first, then the manifest, which lists them with their hashes,
    then COMMIT, which vouches for the manifest. A directory without COMMIT is no checkpoint, and is removed before the
    next save. The one that was saved last is the newest. Several of the same step may be there: the last one counts.

    `save` returns when a checkpoint is certain to be on the disk; `load` returns nothing that is not verified.
    The last `keep` checkpoints stay (`None`: all), besides those that `save` is told to keep. Checkpoints of other
    runs, and files of other people, are never touched. `run_id=None` reads those of any run.
    """

    def __init__(self, path: Path, run_id: str | None, keep: int | None = None, *, first_serial: int = 1) -> None:
        self.path, self._run_id, self._keep = path, run_id, keep
        self._first_serial = first_serial
        self._anchored = False  # whether the directory is certain to be on the disk

    # --- reading ----------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """The steps of the checkpoints that are here, in order."""
        return sorted({place.step for place in self.places()})

    def places(self) -> list[Place]:
        """The checkpoints that are here, in the order in which they were saved."""
        found = [place for name in self._names() if (place := Place.of(name)) is not None]
        complete = [place for place in found if os.path.lexists(self.path / place.name / COMMIT)]
        if not complete:
            self._refuse_earlier_versions()
        return sorted(complete)

    def last_of_steps(self) -> list[Place]:
        """The checkpoint that counts of each step, in the order of steps."""
        return [place for _, place in sorted({place.step: place for place in self.places()}.items())]

    def at(self, step: int) -> Path:
        """The directory of the checkpoint of a step."""
        places = [place for place in self.places() if place.step == step]
        if not places:
            raise CorruptError(f"{self.path} has no checkpoint of step {step}.")
        return self.path / places[-1].name

    def load(self, step: int, wanted: Callable[[str], bool] = lambda name: True, part: RowPart = WHOLE) -> Contents:
        """One checkpoint; raises unless all of it that is wanted is as it was written. `part` of what is sharded."""
        return self._read(self.at(step), step, wanted, part)

    def newest(self, wanted: Callable[[str], bool] = lambda name: True) -> Contents | None:
        """The last checkpoint that is as it was written; `None` only where there is none at all."""
        reasons = []
        places = self.places()
        for place in reversed(places):
            try:
                found = self._read(self.path / place.name, place.step, wanted)
            except CorruptError as error:
                reasons.append(str(error))
                continue
            for reason in reasons:
                warnings.warn(f"{reason} Its bytes are kept; going on from {place.name}.", stacklevel=2)
            return found
        if reasons and self.places() != places:  # their writer has removed some meanwhile
            return self.newest(wanted)
        if reasons:
            listed = "\n  ".join(reasons)
            raise CheckpointError(
                f"none of the checkpoints in {self.path} can be used:\n  {listed}\n"
                "Restore one from a copy, or start again in another directory."
            )
        return None

    def manifest(self, step: int) -> Manifest:
        """The manifest of a checkpoint; the files that it lists are not read."""
        with opened(path := self.at(step)) as directory:
            return self._own(directory.manifest(), path, step)

    def verify(self, step: int) -> Manifest:
        """Raises unless every byte of a checkpoint is as it was written."""
        return self._verify(self.at(step), step)

    def problems(self) -> dict[Place, str]:
        """What is wrong with the checkpoint of each step, in order; "" where nothing is.

        Whoever is at work in the run may remove some meanwhile: those are not in it.
        """
        found = {}
        for place in self.last_of_steps():
            path = self.path / place.name
            try:
                self._verify(path, place.step)
                found[place] = ""
            except CheckpointError as error:
                if os.path.lexists(path / COMMIT):
                    found[place] = str(error)
        return found

    def _verify(self, path: Path, step: int) -> Manifest:
        with opened(path) as directory:
            manifest = self._own(directory.manifest(), path, step)
            directory.verify(manifest)
        return manifest

    def _read(self, path: Path, step: int, wanted: Callable[[str], bool], part: RowPart = WHOLE) -> Contents:
        with opened(path) as directory:
            return directory.contents(self._own(directory.manifest(), path, step), wanted, part)

    def _own(self, manifest: Manifest, path: Path, step: int) -> Manifest:
        if manifest.step != step:
            raise CorruptError(f"{path} holds step {manifest.step}.")
        if self._run_id is not None and manifest.run_id != self._run_id:
            raise CorruptError(f"{path} belongs to another run ({manifest.run_id[:40]!r}).")
        return manifest

    def _names(self) -> list[str]:
        with disk.failing(f"looking for checkpoints in {self.path}", self.path):
            try:
                return os.listdir(self.path)
            except FileNotFoundError:
                return []

    def _refuse_earlier_versions(self) -> None:
        for name in self._names():
            if _OF_EARLIER_VERSIONS.fullmatch(name) and (self.path / name / MANIFEST).is_file():
                raise CheckpointError(
                    f"{self.path / name} was written by an earlier headrace, in a format before {FORMAT}, which this "
                    "version does not read: use that version, or train again in another directory."
                )

    # --- writing ----------------------------------------------------------------------------------------------

    def save(
        self, contents: Contents, best: Sequence[int] = (), *, again: bool = False, overtakes: bool = False
    ) -> Path:
        """Writes a checkpoint, then deletes old ones: see `commit`."""
        with disk.failing(f"saving step {contents.step} in {self.path}", self.path, contents.nbytes):
            directory = self.begin(contents.step)
            written = write_files(directory, contents)
            self.commit(directory, written, contents.workers, best, again=again, overtakes=overtakes)
        return directory

    def begin(self, step: int) -> Path:
        """Makes the directory of a new checkpoint. Any worker that sees it may write files there: `write_files`."""
        if not self._anchored:
            disk.make_dirs(self.path)
        self._anchored = True
        self.clean()
        serial = max((place.serial for name in self._names() if (place := Place.of(name)) is not None), default=0)
        directory = self.path / Place(max(serial + 1, self._first_serial), step).name
        disk.make_dir(directory)
        return directory

    def commit(
        self,
        directory: Path,
        written: Sequence[Written],
        workers: int,
        best: Sequence[int] = (),
        *,
        again: bool = False,
        overtakes: bool = False,
    ) -> None:
        """Makes a checkpoint of the files that all workers have written, then deletes old ones. Those in `best` stay.

        `again`: it replaces another checkpoint of its step. `overtakes`: the training was started again from an earlier
        step, and later checkpoints are deleted too.
        """
        place = Place.of(directory.name)
        assert place is not None
        made_by = {"headrace": __version__, "torch": torch.__version__}
        manifest = Manifest(self._run_id or "", place.step, workers, tuple(written), made_by).to_bytes()
        write_file(directory / MANIFEST, lambda: iter([manifest]))
        disk.sync_dir(directory)
        disk.sync_dir(self.path)
        disk.write_file(directory / COMMIT, hashlib.sha256(manifest).hexdigest().encode() + b"\n")
        self._delete_old(place, best, again, overtakes)

    def clean(self) -> None:
        """Removes what saves that were cut short have left, and old files in it; the run's lock keeps others out."""
        for name in self._names():
            path = self.path / name
            if Place.of(name) is not None and not path.is_symlink() and path.is_dir():
                inside = list(os.scandir(path))
                if not os.path.lexists(path / COMMIT) and all(map(_may_be_ours, inside)):
                    disk.remove_tree(path)

    def _delete_old(self, new: Place, best: Sequence[int], again: bool, overtakes: bool) -> None:
        """Deletes checkpoints of this run beyond those to keep, the oldest first."""
        own = [place for place in self.places() if place.serial < new.serial and self._is_own(place)]
        outdated = [
            place for place in own if (again and place.step == new.step) or (overtakes and place.step > new.step)
        ]
        own = [place for place in [*own, new] if place not in outdated]
        if self._keep is not None:
            outdated += [place for place in own[: -self._keep] if place.step not in best]
        for place in outdated:
            disk.unlink(self.path / place.name / COMMIT)  # from here on it is none
            disk.sync_dir(self.path / place.name)
            disk.remove_tree(self.path / place.name)

    def _is_own(self, place: Place) -> bool:
        """Whether a checkpoint is one of this run's; a link is not, nor is one whose manifest is damaged."""
        try:
            with opened(self.path / place.name) as directory:
                return directory.manifest().run_id == (self._run_id or "")
        except CheckpointError:
            return False


def _may_be_ours(file: os.DirEntry[str]) -> bool:
    """Whether an unfinished save may have left this file."""
    is_data = NAME.fullmatch(file.name) is not None and file.name.endswith((".json", ".safetensors"))
    return file.is_file(follow_symlinks=False) and (is_data or file.name == f".{COMMIT}.new")
