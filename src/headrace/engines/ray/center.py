"""The center on Ray: an actor that saves its state and may be restarted, and the client of a worker."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from ...data.staging import keep_freed_memory
from ...errors import WorkerError
from ...store import disk
from ...store.checkpoints import Keep, Store
from ...store.codec import Tensors, decode, encode
from ...store.contents import Contents
from ...store.snapshot import Saver
from ...workers.center import Center, NothingYet, Patience, Push, Reply, Rule
from ...workers.center_state import PAUSE_S, CenterState
from ...workers.wire import pack, tensor_of, unpack
from ..worker import ProgramPlace
from .cluster import START_S

EVERY_S = 5.0
"""How often the center's state is saved while workers push."""
PAUSES = 10
"""At least so much longer than a save nothing is saved after it."""
_STATE, _TENSORS = "center.json", "center.safetensors"
_VECTORS = ("vectors", "exact", "origin")


class CenterActor:
    """The actor that holds a center. It may be killed at any moment, and is started again in the same directory.

    What it has applied since its last save is lost then, and the record of the rows that it comes from with it: they
    are leased again, and what workers bring of them from before is not taken. It is saved before any worker learns
    that all rows have been used, that the training is to stop, or that it begins.
    """

    def __init__(self, directory: str, place: ProgramPlace) -> None:
        place.enter()  # strategies have rules of their own
        keep_freed_memory()  # every call makes and frees whole sets of weights
        path = Path(directory)
        self._store, self._saver = Store(path / "states", "center", Keep(2)), Saver()
        self._starts: dict[int, int] = {}
        self._saved, self._number, self._due_s = -1, 0, 0.0
        self._state = CenterState(_count(path), timeout_s=math.inf)  # whoever is lost is given up by the driver
        found = self._store.newest()
        if found is not None:
            state = decode(found.documents[_STATE], found.tensors[_TENSORS])
            self._number, self._saved = found.step, state["held"]["version"]
            self._state.load_state_dict(state["held"])
            self._state.stop, self._state.leader_values = state["stop"], state["leader_values"]
            self._starts = state["starts"]
            for worker in state["inside"]:
                self._state.members.enter(worker, time.monotonic())

    def call(
        self, worker: int, start: int, training: int, rule: Rule | None, name: str, message: "Message"
    ) -> "Message":
        """Serves a call of a worker; a start of it that has been given up is refused."""
        if start < self._starts.get(worker, 0):
            raise WorkerError(f"worker {worker} was given up, and another process has taken its place.")
        if name in ("lease", "exchange", "pull") and training < self._state.training:
            raise WorkerError(
                f"worker {worker} is in training {training}, and the center, which has been lost meanwhile, has begun "
                f"training {self._state.training} without it."
            )
        self._starts[worker] = start
        if self._state.rule is None:
            self._state.rule = rule  # it is not saved: every worker brings it along
        before = self._state.weights
        found = self._state.serve(worker, time.monotonic(), name, *read(message))
        answer = write(found)
        if name in ("ask_to_stop", "leave", "load_state_dict") or self._state.weights is not before:
            self._save(at_once=True)
        elif name == "exchange" or (name == "lease" and found is None):
            self._save_changes(at_once=name == "lease")
        return answer

    def give_up(self, worker: int, start: int) -> None:
        """Frees what a lost worker has leased, and refuses calls of this start of it from now on."""
        if start >= self._starts.get(worker, 0):
            self._starts[worker] = start + 1
            self._state.leave(worker)

    def _save_changes(self, at_once: bool) -> None:
        if self._state.version != self._saved and (at_once or time.monotonic() >= self._due_s):
            self._save(at_once)
        elif at_once:
            self._saver.wait()

    def _save(self, at_once: bool) -> None:
        """Copies the state and writes it: before this call returns, or in the background."""
        if not self._state.weights:
            return
        tensors: Tensors = {}
        state = {
            "held": self._state.state_dict(),
            "stop": self._state.stop,
            "leader_values": self._state.leader_values,
            "inside": list(self._state.members.inside()),
            "starts": dict(self._starts),
        }
        documents = {_STATE: encode(state, tensors, "state")}
        self._saver.wait()  # a save that has failed is told here
        self._number += 1
        contents = Contents(self._number, documents, {_TENSORS: {name: t.clone() for name, t in tensors.items()}})
        self._due_s = math.inf  # until this one is done
        self._saver.start(lambda: self._write(contents))
        if at_once:
            self._saver.wait()
        self._saved = self._state.version

    def _write(self, contents: Contents) -> None:
        begun_s = time.monotonic()
        try:
            self._store.save(contents)
        finally:
            now_s = time.monotonic()
            self._due_s = now_s + max(EVERY_S, PAUSES * (now_s - begun_s))


