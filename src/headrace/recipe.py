"""A recipe: everything that a training needs, put together by one typed function."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .history import History
from .trainer import Trainer


@dataclass(slots=True)
class Recipe:
    """A trainer, its data, and what to pass to `fit`."""

    trainer: Trainer
    train: Any
    val: Any = None
    test: Any = None
    fit: Mapping[str, Any] = field(default_factory=dict)

    def run(self, **options: Any) -> History:
        """Trains; `options` go before the recipe's own."""
        return self.trainer.fit(self.train, self.val, self.test, **{**self.fit, **options})
