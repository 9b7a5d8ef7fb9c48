"""Everything that can be known before the first update, checked then."""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..adapters.iterables import LoaderSource
from ..data.arrays import ArrayTable
from ..data.batch import Batch, Stream
from ..data.encoding import Encoding
from ..data.reader import Reader
from ..data.source import Source
from ..data.staging import Sizes
from ..errors import ConfigError, DataError, ModelError, unknown
from ..length import Length, as_count
from ..loss.objective import ByTrainStep, Objective, Supervised, scoring

_AUTO: ContextVar[str] = ContextVar("device", default="auto")
OF_UPDATES = {"clip_norm": None, "clip_value": None, "microbatch": None, "precision": "fp32", "nonfinite": "stop"}
"""Settings of an update, by what they are where nothing is to be done."""


def plain_number(value: Any) -> Any:
    """A number of NumPy's as one of Python's; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def positive(name: str, value: Any, whole: bool = False) -> None:
    """Raises unless an optional number is greater than zero."""
    if value is None or (whole and as_count(value) is not None):
        return
    if whole or isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise ConfigError(
            f"{name}= is {'a whole number' if whole else 'a number'} greater than 0, got {value!r}.", argument=name
        )


def setting(name: str, value: Any) -> None:
    """Raises on an argument of a trainer that nothing could work with."""
    if name == "batch_size" and value is not None:
        Sizes(value)
    elif name in ("microbatch", "clip_norm", "clip_value") and not (name == "microbatch" and value == "auto"):
        positive(name, value, whole=name == "microbatch")
    elif name == "threads" and value is not None:
        positive(name, value, whole=True)
    elif name == "tape" and value not in (True, False, "auto"):
        raise ConfigError(f"tape= is True, False or 'auto', got {value!r}.")
    elif name == "nonfinite" and value not in ("stop", "skip"):
        raise ConfigError(unknown("nonfinite", value, ("stop", "skip")))


def own_update(settings: Mapping[str, Any], shared: bool) -> None:
    """Raises after a `train_step` has made an update by itself which it may not make.

    `shared`: whether several workers make every update together.
    """
    done = "train_step made an update of its own,"
    if lost := [f"{name}={settings[name]!r}" for name, nothing in OF_UPDATES.items() if settings[name] != nothing]:
        raise ConfigError(
            f"{done} which knows nothing of {', '.join(lost)}. Call super().train_step(batch), or leave the setting "
            "out and do in train_step what it stands for. That one update has been made."
        )
    if shared:
        raise ConfigError(
            f"{done} which the other workers know nothing of. Call super().train_step(batch), or use a strategy of "
            "local updates, as Periodic. That one update has been made."
        )
    if settings["arena"]:
        raise ConfigError(
            f"{done} and did not call super().train_step(batch). A trainer whose train_step updates by itself needs "
            "arena=False, which leaves model and optimizer as they are. That one update has been made."
        )


@contextmanager
def auto_device(device: str | None) -> Iterator[None]:
    """What `device="auto"` stands for in trainers that are made within it."""
    before = _AUTO.set(device or "auto")
    try:
        yield
    finally:
        _AUTO.reset(before)


def device_for(device: str | torch.device, model: nn.Module, shards: bool = False) -> torch.device:
    """The device to train on: the one that is named, else the model's own accelerator, else any.

    `shards`: a strategy gives a model on "meta" its values. A device that cannot compute as the model does is refused.
    """
    chosen = _device(device, model, shards)
    fp8_hardware(model, torch.cuda.get_device_capability(chosen) if chosen.type == "cuda" else None)
    return chosen


def _device(device: str | torch.device, model: nn.Module, shards: bool) -> torch.device:
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if shards:
        devices -= {torch.device("meta")}
    if torch.device("meta") in devices:
        raise ModelError(
            "the model is on the 'meta' device and has no values. Materialise it first: model.to_empty(...); or shard "
            "it: strategy=hr.Sharded(init=...)."
        )
    if any(map(is_lazy, model.parameters())):
        raise ModelError(
            "the model has parameters without a shape, as LazyLinear has. Call it with a batch, model(x), before its "
            "optimizer is made."
        )
    if len(devices) > 1:
        raise ModelError(
            f"the model is spread over {', '.join(map(str, sorted(map(str, devices))))}. Move it to one device."
        )
    device = _AUTO.get() if device == "auto" else device
    if device != "auto":
        try:
            chosen = torch.device(device)
        except RuntimeError as error:
            raise ConfigError(f"device={device!r} is not a device. Try 'cpu', 'cuda' or 'auto'.") from error
        if chosen.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device={str(device)!r}: torch finds no CUDA device here. Use device='cpu' or 'auto'.")
        if chosen.type == "cpu":
            return torch.device("cpu")  # cpu:0 is the same place by another name
        return torch.device("cuda", torch.cuda.current_device()) if str(chosen) == "cuda" else chosen
    if devices and (own := devices.pop()).type != "cpu":
        return own
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def can_shard(arguments: Mapping[str, Any], own_steps: bool) -> None:
    """Raises on what a trainer of a sharded model cannot do."""
    refused = {
        "precision='fp16' or 'bf16'": (arguments["precision"] != "fp32", "hr.Sharded(params='bf16')"),
        "microbatch='auto'": (arguments["microbatch"] == "auto", "a number of rows"),
        "tape=True": (arguments["tape"] is True, "no tape"),
        "an overridden train_step or evaluate_step": (own_steps, "an hr.Objective"),
    }
    for what, (is_asked, instead) in refused.items():
        if is_asked:
            raise ConfigError(
                f"hr.Sharded does not go with {what}: all workers use the model at the same time, in equally many "
                f"passes. Use {instead}."
            )


def is_batch(batch: Any, giver: str) -> None:
    """Raises unless a step of the trainer is given a batch."""
    if not isinstance(batch, Batch):
        raise ConfigError(
            f"{giver} takes an hr.Batch, got a {type(batch).__name__}. Make one with other fields of the batch that "
            "you have: hr.Batch({**batch.fields, 'x': x}, batch.rows, total=batch.total)."
        )


def can_split(objectives: Mapping[str, Objective], microbatch: Any, workers: int = 1, parts: int = 0) -> None:
    """Raises if microbatches, parts or workers would split the batches of an objective that needs whole ones."""
    names = [name for objective in objectives.values() for name in _unsplit(objective)]
    if not names or (microbatch in (None, "auto") and workers == 1 and not parts):
        return
    how, instead = f"microbatch={microbatch!r} splits batches", "leave microbatch= out"
    if parts:
        how, instead = f"parts={parts} cuts every batch", "leave parts= out"
    if workers > 1:
        how = f"{workers} workers share every batch"
        instead = "use one worker, or hr.Periodic(), with which every worker has batches of its own"
    raise ConfigError(
        f"{how}, and the loss {', '.join(map(repr, names))} is not known to be a sum over rows. If it is a mean over "
        "rows, declare that: hr.RowMean(fn). An Objective whose terms are sums over rows declares splits = True. A "
        "loss that compares rows with each other, as a contrastive loss does, is neither and needs the whole batch: "
        f"{instead}."
    )


def fits_parts(microbatch: Any, batch: int, parts: int) -> None:
    """Raises if a part of a batch of so many rows has more of them than pass the model at once."""
    most = -(-batch // parts)
    if isinstance(microbatch, int) and microbatch < most:
        raise ConfigError(
            f"microbatch={microbatch} is less than the {most} rows of a part of a batch of {batch}. A part "
            f"passes the model at once, since its bits depend on all its rows: use more than parts={parts}, or a "
            "larger microbatch.",
            argument="microbatch",
        )


def can_score(scorers: Mapping[str, Objective]) -> None:
    """Raises if there is no loss to score data with."""
    if any(isinstance(objective, ByTrainStep) for objective in scorers.values()):
        raise ConfigError(
            "val= and test= need a loss, and this trainer, whose train_step is overridden, was made without one. Give "
            "eval_loss=, or override evaluate_step too."
        )


def _unsplit(objective: Objective) -> list[str]:
    """The names of the terms that do not declare `splits`, or the class of an objective of the user's that does not."""
    if isinstance(objective, Supervised):
        return [name for name, loss in objective.loss.items() if not loss.splits]
    return [] if objective.splits else [type(objective).__name__]