class RayCenter(Center):
    """The client of the center in one start of a worker.

    A call may be lost on its way there, or its answer on the way back, with the center itself: it is made again, for
    as long as others wait for a worker. What is done twice is done once, because the center knows it by its number.
    """

    def __init__(self, actor: Any, worker: int, start: int, timeout_s: float) -> None:
        super().__init__(worker)
        self._actor, self._life, self._timeout_s = actor, start, timeout_s
        self._rule: Rule | None = None
        self._patience = Patience(worker, patience_s(timeout_s))
        keep_freed_memory()

    def call(self, name: str, *given: Any) -> Any:
        if name == "join":
            self._rule = None
        message, end = write(given), time.monotonic() + self._timeout_s
        while True:
            call = self._actor.call.remote(self.worker, self._life, self._trainings, self._rule, name, message)
            try:
                found = read(ray.get(call, timeout=max(0.0, end - time.monotonic())))
                break
            except RayTaskError as error:
                raise error.cause from None
            except RayActorError as error:
                if not error.actor_init_failed and time.monotonic() < end:
                    time.sleep(PAUSE_S)
                    continue
                gone = f"is gone, and does not begin again ({str(error).strip().splitlines()[-1].strip()})"
            except GetTimeoutError:
                gone = "does not answer"
            raise WorkerError(f"the center {gone}: worker {self.worker} has tried for {self._timeout_s:g} s.")
        if name == "join" and not isinstance(found, NothingYet):
            self._rule = given[0]
        return found

    def wait(self, why: NothingYet) -> None:
        self._patience.check(why)
        time.sleep(PAUSE_S)


def patience_s(timeout_s: float) -> float:
    """How long a worker waits for others: who is silent for `timeout_s` is first replaced, by one that has to start."""
    return 2 * timeout_s + START_S


Message = tuple[Any, Any]
"""Plain objects, as Ray sends them, and the tensors that were in them as one piece of bytes, which is not copied on its
way between processes of a machine."""


def write(value: Any) -> Message:
    """Packs the arguments of a call, or its answer."""
    if isinstance(value, tuple):
        plain, vectors = zip(*map(_apart, value), strict=True) if value else ((), ())
    else:
        plain, vectors = _apart(value)
    return plain, pack(vectors).numpy()


def read(message: Message) -> Any:
    plain, array = message
    vectors = unpack(tensor_of(array))
    return tuple(map(_whole, plain, vectors)) if isinstance(plain, tuple) else _whole(plain, vectors)


def _apart(value: Any) -> tuple[Any, Any]:
    """An argument without its tensors, and these."""
    if isinstance(value, Mapping):
        return None, dict(value)
    if isinstance(value, Push):
        return replace(value, vectors={}, exact={}, origin={}), {name: dict(getattr(value, name)) for name in _VECTORS}
    if isinstance(value, Reply):
        return replace(value, vectors={}), {"vectors": dict(value.vectors)}
    return value, None


def _whole(plain: Any, vectors: Any) -> Any:
    if vectors is None:
        return plain
    return vectors if plain is None else replace(plain, **vectors)


def _count(path: Path) -> int:
    """How many centers there have been in a directory; one more from now on."""
    disk.make_dirs(path)
    count = int(disk.read_file(path / "starts", 20)) if (path / "starts").exists() else 0
    disk.write_file(path / "starts", str(count + 1).encode())
    return count
