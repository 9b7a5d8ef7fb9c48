"""The roll of a center: which workers are in its training, what each has said last, and what came of it all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .center import Lease, Push


@dataclass(slots=True)
class Member:
    """What the center knows of a worker."""

    sequence: int = 0
    """Its last push that has been judged: one that comes again is not applied again."""
    taken: bool = True
    """Whether that one was applied."""
    pushes: int = 0
    rows: int = 0
    """Rows that the center has learnt from it."""
    heard: float = 0.0
    """When it has been heard of, in seconds."""
    inside: bool = False
    ended: bool = False
    """Whether its training is over."""
    asked: tuple[int, Lease] | None = None
    """The number of its last request for rows, and what it was given."""

    @property
    def kept(self) -> list[Any]:
        """What outlives the center."""
        return [self.sequence, self.taken, self.pushes, self.rows]


class Roll:
    """A training is open to be joined until all workers that have been in it have ended it."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.open = False

    def __getitem__(self, worker: int) -> Member:
        return self.members.setdefault(worker, Member())

    def has_ended(self, worker: int) -> bool:
        """Whether a worker has ended the training, and others perhaps have not."""
        return self.open and worker in self.members and self.members[worker].ended

    def heard_since(self, time: float) -> bool:
        """Whether somebody who is inside has been heard of."""
        return any(member.inside and member.heard >= time for member in self.members.values())

    def enter(self, worker: int, now: float) -> Member:
        """A worker is there; one that has ended stays outside."""
        member = self[worker]
        member.inside, member.heard = not member.ended, now
        return member

    def leave(self, worker: int, ended: bool) -> None:
        if (member := self.members.get(worker)) is not None:
            member.inside, member.ended = False, member.ended or ended
            self.open = self.open and not all(other.ended for other in self.members.values())

    def state_dict(self) -> list[list[Any]]:
        return [[worker, *member.kept] for worker, member in sorted(self.members.items())]

    def load_state_dict(self, state: Sequence[Sequence[Any]]) -> None:
        self.members = {worker: Member(*kept) for worker, *kept in state}


@dataclass(slots=True)
class Counts:
    """What has become of pushes."""

    applied: int = 0
    dropped: int = 0
    """Not taken, because they were too old, or because of `lost`."""
    lost: int = 0
    """Not taken, because their rows were no longer their worker's."""
    repeated: int = 0
    staleness: dict[int, int] = field(default_factory=dict)
    """How many pushes had each."""
    tally: dict[str, list[float]] = field(default_factory=dict)
    """Coefficient, sum and weight of the loss terms that came with those that were applied."""

    def add(self, push: Push) -> None:
        """A push has been applied."""
        self.applied += 1
        for name, (coefficient, total, weight) in push.tally.items():
            _, totals, weights = self.tally.get(name, (0.0, 0.0, 0.0))
            self.tally[name] = [coefficient, totals + total, weights + weight]

    def state_dict(self) -> dict[str, Any]:
        return {
            "pushes": [self.applied, self.dropped, self.lost, self.repeated],
            "staleness": [[staleness, count] for staleness, count in sorted(self.staleness.items())],
            "tally": {name: list(numbers) for name, numbers in self.tally.items()},
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "Counts":
        applied, dropped, lost, repeated = state["pushes"]
        tally = {name: list(numbers) for name, numbers in state["tally"].items()}
        return cls(applied, dropped, lost, repeated, dict(state["staleness"]), tally)
