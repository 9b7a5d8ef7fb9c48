"""What is expected of weights before any data is seen."""

from typing import Any

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..errors import ConfigError
from .base import Loss, Term, Weight


class L2Prior(Loss):
    """½ · weight · Σ w² over all weights, biases left out: once per update, logged, not part of a validation.

    The weight is its `coefficient`, which may change between updates.
    """

    training_only = True

    def __init__(self, weight: float, *, biases: bool = False, name: str | None = None) -> None:
        super().__init__(coefficient=weight, name=name)
        self.biases = biases

    def weight(self, batch: Batch) -> Weight:
        return self.share(batch)

    def whole(self, batch: Batch) -> float:
        return 1.0

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        raise NotImplementedError("a prior is computed from the model: see term()")

    def term(self, model: nn.Module, outputs: Any, batch: Batch) -> Term:
        share = self.share(batch)
        return Term(self.penalty(model), share, self.coefficient, times=share, counts=False)

    def penalty(self, model: nn.Module) -> Tensor:
        """½ Σ w² of the model as it is."""
        weights = [p.flatten() for name, p in model.named_parameters() if p.requires_grad and self._counts(name)]
        if not weights:
            raise ConfigError("L2Prior finds no trainable weights in the model.")
        joined = torch.cat(weights)
        return 0.5 * torch.dot(joined, joined)

    def _counts(self, name: str) -> bool:
        return self.biases or "bias" not in name.rpartition(".")[2]
