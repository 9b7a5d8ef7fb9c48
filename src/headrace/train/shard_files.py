"""Checkpoints of which every worker writes and reads a part. Worker 0 writes what makes them valid."""

import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import CheckpointError, CorruptError
from ..step.weights import load_model
from ..store.checkpoints import Store
from ..store.contents import MODEL, Contents, Written, divided, write_files
from ..workers.strategy import Strategy
from .checkpoint import WorkerState, decode, without_shards
from .resume import Resumed, complete_model, divide, readable
from .vote import by_leader

STAYS = "the model stays as it is after the last step, not as it was at its best: {}"
Commit = Callable[[Path, list[Written]], None]


def write_together(store: Store, contents: Contents, strategy: Strategy, commit: Commit) -> None:
    """Called by all workers, in the thread that saves. A failure of one is raised there, and by worker 0."""
    leads, all_gather = strategy.comm.leader, strategy.all_gather_aside
    begun, failure = _tried(lambda: store.begin(contents.step).name if leads else "")
    name = all_gather(begun)[0]
    if failure is not None:
        raise failure
    if name is None:
        return  # worker 0 raises
    mine = divided(contents, strategy.part, leads) if strategy.writes_shards else Contents(contents.step)
    written, failure = _tried(lambda: [asdict(each) for each in write_files(store.path / name, mine)])
    every = all_gather(written if failure is None else str(failure))
    if failure is not None:
        raise failure
    if leads:
        for worker, found in enumerate(every):
            if isinstance(found, str):
                raise CheckpointError(f"worker {worker} could not write its part of step {contents.step}: {found}")
        commit(store.path / name, [Written(**each) for found in every for each in found])


def load_part(
    store: Store, strategy: Strategy, step: int, wanted: Callable[[str], bool] = lambda name: True
) -> Contents:
    """A checkpoint, with this worker's part of tensors that are sharded."""
    contents = store.load(step, wanted, strategy.part)
    for file, shapes in contents.shapes.items():
        tensors = contents.tensors[file]
        tensors |= {name: strategy.wrap(tensors[name], shape) for name, shape in shapes.items()}
    return contents


def load_together(
    store: Store, strategy: Strategy, step: int, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[Contents | None, str]:
    """As `load_part`, if all workers can load their parts; else why one cannot."""
    contents, reason = None, ""
    try:
        contents = load_part(store, strategy, step, wanted)
    except CorruptError as error:
        reason = str(error)
    reasons = [each for each in strategy.comm.all_gather(reason) if each]
    return (None, reasons[0]) if reasons else (contents, "")


def newest_together(store: Store, strategy: Strategy, log: Callable[[str], None]) -> Contents | None:
    """The last checkpoint of which all workers can load their parts; nothing where there is none at all."""
    reasons: list[str] = []
    steps = by_leader(strategy.comm, lambda: [place.step for place in store.places()])
    for step in reversed(steps):
        contents, reason = load_together(store, strategy, step)
        if contents is not None:
            for each in reasons if strategy.comm.leader else ():
                text = f"{each} Its bytes are kept; going on from step {step}."
                log(text)
                warnings.warn(text, stacklevel=4)
            return contents
        reasons.append(reason)
    if reasons:
        listed = "\n  ".join(reasons)
        raise CheckpointError(f"none of the checkpoints in {store.path} can be used:\n  {listed}")
    return None


def gather_parts(strategy: Strategy, own: WorkerState) -> list[WorkerState] | None:
    """The parts of every worker for worker 0. Of sharded tensors each worker saves its own: it gets its own parts."""
    if not strategy.shards:
        return strategy.comm.gather(own)
    return [own, *(strategy.comm.gather(without_shards(own)) or [own])[1:]]


def restore_together(store: Store, strategy: Strategy, step: int, model: nn.Module) -> None:
    """Each worker's part of the model becomes what it was at a step."""
    found, reason = load_together(store, strategy, step, lambda name: name == MODEL)
    if found is None:
        warnings.warn(STAYS.format(reason), stacklevel=3)
    else:
        load_model(model, found.tensors_of(MODEL), strict=False)


def resumed_from(store: Store, strategy: Strategy, found: dict[str, Any], read: Contents, model: nn.Module) -> Resumed:
    """What this worker goes on with, of a checkpoint that all have read; worker 0 has `found` the rest to fit."""
    step, history = found["common"]["step"], found["common"]["history"]
    checkpoint = decode(read if read.step == step else load_part(store, strategy, step))
    complete_model(checkpoint.common, model, strategy)
    with readable():
        common, each = divide(checkpoint, strategy, strategy.comm.count)
    found["common"] = common | {"history": history}
    return Resumed(mine=each[strategy.comm.shard.index], **found)


def _tried(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return call(), None
    except Exception as error:
        return None, error
