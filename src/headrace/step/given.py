"""What a user has given, as sources, batches, optimizers and modes of torch."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from ..adapters.adapt import as_data, as_table
from ..adapters.passes import hugging_kind
from ..data.batch import Batch, Stream
from ..data.maps import owned
from ..data.reader import Reader, ReaderOfOnePass
from ..data.source import Categories, Source, Table
from ..data.views import OnDevice
from ..errors import ConfigError, DataError, ModelError
from ..formats.frames import is_frame
from ..length import interval
from ..loss.elements import L2Prior
from ..loss.no_loss import ByTrainStep, NoLoss
from ..loss.objective import Objective, as_objective, losses_of, module_of
from . import check
from .weights import categories_of, remember_categories

OptimizerLike = Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer]
Optimizers = Mapping[str, Optimizer | tuple[Optimizer, str]]
"""Optimizers by key; `(optimizer, "5 steps")` is one that is used at every fifth step."""
RESIDENT_SHARE = 0.25  # of a GPU's free memory that a data set may take to be kept there


def source_on(
    data: Any,
    device: torch.device,
    name: str,
    order: str = "none",
    seed: int = 0,
    like: Source | None = None,
    categories: Categories | None = None,
    resumes: bool = False,
) -> Source:
    """Data as a source for a device; `name` is what errors call it. What fits into a GPU is moved there once.

    `resumes`: its place is saved with a run, with the fingerprint of the data, which takes time for large ones.

    Where batches of the training data, `like`, count items, those of this table do so too. Strings are read by the
    `categories` of the training.
    """
    try:
        table = as_data(data, categories if like is None else like.read_by)
        if isinstance(table, Source):
            return table
        if not len(table):
            raise DataError("they have no rows, and there is nothing to read.")
    except DataError as error:
        raise type(error)(f"the {name} data: {error}") from None
    if device.type == "cuda" and table.resident(torch.device("cpu")) and not table.augments:
        free, _ = torch.cuda.mem_get_info(device)
        if len(table) * table.row_bytes <= RESIDENT_SHARE * free:
            table = OnDevice(table, device)
    count = "rows" if like is None else like.sized_by
    kind = Reader if resumes else ReaderOfOnePass
    return kind(table, order, seed, count=count if count in [s.name for s in table.streams] else "rows")


def batch_for(model: nn.Module, batch: Any) -> Batch:
    """A batch of whatever `step` takes; strings keep the numbers that they have in the first one."""
    if isinstance(batch, Batch):
        return batch
    known = categories_of(model)
    found, held = as_batch(batch, known)
    if known is None:
        remember_categories(model, held or None)
    return found


def as_batch(batch: Any, categories: Categories | None) -> tuple[Batch, Categories]:
    """A batch of whatever a table can be made of, and what its numbers stand for.

    Strings are read by the `categories` of the training.
    """
    if isinstance(batch, list):
        raise DataError(
            "a list is several batches, and one is expected. Give x and y as a tuple, (x, y), what a DataLoader gives "
            "as tuple(batch), and samples as hr.samples([...])."
        )
    table = as_table(batch, categories)
    check.same_categories(categories, table.read_by, "batch")
    if table.augments:
        raise ConfigError("a map with draws belongs to epochs: give step() a batch of a Feed over it.")
    rows = table.rows(0, len(table))
    return owned(rows) if table.aliases else rows, table.read_by  # the model may write into its batch


def data_sets(data: Any, name: str, streams: Sequence[Stream] | None, target: str = "") -> dict[str, Any]:
    """Data to be scored, by what keys of their numbers begin with: one set, or those of a dict of sets.

    A dict is one set if its keys are streams, known ones or by what stands there: a set has columns of its own. Where
    no streams are known, the name of the `target` tells.
    """
    known = {stream.name for stream in streams or ()}
    several = isinstance(data, Mapping) and data and not hugging_kind(data) and not data.keys() <= known
    if not several or (not known and target in data) or not any(map(_is_set, data.values())):
        return {name: data}
    if others := {each: held for each, held in data.items() if not _is_set(held)}:
        if not any(isinstance(held, Mapping | Table | Source | Dataset | DataLoader) for held in data.values()):
            return {name: data}
        each, held = next(iter(others.items()))
        raise DataError(
            f"the {name} data are sets by name, and {each!r} is a {type(held).__name__}, which is no set of data. Give "
            "it columns, as in {'x': ..., 'y': ...}, or leave it out."
        )
    for each in data:
        if not isinstance(each, str) or not each or "/" in each or each == "loss":
            raise ConfigError(
                f"the {name} data: {each!r} cannot be the name of a set. Its numbers have keys such as "
                f"'{name}/clean/loss': give it a name without a slash, other than 'loss'."
            )
    return {f"{name}/{each}": held for each, held in data.items()}


def _is_set(data: Any) -> bool:
    """Whether this has columns of its own, so that it cannot be a stream."""
    if isinstance(data, list):  # of batches
        return bool(data) and isinstance(data[0], Mapping | tuple | Batch)
    if isinstance(data, tuple):
        return len(data) == 2 and not any(isinstance(part, int | float | tuple | list) for part in data)
    kinds = (Mapping, Table, Source, Dataset, DataLoader, str, Path)
    return isinstance(data, kinds) or bool(hugging_kind(data)) or is_frame(data)


def deterministic_mode(wanted: bool) -> AbstractContextManager[None]:
    """Deterministic algorithms for a while, where they are wanted; names what has none."""
    return _deterministic() if wanted else nullcontext()


@contextmanager
def _deterministic() -> Iterator[None]:
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except (RuntimeError, DataError) as error:  # the latter where the model failed on its first batch
        if found := re.search(r"(\S+) does not have a deterministic implementation", str(error)):
            raise ConfigError(
                f"deterministic=True: torch has no deterministic {found[1]}. Replace it, or leave deterministic= out."
            ) from error
        if "CUBLAS_WORKSPACE_CONFIG" in str(error):
            raise ConfigError(
                "deterministic=True: products of matrices on a GPU are deterministic with the environment variable "
                "CUBLAS_WORKSPACE_CONFIG=:4096:8, which is to be set before the program starts."
            ) from error
        raise
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]


def compile_in_place(model: nn.Module) -> None:
    """As `model.compile()`, which leaves models made of torch's own containers as they are."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return model._call_impl(*arguments, **keywords)

    model._compiled_call_impl = torch.compile(call)