def has_optimizer(optimizers: Mapping[str, Any], who: str) -> None:
    """Raises where a trainer was made to predict or to validate, and is asked for more."""
    if not optimizers:
        raise ConfigError(
            f"{who} needs an optimizer, and this trainer was made without one. Make it as "
            "hr.Trainer(model, loss, optimizer)."
        )


def can_train(optimizers: Mapping[str, Any], who: str) -> None:
    """Raises where a trainer has no optimizer, or torch records no gradients."""
    has_optimizer(optimizers, who)
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        raise ConfigError(
            f"{who} needs gradients, which torch does not record here. Call it outside of torch.no_grad() and "
            "torch.inference_mode()."
        )


def fp8_hardware(model: nn.Module, capability: tuple[int, int] | None) -> None:
    """Raises if layers of torchao compute in fp8, and a GPU of this compute capability cannot; `None`: it is no GPU."""
    layers = [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]
    emulated = all(model.get_submodule(name).config.emulate for name in layers)  # type: ignore[union-attr]
    if layers and not emulated and capability is not None and capability < (8, 9):
        raise ConfigError(
            f"layer {layers[0]!r} computes in fp8, which needs a GPU of compute capability 8.9 or higher, and this one "
            f"has {capability[0]}.{capability[1]}. Leave the model as it was, with precision='bf16'."
        )


