"""Turns the arguments of a trainer's methods into sources, batches, objectives and optimizers."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from ..adapters.adapt import as_data, as_table
from ..adapters.loaders import hugging_kind
from ..arena.own_optimizers import joined, kind_of, params_of, parts_of
from ..data.batch import Batch, Stream
from ..data.encoding import Encoding
from ..data.maps import owned
from ..data.reader import Reader, ReaderOfOnePass
from ..data.source import Source, Table
from ..data.views import OnDevice
from ..errors import ConfigError, DataError, ModelError
from ..formats.frames import is_frame
from ..length import interval
from ..loss.objective import ByTrainStep, NoLoss, Objective, as_objective, module_of
from . import check
from .weights import encoding_of, remember_encoding

OptimizerLike = Optimizer | list[Any] | Callable[[Iterator[nn.Parameter]], Optimizer | Sequence[Optimizer]]
Optimizers = Mapping[str, Optimizer | list[Any] | tuple[Optimizer, str]]
"""Optimizers by key; `(optimizer, "5 steps")` is one that is used at every fifth step."""
RESIDENT_SHARE = 0.25  # of a GPU's free memory that a data set may take to be kept there


def source_on(
    data: Any,
    device: torch.device,
    name: str,
    order: str = "none",
    seed: int = 0,
    like: Source | None = None,
    encoding: Encoding | None = None,
    resumes: bool = False,
    augment: Any = None,
) -> Source:
    """Data as a source for a device; `name` is what errors call it. What fits into a GPU is moved there once.

    `resumes`: its place is saved with a run, with the fingerprint of the data, which takes time for large ones.

    Where batches of the training data, `like`, count items, those of this table do so too. Files and frames are read
    as those data were whose `encoding` is given. `augment` is that of the reader.
    """
    try:
        table = as_data(data, encoding if like is None else like.encoding)
        if isinstance(table, Source):
            if augment is not None:
                raise ConfigError(
                    f"augment= changes rows that the trainer reads by number, and the {name} data are a "
                    f"{type(table).__name__}. Give it to a Reader, hr.Reader(table, augment=f), or hr.mix(..., "
                    "augment=f); of another source change the batches where it makes them."
                )
            return table
        if not len(table):
            raise DataError("they have no rows, and there is nothing to read.")
    except DataError as error:
        raise type(error)(f"the {name} data: {error}") from None
    if device.type == "cuda" and table.resident(torch.device("cpu")):
        free, _ = torch.cuda.mem_get_info(device)
        if len(table) * table.row_bytes <= RESIDENT_SHARE * free:
            table = OnDevice(table, device)
    count = "rows" if like is None else like.sized_by
    kind = Reader if resumes else ReaderOfOnePass
    count = count if count in [stream.name for stream in table.streams] else "rows"
    return kind(table, order, seed, count=count, augment=augment)


def batch_for(model: nn.Module, batch: Any) -> Batch:
    """A batch of whatever `step` takes; strings keep the numbers that they have in the model's first one."""
    if isinstance(batch, Batch):
        return batch
    if isinstance(batch, list) and not (batch and all(isinstance(each, str | Path) for each in batch)):
        raise DataError(
            "a list is several batches, and one is expected. Give x and y as a tuple, (x, y), what a DataLoader gives "
            "as tuple(batch), and samples as hr.samples([...])."
        )
    known = encoding_of(model)
    table = as_table(batch, known)
    check.same_encoding(known, table.encoding, "batch")
    if known is None:
        remember_encoding(model, table.encoding)
    rows = table.rows(0, len(table))
    return owned(rows) if table.aliases else rows  # the model may write into its batch


