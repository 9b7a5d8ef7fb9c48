"""The mean average precision of detections, as COCO defines it."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..data.ragged import Ragged
from ..errors import ConfigError, DataError
from .boxes import overlaps
from .detection import NONE, one_size

THRESHOLDS = tuple(0.5 + 0.05 * k for k in range(10))
"""The overlaps that a detection needs with its box: 0.5, 0.55, … 0.95."""
RECALLS = torch.linspace(0, 1, 101, dtype=torch.float64)


class MeanAveragePrecision:
    """The mean over classes, and over how much boxes have to overlap, of the area under precision against recall.

    It is COCO's score for boxes of all sizes. Detections are matched in the order of their scores, each with the free
    box of its class that it overlaps most. The precision is taken at 101 values of the recall. `iou` is one overlap, or
    several. Give it to a trainer as a metric: `metrics={"map": MeanAveragePrecision()}`.
    """

    higher_is_better = True

    def __init__(self, iou: float | Sequence[float] = THRESHOLDS) -> None:
        self.iou = tuple(iou) if isinstance(iou, Sequence) else (iou,)
        if not self.iou or not all(0 < value < 1 for value in self.iou):
            raise ConfigError(f"iou= is one overlap between 0 and 1, or several, got {iou!r}.")
        self.reset()

    def reset(self) -> None:
        self._seen: list[dict[str, Tensor]] = []

    def update(self, detections: Tensor, boxes: Tensor | Ragged) -> None:
        """Adds images: detections as `vision.detections` gives them, boxes as `vision.Detection` takes them."""
        boxes = one_size(boxes)
        if detections.dim() != 3 or boxes.dim() != 3 or detections.shape[-1] != boxes.shape[-1] + 1:
            raise DataError(
                f"expected detections (images, D, 6) and boxes (images, M, 5), got {list(detections.shape)} "
                f"and {list(boxes.shape)}."
            )
        labels, scores, wanted = detections[..., -1].long(), detections[..., -2], boxes[..., -1].long()
        hits = self._hits(overlaps(detections[..., :-2], boxes[..., :-1]), labels, wanted)
        there = labels != NONE
        parts = {"score": scores[there], "label": labels[there], "hit": hits[there], "wanted": wanted[wanted != NONE]}
        self._seen.append({name: part.cpu() for name, part in parts.items()})

    def _hits(self, found: Tensor, labels: Tensor, wanted: Tensor) -> Tensor:
        """Whether each detection finds a box, (images, D, thresholds): from the best on, all images at once."""
        alike = (labels.unsqueeze(-1) == wanted.unsqueeze(-2)) & (labels != NONE).unsqueeze(-1)
        found = found.masked_fill(~alike, 0)
        least = found.new_tensor(self.iou)
        free = torch.ones((len(found), len(least), max(1, wanted.shape[1])), dtype=torch.bool, device=found.device)
        hits = torch.zeros((*labels.shape, len(least)), dtype=torch.bool, device=found.device)
        for place in range(labels.shape[1] if wanted.shape[1] else 0):
            best, box = found[:, place, None, :].masked_fill(~free, 0).max(-1)
            hits[:, place] = best >= least
            taken = box.unsqueeze(-1)
            free.scatter_(2, taken, free.gather(2, taken) & ~hits[:, place].unsqueeze(-1))
        return hits

    def compute(self) -> float:
        """The mean over all images that were added; 0 if they have no box."""
        by_class = self.by_class()
        return sum(by_class.values()) / len(by_class) if by_class else 0.0

    def by_class(self) -> dict[int, float]:
        """The average precision of each class that has a box."""
        if not self._seen:
            return {}
        seen = {name: torch.cat([part[name] for part in self._seen]) for name in self._seen[0]}
        order = seen["score"].argsort(descending=True, stable=True)
        labels, hits = seen["label"][order], seen["hit"][order]
        counts = seen["wanted"].bincount().tolist()
        return {k: _precision(hits[labels == k], count) for k, count in enumerate(counts) if count}

    def state_dict(self) -> dict[str, Any]:
        """What has been added."""
        return {"seen": list(self._seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen = list(state["seen"])


def _precision(hits: Tensor, boxes: int) -> float:
    """The mean precision at 101 recalls, over thresholds, of detections in order, (detections, thresholds)."""
    if not len(hits):
        return 0.0
    found = hits.double().cumsum(0)
    precision = found / torch.arange(1, len(hits) + 1, dtype=torch.float64).unsqueeze(-1)
    envelope = precision.flip(0).cummax(0).values.flip(0)  # the best precision at this recall or a higher one
    recall = (found / boxes).mT.contiguous()
    at = torch.searchsorted(recall, RECALLS.repeat(len(recall), 1))
    values = torch.cat([envelope.mT, envelope.new_zeros(len(recall), 1)], dim=1).gather(1, at)
    return float(values.mean())