def has_an_end(train: Source, limits: Sequence[Length], sized: bool) -> None:
    """Raises if a training would go on for ever, or asks for batches of a size that its source does not give."""
    name = type(train).__name__
    if train.endless and all(limit.unit == "epochs" for limit in limits):
        raise ConfigError(
            f"the train data are a {name}, which never ends, and epochs are all that limits the training. "
            "Say steps=, samples= or minutes=, or give it epochs of n rows: hr.head(source, n)."
        )
    if train.own_size and sized:
        raise ConfigError(
            f"the train data are a {name} with batches of its own. Leave batch_size= out, or set it there."
        )


def ends(source: Source, name: str, limit: int | None = None) -> None:
    """Raises on data that are to be read to their end, and have none, or whose batches are joined for a training."""
    if isinstance(source, LoaderSource) and source.accumulate > 1:
        raise ConfigError(f"accumulate= is for training data, and the {name} data have it. Give the loader by itself.")
    if limit is not None and source.state_dict() is None:
        warnings.warn(
            f"the {name} data are a {type(source).__name__} without state_dict: limit= scores other rows each time.",
            stacklevel=3,
        )
    if source.endless and limit is None:
        raise ConfigError(
            f"the {name} data are a {type(source).__name__}, which never ends. Take n rows of it: hr.head(source, n)."
        )


def another(source: Source, train: Source, name: str) -> None:
    """Raises on a source that is pulled for the training already."""
    if source is train:
        raise ConfigError(
            f"the {name} data are the very {type(source).__name__} that is trained on. Make a second one."
        )


