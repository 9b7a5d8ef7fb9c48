"""Decides what each worker continues with, also if other workers or another strategy saved the checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CheckpointError, CorruptError, HeadraceError, is_out_of_memory
from ..step.weights import check_model, completed
from ..store import codec
from ..store.checkpoints import Store
from ..store.contents import TRAINER, Contents
from ..store.shape import check
from ..workers.strategy import Strategy
from .checkpoint import PARTS, Checkpoint, WorkerState


@dataclass(slots=True)
class Resumed:
    """A checkpoint as one worker continues from it."""

    common: dict[str, Any]
    """The parts that all workers have in common."""
    mine: WorkerState
    """This worker's own parts: see `divide`."""
    count: int
    """How many workers saved it."""
    newest: int
    """The step of the newest checkpoint in the run."""
    override: bool
    """Whether the training may continue with other settings."""
    overridden: list[str]
    """The settings that differ."""

    @property
    def step(self) -> dict[str, Any]:
        """The part "step", with this worker's optimizers and microbatch."""
        found: dict[str, Any] = self.common["step"] | {"microbatch": self.mine["microbatch"]}
        own = self.mine["replica"].get("optimizers")
        return found if own is None else found | {"optimizers": own}


def divide(checkpoint: Checkpoint, strategy: Strategy, count: int) -> tuple[dict[str, Any], list[WorkerState]]:
    """What `count` workers of this strategy continue with: the common parts, and those of each worker.

    As many workers of the same strategy each continue where they were. Another number of workers of a joint strategy,
    and workers of another strategy, continue from the weights of the checkpoint. Another number of workers that make
    updates of their own begin their round again. At a center all weights are the center's.

    Of each worker, "tally" is a list of those that it takes over, and "replica" has a "strategy" only if the worker
    continues where it was.
    """
    common, workers = checkpoint.common, checkpoint.workers
    saved = common["strategy"]  # `None` of one worker without a strategy
    _check_kind(saved, strategy)
    is_same = saved is None or saved["kind"] == strategy.kind
    if strategy.centered and not (is_same and len(workers) == count):
        return _at_the_center(common), _anew_at_center(workers[0], count)
    if strategy.parts and is_same:  # every worker takes what belongs to its parts
        return common, [_joined(workers[0], workers, joint=True)] * count
    if is_same and len(workers) == count:
        complete = [_with_shards(own, workers[0]) for own in workers]
        return common, [_joined(own, [own]) | ({"saved": own} if strategy.centered else {}) for own in complete]
    measured = workers
    if is_same and saved is not None and not strategy.joint:
        common, measured = common | _round_start(common, workers), []
    trained = [own["replica"]["trained"] for own in workers if "trained" in own["replica"]]
    base = {"rng": None, "microbatch": common["step"]["microbatch"], "replica": {}}
    if trained:
        base["replica"] = {"trained": mean_of(trained)}
    joint = is_same and strategy.joint  # every worker has the losses of all
    each = [_joined(base, [] if number else measured, joint) for number in range(count)]
    for state, own in zip(each, workers, strict=False):
        state["rng"] = own["rng"]
    return common if is_same else common | {"strategy": None}, each


def _at_the_center(common: Mapping[str, Any]) -> dict[str, Any]:
    """The common parts for workers that go on from the center's weights: all rows that were out are free."""
    cursor = common["source"]["initial"] | {"pass": common["counters"]["epochs"]}
    place = common["place"] | {"batch": 0, "ends_epoch": True}
    return {**common, "source": common["source"] | {"cursor": cursor}, "place": place}


def _anew_at_center(first: WorkerState, count: int) -> list[WorkerState]:
    """Worker 0 keeps what its optimizers remember and what it has measured, the others begin anew."""
    leader = _joined(first | {"replica": {}}, [first]) | {"saved": None}
    other = {"rng": None, "microbatch": first["microbatch"], "replica": {}, "tally": [], "saved": None}
    return [leader, *[other] * (count - 1)]


def _joined(own: WorkerState, measured: Sequence[WorkerState], joint: bool = False) -> WorkerState:
    """A worker's parts, with the tallies of these workers; `joint`: each of them has the losses of all."""
    return own | {"tally": [each["tally"] | ({"losses": {}} if joint and k else {}) for k, each in enumerate(measured)]}


