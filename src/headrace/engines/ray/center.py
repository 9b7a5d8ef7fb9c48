"""The center as an actor, whose state outlives it, and as a worker sees it."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
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
from ...workers.center import Lease, Patience, Push, Reply, Rule, Terms, Vectors, Wait
from ...workers.center_state import PAUSE_S, CenterState
from ...workers.wire import pack, unpack
from .cluster import START_S
from .flat import Message, read, tensor_of, write
from .parcel import Place

EVERY_S = 5.0
"""How often the center's state is saved while workers push."""
PAUSES = 10
"""At least so much longer than a save nothing is saved after it."""
_STATE, _TENSORS = "center.json", "center.safetensors"


class Kept:
    """A center in a process of its own, which may be killed at any moment and begins again in the same directory.

    What it has applied since its last save is lost then, and the record of the rows that it comes from with it: they
    are leased again, and what workers bring of them from before is not taken. It is saved before anybody hears that
    all rows have been used, that the training is to stop, or that it begins.
    """

    def __init__(self, directory: str, place: Place) -> None:
        place.enter()  # strategies have rules of their own
        keep_freed_memory()  # every call makes and frees whole sets of weights
        path = Path(directory)
        self._store, self._saver = Store(path / "states", "center", Keep(2)), Saver()
        self._lives: dict[int, int] = {}
        self._saved, self._number, self._due_s = -1, 0, 0.0
        self._held = CenterState(_count(path), timeout_s=math.inf)  # whoever is lost is given up by the driver
        found = self._store.newest()
        if found is not None:
            state = decode(found.documents[_STATE], found.tensors[_TENSORS])
            self._number, self._saved = found.step, state["held"]["version"]
            self._held.load_state_dict(state["held"])
            self._held.stop, self._held.said, self._lives = state["stop"], state["said"], state["lives"]
            for worker in state["inside"]:
                self._held.enter(worker, _now())

    def call(self, worker: int, life: int, training: int, rule: Rule | None, name: str, *said: Any) -> Any:
        """What a worker says; a life of it that has been given up says nothing any more."""
        if life < self._lives.get(worker, 0):
            raise WorkerError(f"worker {worker} was given up, and another process has taken its place.")
        if name in ("lease", "meet", "pull") and training < self._held.training:
            raise WorkerError(
                f"worker {worker} is in training {training}, and the center, which has been lost meanwhile, has begun "
                f"training {self._held.training} without it."
            )
        self._lives[worker] = life
        if self._held.rule is None:
            self._held.rule = rule  # it is not saved: every worker brings it along
        return getattr(self, f"_{name}")(worker, *said)

    def give_up(self, worker: int, life: int) -> None:
        """A worker is lost: what it has leased is free, and this life of it is over."""
        if life >= self._lives.get(worker, 0):
            self._lives[worker] = life + 1
            self._held.leave(worker)

    def _join(self, worker: int, message: Any, rule: Rule) -> Any:
        brought, before = unpack(tensor_of(message)), self._held.weights
        terms = Terms(**brought.pop("terms"))
        reply = self._held.join(worker, _now(), rule, terms, **brought)
        if self._held.weights is not before:  # a training begins
            self._save(at_once=True)
        return _sent(reply) if isinstance(reply, Reply) else reply

    def _lease(self, worker: int, number: int) -> Lease | Wait | None:
        found = self._held.lease(worker, _now(), number)
        if found is None:
            self._save_changes(at_once=True)
        return found

    def _meet(self, worker: int, message: Any) -> Any:
        reply = _sent(self._held.meet(worker, _now(), _received_push(message)))
        self._save_changes(at_once=False)
        return reply

    def _pull(self, worker: int) -> Any:
        return _sent(self._held.pull(worker, _now()))

    def _ask_to_stop(self, worker: int, why: str) -> None:
        self._held.ask_to_stop(why)
        self._save(at_once=True)

    def _leave(self, worker: int) -> None:
        self._held.leave(worker)
        self._save(at_once=True)

    def _status(self, worker: int) -> dict[str, Any]:
        return self._held.status(_now())

    def _state_dict(self, worker: int) -> Any:
        return pack(self._held.state_dict()).numpy()

    def _load_state_dict(self, worker: int, message: Any) -> None:
        self._held.load_state_dict(unpack(tensor_of(message)))
        self._save(at_once=True)

    def _save_changes(self, at_once: bool) -> None:
        if self._held.version != self._saved and (at_once or time.monotonic() >= self._due_s):
            self._save(at_once)
        elif at_once:
            self._saver.wait()

    def _save(self, at_once: bool) -> None:
        """Takes the state as it is now, and writes it: before anything else is heard, or meanwhile."""
        if not self._held.weights:
            return
        tensors: Tensors = {}
        held = self._held
        state = {
            "held": held.state_dict(),
            "stop": held.stop,
            "said": held.said,
            "inside": list(held.inside),
            "lives": dict(self._lives),
        }
        documents = {_STATE: encode(state, tensors, "state")}
        self._saver.wait()  # a save that has failed is told here
        self._number += 1
        contents = Contents(self._number, documents, {_TENSORS: {name: t.clone() for name, t in tensors.items()}})
        self._due_s = math.inf  # until this one is done
        self._saver.start(lambda: self._write(contents))
        if at_once:
            self._saver.wait()
        self._saved = self._held.version

    def _write(self, contents: Contents) -> None:
        begun_s = time.monotonic()
        try:
            self._store.save(contents)
        finally:
            now_s = time.monotonic()
            self._due_s = now_s + max(EVERY_S, PAUSES * (now_s - begun_s))