def data_sets(data: Any, name: str, streams: Sequence[Stream] | None, target: str = "") -> dict[str, Any]:
    """Data to be scored, by what keys of their numbers begin with: one set, or those of a dict of sets.

    A dict is one set if its keys are streams, known ones or by what stands there: a set has columns of its own. Where
    no streams are known, the name of the `target` tells.
    """
    known = {stream.name for stream in streams or ()}
    several = isinstance(data, Mapping) and data and not hugging_kind(data) and not data.keys() <= known
    if not several or (not known and target in data) or not any(map(_is_set, data.values())):
        return {name: data}
    if others := {each: one_set for each, one_set in data.items() if not _is_set(one_set)}:
        if not any(isinstance(one_set, Mapping | Table | Source | Dataset | DataLoader) for one_set in data.values()):
            return {name: data}
        each, one_set = next(iter(others.items()))
        raise DataError(
            f"the {name} data are sets by name, and {each!r} is a {type(one_set).__name__}, which is no set of data. "
            "Give it columns, as in {'x': ..., 'y': ...}, or leave it out."
        )
    for each in data:
        if not isinstance(each, str) or not each or "/" in each or each == "loss":
            raise ConfigError(
                f"the {name} data: {each!r} cannot be the name of a set. Its numbers have keys such as "
                f"'{name}/clean/loss': give it a name without a slash, other than 'loss'."
            )
    return {f"{name}/{each}": one_set for each, one_set in data.items()}


def _is_set(data: Any) -> bool:
    """Whether this has columns of its own, so that it cannot be a stream."""
    if isinstance(data, list):  # of batches
        return bool(data) and isinstance(data[0], Mapping | tuple | Batch)
    if isinstance(data, tuple):
        return len(data) == 2 and not any(isinstance(part, int | float | tuple | list) for part in data)
    kinds = (Mapping, Table, Source, Dataset, DataLoader, str, Path)
    return isinstance(data, kinds) or bool(hugging_kind(data)) or is_frame(data)


@contextmanager
def deterministic_mode(wanted: bool) -> Iterator[None]:
    """Deterministic algorithms for a while, if they are wanted; an error names the operation that has none."""
    if not wanted:
        yield
        return
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


def stays_ordinary(model: nn.Module, objectives: Mapping[str, Objective], tape: Any) -> bool:
    """Whether parameters stay where they are, and passes are not recorded: of TorchScript, and of own updates."""
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    if scripted and tape is True:
        raise ConfigError("tape=True records what a model calls in Python, and TorchScript calls nothing there.")
    return scripted or any(isinstance(objective, ByTrainStep) for objective in objectives.values())


def by_key(
    loss: Any, optimizer: OptimizerLike | Optimizers | tuple[()], model: nn.Module, own: bool = False
) -> tuple[dict[str, Objective], dict[str, Optimizer], dict[str, int]]:
    """Objectives and optimizers by key, and at every which step an optimizer is used, if not at each.

    A single objective or optimizer has the key "". Without an optimizer there is none. `own`: whether `train_step` is
    overridden. It may make the updates of optimizers that have no loss.
    """
    losses = loss if isinstance(loss, Mapping) and loss else {"": loss}
    if optimizer == ():
        return {"": NoLoss()} if loss is None else {key: as_objective(each) for key, each in losses.items()}, {}, {}
    several = isinstance(optimizer, Mapping)
    made, every = _pauses(optimizer) if isinstance(optimizer, Mapping) else ({"": optimizer}, {})
    if own and made and not isinstance(loss, Mapping) and (loss is None or several):
        if every:
            raise ConfigError("(optimizer, 'n steps') needs a loss by key: here train_step decides when it is used.")
        objectives: dict[str, Objective] = {key: ByTrainStep() for key in made}
        if loss is not None:
            objectives[next(iter(made))] = as_objective(loss)
    elif isinstance(loss, Mapping) != several:
        raise ConfigError(
            "loss= and optimizer= must both be dicts, with equal keys, or neither; only where train_step is overridden "
            "several optimizers go without a dict of losses."
        )
    elif losses.keys() != made.keys() or (several and not loss):
        raise ConfigError(f"loss= has the keys {list(loss)}, optimizer= {list(made)}. They must be equal.")
    else:
        objectives = {key: as_objective(each) for key, each in losses.items()}
    return objectives, {key: _optimizer(made[key], model, key) for key in objectives}, every


