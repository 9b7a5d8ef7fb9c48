"""Lets several workers agree to stop, to leave, or to save."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..workers.comm import Comm, Pending

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
        self._under_way: tuple[Pending, Tensor] | None = None

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
        (pending, vector), self._under_way = self._under_way, None
        pending.wait()
        stop, leave, save, seconds = vector.tolist()
        if seconds < VOTE_S / 2:
            self._steps = min(MOST_STEPS, 2 * self._steps)
        elif seconds > 2 * VOTE_S:
            self._steps = max(1, self._steps // 2)
        return Votes(bool(stop), bool(leave), bool(save))
