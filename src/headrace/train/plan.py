"""What a training is made of, put together and checked before it begins."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..adapters.adapt import as_data, as_table
from ..data.batch import Batch
from ..data.categories import Categories
from ..data.fields import unmasked
from ..data.maps import owned
from ..data.ragged import Ragged
from ..data.reader import Reader
from ..data.source import Source
from ..data.views import OnDevice
from ..errors import ConfigError, DataError
from ..length import Length, interval
from ..loss.objective import Objective, as_objective
from ..watch.answers import Answers
from ..watch.callback import Callback, Callbacks
from ..watch.logfile import LogFile
from ..watch.progress import Progress
from ..watch.tensorboard import TensorBoard
from . import check

OptimizerLike = Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer]

RESIDENT_SHARE = 0.25  # of a GPU's free memory that a data set may take to be kept there


@dataclass(frozen=True, slots=True)
class Plan:
    """The data of a training and when to do what."""

    train: Source
    val: Source | None
    test: Source | None
    validate_every: Length
    log_every: Length
    callbacks: Callbacks
    others: Sequence[Length] = ()
    """When a checkpoint is written, and a schedule moves on."""

    @classmethod
    def of(
        cls,
        train: Source,
        val: Any,
        test: Any,
        device: torch.device,
        validate_every: str | Length,
        log_every: str | Length,
        callbacks: Callbacks,
        others: Sequence[Length],
    ) -> "Plan":
        """The plan of what a user has asked for."""
        return cls(
            train,
            None if val is None else source_on(val, device, "val", like=train),
            None if test is None else source_on(test, device, "test", like=train),
            interval(validate_every, "validate_every"),
            interval(log_every, "log_every"),
            callbacks,
            others,
        )

    @property
    def scored(self) -> dict[str, Source]:
        """The data that are scored, by name."""
        return {name: source for name, source in (("val", self.val), ("test", self.test)) if source is not None}

    @property
    def within_epochs(self) -> bool:
        """Whether anything may be due between the ends of two epochs."""
        return any(every.unit != "epochs" for every in (self.log_every, self.validate_every, *self.others))

    @property
    def config(self) -> dict[str, Any]:
        """The settings that a run is resumed with."""
        return {"validate_every": str(self.validate_every), "log_every": str(self.log_every)}

    def check(
        self, objectives: Mapping[str, Objective], scorers: Mapping[str, Objective], scan: bool, measured: str | None
    ) -> None:
        """Raises on whatever can be known not to work; `measured`: the stream that metrics compare with."""
        data = {"train": self.train, "val": self.val, "test": self.test}
        given = {name: source for name, source in data.items() if source is not None}
        for name, source in given.items():
            check.same_streams(self.train.streams, source.streams, name)
            if name != "train":
                check.ends(source, name)
                check.another(source, self.train, name)
            check.same_categories(self.train.read_by, source.read_by, name, owner="train")
            if scan:
                check.finite(source, name)
        columns = {name: check.columns_of(source) for name, source in given.items()}
        for objective in {id(o): o for o in [*objectives.values(), *scorers.values()]}.values():
            objective.prepare(self.train.streams, columns)
        if measured is not None:
            check.measurable(objectives, self.train.streams, measured)
            check.measurable(scorers, self.train.streams, measured)


def source_on(
    data: Any,
    device: torch.device,
    name: str,
    order: str = "none",
    seed: int = 0,
    like: Source | None = None,
    categories: Categories | None = None,
) -> Source:
    """Data as a source for a device; `name` is what errors call it. What fits into a GPU is moved there once.

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
    return Reader(table, order, seed, count=count if count in [s.name for s in table.streams] else "rows")


def by_key(
    loss: Any, optimizer: OptimizerLike | Mapping[str, Optimizer], model: nn.Module
) -> tuple[dict[str, Objective], dict[str, Optimizer]]:
    """Objectives and optimizers by key; a single one has the key ""."""
    if isinstance(loss, Mapping) != isinstance(optimizer, Mapping):
        raise ConfigError("loss= and optimizer= must both be dicts, with equal keys, or neither.")
    if isinstance(loss, Mapping) and isinstance(optimizer, Mapping):
        if loss.keys() != optimizer.keys() or not loss:
            raise ConfigError(f"loss= has the keys {list(loss)}, optimizer= {list(optimizer)}. They must be equal.")
        return {k: as_objective(v) for k, v in loss.items()}, {k: _optimizer(optimizer[k], model, k) for k in loss}
    return {"": as_objective(loss)}, {"": _optimizer(optimizer, model, "")}


