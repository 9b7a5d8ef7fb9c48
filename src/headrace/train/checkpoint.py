"""The parts of a training's state: their shapes, and the files of a checkpoint that they are stored in."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..arena.sharding import is_sharded
from ..arena.vectors import plain_name
from ..errors import CorruptError
from ..store import codec
from ..store.contents import MODEL, OPTIMIZER, TRAINER, TRAINER_TENSORS, Contents, rank_files
from ..store.shape import AMOUNT, ANY, COUNT, DICT, FLAG, NUMBER, ROWS, SCALAR, TENSOR, TEXT, Shape, check, each, maybe

WorkerState = dict[str, Any]
"""The parts that differ from worker to worker, by name: see `OF_WORKER`."""


@dataclass(slots=True)
class Checkpoint:
    """The state of a training between two updates, in plain values and tensors."""

    common: dict[str, Any]
    """The parts that all workers have in common, by name: see `PARTS`."""
    workers: list[WorkerState]
    """For each worker the parts of its own."""

    @property
    def is_stuck(self) -> bool:
        """Whether it was saved within an epoch of data without state, so that no training can continue from it."""
        common = self.common
        return (
            common["counters"]["steps"] > 0 and not common["place"]["ends_epoch"] and common["source"]["cursor"] is None
        )


# --- what a checkpoint stores ---

_COUNTERS = {"steps": COUNT, "samples": COUNT, "epochs": COUNT, "minutes": AMOUNT}
_PLACE = {"batch": COUNT, "rows": COUNT, "ends_epoch": FLAG}
_ROW = {"epoch": COUNT, "step": COUNT, "samples": COUNT, "rate": NUMBER}
_SCHEDULER = {"kind": maybe(TEXT), "state": maybe(DICT), "total": maybe(NUMBER), "waits": maybe(FLAG)}
_EPOCH = {"batches": maybe(COUNT), "shift": maybe(NUMBER), "begun": maybe(COUNT)}
_RATES = [_SCHEDULER | _EPOCH]  # of torch's schedulers, or of a function of the progress
_GROUP = {"lr": maybe(SCALAR), "initial_lr": maybe(SCALAR), "last_lr": maybe(SCALAR)}
_OPTIMIZER = {"kind": TEXT, "groups": [_GROUP], "names": [[TEXT]], "state": each(DICT), "elsewhere": [TEXT]}
_LOSSES = {"terms": each([SCALAR]), "waiting": each([ANY])}
_METRICS = {"task": maybe(DICT), "block": [TENSOR], "sums": each([TENSOR]), "live": each(DICT)}
_BEST = {"key": TEXT, "value": SCALAR, "step": COUNT, "keep": [COUNT], "restore": FLAG}
_ATTRIBUTE = {"same": FLAG, "away": [FLAG], "value": DICT}
_REPLICA = {"weights": maybe(each(TENSOR)), "counts": maybe([TENSOR])}

PARTS: dict[str, Shape] = {
    "extra": DICT,
    "step": {
        "updates": COUNT,
        "skipped": COUNT,
        "microbatch": maybe(COUNT),
        "settings": {"microbatch": maybe(ROWS), "clip_norm": maybe(AMOUNT), "clip_value": maybe(AMOUNT)},
        "scaler": DICT,
        "optimizers": each(_OPTIMIZER),
    },
    "modules": {"transient": each(TENSOR), "others": [DICT], "attributes": maybe(each(each(_ATTRIBUTE)))},
    "counters": _COUNTERS,
    "place": _PLACE,
    "done": [TEXT],
    "complete": FLAG,
    "rates": _RATES,
    "shares": [NUMBER],
    "callbacks": each(ANY),
    "best": maybe(_BEST),
    "marks": each(_BEST),
    "noted": each(NUMBER),
    "history": {"bytes": COUNT, "sha256": TEXT, "last": [_ROW]},
    "source": {"cursor": ANY, "initial": ANY},
    "frozen": {"owners": each([TEXT]), "untrained": [TEXT], "first": [TEXT], "resting": [TEXT]},
    "strategy": maybe({"kind": TEXT, "agrees": FLAG, "state": DICT}),
    "round": maybe({"counters": _COUNTERS, "place": _PLACE, "cursor": ANY, "rates": _RATES}),
    "config": DICT,
    "limits": each(NUMBER),
    "machine": DICT,
    "base": maybe({"names": [TEXT], "hash": TEXT}),
    "encoding": ANY,
    "data": maybe(DICT),
}
"""The parts that all workers have in common, beside "model", which is a file of tensors."""
OF_WORKER: dict[str, Shape] = {
    "rng": {"python": [ANY], "numpy": DICT, "torch": TENSOR, "cuda": maybe(TENSOR)},
    "tally": {"losses": each(_LOSSES), "metrics": each(_METRICS)},
    "microbatch": maybe(COUNT),
    "replica": _REPLICA
    | {"strategy": maybe(DICT), "optimizers": maybe(each(_OPTIMIZER)), "trained": maybe(_REPLICA)}
    | {"progress": maybe(DICT), "reported": maybe(each([NUMBER]))},
}
"""The parts that every worker has of its own."""
LARGE = ("model", "step")
"""The parts that contain a tensor for every parameter. Their other values never change."""


def encode(step: int, common: Mapping[str, Any], workers: Sequence[WorkerState] = ()) -> Contents:
    """The files of these parts. Tensors are not copied."""
    contents = Contents(step, {TRAINER: {}})
    for part, value in common.items():
        if part == "model":
            contents.tensors[MODEL] = {plain_name(name): tensor for name, tensor in value.items()}
        else:
            _encode_part(contents, TRAINER, OPTIMIZER if part == "step" else TRAINER_TENSORS, part, value)
    for number, state in enumerate(workers):
        for part, value in state.items():
            _encode_part(contents, *rank_files(number), part, value)
    return contents


def complete(
    contents: Contents, large: Mapping[str, Any], copies: Mapping[Any, Tensor], keys: Mapping[int, Any]
) -> None:
    """Adds the large parts, and replaces every tensor by its copy: `keys` maps ids of tensors to keys of `copies`."""
    encoded = encode(contents.step, large)
    contents.documents[TRAINER] |= encoded.documents[TRAINER]
    contents.tensors |= encoded.tensors
    for file, tensors in contents.tensors.items():
        if shapes := {name: list(tensor.shape) for name, tensor in tensors.items() if is_sharded(tensor)}:
            contents.shapes[file] = shapes
        contents.tensors[file] = {  # an array became a tensor of its own, which needs no copy
            name: copies[keys[id(tensor)]] if id(tensor) in keys else tensor for name, tensor in tensors.items()
        }


def decode(contents: Contents) -> Checkpoint:
    """The state in the files of a checkpoint, after a check of every part."""
    common = {
        "model": contents.tensors_of(MODEL),
        **_decode_document(contents, TRAINER, PARTS, OPTIMIZER, TRAINER_TENSORS),
    }
    ranks = map(rank_files, range(contents.workers))
    return Checkpoint(common, [_decode_document(contents, name, OF_WORKER, tensors) for name, tensors in ranks])


def without_shards(value: Any) -> Any:
    """Nested values without the tensors of which every worker has a part."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: item for key, item in value.items() if not (isinstance(item, Tensor) and is_sharded(item))}
    return {key: without_shards(item) for key, item in kept.items()}


def tensors_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Every tensor within dicts, lists and tuples, with its path."""
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


def _encode_part(contents: Contents, document: str, tensor_file: str, part: str, value: Any) -> None:
    tensors: codec.Tensors = {}
    contents.documents.setdefault(document, {})[part] = codec.encode(value, tensors, part, strict=part == "source")
    if tensors:
        contents.tensors.setdefault(tensor_file, {}).update(tensors)


def _decode_document(contents: Contents, file: str, shapes: Mapping[str, Shape], *tensor_files: str) -> dict[str, Any]:
    document, tensors = contents.document(file), codec.Tensors()
    for name in tensor_files:
        tensors |= contents.tensors.get(name, {})
    if missing := shapes.keys() - document.keys():
        raise CorruptError(f"{contents.where(file)} lacks {', '.join(sorted(missing))}.")
    if unknown := document.keys() - shapes.keys():
        raise CorruptError(f"{contents.where(file)} has {min(unknown)[:60]!r}, which is no part of a training's state.")
    parts = {part: codec.decode(value, tensors) for part, value in document.items()}
    for part, shape in shapes.items():
        check(parts[part], shape, contents.where(file, part))
    return parts
