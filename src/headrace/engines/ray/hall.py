"""Where workers hear of each other that are started again one by one: an actor that remembers what was said.

What the workers call together, in the same order, are rounds, by number. A worker that begins anew goes through the
rounds of the others once more, and hears what they have heard.

This module is sent to the actor's process as it is, which imports nothing of what training needs.
"""

import asyncio
import time
from typing import Any

Heart = tuple[int, float, int, str]
"""Of a worker: which life of it, for how many seconds nothing was heard, its step, and what it was doing."""


class Round:
    """What every worker has given, and what is due to each."""

    def __init__(self, kind: str, first: int) -> None:
        self.kind, self.first = kind, first
        self.given: dict[int, Any] = {}
        self.news = asyncio.Event()

    def due(self, worker: int, workers: int) -> tuple[bool, Any]:
        """Whether there is something for a worker, and what."""
        if self.kind == "share":
            return 0 in self.given, self.given.get(0)
        if self.kind == "hand_out":
            return 0 in self.given, self.given.get(0, [None] * workers)[worker]
        if self.kind == "gather" and worker > 0:
            return True, None
        return len(self.given) == workers, [self.given.get(k) for k in range(workers)]


class Hall:
    """Rounds, and hearts: when each worker was heard of last, and where it was then."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._rounds: dict[int, Round] = {}
        self._hearts: dict[int, Heart] = {}

    async def meet(self, number: int, kind: str, worker: int, message: Any) -> Any:
        """What is due to a worker in a round, once it is there; an exception if workers do different things."""
        found = self._rounds.setdefault(number, Round(kind, worker))
        if found.kind != kind:
            raise RuntimeError(
                f"workers do different things: worker {found.first} {found.kind}, worker {worker} {kind}."
            )
        found.given.setdefault(worker, message)
        found.news.set()
        found.news = asyncio.Event()
        while not (due := found.due(worker, self._workers))[0]:
            await found.news.wait()
        return due[1]

    async def beat(self, worker: int, life: int, step: int, doing: str) -> None:
        """A worker lives, and stands there; what comes late from an earlier life of it is nothing."""
        if life >= self._hearts.get(worker, (0,))[0]:
            self._hearts[worker] = life, time.monotonic(), step, doing

    async def hearts(self) -> dict[int, Heart]:
        """Of each worker that has been heard of."""
        now = time.monotonic()
        hearts = self._hearts.items()
        return {worker: (life, now - heard, step, doing) for worker, (life, heard, step, doing) in hearts}