def all_callbacks(callbacks: Any, progress: str | bool, logs: bool, leader: bool = True) -> Callbacks:
    """The user's callbacks, what keeps `logs` of a run, and the display; on others than the `leader` some are left out.

    A log of a kind that the user has brought takes the place of the usual one.
    """
    if isinstance(callbacks, Callback | type) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks= takes a list of Callback objects, got {_named(callbacks)}.")
    wanted = [*callbacks]
    for kind in (Answers, LogFile, TensorBoard) if logs else ():
        if not any(isinstance(callback, kind) for callback in wanted):
            wanted.append(kind())
    styles: dict[str | bool, str] = {True: "auto", "auto": "auto", "bar": "bar", "plain": "plain"}
    if progress is False:
        return Callbacks(wanted, leader)
    if not isinstance(progress, str | bool) or progress not in styles:
        raise ConfigError(f"progress= is 'auto', 'bar', 'plain' or False, got {progress!r}.", argument="progress")
    return Callbacks([*wanted, Progress(styles[progress])], leader)


def as_batch(batch: Any, categories: Categories | None) -> tuple[Batch, Categories]:
    """A batch from a list of sample dicts, or whatever a table can be made of, and what its numbers stand for.

    Strings are read by the `categories` of the training.
    """
    if isinstance(batch, list) and not batch:
        raise DataError("a batch has at least one row, got an empty list.")
    if isinstance(batch, list) and all(isinstance(sample, Mapping) for sample in batch):
        names = list(batch[0])
        for k, sample in enumerate(batch):
            if list(sample) != names:
                raise DataError(f"sample {k} has the keys {list(sample)}, sample 0 has {names}. They must be equal.")
        return Batch({name: _joined(name, [s[name] for s in batch]) for name in names}, len(batch)), {}
    table = as_table(batch, categories)
    check.same_categories(categories, table.read_by, "batch")
    if table.augments:
        raise ConfigError("a map with draws belongs to epochs: give step() a batch of a Feed over it.")
    rows = table.rows(0, len(table))
    return owned(rows) if table.aliases else rows, table.read_by  # the model may write into its batch


def _joined(name: str, samples: Sequence[Any]) -> Tensor | Ragged:
    """The rows of samples; sequences where they differ in their first dimension."""
    rows = [_row(name, k, sample) for k, sample in enumerate(samples)]
    if len({row.shape for row in rows}) == 1:
        return torch.stack(rows)
    if not all(row.dim() and row.shape[1:] == rows[0].shape[1:] for row in rows):
        k, odd = next((k, row) for k, row in enumerate(rows) if row.shape != rows[0].shape)
        raise DataError(
            f"stream {name!r}: sample {k} has the shape {list(odd.shape)}, sample 0 has {list(rows[0].shape)}. "
            "Give all one shape; sequences may differ in their first dimension."
        )
    return Ragged.of(rows)


def _row(name: str, k: int, sample: Any) -> Tensor:
    who = f"stream {name!r}: sample {k}"
    sample = unmasked(sample, who)
    try:
        return torch.as_tensor(sample)
    except (TypeError, ValueError, RuntimeError):
        kind = "text" if isinstance(sample, str | bytes) else f"a {type(sample).__name__}"
        raise DataError(
            f"{who} holds {kind}, of which there is no tensor. Make numbers of it, or leave it out."
        ) from None


@contextmanager
def deterministic_mode(wanted: bool) -> Iterator[None]:
    """Deterministic algorithms for a while, where they are wanted."""
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
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = before[2]


def compile_in_place(model: nn.Module) -> None:
    """As `model.compile()`, which leaves models made of torch's own containers as they are."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return model._call_impl(*arguments, **keywords)

    model._compiled_call_impl = torch.compile(call)


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


def _named(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
