"""The state of a training: its parts, and in which file of a checkpoint each of them is kept."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from ..arena.vectors import plain_name
from ..errors import CorruptError
from ..store import codec
from ..store.contents import MODEL, OPTIMIZER, TRAINER, TRAINER_TENSORS, Contents, rank_files
from ..store.shape import DICT, PARTS, check, check_part

Own = dict[str, Any]
"""What is one worker's own: random numbers, sums of losses, metrics; weights and optimizers where they differ."""


@dataclass(slots=True, kw_only=True)
class State:
    """All that the rest of a training depends on, with plain values and tensors in it, and nothing else."""

    model: dict[str, Tensor]
    extra: dict[str, Any]
    """What a model's state holds that is no tensor."""
    step: dict[str, Any]
    """Optimizers, the scaler of fp16, settings of the next update."""
    modules: dict[str, Any]
    """Buffers that are no part of the model's state, and objectives that are modules."""
    counters: dict[str, Any]
    place: dict[str, Any]
    """What the last update was."""
    done: list[str]
    """What has been done of what was due after it."""
    complete: bool
    """Whether all of it has been done."""
    rates: list[Any]
    callbacks: dict[str, Any]
    best: dict[str, Any] | None
    marks: dict[str, Any]
    """The best steps, by who looks for them."""
    config: dict[str, Any]
    limits: dict[str, Any]
    source: dict[str, Any]
    """Where the data stood at first, and stand now."""
    frozen: dict[str, list[str]]
    noted: dict[str, float]
    """Numbers for the next report."""
    shares: list[float]
    history: Any = None
    """What has been reported."""
    owns: list[Own] = field(default_factory=list)
    """What is each worker's own."""
    categories: Any = None
    nulls: Any = None
    """What stands for the nulls of the training data."""
    data: dict[str, Any] | None = None
    """How the training data were read, where they are rows: see `description_of`."""
    round: dict[str, Any] = field(default_factory=dict)
    """Where the training stood when all workers had the same weights for the last time."""
    flags: dict[str, Any] | None = None
    """Which parameters do not require gradients: see `Frozen.flags`."""
    machine: dict[str, Any] | None = None
    strategy: dict[str, Any] | None = None
    """What all workers of a strategy know; `None` where one worker works alone, or all still do."""
    kind: str | None = None
    """The strategy's class."""
    agrees: bool | None = None
    """Whether all workers have the same weights."""

    # Of one that was read, and is gone on from:
    saved: int = 0
    """The step of the checkpoint."""
    forced: bool = False
    """Whether settings may differ."""
    overridden: list[str] = field(default_factory=list)
    """Those that do."""

    @property
    def is_stuck(self) -> bool:
        """Whether it is within an epoch of data that have no state: a training cannot go on from it."""
        return self.counters["steps"] > 0 and not self.place["ends_epoch"] and self.source["cursor"] is None


LARGE = ("model", "step")
"""The parts that hold a tensor for every parameter; what else they hold nobody changes."""
_NOT_KEPT = ("owns", "history", "saved", "forced", "overridden")
_OF_SEVERAL = ("strategy", "kind", "agrees")
_FILES = {"step": (TRAINER, OPTIMIZER), "worker": rank_files(0), "source": rank_files(0)}
"""The files, of plain values and of tensors, of parts not in the trainer's; "worker 1" and so on have their own."""


def parts_of(state: State) -> dict[str, Any]:
    """The parts of a state as a checkpoint names them; of `owns`, each by itself."""
    found = {part.name: getattr(state, part.name) for part in fields(state) if part.name not in _NOT_KEPT}
    for part in _OF_SEVERAL if state.strategy is None else ():
        del found[part]
    for part in ("nulls", "data"):
        if found[part] is None:
            del found[part]
    return found | {f"worker {number}" if number else "worker": own for number, own in enumerate(state.owns)}


def encode(step: int, parts: Mapping[str, Any]) -> Contents:
    """Parts of a state as documents and tensors, the latter not copied."""
    contents = Contents(step, {TRAINER: {}})
    for part, value in parts.items():
        if part == "model":
            contents.tensors[MODEL] = {plain_name(name): tensor for name, tensor in value.items()}
            continue
        document, file = _files(part)
        tensors: codec.Tensors = {}
        encoded = codec.encode(value, tensors, part, strict=part == "source")
        contents.documents.setdefault(document, {})[part] = encoded
        if tensors:
            contents.tensors.setdefault(file, {}).update(tensors)
    return contents


def fill(
    contents: Contents, large: Mapping[str, Any], copies: Mapping[Any, Tensor], keys: Mapping[int, Any], history: bytes
) -> None:
    """Completes what is to be written with the copies of all tensors, the large parts, and the history."""
    for file, tensors in contents.tensors.items():
        contents.tensors[file] = {name: copies[file, name] for name in tensors}
    encoded = encode(contents.step, large)
    for file, tensors in encoded.tensors.items():
        contents.tensors[file] = {  # what has no key was an array, which nobody else holds
            name: copies[keys[id(tensor)]] if id(tensor) in keys else tensor for name, tensor in tensors.items()
        }
    contents.documents[TRAINER] |= encoded.documents[TRAINER]
    contents.documents[TRAINER]["history"] = history


def decode(contents: Contents) -> State:
    """The state in a checkpoint; anything else that one may hold is an error."""
    found: dict[str, Any] = {"model": contents.tensors_of(MODEL)}
    for name, document in contents.documents.items():
        for part, value in check(document, DICT, contents.where(name)).items():
            found[part] = codec.decode(value, contents.tensors.get(_files(part)[1], {}))
    if missing := PARTS.keys() - found.keys():
        raise CorruptError(f"the checkpoint of step {contents.step} lacks {', '.join(sorted(missing))}.")
    for part, value in found.items():
        check_part(part, value, contents.where(_files(part)[0], part))
    owns = [found.pop("worker")]
    while (part := f"worker {len(owns)}") in found:
        owns.append(found.pop(part))
    known = {part.name for part in fields(State)}.difference(_NOT_KEPT) | {"history"}
    return State(**{part: value for part, value in found.items() if part in known}, owns=owns, saved=contents.step)


def tensors_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Every tensor within dicts, lists and tuples, and the way to it."""
    if isinstance(value, Tensor):
        yield path, value
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        yield from tensors_in(item, (*path, key))


def _files(part: str) -> tuple[str, str]:
    """Where a part of the state is kept: its document, and its tensors."""
    kind, _, number = part.partition(" ")
    if kind == "worker" and re.fullmatch(r"\d{1,9}", number):
        return rank_files(int(number))
    return _FILES.get(part, (TRAINER, TRAINER_TENSORS))