class RayCenter:
    """The center, as one life of a worker sees it.

    A call may be lost on its way there, or its answer on the way back, with the center itself: it is made again, for
    as long as others wait for a worker. What is done twice is done once, because the center knows it by its number.
    """

    def __init__(self, actor: Any, worker: int, life: int, timeout_s: float) -> None:
        self._actor, self._worker, self._life, self._timeout_s = actor, worker, life, timeout_s
        self._rule: Rule | None = None
        # the driver first replaces whoever is silent for timeout_s, which takes as long as starting a worker
        self._patience = Patience(worker, 2 * timeout_s + START_S)
        self._requests = self._trainings = 0
        keep_freed_memory()

    def join(
        self,
        rule: Rule,
        terms: Terms,
        weights: Vectors,
        state: Mapping[str, Any] | None = None,
        said: Mapping[str, Any] | None = None,
    ) -> Reply | None:
        brought = {
            "terms": asdict(terms),
            "weights": dict(weights),
            "state": state and dict(state),
            "said": said and dict(said),
            "training": self._trainings + 1,
        }
        message, self._rule = pack(brought).numpy(), None
        while isinstance(reply := self._call("join", message, rule), Wait):
            self.wait(reply)
        self._rule, self._trainings = rule, self._trainings + 1
        return reply and _received(reply)

    def lease(self) -> Lease | Wait | None:
        self._requests += 1
        found: Lease | Wait | None = self._call("lease", self._requests)
        return found

    def meet(self, push: Push) -> Reply:
        return _received(self._call("meet", _sent_push(push)))

    def pull(self) -> Reply:
        return _received(self._call("pull"))

    def ask_to_stop(self, why: str) -> None:
        self._call("ask_to_stop", why)

    def wait(self, why: Wait) -> None:
        self._patience.check(why)
        time.sleep(PAUSE_S)

    def leave(self) -> None:
        self._call("leave")

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call("status")
        return found

    def state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = unpack(tensor_of(self._call("state_dict")))
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._call("load_state_dict", pack(dict(state)).numpy())

    def _call(self, name: str, *said: Any) -> Any:
        end = time.monotonic() + self._timeout_s
        while True:
            call = self._actor.call.remote(self._worker, self._life, self._trainings, self._rule, name, *said)
            try:
                return ray.get(call, timeout=max(0.0, end - time.monotonic()))
            except RayTaskError as error:
                raise error.cause from None
            except RayActorError as error:
                if not error.actor_init_failed and time.monotonic() < end:
                    time.sleep(PAUSE_S)
                    continue
                gone = f"is gone, and does not begin again ({str(error).strip().splitlines()[-1].strip()})"
            except GetTimeoutError:
                gone = "does not answer"
            raise WorkerError(f"the center {gone}: worker {self._worker} has tried for {self._timeout_s:g} s.")


def _sent_push(push: Push) -> tuple[Push, Message, Message, Message]:
    exact = {
        f"{kind}/{name}": pair[k] for k, kind in enumerate(("places", "values")) for name, pair in push.exact.items()
    }
    numbers = replace(push, vectors={}, exact={}, origin={})
    return numbers, write(push.vectors), write(push.origin), write(exact)


def _received_push(said: tuple[Push, Message, Message, Message]) -> Push:
    numbers, vectors, origin, exact = said
    found = read(exact)
    pairs = {name[7:]: (found[name], found[f"values/{name[7:]}"]) for name in found if name.startswith("places/")}
    return replace(numbers, vectors=read(vectors), origin=read(origin), exact=pairs)


def _sent(reply: Reply) -> tuple[Reply, Message]:
    return replace(reply, vectors={}), write(reply.vectors)


def _received(said: tuple[Reply, Message]) -> Reply:
    numbers, vectors = said
    return replace(numbers, vectors=read(vectors))


def _now() -> float:
    return time.monotonic()


def _count(path: Path) -> int:
    """How many centers there have been in a directory; one more from now on."""
    disk.make_dirs(path)
    count = int(disk.read_file(path / "lives", 20)) if (path / "lives").exists() else 0
    disk.write_file(path / "lives", str(count + 1).encode())
    return count
