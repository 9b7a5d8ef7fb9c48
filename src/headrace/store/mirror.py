"""A run in an object store: a folder on this machine in which it is used, and a thread that uploads what changes."""

import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..errors import RunError
from . import disk
from .cache import State, folder_of, make_room
from .claim import RENEW_S, Claim, last_claim, token_of
from .contents import COMMIT, MODEL
from .document import parse_document
from .packed import download, is_here, places_in, sha256_in, upload
from .place import Place
from .remote import PATIENCE_S, Object, Remote
from .run import BEST, CHECKPOINTS, LOCK, METRICS, RUN, lock_run

OVERVIEW = "overview.json"  # what a list of runs shows of a run, so that it takes one request
REPORT_S = 10.0  # between two uploads of reports, at least
FIRST_PATIENCE_S = 60.0  # that a store is tried for before a training begins, and after it has ended
SERIALS = 1_000_000  # checkpoints of one claim have numbers that those of another cannot have
_BUSY = ".mirror.lock"
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_NOT_OF_THE_RUN = ("claim/", OVERVIEW)


def fetched(url: str) -> Path:
    """The folder of a run, made equal to the store; as it is while a training on this machine is at work in it."""
    folder = folder_of(url)
    remote = Remote(url, FIRST_PATIENCE_S)
    objects = remote.objects()
    if RUN not in objects:
        raise RunError(f"there is no run at {url}: it has no {RUN}. Name what was given to fit(run=...).")
    make_room(folder)
    disk.make_dirs(folder)
    with FileLock(folder / _BUSY):
        try:
            lock_run(folder / LOCK).release()
        except RunError:
            return folder
        state = State.of(folder)
        if state.uploaded or state.holds is None or token_of(last_claim(remote, objects)[1]) != state.holds:
            _make_equal(remote, folder, objects, state)
            state.write(folder)
    return folder


def send(url: str, file: Path) -> None:
    """Uploads a file that has been written into the folder of a run."""
    Remote(url, FIRST_PATIENCE_S).upload(file, file.relative_to(folder_of(url)).as_posix())


def overviews(url: str) -> dict[str, dict[str, Any]]:
    """What a list shows of each run below a URL: a request for each, and one for each thousand names."""
    remote = Remote(url, FIRST_PATIENCE_S)
    found = remote.read_many(f"{name}/{OVERVIEW}" for name in remote.folders())
    shown = {name.removesuffix(f"/{OVERVIEW}"): parse_document(text) for name, text in sorted(found.items())}
    return {name: facts for name, facts in shown.items() if isinstance(facts, dict)}


