"""Iterates over data of others, epoch after epoch, and goes back to any item.

Two ways back. Where the iterable keeps a state of its own, that state is loaded. Otherwise its epoch begins again with
the random numbers that it began with, and the items that were used already are dropped.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, default_collate

from ..data.batch import State
from ..errors import ConfigError, SourceError
from ..store import rng
from ..store.codec import decode, encode
from .loader_workers import LoaderWorkers, begin

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
        refuse_own_sharding(data)
        self.data, self.who, self.unit, self.timeout_s = data, who, unit, timeout_s
        self.waiting: Callable[[], None] = lambda: None
        """Called now and then while worker processes are awaited; what it raises leaves everything where it is."""
        self.exact = has_exact_state(data)
        """Whether a resume uses the iterable's own state."""
        self.forgotten = lost_at_resume(data, self.exact)
        """What a resume does not bring back, in a clause."""
        self.length = length_of(data)
        self._once = isinstance(data, Iterator)  # maybe: nobody can tell whether it begins again when asked to
        by_number = isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset)
        self._sized = by_number and self.length is not None  # what it says of its length can be relied on
        self._made = compared_settings(data, exact=self.exact, sized=self._sized)
        self._generating = generators_of(data)
        self._pass: Iterator[Any] | None = None
        self._held: list[Any] = []  # an item that was pulled ahead
        self._rewound = False  # whether an epoch has been begun in its middle, by a state of the data's own
        self.epoch = self.given = 0
        """Where it stands: the epoch, and how many of its items have been given."""
        self._random: State | None = None  # those that the epoch began with, once it has
        self._generators: list[Tensor] | None = None
        self._own: State | None = None

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
            self._own = {**by_value(self.data, self.who), "generators": self._generator_states()}
        if not ended and not (self._sized and self.given != self.length):
            ended = (item := self._next()) is _END
            self._held = [] if ended else [item]
        if ended:
            self._end_epoch()
        return items, ended

    def peek(self) -> Any:
        """The first item of an epoch, without a trace: the random numbers and the state are put back."""
        if self._once:
            self._held = self._held or [self._next()]
            first = self._held[0]
        else:
            before, generators = rng.capture(_CPU), self._generator_states()
            parts = [(part, part.state_dict()) for part in stateful_parts(self.data)]
            self._pass = self._new_pass()
            first = self._next()
            self._end_pass()
            for part, state in parts:
                part.load_state_dict(state)
            self._restore(before, generators)
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
        if isinstance(current, LoaderWorkers):
            current.waiting = self.waiting
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
            why = current.why(error) if isinstance(current, LoaderWorkers) else f"{type(error).__name__}: {error}"
            self._end_pass(failed=True)
            raise SourceError(
                f"{self.who} failed after {self.given} {self.unit} of epoch {self.epoch}: {why}."
            ) from error

    def _begin(self) -> None:
        """Begins the epoch, or goes back to where it was left."""
        if self.given:
            self._begin_again()
            return
        if self._generators is not None:
            self._restore(None, self._generators)
        if self._rewound and hugging_kind(self.data):
            self.data.load_state_dict({})  # type: ignore[attr-defined]
        self._random, self._generators = rng.capture(_CPU), self._generator_states()
        self._pass = self._new_pass()

    def _begin_again(self) -> None:
        """Begins the epoch as it began, and gives nothing that was given; the random numbers at hand are untouched."""
        before = rng.capture(_CPU)
        try:
            self._restore(self._random, self._generators or [])
            if self._own is not None:
                self.data.load_state_dict(decode(json.loads(self._own["json"]), self._own["tensors"]))  # type: ignore[attr-defined]
                self._rewound = True
            self._pass = self._new_pass()
            if self._own is not None:
                self._restore(None, self._own["generators"])
            for k in range(0 if self._own is not None else self.given):
                if self._fetch() is _END:
                    raise SourceError(
                        f"{self.who} ended after {k} {self.unit} of epoch {self.epoch}, of which {self.given} had been "
                        f"used when the run was saved. {_AGAIN if self._once else 'Read the same data.'}"
                    )
        except BaseException:
            self._end_pass(failed=True)
            raise
        finally:
            rng.restore(before, _CPU)

    def _skip_to(self, epoch: int, given: int) -> None:
        """Moves an iterator, which can be read only once, forward by dropping items."""
        count = given - self.given
        if epoch != self.epoch or count < 0:
            raise SourceError(f"{self.who} is an iterator, which cannot go back. {_AGAIN}")
        before = rng.capture(_CPU)
        while count > 0 and self._next() is not _END:
            count, self.given = count - 1, self.given + 1
        rng.restore(before, _CPU)

    def _new_pass(self) -> Iterator[Any]:
        for part in parts_of(self.data):
            if callable(getattr(part, "set_epoch", None)):
                part.set_epoch(self.epoch)
        try:
            if isinstance(self.data, DataLoader):
                return begin(self.data, self.timeout_s, self.waiting)
            return iter(self.data)
        except Exception as error:
            raise SourceError(f"{self.who} cannot begin epoch {self.epoch}: {type(error).__name__}: {error}") from error

    def _end_epoch(self) -> None:
        self._end_pass()
        self.epoch, self.given = self.epoch + 1, 0
        self._random = self._generators = self._own = None

    def _end_pass(self, failed: bool = False) -> None:
        """Ends worker processes, and forgets what they have given ahead."""
        current, self._pass, self._held = self._pass, None, []
        if isinstance(current, LoaderWorkers):
            current.end() if failed else current.leave()

    def _generator_states(self) -> list[Tensor]:
        """Where the generators of the order stand."""
        return [generator.get_state() for generator in self._generating]

    def _restore(self, random: State | None, generators: list[Tensor]) -> None:
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
        generators = self._generator_states() if self._generators is None else self._generators
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
            self._skip_to(int(state["epoch"]), int(state["given"]))
            return
        self._end_pass()
        self.epoch, self.given = int(state["epoch"]), int(state["given"])
        self._random, self._generators, self._own = state["random"], state["generators"], state["own"]


