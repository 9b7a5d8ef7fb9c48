"""How every update of a training is made, and how far the updates have come."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from ..data.batch import Batch
from ..errors import DataError
from ..loss.objective import Objective, scoring
from ..workers.strategy import Strategy
from .guard import Guard
from .precision import Precision

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


OutputGetter = Callable[[Any], Any]
"""Takes one output out of all that a model returned."""


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


class StepState:
    """What all updates of a model have in common: how they are made, and how many have been."""

    def __init__(
        self,
        model: nn.Module,
        objectives: Mapping[str, Objective],
        optimizers: Mapping[str, Optimizer],
        settings: Settings,
        precision: Precision,
        guard: Guard,
        strategy: Strategy,
        getters: Sequence[OutputGetter],
    ) -> None:
        self.model, self.objectives, self.optimizers = model, dict(objectives), dict(optimizers)
        self.precision, self.guard, self.strategy = precision, guard, strategy
        self.settings = Settings()
        self.count = 0
        """How many have been made in this training."""
        self.scored = scoring(objectives)
        """The key of the objective whose outputs metrics look at, and whose outputs an outcome has."""
        self.getters = getters
        """What takes out of these the ones that metrics look at; nothing where there are no metrics."""
        self.adapts = False
        """Whether the microbatch is made smaller when memory runs out."""
        self.measures_norm = False
        """Whether every update measures the norm of its gradients."""
        self.microbatch: int | None = None
        """Rows that pass the model at once; `None`: all of a batch."""
        self.stand_ins = StandIns()
        """Rows for passes that are made only since other workers make them."""
        self.failed_step = ""
        """What has ended an update while its optimizer stepped, and may have left half of it."""
        self.change(**asdict(settings))

    def change(self, **settings: Any) -> None:
        """The next update is made with these settings."""
        before, self.settings = self.settings, replace(self.settings, **settings)
        wanted = self.settings.microbatch
        if wanted != before.microbatch:
            self.adapts, self.microbatch = wanted == "auto", None if wanted == "auto" else wanted
            if self.microbatch is not None:
                warn_where_splits_differ(self.model, depth=5)

    def halve(self, rows: int) -> bool:
        """Makes the microbatch half of what did not fit; says whether it may and can."""
        at_once = min(rows, self.microbatch or rows)
        if (
            self.strategy.parts
            or self.strategy.shards
            or not self.adapts
            or at_once == 1
            or not all(objective.splits for objective in self.objectives.values())
        ):
            return False
        self.microbatch = -(-at_once // 2)
        warnings.warn(
            f"memory ran out with {at_once} rows at once: going on with microbatch={self.microbatch}.", stacklevel=2
        )
        warn_where_splits_differ(self.model)
        return True


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
