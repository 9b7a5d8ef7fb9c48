"""Cross entropy, the loss for classification."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.batch import Batch
from ..errors import ConfigError, DataError
from .base import Loss, Weight, comparable, label, number, one_of, pick, setting, weights_like
from .base import class_weights as checked_weights

NO_INDEX = -(1 << 62)  # torch ignores -100 unless it is told something else
ROUNDING = 0.02
"""How far a sum of probabilities may be from 1: those of bfloat16 are rounded at the third digit."""


class CrossEntropy(Loss):
    """Cross entropy of outputs of shape (rows, classes, ...) with class indices or rows of probabilities.

    `inputs` names the kind of outputs: `"logits"`, any numbers; `"log_probs"`, the result of `log_softmax`; `"probs"`,
    the result of `softmax`. `normalize` is what the sum with class
    weights w is divided by: `"met"`, the weights of the targets, Σ w[yᵢ], as in torch (with rows of probabilities, the
    number of rows); `"classes"`, for every row the sum over all classes, so that uniform weights give 1/classes of the
    plain loss. The stream `weight` has a number for each row, or for each place of the target, as for pixels.
    """

    joins = True
    inputs: Literal["logits", "log_probs", "probs"] = setting(one_of("logits", "log_probs", "probs"))
    class_weights: Any = setting(checked_weights)
    ignore_index: int | None = setting(label)
    label_smoothing: float = setting(number("between 0 and 1", lambda value: 0 <= value <= 1))
    normalize: Literal["met", "classes"] = setting(one_of("met", "classes"))

    takes_soft = True

    def __init__(
        self,
        *,
        class_weights: Sequence[float] | Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        normalize: Literal["met", "classes"] = "met",
        inputs: Literal["logits", "log_probs", "probs"] = "logits",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.class_weights = class_weights
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self.normalize, self.inputs = normalize, inputs
        self._seen: tuple[Tensor | None, int, int | None, bool] = (None, 0, None, False)
        self._moved: dict[tuple[torch.device, torch.dtype], tuple[Tensor, int, Tensor]] = {}

    @property
    def reads(self) -> str:  # type: ignore[override]
        return "class probabilities" if self.inputs == "probs" else "classes"

    def weight(self, batch: Batch) -> Weight:
        targets = self._targets(batch)
        places = targets[:, 0] if targets.is_floating_point() else targets
        rows = None if self.row_weight is None else weights_like(self, batch, places)
        if targets.is_floating_point():
            weight: Weight = float(places.numel()) if rows is None else rows.expand_as(places).sum()
        elif self.class_weights is not None and self.normalize == "met":
            weight = self._over_rows(targets, rows, self._weight_of(targets))
        elif rows is not None or not self._none_ignored(batch):
            weight = self._over_rows(targets, rows, None)
        else:
            weight = float(targets.numel())
        if self.normalize == "classes" and self.class_weights is not None:
            weight = weight * float(self.class_weights.sum())
        return weight

    def known(self, batch: Batch) -> bool:
        return self._none_ignored(batch)

    def _targets(self, batch: Batch) -> Tensor:
        """The targets as torch takes them: one class for each place, or probabilities."""
        targets: Tensor = batch.fields[self.target]  # checked before
        return targets if targets.is_floating_point() or targets.dtype == torch.int64 else targets.long()

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        logits = pick(outputs, self.output, self.name)
        targets = self._targets(batch)
        reduction = "sum" if self.row_weight is None else "none"
        weights = None if self.class_weights is None else self._weights_as(logits, logits.shape[1])
        ignored = NO_INDEX if self.ignore_index is None else self.ignore_index
        if self.inputs == "probs":
            logits = logits.clamp_min(torch.finfo(logits.dtype).tiny).log()
        if self.inputs == "logits" or self.label_smoothing or targets.is_floating_point():
            loss = F.cross_entropy(  # of logarithms of probabilities too: their log_softmax is what they are
                logits,
                targets,
                weights,
                ignore_index=ignored,
                reduction=reduction,
                label_smoothing=self.label_smoothing,
            )
        else:
            loss = F.nll_loss(logits, targets, weights, ignore_index=ignored, reduction=reduction)
        if self.row_weight is not None:
            loss = (loss * weights_like(self, batch, loss)).sum()
        return loss

    def check_targets(self, outputs: Any, targets: Tensor) -> None:
        logits = pick(outputs, self.output, self.name)
        if not isinstance(logits, Tensor) or logits.dim() < 2:
            came = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise DataError(
                f"{self.name}: expected logits of shape (rows, classes), got {came}. "
                "For one number per row use BinaryCrossEntropy or MSE."
            )
        classes = logits.shape[1]
        if self.class_weights is not None:
            self._weights_as(logits, classes)
        if remedy := _remedy(logits, targets):
            raise DataError(
                f"{self.name}: stream {self.target!r} has rows of shape {list(targets.shape[1:])}, "
                f"{str(targets.dtype).removeprefix('torch.')}, and the model's outputs are {list(logits.shape[1:])}. "
                f"Expected class indices (int64), one for each place, or one probability per class. {remedy}"
            )
        if targets.is_floating_point():
            return
        if targets.dim() > 1 and targets.shape[1:] == logits.shape[1:-1]:
            warnings.warn(
                f"{self.name}: the model's outputs {list(logits.shape[1:])} have as many classes as places, so "
                "that the dimension of the classes cannot be checked. It is dimension 1, as in torch: if yours is the "
                "last, return outputs.movedim(-1, 1).",
                stacklevel=2,
            )
        labels = comparable(targets)
        bad = (labels < 0) | (labels >= classes)
        if self.ignore_index is not None:
            bad &= labels != self.ignore_index
        if bad.any():
            where = torch.nonzero(bad)[0]
            raise DataError(
                f"stream {self.target!r}, row {int(where[0])}: label {targets[tuple(where)].item()} is out of range "
                f"for a model with {classes} outputs ({int(bad.sum())} such labels). "
                f"Labels go from 0 to {classes - 1}; give the model more outputs, or mark rows with ignore_index=."
            )

    def check_outputs(self, outputs: Any, batch: Batch) -> None:
        """Raises unless all that counts are probabilities, or their logarithms; the guard finds what is not finite."""
        if self.inputs == "logits":
            return
        found = pick(outputs, self.output, self.name).detach()
        shares = found.double() if self.inputs == "probs" else found.double().exp()
        total = shares.sum(dim=1)
        wrong = (total - 1).abs() > ROUNDING
        if self.inputs == "probs":
            wrong |= (shares < 0).any(dim=1)
        else:  # the logarithms of many classes are rounded alike
            rounded = torch.special.entr(shares).sum(dim=1) * torch.finfo(found.dtype).eps
            wrong &= (total - 1).abs() > ROUNDING + rounded
        labels = batch[self.target]
        if self.ignore_index is not None and labels.shape == wrong.shape:
            wrong &= labels != self.ignore_index
        if self.row_weight is not None:
            wrong &= (weights_like(self, batch, wrong) != 0).expand_as(wrong)
        if wrong.any():
            where = torch.nonzero(wrong)[0]
            what = "probabilities" if self.inputs == "probs" else "numbers whose exp are probabilities"
            raise ConfigError(
                f"{self.name}: inputs={self.inputs!r} expects {what} that add up to 1 over the classes (dimension 1). "
                f"In row {int(where[0])} of the model's outputs they add up to {float(total[tuple(where)]):.4g} "
                f"({int(wrong.sum())} such rows). Say inputs='probs' of what softmax gives, 'log_probs' of what "
                "log_softmax gives, and 'logits' of any other numbers."
            )

    def _none_ignored(self, batch: Batch) -> bool:
        """Whether no target is to be ignored; on the host looked up once for all minibatches of a macrobatch."""
        if self.ignore_index is None:
            return True
        column = None if batch.macrobatch is None else batch.macrobatch.get(self.target)
        if not isinstance(column, Tensor) or column.device.type != "cpu":
            return False
        if _memory(batch[self.target]) is not _memory(column):
            return False  # somebody has put other targets there
        seen, version, ignored, none_ignored = self._seen
        if seen is not column or version != seen._version or ignored != self.ignore_index:
            none_ignored = not bool(column.eq(self.ignore_index).any())
            self._seen = column, column._version, self.ignore_index, none_ignored
        return none_ignored

    def _weight_of(self, targets: Tensor) -> Tensor:
        """The class weight of every target; those that are ignored have one too, but do not count."""
        weights = self._weights_as(targets)
        return weights[targets.clamp(0, len(weights) - 1)]

    def _over_rows(self, targets: Tensor, rows: Tensor | None, each: Tensor | None) -> Tensor:
        """Sums what each target counts: its class weight, the weight of its row or place, both, or one."""
        met = torch.ones_like(targets, dtype=torch.bool)
        if self.ignore_index is not None:
            met = targets != self.ignore_index
        if each is None and rows is None:
            return met.sum()
        counted = met if each is None else met * each
        return (counted if rows is None else counted * rows).sum()

    def _weights_as(self, like: Tensor, classes: int | None = None) -> Tensor:
        """The class weights where and as the outputs are; for targets, where they are.

        A copy serves until others are set, or these are changed in place.
        """
        weights = self.class_weights
        assert weights is not None
        if classes is not None and len(weights) != classes:
            raise ConfigError(
                f"{self.name}: class_weights= has {len(weights)} numbers, the model {classes} outputs. "
                "Give one per class."
            )
        key = like.device, like.dtype if like.is_floating_point() else weights.dtype
        moved = self._moved.get(key)
        if moved is None or moved[0] is not weights or moved[1] != weights._version:
            moved = self._moved[key] = weights, weights._version, weights.to(*key)
        return moved[2]


def _memory(tensor: Tensor) -> Tensor:
    """The tensor that this one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base


def _remedy(logits: Tensor, targets: Tensor) -> str:
    """What to do about targets that do not fit the outputs; nothing if they fit."""
    rows, outputs, places = targets.shape[1:], logits.shape[1:], logits.shape[2:]
    if rows == (outputs if targets.is_floating_point() else places):
        return ""
    remedies = {  # where two are of one shape, the last one counts
        logits.shape[1:-1]: "Classes go in dimension 1, as in torch: return outputs.movedim(-1, 1).",
        outputs: "Of one-hot rows, y.argmax(dim=1) gives class indices, and y.float() probabilities. For several "
        "answers to a row use BinaryCrossEntropy.",
        (*places, 1): "The last dimension is one too many: y.squeeze(-1).",
        places: "Class indices are whole numbers: convert the stream, as by y.long().",
    }
    return remedies.get(rows, f"For these targets, outputs have rows of shape {[outputs[0], *rows]}.")
