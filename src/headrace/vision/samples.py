"""Samples as dicts of an image and its annotation: checked, and joined to a batch."""

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..data.batch import Batch
from ..errors import ConfigError, DataError, unknown
from .boxes import areas
from .detection import NONE, nothing

Task = Literal["classification", "segmentation", "detection"]
NUMBERS = ("bbox_row1", "bbox_col1", "bbox_row2", "bbox_col2")
TARGETS: dict[str, str] = {
    "classification": "image_label_id",
    "segmentation": "segmentation_image",
    "detection": "bbox",
}
"""The stream that a model is to predict, by the task."""


class ImageSamples:
    """Checks samples of a task, and joins a list of them to a batch.

    Every sample is a dict with `image`, (channels, height, width), or (height, width) of one channel, and, by the task,
    `image_label_id`, `segmentation_image` (and maybe `weight_image`), or the numbers of its boxes, each as a list with
    one for every box: `bbox_row1`, `bbox_col1`, `bbox_row2`, `bbox_col2`, and `bbox_label_id`. Other keys are ignored.
    `class_ids` are the labels that may occur, in the order of the model's classes; a number n stands for 0 to n − 1.
    Labels among `ignore_class_ids` become `NONE`, −1: pass −1 to the loss as `ignore_index`. Images are converted to
    float32, and not scaled.
    """

    def __init__(
        self,
        task: Task,
        class_ids: Sequence[int] | int,
        *,
        channels: int = 3,
        size: tuple[int, int] | None = None,
        ignore_class_ids: Sequence[int] = (),
    ) -> None:
        if task not in TARGETS:
            raise ConfigError(unknown("task", task, list(TARGETS)))
        try:
            self.class_ids = tuple(map(index, range(class_ids) if isinstance(class_ids, int) else class_ids))
            self.ignore_class_ids = tuple(map(index, ignore_class_ids))
        except TypeError:
            raise ConfigError(
                f"class_ids= and ignore_class_ids= are whole numbers, got {class_ids!r} and {ignore_class_ids!r}."
            ) from None
        labels = [*self.class_ids, *self.ignore_class_ids]
        if not self.class_ids or len({*labels}) < len(labels):
            raise ConfigError(
                f"class_ids={list(self.class_ids)} and ignore_class_ids={list(ignore_class_ids)} are different labels, "
                "at least one of them a class."
            )
        self.task, self.channels, self.size = task, channels, size
        self.target = TARGETS[task]
        """The stream of a batch that a model is to predict: the trainer's `target=`."""
        self.keys = ("image", *NUMBERS, "bbox_label_id") if task == "detection" else ("image", self.target)
        """The keys that every sample has to have."""
        self._sorted, order = torch.tensor(labels, dtype=torch.int64).sort()
        self._classes = torch.tensor([*range(len(self.class_ids)), *[NONE] * len(self.ignore_class_ids)])[order]

    def batch(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        """The batch of these samples. An error in a sample names its number and key."""
        images = self.images(samples, self.keys)
        if self.task == "classification":
            labels = torch.stack([self._number(k, s["image_label_id"]) for k, s in enumerate(samples)])
            return Batch({"image": images, self.target: self._known(labels, "image_label_id")})
        if self.task == "detection":
            return Batch({"image": images, self.target: self._boxes(samples, images.shape[-2:])})
        size = images.shape[-2:]
        masks = torch.stack([_map(k, "segmentation_image", s, size) for k, s in enumerate(samples)])
        fields = {"image": images, self.target: self._known(_as_integers(masks, self.target), self.target)}
        weighted = [k for k, sample in enumerate(samples) if "weight_image" in sample]
        if weighted and len(weighted) < len(samples):
            k = next(k for k in range(len(samples)) if k not in weighted)
            raise DataError(f"sample {k} has no 'weight_image', sample {weighted[0]} has one. Give all one, or none.")
        if weighted:
            weights = torch.stack([_map(k, "weight_image", s, size) for k, s in enumerate(samples)]).float()
            _refuse(~(weights >= 0) | weights.isinf(), "weight_image", "weights are finite and not negative", weights)
            fields["weight_image"] = weights
        return Batch(fields)

    def images(self, samples: Sequence[Mapping[str, Any]], keys: Sequence[str] = ("image",)) -> Tensor:
        """The images of samples, (samples, channels, height, width): what a model predicts from."""
        if isinstance(samples, Mapping) or not len(samples):
            raise DataError(f"samples are a list of dicts, at least one, got {type(samples).__name__}.")
        for k, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                raise DataError(f"sample {k} is a {type(sample).__name__}. A sample is a dict with {', '.join(keys)}.")
            if missing := [key for key in keys if key not in sample]:
                raise DataError(f"sample {k} has no {missing[0]!r}. Those for {self.task} have {', '.join(keys)}.")
        images = [self._image(k, sample["image"]) for k, sample in enumerate(samples)]
        size = self.size or tuple(images[0].shape[-2:])
        for k, image in enumerate(images):
            if tuple(image.shape[-2:]) != tuple(size):
                wanted = "as size= says" if self.size else "as sample 0"
                raise DataError(
                    f"sample {k}, 'image': it has {image.shape[-2]} rows and {image.shape[-1]} columns, expected "
                    f"{size[0]} and {size[1]}, {wanted}. Resize the images of a batch to one size."
                )
        joined = torch.stack(images)
        _refuse(~joined.isfinite(), "image", "pixels are finite", joined)
        return joined

    def _image(self, k: int, given: Any) -> Tensor:
        image = _tensor(k, "image", given)
        if image.dim() == 2 and self.channels == 1:
            image = image.unsqueeze(0)
        if image.dim() != 3 or image.shape[0] != self.channels:
            turn = " Put channels first: image.transpose(2, 0, 1)." if image.shape[-1:] == (self.channels,) else ""
            raise DataError(
                f"sample {k}, 'image': expected {self.channels} channels, rows and columns, got the shape "
                f"{list(image.shape)}.{turn}"
            )
        return image.float()

    def _number(self, k: int, given: Any) -> Tensor:
        label = _tensor(k, "image_label_id", given)
        if label.numel() != 1:
            raise DataError(f"sample {k}, 'image_label_id': expected one label, got the shape {list(label.shape)}.")
        return _as_integers(label.reshape(()), "image_label_id", k)

    def _known(self, labels: Tensor, key: str, first: int | None = None) -> Tensor:
        """The model's classes of labels; raises on one that is not known."""
        place = torch.searchsorted(self._sorted, labels).clamp(max=len(self._sorted) - 1)
        wrong = self._sorted[place] != labels
        ids = self._sorted.tolist()
        known = ", ".join(map(str, ids[:12])) + ", …" * (len(ids) > 12)
        _refuse(wrong, key, f"labels are among class_ids {known}", labels, first)
        return self._classes[place]

    def _boxes(self, samples: Sequence[Mapping[str, Any]], size: Sequence[int]) -> Tensor:
        """The boxes of all samples with their classes, (samples, most boxes of one, 5), filled up with nothing."""
        rows = []
        for k, sample in enumerate(samples):
            columns = {key: _tensor(k, key, sample[key]).reshape(-1) for key in (*NUMBERS, "bbox_label_id")}
            counts = {key: len(column) for key, column in columns.items()}
            if len(set(counts.values())) > 1:
                listed = ", ".join(f"{key}: {count}" for key, count in counts.items())
                raise DataError(f"sample {k}: each key of boxes has a number for every box, got {listed}.")
            labels = self._known(_as_integers(columns.pop("bbox_label_id"), "bbox_label_id", k), "bbox_label_id", k)
            boxes = torch.stack([column.float() for column in columns.values()], dim=-1)
            self._check_boxes(k, boxes, size)
            rows.append(torch.cat([boxes, labels.float().unsqueeze(-1)], dim=-1)[labels != NONE])
        most = max(1, *map(len, rows))
        return torch.stack([torch.cat([each, nothing(most - len(each), each.shape[1], each)]) for each in rows])

    def _check_boxes(self, k: int, boxes: Tensor, size: Sequence[int]) -> None:
        inside = (boxes >= 0).all(-1) & (boxes[:, 2:] <= boxes.new_tensor([size[0], size[1]])).all(-1)
        problems = {
            "its numbers are not finite": ~boxes.isfinite().all(-1),
            "it has no area": ~(areas(boxes) > 0),
            f"it reaches out of the image of {size[0]} rows and {size[1]} columns": ~inside,
        }
        for problem, found in problems.items():
            if found.any():
                box = int(found.nonzero()[0])
                numbers = ", ".join(f"{key}={x:g}" for key, x in zip(NUMBERS, boxes[box].tolist(), strict=True))
                raise DataError(f"sample {k}, box {box}: {problem} ({numbers}). Cut it to the image, or drop it.")


def _tensor(k: int, key: str, given: Any) -> Tensor:
    try:
        tensor = torch.from_numpy(np.array(given)) if isinstance(given, np.ndarray) else torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise DataError(f"sample {k}, {key!r}: there is no tensor of a {type(given).__name__}.") from None
    if tensor.is_complex():
        raise DataError(f"sample {k}, {key!r}: the numbers are complex.")
    return tensor


def _map(k: int, key: str, sample: Mapping[str, Any], size: Sequence[int]) -> Tensor:
    found = _tensor(k, key, sample[key])
    found = found.squeeze(0) if found.dim() == 3 else found
    if found.shape != tuple(size):
        raise DataError(f"sample {k}, {key!r}: expected the shape {list(size)} of its image, got {list(found.shape)}.")
    return found


def _as_integers(labels: Tensor, key: str, first: int | None = None) -> Tensor:
    if labels.is_floating_point():
        _refuse(labels != labels.round(), key, "labels are whole numbers", labels, first)
    return labels.long()


def _refuse(wrong: Tensor, key: str, rule: str, values: Tensor, first: int | None = None) -> None:
    """Raises if anything is wrong, with the first value for which it is; `first` is the sample if all are of one."""
    if not bool(wrong.any()):
        return
    at = wrong.nonzero()[0].tolist()
    value, count = values[tuple(at)].item(), int(wrong.sum())
    sample = at[0] if first is None else first
    rest = at[1:] if first is None else at
    where = f", place {rest}" if rest else ""
    raise DataError(f"sample {sample}, {key!r}{where}: {rule}, got {value} ({count} such values).")
