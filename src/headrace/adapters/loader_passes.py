"""Passes over an iterable of others, epoch after epoch, that can be gone back to at any item.

Two ways back. Where the iterable keeps a state of its own, that state is loaded. Otherwise its epoch begins again with
the random numbers that it began with, and the items that were used already are dropped.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..data.batch import State
from ..errors import ConfigError, SourceError
from ..store import rng
from .iterables import (
    by_value,
    forgotten_of,
    generators_of,
    hugging_kind,
    knows_where_it_stands,
    length_of,
    made_as,
    parts_of,
    put_back,
    refuse_shares,
    stateful_parts,
)
from .loader_workers import Workers, begin

_CPU = torch.device("cpu")
_END = object()
_AGAIN = "Pass a list, a DataLoader, or an object whose __iter__ gives a new iterator every time."
_KEYS = ("epoch", "given", "random", "generators", "own", "made")


class Passes:
    """The items of an iterable: the batches of a loader, or the samples of a data set.

    `who` names it in messages, `unit` its items. Nothing here refers to itself, so that a loader that nobody needs is
    gone at once: where the garbage collector finds it, its workers end after seconds.
    """

    def __init__(self, data: Iterable[Any], who: str, unit: str, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise ConfigError(f"timeout_s= is a number of seconds above 0, got {timeout_s}.")
        refuse_shares(data)
        self.data, self.who, self.unit, self.timeout_s = data, who, unit, timeout_s
        self._waiting: Callable[[], None] = lambda: None
        self.exact = knows_where_it_stands(data)
        """Whether the iterable's own state is what it goes back by."""
        self.forgotten = forgotten_of(data, self.exact)
        """What no state and no replay brings back, in a clause."""
        self.length = length_of(data)
        self._once = isinstance(data, Iterator)  # maybe: nobody can tell whether it begins again when asked to
        by_number = isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset)
        self._sized = by_number and self.length is not None  # what it says of its length can be relied on
        self._made = made_as(data, exact=self.exact, sized=self._sized)
        self._generating = generators_of(data)
        self._pass: Iterator[Any] | None = None
        self._held: list[Any] = []  # an item that was pulled ahead
        self._rewound = False  # whether an epoch has been begun in its middle, by a state of the data's own
        self.epoch = self.given = 0
        """Where it stands: the epoch, and how many of its items have been given."""
        self._random: State | None = None  # those that the epoch began with, once it has
        self._generators: list[Tensor] | None = None
        self._own: State | None = None

    @property
    def waiting(self) -> Callable[[], None]:
        """Called now and then while worker processes are awaited; what it raises leaves everything where it is."""
        return self._waiting

    @waiting.setter
    def waiting(self, call: Callable[[], None]) -> None:
        self._waiting = call
        if isinstance(self._pass, Workers):
            self._pass.waiting = call

    # --- forward -----------------------------------------------------------------------------------------

    def pull(self, count: int = 1) -> tuple[list[Any], bool]:
        """The next items, and whether the epoch ends with them. Where it stands is known before any item after them."""
        items: list[Any] = []
        while len(items) < count and (item := self._next()) is not _END:
            items.append(item)
        if not items:
            raise SourceError(self._empty())
        self.given += len(items)
        ended = len(items) < count
        if self.exact and not ended:
            self._own = {**by_value(self.data, self.who), "generators": self._now()}
        if not ended and not (self._sized and self.given != self.length):
            ended = (item := self._next()) is _END
            self._held = [] if ended else [item]
        if ended:
            self._ended()
        return items, ended

    def peek(self) -> Any:
        """The first item of an epoch, without a trace: the random numbers and the state are put back."""
        if self._once:
            self._held = self._held or [self._next()]
            first = self._held[0]
        else:
            before, generators = rng.capture(_CPU), self._now()
            parts = [(part, part.state_dict()) for part in stateful_parts(self.data)]
            self._pass = self._begun()
            first = self._next()
            self._leave()
            for part, state in parts:
                part.load_state_dict(state)
            self._put_back(before, generators)
        if first is _END:
            raise SourceError(self._empty())
        return first

    def _next(self) -> Any:
        """The next item, or `_END`."""
        if self._held:
            return self._held.pop()
        if self._pass is None:
            self._begin()
        return self._fetch()

    def _fetch(self) -> Any:
        current = self._pass
        assert current is not None
        try:
            return next(current)
        except StopIteration:
            if self._sized and 0 < self.given < (self.length or 0):
                raise SourceError(
                    f"{self.who} says that it has {self.length} batches, and ended after {self.given}. "
                    "Correct the length of its sampler."
                ) from None
            return _END
        except Exception as error:
            why = current.why(error) if isinstance(current, Workers) else f"{type(error).__name__}: {error}"
            self._leave(failed=True)
            raise SourceError(
                f"{self.who} failed after {self.given} {self.unit} of epoch {self.epoch}: {why}."
            ) from error

    def _begin(self) -> None:
        """Begins the epoch, or goes back to where it was left."""
        if self.given:
            self._go_back()
            return
        if self._generators is not None:
            self._put_back(None, self._generators)
        if self._rewound and hugging_kind(self.data):
            self.data.load_state_dict({})  # type: ignore[attr-defined]
        self._random, self._generators = rng.capture(_CPU), self._now()
        self._pass = self._begun()

    def _go_back(self) -> None:
        """Begins the epoch as it began, and gives nothing that was given; the random numbers at hand are untouched."""
        before = rng.capture(_CPU)
        try:
            self._put_back(self._random, self._generators or [])
            if self._own is not None:
                put_back(self.data, self._own)
                self._rewound = True
            self._pass = self._begun()
            if self._own is not None:
                self._put_back(None, self._own["generators"])
            for k in range(0 if self._own is not None else self.given):
                if self._fetch() is _END:
                    raise SourceError(
                        f"{self.who} ended after {k} {self.unit} of epoch {self.epoch}, of which {self.given} had been "
                        f"used when the run was saved. {_AGAIN if self._once else 'Read the same data.'}"
                    )
        except BaseException:
            self._leave(failed=True)
            raise
        finally:
            rng.restore(before, _CPU)

    def _go_on(self, epoch: int, given: int) -> None:
        """Drops items of what can be read once, up to where it is to stand."""
        count = given - self.given
        if epoch != self.epoch or count < 0:
            raise SourceError(f"{self.who} is an iterator, which cannot go back. {_AGAIN}")
        before = rng.capture(_CPU)
        while count > 0 and self._next() is not _END:
            count, self.given = count - 1, self.given + 1
        rng.restore(before, _CPU)

    def _begun(self) -> Iterator[Any]:
        for part in parts_of(self.data):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(self.epoch)
        try:
            if isinstance(self.data, DataLoader):
                return begin(self.data, self.timeout_s, self._waiting)
            return iter(self.data)
        except Exception as error:
            raise SourceError(f"{self.who} cannot begin epoch {self.epoch}: {type(error).__name__}: {error}") from error

    def _ended(self) -> None:
        self._leave()
        self.epoch, self.given = self.epoch + 1, 0
        self._random = self._generators = self._own = None

    def _leave(self, failed: bool = False) -> None:
        """Ends worker processes, and forgets what they have given ahead."""
        current, self._pass, self._held = self._pass, None, []
        if isinstance(current, Workers):
            current.end() if failed else current.leave()

    def _now(self) -> list[Tensor]:
        """Where the generators of the order stand."""
        return [generator.get_state() for generator in self._generating]

    def _put_back(self, random: State | None, generators: list[Tensor]) -> None:
        if random is not None:
            rng.restore(random, _CPU)
        for generator, state in zip(self._generating, generators, strict=True):
            generator.set_state(state)

    def _empty(self) -> str:
        if isinstance(self.data, DataLoader) and self._sized and self.data.drop_last:
            rows = len(self.data.dataset)  # type: ignore[arg-type]
            return (
                f"{self.who} gives nothing: its {rows} rows do not fill a batch of {self.data.batch_size}, and "
                "drop_last=True drops what does not."
            )
        if self._once and self.epoch:
            return f"{self.who} is an iterator, which can be read once, and has been: no more epochs. {_AGAIN}"
        return f"{self.who} gives no {self.unit} in epoch {self.epoch}."

    # --- where it stands ---------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """As plain values and tensors, none of which is changed later."""
        generators = self._now() if self._generators is None else self._generators
        return {
            "epoch": self.epoch,
            "given": self.given,
            "random": self._random if self.given else None,
            "generators": generators,
            "own": self._own,
            "made": self._made,
        }

    def load_state_dict(self, state: State) -> None:
        """Goes back to a state, with the next item; worker processes end now."""
        if missing := [key for key in _KEYS if key not in state]:
            raise SourceError(f"this is not a state of {self.who}: it lacks {', '.join(missing)}.")
        made = self._made
        if differ := [key for key in made if state["made"].get(key) != made[key]]:
            listed = "; ".join(f"{key}: saved {state['made'].get(key)!r}, now {made[key]!r}" for key in differ)
            raise SourceError(f"{self.who} cannot go back to a state of another loader ({listed}). Make it as it was.")
        if self._once and self._pass is not None:
            self._go_on(int(state["epoch"]), int(state["given"]))
            return
        self._leave()
        self.epoch, self.given = int(state["epoch"]), int(state["given"])
        self._random, self._generators, self._own = state["random"], state["generators"], state["own"]