def _with_shards(own: WorkerState, first: WorkerState) -> WorkerState:
    """A worker's parts with its shards of the weights, which only the parts of the first one list."""
    replica, known = own["replica"], first["replica"]
    if "weights" in replica:
        return own | {"replica": replica | {"weights": known.get("weights", {}) | replica["weights"]}}
    if "trained" in replica:
        trained = replica["trained"]
        weights = known.get("trained", trained)["weights"] | trained["weights"]
        return own | {"replica": replica | {"trained": trained | {"weights": weights}}}
    return own


def _check_kind(saved: Mapping[str, Any] | None, strategy: Strategy) -> None:
    """Raises where the rows that were used are known to a center, or would have to be."""
    if strategy.centered != (saved is not None and "leases" in saved["state"]):
        raise CheckpointError(
            f"the run was saved under {saved['kind'] if saved else 'no strategy with a center'} and cannot be gone on "
            f"with under {type(strategy).__name__}: one has a center that lends the data, the other has none. "
            "Begin another run from its weights: hr.load_weights."
        )


def _round_start(common: Mapping[str, Any], workers: Sequence[WorkerState]) -> dict[str, Any]:
    """The common parts where all workers last had the same weights, with the mean of what their optimizers remember."""
    optimizers = [own["replica"]["optimizers"] for own in workers if "optimizers" in own["replica"]]
    parts = {"step": common["step"] | {"optimizers": mean_of([common["step"]["optimizers"], *optimizers])}}
    if common["strategy"]["agrees"]:
        return parts
    start, weights = common["round"], common["strategy"]["state"].get("start")
    if weights is None:
        raise CheckpointError(
            f"{len(workers)} workers of {common['strategy']['kind']} were saved within a round, without the weights "
            f"at its beginning. Go on with {len(workers)} workers, or save these weights as 'start' in state_dict()."
        )
    return parts | {
        "model": {name: weights.get(name, value) for name, value in common["model"].items()},
        "source": common["source"] | {"cursor": start["cursor"]},
        "counters": start["counters"],
        "place": start["place"],
        "rates": start["rates"],
        "done": [],
        "complete": True,
    }


def complete_model(common: dict[str, Any], model: nn.Module, strategy: Strategy | None) -> None:
    """Raises unless saved weights are of this model; the base that they lack is the model's. See `completed`."""
    common["model"] = completed(common["model"], common["base"], model, strategy)
    check_model(common["model"], model.state_dict())


def mean_of(values: Sequence[Any]) -> Any:
    """Nested states as one: of numbers with fractions in tensors the mean, of all else the first."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: mean_of([value[key] for value in values if key in value]) for key in first}
    if isinstance(first, Tensor) and first.is_floating_point():
        return torch.stack([value.double() for value in values]).mean(dim=0).to(first.dtype)
    return first


def marked_by(store: Store, step: int, read: Contents) -> list[int]:
    """The steps that a checkpoint wants to be kept; none where it cannot be read. One has been `read` already."""
    try:
        found = read if step == read.step else store.load(step, lambda name: name == TRAINER)
        marks = codec.decode(found.document(TRAINER).get("marks"), {})
        return [kept for mark in check(marks, PARTS["marks"], "marks").values() for kept in mark["keep"]]
    except CheckpointError:
        return []


def joined_rows(reported: Sequence[dict[str, Any]], last: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A history: one row for each step, of the rows that were reported and the last one, which may not have been.

    What was reported of a step later, as the scores of a test, joins what was there.
    """
    rows: list[dict[str, Any]] = []
    for row in reported:
        if rows and rows[-1]["step"] == row["step"]:
            rows[-1] |= {key: value for key, value in row.items() if key not in rows[-1]}
        else:
            rows.append(row)
    for row in last:
        before = rows.pop() if rows and rows[-1]["step"] == row["step"] else {}
        if not rows or rows[-1]["step"] < row["step"]:
            rows.append(row | {key: value for key, value in before.items() if key not in row})
    return rows


@contextmanager
def readable() -> Iterator[None]:
    """A state that is complete, and yet not one that was ever saved, is corrupt."""
    try:
        yield
    except HeadraceError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise CorruptError(
            f"the checkpoint holds a state that makes no sense: {type(error).__name__}: {error}"
        ) from error