class Mirror:
    """A run of an object store in which a training is at work.

    Its folder is used as that of any run. After a checkpoint is complete there, `upload` writes it to the store: large
    files, the reports that it has seen, the zip with COMMIT last; then it removes older ones. A thread uploads reports
    and renews the claim on the run.
    """

    def __init__(self, url: str, overview: Callable[[Path], dict[str, Any]]) -> None:
        self.url, self.folder, self._overview, self._shown = url, folder_of(url), overview, b""
        make_room(self.folder)
        disk.make_dirs(self.folder)
        with FileLock(self.folder / _BUSY):
            lock_run(self.folder / LOCK).release()  # raises if a trainer on this machine has it
            self._state = State.of(self.folder)
            self._remote = Remote(url, FIRST_PATIENCE_S)
            self._claim = self._make_claim()
            self._begin()
        self._remote.patience_s = PATIENCE_S
        self._background = Remote(url, RENEW_S)
        self._lost: RunError | None = None
        self._reported, self._ends = threading.Event(), threading.Event()
        self._uploading = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="headrace-mirror", daemon=True)
        self._thread.start()

    @property
    def first_serial(self) -> int:
        """The lowest number of a checkpoint of this training."""
        return self._claim.number * SERIALS + 1

    def reported(self) -> None:
        """There is a report to upload."""
        self._reported.set()

    def upload(self) -> None:
        """Makes the checkpoints of the store those of the folder; raises if that cannot be done."""
        if self._lost is not None:
            raise self._lost
        local = [place.name for place in _complete(self.folder)]
        try:
            for name in local:
                if name not in self._places:
                    self._upload_checkpoint(name)
            self._remove([name for name in self._places if name not in local])
        except (RunError, FileNotFoundError) as error:
            raise RunError(
                f"{error}\nThe last checkpoint is in {self.folder} on this machine, and the training can go on there: "
                f"run it again with run={self.url!r}, and what is missing in the store is uploaded first."
            ) from error

    def abandon(self) -> None:
        """Nothing was trained, and another trainer may come."""
        self._end_thread()
        with suppress(RunError):
            self._claim.release()

    def _end_thread(self) -> None:
        self._ends.set()
        self._reported.set()
        self._thread.join()
        self._remote.patience_s = FIRST_PATIENCE_S

    def close(self, error: BaseException | None) -> None:
        """Uploads what is left, and lets another trainer in; what fails is raised unless there is another `error`."""
        try:
            self._finish()
        except RunError as failure:
            if error is None or isinstance(error, GeneratorExit | SystemExit | KeyboardInterrupt):
                raise
            error.add_note(f"And the run could not be uploaded: {failure}")

    def _finish(self) -> None:
        self._end_thread()
        self.upload()
        self._upload_reports(self._remote)
        self._claim.release()
        reports, objects = _reports(self.folder), self._remote.objects()
        self._state.versions = {name: objects[name].version for name in reports if name in objects}
        self._state.uploaded = True
        self._state.write(self.folder)

    def _make_claim(self) -> Claim:
        """Claims the run; the folder knows of it before, so that a trainer that is killed can begin again at once."""
        token = uuid.uuid4().hex
        self._state.claimed = [*self._state.claimed[-9:], token]
        self._state.write(self.folder)
        return Claim.make(self._remote, token, self._state.claimed)

    def _begin(self) -> None:
        """Makes folder and store equal: what is only in the folder counts if nobody has trained elsewhere since."""
        objects = self._remote.objects()
        self._sent: dict[str, tuple[int, int]] = {}
        if self._state.holds is None or self._claim.before != self._state.holds:
            objects = _make_equal(self._remote, self.folder, objects, self._state)
            self._sent = {name: _facts(file) for name, file in _reports(self.folder).items()}
        self._state.holds, self._state.uploaded = self._claim.token, False
        self._state.write(self.folder)
        places = places_in(objects)
        self._places = {place: names for place, names in places.items() if sha256_in(place, names) is not None}
        self._remote.remove(_at(place, name) for place in places.keys() - self._places for name in places[place])

    def _upload_checkpoint(self, name: str) -> None:
        def before_commit() -> None:
            for report in (RUN, METRICS):  # without which it could not be used
                self._send(self._remote, report)
            self._claim.check()

        self._places[name] = upload(self._remote, self.folder / CHECKPOINTS / name, before_commit)
        try:
            self._claim.check()
        except RunError:  # while this trainer was asleep, another one may have removed what had no zip yet
            written = {_at(name, each) for each in self._places[name]}
            if not written <= self._remote.objects(f"{CHECKPOINTS}/{name}").keys():
                self._remote.remove(written)
            raise

    def _remove(self, places: list[str]) -> None:
        """Removes checkpoints from the store: first what makes them valid, then the rest."""
        gone = [(place, name) for place in places for name in self._places.pop(place)]
        for is_commit in (True, False):
            self._remote.remove(_at(place, name) for place, name in gone if name.startswith(COMMIT) == is_commit)

    def _run(self) -> None:
        """In the thread: uploads reports, and says that the trainer is alive."""
        renewed = time.monotonic()
        while not self._ends.is_set():
            self._reported.wait(RENEW_S)
            with suppress(RunError, OSError):  # the store is away: the next round tries it again, and so does a save
                if self._places and self._reported.is_set() and not self._ends.is_set():
                    self._reported.clear()
                    self._upload_reports(self._background)
            if time.monotonic() - renewed >= RENEW_S:
                renewed = time.monotonic()
                self._renew()
            self._ends.wait(min(REPORT_S, RENEW_S))

    def _renew(self) -> None:
        try:
            self._claim.renew(self._background)
        except RunError as error:
            if error.__cause__ is None:  # it is no answer that failed
                self._lost = error
                self._ends.set()

    def _upload_reports(self, remote: Remote) -> None:
        for name in _reports(self.folder):
            self._send(remote, name)
        if (shown := json.dumps(self._overview(self.folder)).encode()) != self._shown:
            remote.write(OVERVIEW, shown)
            self._shown = shown

    def _send(self, remote: Remote, name: str) -> None:
        """Uploads a file if it has changed since it was uploaded."""
        file = self.folder / name
        with self._uploading, suppress(FileNotFoundError):
            now = _facts(file)
            if self._sent.get(name) == now:
                return
            if (source := self._same_file(name, file.stat().st_ino)) is None:
                remote.upload(file, name)
            else:
                remote.copy(source, name)
            self._sent[name] = now

    def _same_file(self, name: str, inode: int) -> str | None:
        """The object that a file is, too: the best weights are those of a checkpoint."""
        for place, names in self._places.items() if name == f"{BEST}/{MODEL}" else ():
            model = self.folder / CHECKPOINTS / place / MODEL
            if MODEL in names and model.is_file() and model.stat().st_ino == inode:
                return _at(place, MODEL)
        return None