def by_key(
    loss: Any, optimizer: OptimizerLike | Optimizers | tuple[()], model: nn.Module, own: bool = False
) -> tuple[dict[str, Objective], dict[str, Optimizer]]:
    """Objectives and optimizers by key; a single one has the key "". Without an optimizer there is none.

    `own`: whether `train_step` is overridden. It may make the updates of optimizers that have no loss.
    """
    if loss is None and optimizer == ():
        return {"": NoLoss()}, {}
    if isinstance(optimizer, tuple) and not optimizer:
        several = loss if isinstance(loss, Mapping) and loss else {"": loss}
        return {key: as_objective(each) for key, each in several.items()}, {}
    if own and not isinstance(loss, Mapping) and optimizer != {}:
        given = optimizer if isinstance(optimizer, Mapping) else {"": optimizer}
        if loss is None or given is optimizer:
            return _by_train_step(loss, given, model)
    if isinstance(loss, Mapping) != isinstance(optimizer, Mapping):
        raise ConfigError(
            "loss= and optimizer= must both be dicts, with equal keys, or neither; only where train_step is overridden "
            "several optimizers go without a dict of losses."
        )
    if isinstance(loss, Mapping) and isinstance(optimizer, Mapping):
        if loss.keys() != optimizer.keys() or not loss:
            raise ConfigError(f"loss= has the keys {list(loss)}, optimizer= {list(optimizer)}. They must be equal.")
        found = {key: each[0] if isinstance(each, tuple) and each else each for key, each in optimizer.items()}
        return {k: as_objective(v) for k, v in loss.items()}, {k: _optimizer(found[k], model, k) for k in loss}
    return {"": as_objective(loss)}, {"": _optimizer(optimizer, model, "")}


def _by_train_step(
    loss: Any, optimizers: Mapping[str, Any], model: nn.Module
) -> tuple[dict[str, Objective], dict[str, Optimizer]]:
    """Optimizers without losses by key, since an overridden `train_step` computes them; the first may have one."""
    if pauses(optimizers):
        raise ConfigError("(optimizer, 'n steps') needs a loss by key: here train_step decides when it is used.")
    objectives: dict[str, Objective] = {key: ByTrainStep() for key in optimizers}
    if loss is not None:
        objectives[next(iter(objectives))] = as_objective(loss)
    return objectives, {key: _optimizer(each, model, key) for key, each in optimizers.items()}


