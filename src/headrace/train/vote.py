"""Lets several workers agree: by the result of worker 0, or by a vote to stop, to leave, or to save."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from .. import errors
from ..errors import HeadraceError, WorkerError
from ..workers.comm import Comm

Result = TypeVar("Result")
VOTE_S = 0.2  # between two votes, about
MOST_STEPS = 1024  # between two votes, at most


@dataclass(frozen=True, slots=True)
class Votes:
    """What at least one worker wants."""

    stop: bool
    leave: bool
    save: bool


class StopVote:
    """Lets all workers agree to stop, to leave or to save: each gives numbers, and all get the largest.

    A vote that begins at one step ends some steps later, so that nobody waits for it; how many follows from the time
    that a step is reported to take, and is the same for all.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._steps = self._left = 1
        self._since = comm.now()
        self._under_way: tuple[Callable[[], object], Tensor] | None = None

    def __call__(self, stop: bool, leave: bool, save: bool, now: bool) -> Votes | None:
        """Adds this worker's requests to the next vote; returns the result of a vote that ends at this step.

        A request is repeated at every call until a vote contains it. With `now`, a vote begins and ends at this step.
        """
        if now:
            self._finish_vote()
            self._begin(stop, leave, save)
            return self._finish_vote()
        self._left -= 1
        if self._left > 0:
            return None
        votes = self._finish_vote()
        if votes is None or not (votes.stop or votes.leave):  # else this was the last one
            saved = votes is not None and votes.save
            self._begin(stop, leave, save and not saved)
        return votes

    def _begin(self, stop: bool, leave: bool, save: bool) -> None:
        now = self._comm.now()
        vector = torch.tensor([stop, leave, save, now - self._since], dtype=torch.float32)
        self._since, self._left = now, self._steps
        self._under_way = self._comm.start(vector, "max"), vector

    def _finish_vote(self) -> Votes | None:
        if self._under_way is None:
            return None
        (wait, vector), self._under_way = self._under_way, None
        wait()
        stop, leave, save, seconds = vector.tolist()
        if seconds < VOTE_S / 2:
            self._steps = min(MOST_STEPS, 2 * self._steps)
        elif seconds > 2 * VOTE_S:
            self._steps = max(1, self._steps // 2)
        return Votes(bool(stop), bool(leave), bool(save))


def by_leader(comm: Comm, act: Callable[[], Result]) -> Result:
    """The result of worker 0, for all; if it fails there, it fails everywhere, and for the same reason."""
    message: Any = None
    failure: BaseException | None = None
    if comm.leader:
        try:
            message = {"result": act()}
        except Exception as error:
            failure, message = error, {"kind": type(error).__name__, "why": str(error)}
    message = comm.share(message)
    if failure is not None:
        raise failure
    if "result" not in message:
        kind = getattr(errors, message["kind"], WorkerError)
        known = isinstance(kind, type) and issubclass(kind, HeadraceError)
        raise (kind if known else WorkerError)(f"worker 0: {message['why']}")
    return message["result"]  # type: ignore[no-any-return]