def _pauses(optimizers: Optimizers) -> tuple[dict[str, Any], dict[str, int]]:
    """Optimizers by key, and at every which step those are used that came as `(optimizer, "n steps")`."""
    made, every = dict(optimizers), {}
    for key, each in optimizers.items():
        if not isinstance(each, tuple):
            continue
        pause = interval(each[1], f"optimizer[{key!r}]") if len(each) == 2 else None
        if pause is None or pause.unit != "steps":
            raise ConfigError(
                f"optimizer[{key!r}]= takes a torch optimizer, or one with the steps at which it is used, as in "
                f"(optimizer, '5 steps'); got ({', '.join(map(_shown, each))})."
            )
        made[key], every[key] = each[0], int(pause.count)
    if every and every.keys() == made.keys() and 1 not in every.values():
        raise ConfigError("no optimizer= is used at each step. Give one of them without a number of steps.")
    return made, {key: count for key, count in every.items() if count > 1}


def _shown(part: Any) -> str:
    """A part of what was given for an optimizer, in a few words."""
    return repr(part) if isinstance(part, str | int | float) else f"a {type(part).__name__}"


def _optimizer(optimizer: Any, model: nn.Module, key: str) -> Optimizer:
    title = f"optimizer{f'[{key!r}]' if key else ''}="
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, list):
        return joined(optimizer, model, title)
    if callable(optimizer) and not key:
        made = optimizer(model.parameters())
        if isinstance(made, Optimizer | list | tuple):
            return _optimizer(list(made) if isinstance(made, tuple) else made, model, key)
        raise ConfigError(
            f"optimizer= made a {type(made).__name__}. A factory takes parameters and returns an optimizer, or a list."
        )
    raise ConfigError(
        f"{title} takes a torch optimizer, a list of several"
        f"{'' if key else ', or a function that makes one of the parameters'}; got a {type(optimizer).__name__}."
    )


def scorers(objectives: dict[str, Objective], eval_loss: Any) -> dict[str, Objective]:
    """What validations compute: `eval_loss`, or the losses that there are."""
    if eval_loss is not None:
        return {"": as_objective(eval_loss, "eval_loss")}
    known = [objective for objective in objectives.values() if not isinstance(objective, ByTrainStep)]
    return {"": known[0]} if len(known) == 1 < len(objectives) else objectives


def check_optimizers(
    model: nn.Module, optimizers: Mapping[str, Optimizer], objectives: Mapping[str, Any], has_own_train_step: bool
) -> None:
    """Raises unless every optimizer holds parameters of this model (or of its objective), and none twice."""
    known = {id(p) for p in model.parameters()}
    for objective in objectives.values():
        if (module := module_of(objective)) is not None:
            known |= {id(p) for p in module.parameters()}
    seen: dict[int, str] = {}
    for name, optimizer in optimizers.items():
        if not has_own_train_step and any(isinstance(part, torch.optim.LBFGS) for part in parts_of(optimizer)):
            raise ModelError(
                "LBFGS asks for the loss again within a step, by a closure, and headrace makes one pass a step. "
                "Override train_step, call optimizer.step(closure) there, and pass arena=False."
            )
        if any("lr" not in group for group in optimizer.param_groups):
            raise ModelError(f"a group of {kind_of(optimizer)} has no rate. Give it one before: group['lr'] = 1.0.")
        params = params_of(optimizer)
        strange = sum(id(p) not in known for p in params)
        if strange:
            raise ModelError(
                f"{kind_of(optimizer)} holds {strange} of {len(params)} parameters that are not in the model. "
                "Make the optimizer from this model's parameters, after the model is complete; if another trainer "
                "has the model at work, call its release() first."
            )
        if len({*map(id, params)}) < len(params):
            raise ModelError(f"{kind_of(optimizer)} holds a parameter twice, which torch warns of. Give it each once.")
        for p in params:
            if seen.setdefault(id(p), name) != name:
                raise ModelError(f"optimizers {seen[id(p)]!r} and {name!r} hold the same parameter. Give each its own.")


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