def same_streams(train: Sequence[Stream], other: Sequence[Stream], name: str, soft: Collection[str] = ()) -> None:
    """Raises unless another data set has the streams of the training data.

    Those that are `soft` may be probabilities of classes in one of them, and classes in the other.
    """
    known, there = {s.name: s for s in train}, {s.name: s for s in other}
    if missing := [stream for stream in known if stream not in there]:
        raise DataError(f"the {name} data have no stream {missing[0]!r}. They have: {', '.join(there)}.")
    for stream in other:
        if (expected := known.get(stream.name)) is None:
            raise DataError(f"the {name} data have a stream {stream.name!r} that the training data have not. Drop it.")
        may_differ = stream.name in soft and stream.sequence == expected.sequence
        if not stream.fits(expected) and not (may_differ and _is_float(stream) != _is_float(expected)):
            message = f"the {name} data have {stream} where the training data have {expected}. They must agree."
            if stream.sequence != expected.sequence or stream.shape[1:] == expected.shape[1:] != stream.shape:
                message += (
                    " Rows of different lengths are sequences in both: hr.Ragged.of(rows), or of a Dataset "
                    f"hr.from_dataset(data, sequences=({stream.name!r},))."
                )
            raise DataError(message)


def _is_float(stream: Stream) -> bool:
    return "float" in stream.dtype


def same_encoding(
    known: Encoding | None,
    given: Encoding | None,
    name: str,
    other: str = "the training data",
    owner: str = "trainer",
) -> None:
    """Raises where the numbers of a data set stand for other strings than those of the training data.

    Nothing is compared if one of them is `None`, which means that it is not known.
    """
    if known is None or given is None:
        return
    for stream in sorted(known.names & given.names):
        there, here = list(known.categories.get(stream, ())), list(given.categories.get(stream, ()))
        if not here or there == here:
            continue
        facts, remedy = "there they are numbers, here strings", "Give numbers here, or the strings there, too."
        if there:
            facts = f"{len(there)} strings there and {len(here)} here"
            if unlike := [k for k, pair in enumerate(zip(there, here, strict=False)) if pair[0] != pair[1]]:
                k = unlike[0]
                facts += f"; {k} is {there[k]!r} there and {here[k]!r} here"
            remedy = (
                "Give the trainer the path or the frame itself, which it reads by those, or open it with "
                f"categories={{{stream!r}: {owner}.categories[{stream!r}]}}."
            )
        raise DataError(f"the {name} data have other categories in {stream!r} than {other}: {facts}. {remedy}")
    fills, filled = known.nulls, given.nulls
    for stream in sorted(fills.keys() & filled.keys()):
        if fills[stream] != filled[stream]:
            raise DataError(
                f"in the {name} data {filled[stream]!r} stands for nulls of {stream!r}, in {other} {fills[stream]!r}. "
                f"Give the trainer the path or the frame itself, or open it with nulls={owner}.nulls."
            )


def warn_if_reordered(known: Encoding | None, now: Encoding | None) -> None:
    """Warns where a stream is made of the columns that the model was trained on, in another order."""
    before = known.columns if known is not None and known.columns else {}
    after = now.columns if now is not None and now.columns else {}
    for stream, columns in after.items():
        was = before.get(stream)
        if was != columns and not isinstance(was, str | None) and sorted(was) == sorted(columns):
            warnings.warn(
                f"the train data: {stream!r} is made of the columns {', '.join(columns)}, and the model was trained on "
                f"them in the order {', '.join(was)}. Its weights meet other columns now: reorder the data, unless "
                "that is what you want.",
                stacklevel=3,
            )


def measurable(
    objectives: Mapping[str, Objective], streams: Sequence[Stream], target: str, named: Iterable[str]
) -> None:
    """Raises unless there are targets for metrics to compare with.

    `named`: the outputs or targets that they are of; "" stands for the trainer's target.
    """
    names, objective = [stream.name for stream in streams], objectives[scoring(objectives)]
    for name in named:
        if (wanted := objective.measured(name, target).target) not in names:
            hint = "" if name else " Say target=."
            raise ConfigError(f"metrics= compare with an {unknown('stream', wanted, names)}{hint}")


def columns_of(source: Source | None) -> Mapping[str, Any]:
    """The columns of a source that is an array in memory, unless an augmentation makes others of them."""
    known = isinstance(source, Reader) and isinstance(source.table, ArrayTable) and source.augment is None
    return source.table.columns if known else {}  # type: ignore[union-attr]
