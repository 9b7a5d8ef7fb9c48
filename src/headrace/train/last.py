"""What a trainer remembers of its last training, or of the one under way."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..data.batch import Stream
from ..step.unsaved import UnsavedOptimizers
from ..watch.history import History
from ..watch.info import Info


@dataclass
class LastTraining:
    """What a trainer remembers of its last training, or of the one under way."""

    history: History | None = None
    """What it has reported."""
    streams: list[Stream] | None = None
    """Those of the last batch that `step` was given, which the losses are prepared for."""
    trained_on: Sequence[Stream] | None = None
    """The streams of its data."""
    rates: list[float] = field(default_factory=list)
    """Where its schedule has left the rates of the optimizers."""
    info: Info | None = None
    """The training under way."""
    unsaved: UnsavedOptimizers | None = None
    """Finds optimizers that a run would miss, while a trainer with an own `train_step` trains."""
