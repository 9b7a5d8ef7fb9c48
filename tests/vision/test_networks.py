"""The reference networks take images of any size, and their updates are the same however a batch is cut."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from kit.shapes import draw_shapes
from torch import Tensor, nn

import headrace as hr
from headrace import vision

SHAPES = draw_shapes(12, 24, seed=2)
STREAMS: dict[str, dict[str, Tensor]] = {
    "image_label_id": {"image": SHAPES.image, "image_label_id": SHAPES.image_label_id},
    "segmentation_image": {
        "image": SHAPES.image,
        "segmentation_image": SHAPES.segmentation_image,
        "weight_image": torch.rand(12, 24, 24, generator=torch.Generator().manual_seed(0)),
    },
}
LOSSES = {
    "image_label_id": hr.CrossEntropy(class_weights=[1.0, 2, 0.5, 1], normalize="classes"),
    "segmentation_image": hr.CrossEntropy(class_weights=[0.2, 1, 1, 1, 2], weight="weight_image"),
}


def network(target: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    if target == "image_label_id":
        return vision.ImageClassifier(4, 1, widths=(4, 8), **options)
    return vision.Segmenter(5, 1, widths=(4, 8, 8), **options)


def trainer(target: str, norm: str = "group", **options: Any) -> hr.Trainer:
    model = network(target, norm=norm)
    loss = LOSSES[target] + hr.L2Prior(1e-3, gains=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return hr.Trainer(model, loss, optimizer, target=target, inputs="image", device="cpu", **options)


@pytest.mark.parametrize("size", [(7, 13), (16, 16), (33, 20)])
@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_outputs_fit_images_of_any_size(size: tuple[int, int], norm: Any) -> None:
    images = torch.zeros(2, 1, *size)
    assert network("image_label_id", norm=norm)(images).shape == (2, 4)
    assert network("segmentation_image", norm=norm)(images).shape == (2, 5, *size)
    outputs = vision.Detector(3, 1, widths=(4, 4, 8, 8), anchors=vision.Anchors(strides=(4, 8)), norm=norm)(images)
    count = len(outputs["anchors"])
    assert [outputs[key].shape for key in ("class_logits", "box_codes")] == [(2, count, 3), (2, count, 4)]


@pytest.mark.parametrize("target", list(STREAMS))
@pytest.mark.parametrize("norm", ["group", "none"])
def test_any_split_of_a_batch_makes_the_same_update(target: str, norm: str) -> None:
    results = []
    for microbatch in (None, 1, 5):
        training = trainer(target, norm, microbatch=microbatch, batch_size=12)
        losses = training.step(STREAMS[target], full_batch=True)
        training.release()
        results.append((losses, [param.detach() for param in training.model.parameters()]))
    for losses, weights in results[1:]:
        assert losses == pytest.approx(results[0][0], abs=1e-6)
        for one, other in zip(weights, results[0][1], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_split_makes_another_update_with_batch_normalisation() -> None:
    """The control: statistics of fewer images are others."""
    weights = []
    for microbatch in (None, 4):
        with pytest.warns(UserWarning, match="BatchNorm2d") if microbatch else nullcontext():
            training = trainer("image_label_id", "batch", microbatch=microbatch)
            training.step(STREAMS["image_label_id"])
        training.release()
        weights.append(training.model.head.weight.detach())
    assert (weights[0] - weights[1]).abs().max() > 1e-5


def test_iou_is_a_metric_of_masks() -> None:
    training = trainer("segmentation_image", metrics=["iou", "accuracy"])
    streams = STREAMS["segmentation_image"]
    found = training.validate(streams, batch_size=5)
    answer = training.predict(streams).argmax(1)
    shares = []
    for k in range(5):
        one, other = answer == k, SHAPES.segmentation_image == k
        if (one | other).any():
            shares.append((one & other).sum().item() / (one | other).sum().item())
    assert found["val/iou"] == pytest.approx(sum(shares) / len(shares))
    assert found["val/accuracy"] == pytest.approx((answer == SHAPES.segmentation_image).double().mean().item())