# --- what is known of an iterable ---------------------------------------------------------------------------


@runtime_checkable
class Stateful(Protocol):
    """An iterable with a state of its own: a StatefulDataLoader, a streamed data set."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


def by_value(data: Any, who: str) -> State:
    """The state of the data's own, none of it shared with them."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(encode(data.state_dict(), tensors, f"state of {who}"))
    return {"json": text, "tensors": {name: tensor.clone() for name, tensor in tensors.items()}}


def parts_of(data: Any) -> list[Any]:
    """The data and what they are made of, as far as it may know of epochs or draw numbers."""
    if not isinstance(data, DataLoader):
        return [data]
    nested = [data.batch_sampler, getattr(data.batch_sampler, "sampler", None), data.sampler]
    found = [data, *nested, data.dataset]
    return [part for k, part in enumerate(found) if part is not None and all(part is not p for p in found[:k])]


def generators_of(data: Any) -> list[torch.Generator]:
    """The generators that the order is drawn from, besides the global ones."""
    found = [getattr(part, "generator", None) for part in parts_of(data)]
    unique = {id(generator): generator for generator in found if isinstance(generator, torch.Generator)}
    return list(unique.values())


def stateful_parts(data: Any) -> list[Any]:
    """What a look at the first item would move: data sets that are read in this process and know where they stand."""
    if isinstance(data, DataLoader):
        data = data.dataset if not data.num_workers else None
    known = isinstance(data, Stateful) and isinstance(data, Iterable)
    return [data] if known and not hugging_kind(data) else []


_HUGGING = {
    "datasets.arrow_dataset": ("Dataset",),
    "datasets.iterable_dataset": ("IterableDataset",),
    "datasets.dataset_dict": ("DatasetDict", "IterableDatasetDict"),
}


def hugging_kind(data: Any) -> str:
    """Which of Hugging Face's data sets it is, by name; "" for all else, such as those of a `datasets.py` of a user."""
    found = (kind.__name__ for kind in type(data).__mro__ if kind.__name__ in _HUGGING.get(kind.__module__, ()))
    return next(found, "")


def has_exact_state(data: Any) -> bool:
    """Whether it has a `state_dict` of its own, from which it resumes exactly."""
    if not isinstance(data, Stateful):
        return False
    if not isinstance(data, DataLoader):
        return not _forgets_rows(data)
    if isinstance(data.dataset, IterableDataset):  # torchdata 0.11 miscounts what it has skipped of one without state
        return isinstance(data.dataset, Stateful) and not _forgets_rows(data.dataset)
    # Without workers, it goes through the order of others again with the random numbers of the moment.
    order = data.sampler if data.batch_sampler is None else data.batch_sampler
    return data.num_workers > 0 or type(order).__module__.startswith("torchdata.") or isinstance(order, Stateful)


def lost_at_resume(data: Any, exact: bool) -> str:
    """What a resume does not bring back, in a clause: the random state of worker processes cannot be saved.

    The workers of a replay begin as they began, unless they had stayed from the epoch before.
    """
    if not isinstance(data, DataLoader) or not data.num_workers:
        return ""
    whose = "its workers" if exact else "workers that stay for the next epoch (persistent_workers)"
    return f"not so what {whose} draw at random for samples" if exact or data.persistent_workers else ""


def _forgets_rows(data: Any) -> bool:
    """Whether it has a shuffle buffer of Hugging Face, whose rows are not part of its state."""
    waiting = [getattr(data, "_ex_iterable", None)] if hugging_kind(data) else []
    while waiting:
        part = waiting.pop()
        if "BufferShuffled" in type(part).__name__:
            return True
        if part is not None:
            waiting += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or [])]
    return False


def length_of(data: Any) -> int | None:
    """How many items an epoch has. That of a loader of an IterableDataset is a guess, so it is not taken."""
    if isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset):
        return None
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None


def collates(data: Any) -> bool:
    """Whether its batches are stacked by torch's own `default_collate`: then they are new memory every time."""
    return isinstance(data, DataLoader) and data.collate_fn is default_collate


def stacks(data: Any) -> bool:
    """Whether all rows of a loader have the same shape, because any of them may be stacked with any other.

    It is not known of rows that are padded, of batches of one row, and of rows that a sampler has put together.
    """
    known = collates(data) and data.batch_size is not None and data.batch_size > 1
    return known and type(data.sampler) in (RandomSampler, SequentialSampler)


def compared_settings(data: Any, *, exact: bool, sized: bool) -> dict[str, Any]:
    """Settings that must be the same when a state is loaded as when it was saved."""
    made: dict[str, Any] = {"exact": exact, "length": length_of(data), "batch_size": None, "num_workers": None}
    made["generators"] = len(generators_of(data))
    if isinstance(data, DataLoader):
        made["batch_size"] = data.batch_size
        if exact or not sized:  # otherwise the order is the same with any number
            made["num_workers"] = data.num_workers
    return made


def refuse_own_sharding(data: Any) -> None:
    for part in parts_of(data):
        if getattr(part, "num_replicas", 1) > 1 or (hugging_kind(part) and getattr(part, "_distributed", None)):
            raise ConfigError(
                f"this {type(part).__name__} gives each worker a share of the rows, and headrace shares out every "
                "batch by itself. Use a plain sampler, or the whole data set."
            )
