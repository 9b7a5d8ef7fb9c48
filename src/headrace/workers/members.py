"""The roll of a center: which workers are in its training, what each has said last, and what came of it all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
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
    """Whether it has joined the training and has not left it."""
    asked: tuple[int, Lease] | None = None
    """The number of its last request for rows, and what it was given."""

    @property
    def kept(self) -> list[Any]:
        """What outlives the center."""
        return [self.sequence, self.taken, self.pushes, self.rows]


class Members:
    """The workers of one training."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}

    def __getitem__(self, worker: int) -> Member:
        return self.members.setdefault(worker, Member())

    def inside(self, since: float = -inf) -> tuple[int, ...]:
        """The workers that are in the training, and have been heard of since."""
        return tuple(sorted(k for k, member in self.members.items() if member.inside and member.heard >= since))

    def heard(self, workers: Iterable[int]) -> float:
        """When one of these was heard of last."""
        return max((self.members[worker].heard for worker in workers if worker in self.members), default=0.0)

    def enter(self, worker: int, now: float) -> Member:
        member = self[worker]
        member.inside, member.heard = True, now
        return member

    def leave(self, worker: int) -> None:
        if worker in self.members:
            self.members[worker].inside = False

    def state_dict(self) -> list[list[Any]]:
        return [[worker, *member.kept] for worker, member in sorted(self.members.items())]

    def load_state_dict(self, state: Sequence[Sequence[Any]]) -> None:
        self.members = {
            int(worker): Member(int(sequence), bool(taken), int(pushes), int(rows))
            for worker, sequence, taken, pushes, rows in state
        }


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
        applied, dropped, lost, repeated = map(int, state["pushes"])
        staleness = {int(age): int(count) for age, count in state["staleness"]}
        tally = {name: [float(number) for number in numbers] for name, numbers in state["tally"].items()}
        return cls(applied, dropped, lost, repeated, staleness, tally)