# --- equal to the store ---------------------------------------------------------------------------------------


def _make_equal(remote: Remote, folder: Path, objects: dict[str, Object], state: State) -> dict[str, Object]:
    """Makes a folder equal to the store, and again if a trainer has removed something meanwhile; the last list."""
    while True:
        try:
            _download(remote, folder, objects, state)
            return objects
        except FileNotFoundError as error:
            before, objects = objects, remote.objects()
            if objects == before:
                raise RunError(f"{remote.url} lists an object that cannot be read: {error}") from error


def _download(remote: Remote, folder: Path, objects: dict[str, Object], state: State) -> None:
    """Objects that are in the folder already are not read again."""
    wanted = {name: facts for name, facts in objects.items() if _is_safe(name) and not name.startswith(_NOT_OF_THE_RUN)}
    hashes = {place: sha256_in(place, names) for place, names in places_in(wanted).items()}
    for path in list((folder / CHECKPOINTS).glob("*")):
        if not is_here(path, hashes.get(path.name)):
            disk.remove_tree(path) if path.is_dir() else disk.unlink(path)
    for place, sha256 in sorted(hashes.items()):
        if sha256 is not None and not (path := folder / CHECKPOINTS / place).exists():
            download(remote, path, wanted, sha256)
    reports = {name: facts for name, facts in wanted.items() if not name.startswith(f"{CHECKPOINTS}/")}
    for name, file in _reports(folder).items():
        if name not in reports:
            disk.unlink(file)
    for name, facts in reports.items():
        if state.versions.get(name) != facts.version or not (folder / name).is_file():
            disk.make_dirs((folder / name).parent)
            beside = (folder / name).with_name(f".{(folder / name).name}.new")
            remote.download(name, beside, None)
            disk.publish(beside, folder / name)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not os.listdir(path):
            disk.remove_dir(path)
    state.versions = {name: facts.version for name, facts in reports.items()}
    state.holds, state.uploaded = None, True


def _at(place: str, name: str) -> str:
    """The object that a file of a checkpoint is."""
    return f"{CHECKPOINTS}/{place}/{name}"


def _complete(folder: Path) -> list[Place]:
    found = [place for path in (folder / CHECKPOINTS).glob("*") if (place := Place.of(path.name)) is not None]
    return sorted(place for place in found if (folder / CHECKPOINTS / place.name / COMMIT).is_file())


def _reports(folder: Path) -> dict[str, Path]:
    """The files of a run beside its checkpoints, by their names in the store."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if not hidden and parts[0] not in (CHECKPOINTS, LOCK) and path.is_file() and not path.is_symlink():
            found["/".join(parts)] = path
    return found


def _facts(file: Path) -> tuple[int, int]:
    """What changes when a file does."""
    facts = file.stat()
    return facts.st_size, facts.st_mtime_ns


def _is_safe(name: str) -> bool:
    """Whether an object may become a file of this name: nothing leaves the folder, and nothing is hidden."""
    return len(name) < 500 and all(map(_SAFE.fullmatch, name.split("/")))
