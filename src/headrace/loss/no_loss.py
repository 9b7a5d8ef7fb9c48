"""Objectives without terms: of a trainer that only predicts, and of one whose `train_step` computes the losses."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from torch import Tensor, nn

from ..data.batch import Batch, Stream
from ..errors import ConfigError
from .base import Term
from .objective import Objective


class NoLoss(Objective):
    """Stands for the loss of a trainer that was made without one: all but `predict` says what is missing."""

    def terms(self, model: nn.Module, batch: Batch) -> Mapping[str, Term]:
        self._refuse()

    def prepare(self, streams: Sequence[Stream], columns: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            "this trainer was made without a loss, and can only predict. To train, make it as hr.Trainer(model, loss, "
            "optimizer); to validate, a loss is enough: hr.Trainer(model, loss)."
        )


class ByTrainStep(Objective):
    """Stands for the loss of an optimizer whose updates an overridden `train_step` makes."""

    splits = True  # it has no terms that could be split wrongly

    def terms(self, model: nn.Module, batch: Batch) -> Mapping[str, Term]:
        raise ConfigError(
            "this trainer was made without a loss for this optimizer, since train_step is overridden. The original "
            "train_step or evaluate_step needs one: give loss= with the keys of optimizer=, or eval_loss=."
        )
