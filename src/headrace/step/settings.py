"""How every update of a training is made."""

import warnings
from dataclasses import dataclass
from typing import Literal

from torch import nn

from ..data.batch import Batch
from ..errors import DataError

CHANGEABLE = ("microbatch", "clip_norm", "clip_value")
"""The settings that may change from one update to the next."""
_BATCH_NORM = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)


@dataclass(frozen=True, slots=True)
class Settings:
    """How every update of a training is made. `microbatch="auto"`: as large as the memory allows."""

    microbatch: int | Literal["auto"] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    arena: bool = True
    tape: bool | Literal["auto"] = "auto"
    seed: int = 0


FEW = 2  # rows of a stand-in: batch normalisation refuses a single one


class StandIns:
    """Rows for passes of a worker that has none of a batch, or fewer microbatches than others: of an earlier batch.

    What they give counts for nothing, and changes nothing.
    """

    def __init__(self) -> None:
        self._rows: Batch | None = None

    def remember(self, batch: Batch) -> None:
        """A batch of which this worker has rows."""
        if self._rows is None or self._rows.rows < min(FEW, batch.rows):
            self._rows = batch.split(FEW)[0] if batch.rows > FEW else batch

    @property
    def rows(self) -> Batch:
        if self._rows is None:
            raise DataError(
                "a worker has no rows of the first batch, and all workers have to use a sharded model together. Give "
                "the first batch at least one row for each worker."
            )
        return self._rows


def draws_random(module: nn.Module) -> bool:
    """Whether a module draws random numbers in training: dropout, by itself or inside a layer."""
    rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0)
    return isinstance(module, nn.RReLU) or (isinstance(module, _RANDOM) and bool(rate))


def warn_where_splits_differ(model: nn.Module, depth: int = 4) -> None:
    """Warns of layers for which a microbatch is not the same as the same rows in a whole batch."""
    kinds = {
        type(m).__name__ for m in model.modules() if m.training and (isinstance(m, _BATCH_NORM) or draws_random(m))
    }
    if kinds:
        warnings.warn(
            f"the model has {', '.join(sorted(kinds))}: with microbatches its statistics or random numbers are "
            "those of each microbatch, so the update is close to that of the whole batch, not equal to it.",
            stacklevel=depth,
        )


def single_row_error() -> DataError:
    """What to do about batch normalisation of a single row."""
    return DataError(
        "this batch, or the part of it in a microbatch or on a worker, has a single row, and batch normalisation "
        "needs more than one. Choose another batch_size= or microbatch=, drop a row, or fill the last batch up from "
        "the next epoch: hr.Reader(table, cross_epochs=True)."
    )
