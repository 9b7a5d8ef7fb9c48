"""What a model returns for every row of its data, in their order, on the host."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten, treespec_dumps, treespec_loads

from ..adapters.samples import CollatedSource
from ..data.batch import Batch
from ..data.fields import Rows, cat, map_tensors
from ..data.ragged import Ragged
from ..data.shard import Shard
from ..errors import CheckpointError, DataError
from ..loss.call import first_call
from ..loss.objective import Objective
from ..watch.callback import Callback
from ..workers.comm import Comm
from .passes import in_step, one_pass, source_of, with_callbacks

if TYPE_CHECKING:
    from .trainer import Trainer


def predict(trainer: Trainer, data: Any, batch_size: int | None, callbacks: Sequence[Callback]) -> Any:
    """See `Trainer.predict`. Outputs are moved to the host a macrobatch at a time."""
    if isinstance(data, CollatedSource):
        data = data.in_order()
    source, workers = source_of(trainer, data, "predict", batch_size), trainer.workers
    objective = next(iter(trainer.eval_objectives.values()))
    outputs: Callable[[nn.Module, Batch], Any] = objective.call
    if type(objective).outputs is not Objective.outputs:
        outputs = objective.outputs
    on_host: list[Any] = []
    on_device: list[Any] = []
    totals: list[int] = []
    with one_pass(trainer, source, batch_size) as feed:
        batches = with_callbacks(trainer, callbacks, feed, in_step(trainer, feed, partial(outputs, trainer.model)))
        tapes = trainer.updates.answers(objective, bool(callbacks))
        with torch.no_grad(), trainer.precision.context():
            for batch in batches:
                totals.append(batch.total)
                if not batch.rows:  # a worker may have none of a small batch
                    pass
                elif on_device or on_host:
                    on_device.append(tapes.outputs(batch, partial(outputs, trainer.model)))
                else:
                    on_device.append(first_call(outputs, trainer.model, batch))
                    if outputs is objective.call:  # the streams stay what they are: no need to ask again
                        outputs = objective.call.way(tuple(batch.fields))
                if feed.ends_macrobatch:
                    on_host += on_device if feed.device.type == "cpu" else _to_host(on_device, not workers.in_step)
                    on_device = []
        if workers.in_step:
            on_host = _gathered(workers.comm, workers.shard, on_host, totals)
    if not on_host:
        raise DataError("the predict data gave no rows. Pass data with at least one.")
    joined = _joined(on_host)
    if len(totals) > 1:
        _warn_of_others(joined, sum(totals))
    return tree_map(lambda leaf: map_tensors(leaf, _as_float), joined) if trainer.precision.halves else joined


def _warn_of_others(joined: Any, rows: int) -> None:
    """Warns of outputs with something else than rows in front, as the state of a recurrent layer has its layers."""
    for leaf in tree_flatten(joined)[0]:
        if isinstance(leaf, Tensor) and leaf.dim() > 1 and len(leaf) != rows:
            warnings.warn(
                f"predict: an output of shape {list(leaf.shape)} is what batches gave, end to end, without an entry "
                f"for each of the {rows} rows. If it should have them, let the model return it with rows in front.",
                stacklevel=4,
            )


def _as_float(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _to_host(outputs: list[Any], join: bool) -> list[Any]:
    """Consecutive outputs on the host; `join`: tensors may be joined, which makes one copy of them."""
    if outputs and join and all(isinstance(leaf, Tensor) for leaf in tree_flatten(outputs[0])[0]):
        outputs = [_joined(outputs)]
    return [
        tree_map(lambda leaf: leaf.to("cpu") if isinstance(leaf, Tensor | Rows) else leaf, part) for part in outputs
    ]


def _joined(outputs: list[Any]) -> Any:
    """Consecutive outputs as one: tensors end to end, whatever they are held in; other things in a list."""
    if all(type(output) is Tensor and output.dim() for output in outputs):
        return _column(outputs) if len(outputs) > 1 else outputs[0]
    if isinstance(outputs[0], PackedSequence):
        raise DataError(
            "a PackedSequence of several batches cannot be joined. Return a Ragged: words.with_padded(...)."
        )
    form = tree_flatten(outputs[0])[1]
    if any(tree_flatten(output)[1] != form for output in outputs):
        raise DataError("the model returns several kinds of outputs, or dicts with keys in another order: return one.")
    columns = zip(*(tree_flatten(output)[0] for output in outputs), strict=True)
    return tree_unflatten([_column(list(leaves)) for leaves in columns], form)


def _column(leaves: list[Any]) -> Any:
    """One part of consecutive outputs: tensors with rows end to end, single numbers as a row each, others in a list."""
    if isinstance(leaves[0], Rows):
        return cat(leaves)
    if not isinstance(leaves[0], Tensor):
        return leaves
    if len({leaf.shape[1:] for leaf in leaves}) > 1:
        shapes = " and ".join(sorted({str(list(leaf.shape)) for leaf in leaves})[:2])
        raise DataError(
            f"the outputs of several batches, of shape {shapes}, cannot be joined. For sequences, return a Ragged: "
            "words.with_values(...) or words.with_padded(...)."
        )
    return torch.cat(leaves) if leaves[0].dim() else torch.stack(leaves)


RAGGED = "headrace.Ragged"


def _gathered(comm: Comm, shard: Shard, outputs: list[Any], totals: Sequence[int]) -> list[Any]:
    """The outputs of all workers in the order of the rows; `totals`: how many rows each batch has."""
    try:
        flat = [tree_flatten(output) for output in outputs]
        told = comm.all_gather([_written(flat[0][1]) if flat else None, [[*map(_sent, leaves)] for leaves, _ in flat]])
    except CheckpointError as error:
        raise DataError(f"what several workers predict has to be made of tensors: {error}") from None
    rest = [iter(sent) for _, sent in told]
    forms = [form for form, _ in told if form is not None]
    form = flat[0][1] if flat else treespec_loads(forms[0]) if forms else None  # this worker may have had no rows
    shards = [replace(shard, index=k) for k in range(comm.count)]
    joined: list[Any] = []
    for total in totals:
        for shard, theirs in zip(shards, rest, strict=True):
            start, stop = shard.of(total)
            if start < stop:
                leaves = [_received(leaf) for leaf in next(theirs)]
                unknown = leaves[0] if len(leaves) == 1 else tuple(leaves)
                joined.append(unknown if form is None else tree_unflatten(leaves, form))
    return joined


def _written(form: TreeSpec) -> str | None:
    """The structure of an output as it travels; `None` if torch cannot write its classes, or the keys of its dicts."""
    try:
        text = treespec_dumps(form)
        return text if treespec_loads(text) == form else None
    except Exception:  # torch raises one of its own for each kind
        return None


def _sent(leaf: Any) -> Any:
    """A part of an output as it travels: sequences as what they are made of."""
    return {RAGGED: [_sent(leaf.values), leaf.offsets]} if isinstance(leaf, Ragged) else leaf


def _received(sent: Any) -> Any:
    """What `_sent` was given."""
    return Ragged(*map(_received, sent[RAGGED])) if isinstance(sent, dict) else sent
