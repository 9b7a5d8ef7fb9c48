"""A one-stage detector with a feature pyramid, its objective, and the boxes that its outputs stand for."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..data.batch import Batch
from ..data.fields import Field
from ..data.ragged import Ragged
from ..errors import ConfigError, DataError
from ..loss.base import Loss, Weight
from ..loss.elements import Huber, L2Prior
from ..loss.focal import Focal
from ..loss.metrics import Compared
from ..loss.objective import Objective, Terms
from .anchors import Anchors, match
from .boxes import areas, cut_to, decode, encode, suppress
from .networks import Backbone, Norm, Widths, enlarged

RARE = 0.01  # the probability that an untrained detector gives an object at an anchor
NONE = -1
"""The class of a row without a box."""


class Detector(nn.Module):
    """Detects boxes in images: gives, for each anchor, a logit for each class and the code of a box.

    A feature pyramid over residual stages, with one head for all of its levels (Lin et al. 2017,
    https://arxiv.org/abs/1708.02002). It returns a dict of "class_logits" (images, A, classes), "box_codes" (images, A,
    4) and "anchors" (A, the same); any model with the same outputs can be trained by
    `Detection`. Level k has a stride of 2ᵏ; `anchors` says which levels there are.
    """

    def __init__(
        self,
        classes: int,
        channels: int = 3,
        widths: Widths = (16, 32, 48, 64, 64),
        features: int = 48,
        anchors: Anchors | None = None,
        norm: Norm = "group",
    ) -> None:
        super().__init__()
        self.classes, self.anchors = classes, anchors or Anchors()
        levels = [int(math.log2(stride)) for stride in self.anchors.strides]
        if levels != list(range(levels[0], len(widths))) or [2**k for k in levels] != list(self.anchors.strides):
            raise ConfigError(
                f"anchors= have the strides {list(self.anchors.strides)}; with {len(widths)} widths they are powers of "
                f"2 that rise to {2 ** (len(widths) - 1)}. Give a width for each power of 2 from 1 to the last stride."
            )
        self.first = levels[0]
        self.backbone = Backbone(channels, widths, 1, norm)
        self.narrow = nn.ModuleList(nn.Conv2d(widths[k], features, 1) for k in levels)
        self.smooth = nn.ModuleList(nn.Conv2d(features, features, 3, padding=1) for _ in levels)
        self.trunk = nn.Sequential(nn.ReLU(), nn.Conv2d(features, features, 3, padding=1), nn.ReLU())
        self.class_head = nn.Conv2d(features, self.anchors.each * classes, 3, padding=1)
        self.box_head = nn.Conv2d(features, self.anchors.each * 4, 3, padding=1)
        nn.init.constant_(self.class_head.bias, -math.log(1 / RARE - 1))  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        stages = self.backbone(images)[self.first :]
        levels = [narrow(stage) for narrow, stage in zip(self.narrow, stages, strict=True)]
        for k in range(len(levels) - 1, 0, -1):
            levels[k - 1] = levels[k - 1] + enlarged(levels[k], levels[k - 1])
        levels = [self.trunk(smooth(level)) for smooth, level in zip(self.smooth, levels, strict=True)]
        return {
            "class_logits": _by_anchor([self.class_head(level) for level in levels], self.classes),
            "box_codes": _by_anchor([self.box_head(level) for level in levels], 4),
            "anchors": self.anchors(images.shape[-2], images.shape[-1], images.device),
        }


def _by_anchor(levels: Sequence[Tensor], numbers: int) -> Tensor:
    """Maps (images, each · numbers, height, width) of all levels as (images, anchors, numbers)."""
    return torch.cat([level.movedim(1, -1).reshape(len(level), -1, numbers) for level in levels], dim=1)


class Detection(Objective):
    """The loss of a detector: the focal loss of its classes and the Huber loss of its boxes.

    The target is a stream of boxes, (images, M, 5), as `ImageSamples` makes it: a box and its class, and class −1 in
    rows without a box. It may also be a `Ragged` with as many boxes as each image has. Predictions and metrics get
    `detections`.

    Args:
        focal: the term of the classes. Its target is 1, 0, or −1 where an anchor is ignored.
        huber: the term of the boxes, with weights that are 0 where there is no box.
        prior: a prior that is added.
        class_heads_weight: the weight of `focal` in the total.
        bbox_heads_weight: the weight of `huber` in the total.
        positive_iou: an anchor that overlaps a box by at least this much is trained to predict it.
        negative_iou: an anchor that overlaps all boxes by less is trained to predict no box.
        score: the lowest score of a detection.
        iou: of two detections that overlap by more, the one with the lower score is removed.
        max_boxes: the largest number of detections in an image.
    """

    splits = True

    def __init__(
        self,
        focal: Loss | None = None,
        huber: Loss | None = None,
        prior: L2Prior | None = None,
        *,
        class_heads_weight: float = 1.0,
        bbox_heads_weight: float = 1.0,
        positive_iou: float = 0.5,
        negative_iou: float = 0.4,
        score: float = 0.05,
        iou: float = 0.5,
        max_boxes: int = 100,
    ) -> None:
        focal = Focal(ignore_index=NONE, normalize="positives") if focal is None else focal
        huber = Huber() if huber is None else huber
        if not 0 <= negative_iou <= positive_iou <= 1:
            raise ConfigError(f"0 <= negative_iou={negative_iou} <= positive_iou={positive_iou} <= 1 does not hold.")
        self.focal, self.huber = class_heads_weight * focal, bbox_heads_weight * huber
        self.focal.own_target, self.huber.own_target, self.huber.row_weight = "classes", "codes", "found"
        self.positive_iou, self.negative_iou = positive_iou, negative_iou
        self.score, self.iou, self.max_boxes = score, iou, max_boxes
        self.prior, self._target = prior, "bbox"
        self._anchors: dict[tuple[int, ...], tuple[Tensor, int]] = {}

    def bind(self, inputs: Any, target: str) -> None:
        super().bind(inputs, target)
        self.compares, self._target = True, target

    def terms(self, model: nn.Module, batch: Batch) -> Terms:
        outputs = self.call(model, batch)
        logits, codes, anchors = (_output(outputs, key) for key in ("class_logits", "box_codes", "anchors"))
        images = self._images(batch)
        goals, size = self._goals(batch, anchors, logits.shape[-1]), tuple(images.shape[1:])
        if size not in self._anchors:
            self._check(one_size(batch[self._target]), logits.shape[-1], size[1:])
        self._anchors[size] = anchors, logits.shape[-1]
        heads = (self.focal, logits), (self.huber, codes)
        terms = Terms({term.name: term.term(model, out, goals) for term, out in heads})
        if self.prior is not None and model.training:
            terms[self.prior.name] = self.prior.term(model, outputs, batch)
        terms.outputs = {**outputs, "size": images.shape[-2:]}
        return terms

    def weights(self, batch: Batch) -> Mapping[str, Weight | None]:
        known = self._anchors.get(tuple(self._images(batch).shape[1:]))
        if known is None:
            return {}
        goals = self._goals(batch, *known)
        found = {term.name: term.weight(goals) for term in (self.focal, self.huber)}
        return found if self.prior is None else {**found, self.prior.name: self.prior.weight(batch)}

    def measured(self, name: str, target: str) -> Compared:
        return super().measured(name, target) if name else Compared(target, self.scored, dense=one_size)

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.scored({**self.call(model, batch), "size": self._images(batch).shape[-2:]})

    def scored(self, outputs: Any) -> Tensor:
        if isinstance(outputs, Tensor):
            return outputs
        return detections(outputs, outputs["size"], score=self.score, iou=self.iou, max_boxes=self.max_boxes)

    def _images(self, batch: Batch) -> Tensor:
        """The stream of images: what the model is given, else the only one with rows of channels, height and width."""
        named = batch.fields.get(self.call.inputs if isinstance(self.call.inputs, str) else "image")
        if isinstance(named, Tensor) and named.dim() == 4:
            return named
        found = {name: f for name, f in batch.fields.items() if isinstance(f, Tensor) and f.dim() == 4}
        if len(found) != 1:
            raise DataError(
                f"Detection looks for the stream of images, and finds {list(found) or 'none'}: say inputs=."
            )
        return next(iter(found.values()))

    def _check(self, target: Tensor, classes: int, size: Sequence[int] | None = None) -> None:
        """Raises on a box that cannot be found: done with the first batch of images of a size, and where one fails."""
        boxes, label = target[..., :-1], target[..., -1]
        outside = boxes[..., 2:].amin(-1) <= 0
        if size is not None:
            outside |= (boxes[..., :2] >= boxes.new_tensor([size[0], size[1]])).any(-1)
        problems = {
            f"its class is out of range for a model with {classes} classes, 0 to {classes - 1}, or -1 for no box": ~(
                (label >= NONE) & (label < classes) & (label == label.round())
            ),
            "its numbers are not finite": ~boxes.isfinite().all(-1) & (label != NONE),
            "it has no area": ~(areas(boxes) > 0) & (label != NONE),
            "it is outside of its image": outside & (label != NONE),
        }
        for problem, found in problems.items():
            if found.any():
                image, box = found.nonzero()[0].tolist()
                raise DataError(
                    f"stream {self._target!r}, row {image}, box {box}: {problem}, got "
                    f"{[round(x, 4) for x in target[image, box].tolist()]}. Correct it, or give it the class -1."
                )

    def _check_shape(self, target: Tensor, anchors: Tensor) -> None:
        if target.dim() != 3 or target.shape[-1] != 5:
            raise DataError(
                f"stream {self._target!r} has rows of shape {list(target.shape[1:])}, expected boxes and their "
                "classes, [boxes, 5]. Use vision.ImageSamples."
            )
        if anchors.shape[-1] != 4:
            raise ConfigError(
                f"the model's 'anchors' have the shape {list(anchors.shape)}, expected [anchors, 4]: row1, col1, row2, "
                "col2."
            )

    def _goals(self, batch: Batch, anchors: Tensor, classes: int) -> Batch:
        """What each anchor is to answer, as the streams that the terms compare with."""
        target = one_size(batch[self._target])
        self._check_shape(target, anchors)
        boxes, labels = target[..., :-1], target[..., -1].long()
        found = match(anchors, boxes, labels != NONE, self.positive_iou, self.negative_iou)
        if not boxes.shape[1]:
            boxes, labels = anchors.new_zeros(len(target), 1, anchors.shape[-1]), labels.new_zeros(len(target), 1)
        label = labels.gather(1, found.box)
        asked = torch.zeros((*label.shape, classes), dtype=anchors.dtype, device=anchors.device)
        try:
            asked.scatter_(2, label.clamp(min=0).unsqueeze(-1), found.positive.unsqueeze(-1).to(asked.dtype))
        except RuntimeError:
            self._check(target, classes)  # says which box has a class that the model does not have
            raise
        asked.masked_fill_(~(found.positive | found.negative).unsqueeze(-1), NONE)
        theirs = boxes.gather(1, found.box.unsqueeze(-1).expand(-1, -1, boxes.shape[-1]))
        goal = encode(torch.where(found.positive.unsqueeze(-1), theirs, anchors), anchors)
        counted = found.positive.unsqueeze(-1).to(goal.dtype).expand_as(goal)
        return Batch({"classes": asked, "codes": goal, "found": counted}, batch.rows, share=batch.share)


def _output(outputs: Any, key: str) -> Tensor:
    found = outputs.get(key) if isinstance(outputs, Mapping) else None
    if not isinstance(found, Tensor):
        came = f"a dict with {list(outputs)}" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
        raise ConfigError(
            f"Detection trains a model that returns a dict of tensors 'class_logits', 'box_codes' and 'anchors', got "
            f"{came}. See vision.Detector."
        )
    return found


@torch.no_grad()
def detections(
    outputs: Mapping[str, Any], size: Sequence[int], *, score: float = 0.05, iou: float = 0.5, max_boxes: int = 100
) -> Tensor:
    """The boxes that the outputs of a detector encode: (images, `max_boxes`, 6).

    Each row is a box, its score and its class, the best first. Rows of class −1 are padding. Boxes with a score below
    `score` are left out, and boxes that overlap a better one of their class by more than `iou`. Boxes are cut at the
    edges of the images, whose height and width are `size`.
    """
    scores, codes, anchors = outputs["class_logits"].sigmoid(), outputs["box_codes"], outputs["anchors"]
    images, _, classes = scores.shape
    best, places = scores.flatten(1).topk(min(max_boxes * 4, scores[0].numel()), dim=1)
    anchor, labels = places.div(classes, rounding_mode="floor"), places % classes
    own = codes.gather(1, anchor.unsqueeze(-1).expand(-1, -1, codes.shape[-1]))
    boxes = cut_to(decode(own, anchors[anchor]), *size)
    stays = suppress(boxes, labels, best >= score, iou)
    order = (~stays).to(torch.uint8).argsort(dim=1, stable=True)[:, :max_boxes]
    rows = torch.cat([boxes, best.unsqueeze(-1), labels.unsqueeze(-1).to(boxes.dtype)], dim=-1)
    rows = rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
    rows = torch.where(stays.gather(1, order).unsqueeze(-1), rows, nothing(1, rows.shape[-1], rows))
    empty = nothing(max_boxes, rows.shape[-1], rows).expand(images, -1, -1)
    return torch.cat([rows, empty], dim=1)[:, :max_boxes]


def one_size(boxes: Field) -> Tensor:
    """Boxes with their classes as (images, M, numbers); a `Ragged` of them is filled up with nothing."""
    if not isinstance(boxes, Ragged):
        return cast(Tensor, boxes)
    filled = boxes.padded()
    if filled.dim() == 3 and filled.shape[-1]:
        filled[..., -1].masked_fill_(~boxes.mask, NONE)
    return filled


def nothing(rows: int, numbers: int, like: Tensor) -> Tensor:
    """Rows that hold no box: zeros, of class −1."""
    empty = like.new_zeros(rows, numbers)
    empty[:, -1] = NONE
    return empty
