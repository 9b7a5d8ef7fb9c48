"""How every update of a training is made."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

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


OutputGetter = Callable[[Any], Any]
"""Takes one output out of all that a model returned."""


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
