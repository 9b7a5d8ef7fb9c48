"""The word that workers exchange between their updates: who wants to stop, to leave, to save."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..workers.comm import Comm, Pending

WORD_S = 0.2  # between two words, about
MOST_STEPS = 1024  # between two words


@dataclass(frozen=True, slots=True)
class Said:
    """What at least one worker wants."""

    stop: bool
    leave: bool
    save: bool


class StopVote:
    """A few numbers of every worker, of which all get the largest.

    A word that begins at one step is heard some steps later, so that nobody waits for it; how many, follows from how
    long the workers say their steps take, and is the same for all.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._steps = self._left = 1
        self._since = comm.now()
        self._under_way: tuple[Pending, Tensor] | None = None

    def __call__(self, stop: bool, leave: bool, save: bool, now: bool) -> Said | None:
        """This worker's part of the next word; what all have said, if a word has come to its end here.

        Whoever wants something says so at every call, until it has been heard.
        """
        if now:
            self._heard()
            self._begin(stop, leave, save)
            return self._heard()
        self._left -= 1
        if self._left > 0:
            return None
        said = self._heard()
        if said is None or not (said.stop or said.leave):  # else this was the last one
            answered = said is not None and said.save
            self._begin(stop, leave, save and not answered)
        return said

    def _begin(self, stop: bool, leave: bool, save: bool) -> None:
        now = self._comm.now()
        vector = torch.tensor([stop, leave, save, now - self._since], dtype=torch.float32)
        self._since, self._left = now, self._steps
        self._under_way = self._comm.start(vector, "max"), vector

    def _heard(self) -> Said | None:
        if self._under_way is None:
            return None
        (pending, vector), self._under_way = self._under_way, None
        pending.wait()
        stop, leave, save, seconds = vector.tolist()
        if seconds < WORD_S / 2:
            self._steps = min(MOST_STEPS, 2 * self._steps)
        elif seconds > 2 * WORD_S:
            self._steps = max(1, self._steps // 2)
        return Said(bool(stop), bool(leave), bool(save))
