"""What a user has given, as sources, batches and modes of torch."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..adapters.adapt import as_data, as_table
from ..data.batch import Batch
from ..data.categories import Categories
from ..data.fields import unmasked
from ..data.maps import owned
from ..data.ragged import Ragged
from ..data.reader import Reader
from ..data.source import Source
from ..data.views import Moved
from ..errors import ConfigError, DataError
from . import check

RESIDENT_SHARE = 0.25  # of a GPU's free memory that a data set may take to be kept there


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
            table = Moved(table, device)
    count = "rows" if like is None else like.sized_by
    return Reader(table, order, seed, count=count if count in [s.name for s in table.streams] else "rows")


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