def scorers(objectives: dict[str, Objective], eval_loss: Any) -> dict[str, Objective]:
    """What validations compute: `eval_loss`, or the losses that there are."""
    if eval_loss is not None:
        return {"": as_objective(eval_loss, "eval_loss")}
    known = [objective for objective in objectives.values() if not isinstance(objective, ByTrainStep)]
    return {"": known[0]} if len(known) == 1 < len(objectives) else objectives


def pauses(optimizer: OptimizerLike | Optimizers | tuple[()]) -> dict[str, int]:
    """At every which step an optimizer is used, of those that are not used at each."""
    found = {}
    for key, each in optimizer.items() if isinstance(optimizer, Mapping) else ():
        if not isinstance(each, tuple):
            continue
        every = interval(each[1], f"optimizer[{key!r}]") if len(each) == 2 else None
        if every is None or every.unit != "steps":
            raise ConfigError(
                f"optimizer[{key!r}]= takes a torch optimizer, or one with the steps at which it is used, as in "
                f"(optimizer, '5 steps'); got ({', '.join(map(_shown, each))})."
            )
        found[key] = int(every.count)
    if isinstance(optimizer, Mapping) and found.keys() == optimizer.keys() and 1 not in found.values():
        raise ConfigError("no optimizer= is used at each step. Give one of them without a number of steps.")
    return {key: count for key, count in found.items() if count > 1}


def _shown(part: Any) -> str:
    """A part of what was given for an optimizer, in a few words."""
    return repr(part) if isinstance(part, str | int | float) else f"a {type(part).__name__}"


def _optimizer(optimizer: Any, model: nn.Module, key: str) -> Optimizer:
    if isinstance(optimizer, Optimizer):
        return optimizer
    if callable(optimizer) and not key:
        made = optimizer(model.parameters())
        if isinstance(made, Optimizer):
            return made
        raise ConfigError(
            f"optimizer= made a {type(made).__name__}. A factory takes parameters and returns an optimizer."
        )
    raise ConfigError(
        f"optimizer{f'[{key!r}]' if key else ''}= takes a torch optimizer"
        f"{'' if key else ', or a function that makes one of the parameters'}; got a {type(optimizer).__name__}."
    )


def check_optimizers(model: nn.Module, optimizers: Mapping[str, Optimizer], objectives: Mapping[str, Any]) -> None:
    """Raises unless every optimizer holds parameters of this model (or of its objective), and none twice."""
    known = {id(p) for p in model.parameters()}
    for objective in objectives.values():
        if (module := module_of(objective)) is not None:
            known |= {id(p) for p in module.parameters()}
    seen: dict[int, str] = {}
    for name, optimizer in optimizers.items():
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ModelError(
                "LBFGS asks for the loss again within a step, by a closure; headrace makes one pass a step."
            )
        params = [p for group in optimizer.param_groups for p in group["params"]]
        strange = sum(id(p) not in known for p in params)
        if strange:
            raise ModelError(
                f"{type(optimizer).__name__} holds {strange} of {len(params)} parameters that are not in the model. "
                "Make the optimizer from this model's parameters, after the model is complete; if another trainer "
                "has the model at work, call its release() first."
            )
        for p in params:
            if seen.setdefault(id(p), name) != name:
                raise ModelError(f"optimizers {seen[id(p)]!r} and {name!r} hold the same parameter. Give each its own.")
    losses = [loss for objective in objectives.values() for loss in losses_of(objective)]
    fused = any(isinstance(loss, L2Prior) and loss.fused and loss.coefficient for loss in losses)
    if fused and not any(group.get("weight_decay") for group in groups_of(optimizers.values())):
        raise ConfigError(
            "L2Prior(fused=True) is applied by the optimizer, as its weight decay, and this one has none. Make it from "
            "the prior's groups: torch.optim.SGD(prior.groups(model), ...)."
        )


def groups_of(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """The groups of parameters of all optimizers."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def shares_of(groups: Sequence[dict[str, Any]]) -> list[float]:
    """What each group's rate is of the first one's; nothing where that is 0."""
    first = float(groups[0]["lr"])
    return [float(group["lr"]) / first for group in groups] if first else []


def put_rate(group: dict[str, Any], rate: float) -> None:
    """Gives a group of an optimizer its learning rate, which may be a tensor."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
