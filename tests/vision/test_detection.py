"""A detector's losses are those of the formulas, and its updates are the same however a batch is cut."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.shapes import draw_shapes
from torch import Tensor, nn

import headrace as hr
from headrace import vision

SHAPES = draw_shapes(8, 32, seed=1, max_shapes=3)
ANCHORS = vision.Anchors(strides=(4, 8))


def detector(**options: Any) -> vision.Detector:
    torch.manual_seed(0)
    return vision.Detector(4, 1, widths=(4, 8, 8, 8), features=8, anchors=ANCHORS, **options)


def batch(images: int = 8) -> dict[str, Tensor]:
    return {"image": SHAPES.image[:images], "bbox": SHAPES.bbox[:images]}


def trainer(objective: hr.Objective, model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    model = model or detector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return hr.Trainer(model, objective, optimizer, target="bbox", device="cpu", **options)


def by_hand(model: nn.Module, streams: dict[str, Tensor]) -> tuple[Tensor, Tensor, int]:
    """The sums of the focal and of the Huber loss, and the positive anchors, image by image."""
    outputs = model(streams["image"])
    focal, huber, positives = torch.zeros(()), torch.zeros(()), 0
    for logits, codes, target in zip(outputs["class_logits"], outputs["box_codes"], streams["bbox"], strict=True):
        target = target[target[:, -1] >= 0]
        found = vision.match(outputs["anchors"], target[None, :, :4], torch.ones(1, len(target), dtype=torch.bool))
        positive, negative, box = found.positive[0], found.negative[0], found.box[0]
        for k in (positive | negative).nonzero().flatten().tolist():
            asked = F.one_hot(target[box[k], 4].long(), 4) * positive[k] if len(target) else torch.zeros(4)
            p = torch.where(asked == 1, logits[k].sigmoid(), 1 - logits[k].sigmoid())
            focal = focal - ((1 - p) ** 2 * p.log()).sum()
        if positive.any():
            goal = vision.encode(target[box[positive], :4], outputs["anchors"][positive])
            huber = huber + F.smooth_l1_loss(codes[positive], goal, beta=0.11, reduction="sum")
        positives += int(positive.sum())
    return focal, huber, positives


def test_the_losses_are_those_of_the_formulas_and_the_total_is_their_weighted_sum_with_the_prior() -> None:
    objective = vision.Detection(prior=hr.L2Prior(1e-3), class_heads_weight=0.5, bbox_heads_weight=3.0)
    training = trainer(objective)
    streams = batch()
    streams["bbox"] = torch.cat([streams["bbox"][:7], torch.full_like(streams["bbox"][:1], -1)])  # one has no boxes
    focal, huber, positives = by_hand(detector(), streams)
    losses = {name: float(value) for name, value in training.step(streams).items()}
    training.release()
    assert positives > 20
    assert losses["focal"] == pytest.approx(focal.item() / (1 + positives), rel=1e-5)
    assert losses["huber"] == pytest.approx(huber.item() / (4 * positives), rel=1e-5)
    prior = hr.L2Prior(1).penalty(detector()).item()
    assert losses["l2_prior"] == pytest.approx(1e-3 * prior, rel=1e-6)
    total = 0.5 * losses["focal"] + 3 * losses["huber"] + losses["l2_prior"]
    assert losses["total_loss"] == pytest.approx(total, abs=1e-6)


def weights_after(steps: int, **options: Any) -> list[Tensor]:
    training = trainer(vision.Detection(prior=hr.L2Prior(1e-3)), **options)
    for _ in range(steps):
        training.step(batch(7))
    training.release()
    return [param.detach() for param in training.model.parameters()]


@pytest.mark.parametrize("microbatch", [1, 2, 3])
def test_any_split_of_a_batch_makes_the_same_update(microbatch: int) -> None:
    whole = weights_after(2)
    for one, other in zip(weights_after(2, microbatch=microbatch), whole, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_images_without_any_boxes_train() -> None:
    streams = {"image": SHAPES.image, "bbox": torch.full((8, 1, 5), -1.0)}
    training = trainer(vision.Detection())
    first = float(training.step(streams)["focal"])
    for _ in range(5):
        losses = training.step(streams)
    assert 0 < float(losses["focal"]) < first
    assert float(losses["huber"]) == 0


def test_classes_that_the_model_does_not_have_are_refused() -> None:
    streams = batch()
    streams["bbox"] = streams["bbox"].clone()
    streams["bbox"][3, 0, -1] = 4
    said = r"row 3, box 0: its class is out of range for a model with 4 classes, .* 4\.0\]"
    training = trainer(vision.Detection())
    with pytest.raises(hr.DataError, match=said):
        training.step(streams)
    later = trainer(vision.Detection())
    later.step(batch())
    with pytest.raises(hr.DataError, match=said):
        later.step(streams)


BAD = {
    "negative": ([4.0, 4, 16, 16, -2], "its class is out of range"),
    "half": ([4.0, 4, 16, 16, 0.5], "its class is out of range"),
    "nan": ([math.nan, 4, 16, 16, 0], "its numbers are not finite"),
    "area": ([4.0, 4, 4, 16, 0], "it has no area"),
    "outside": ([100.0, 100, 120, 120, 0], "it is outside of its image"),
    "before": ([-9.0, 4, -1, 16, 0], "it is outside of its image"),
}


@pytest.mark.parametrize("name", BAD)
def test_boxes_of_a_stream_that_cannot_be_found_are_refused(name: str) -> None:
    streams = batch()
    streams["bbox"] = streams["bbox"].clone()
    numbers, said = BAD[name]
    streams["bbox"][2, 1] = torch.tensor(numbers)
    with pytest.raises(hr.DataError, match=f"stream 'bbox', row 2, box 1: {said}"):
        trainer(vision.Detection()).step(streams)


def test_detections_are_the_best_boxes_of_the_outputs() -> None:
    anchors = torch.tensor([[0.0, 0, 10, 10], [0, 1, 10, 11], [20, 20, 30, 40]])
    logits = torch.tensor([[[3.0, -9], [2, 1], [-9, 0]], [[-9, -9], [-9, -9], [-9, -9]]])
    outputs = {"class_logits": logits, "box_codes": torch.zeros(2, 3, 4), "anchors": anchors}
    found = vision.detections(outputs, (32, 32), score=0.1, max_boxes=4)
    p = logits.sigmoid()[0]
    assert found[0].tolist() == [
        pytest.approx([0, 0, 10, 10, p[0, 0].item(), 0]),  # it removes the second of its class
        pytest.approx([0, 1, 10, 11, p[1, 1].item(), 1]),
        pytest.approx([20, 20, 30, 32, p[2, 1].item(), 1]),  # cut at the edge
        [0, 0, 0, 0, 0, -1],
    ]
    assert (found[1, :, -1] == -1).all()


def test_predictions_and_metrics_are_of_detections() -> None:
    training = trainer(vision.Detection(max_boxes=7), metrics={"map": vision.MeanAveragePrecision()})
    assert training.predict({"image": SHAPES.image}, batch_size=3).shape == (8, 7, 6)
    scores = training.validate(batch(), batch_size=3)
    assert 0 <= scores["val/map"] <= 1
    training.fit(batch(), epochs=1, progress=False)
    assert "train/map" in training.history.last


def with_sequences(streams: dict[str, Tensor]) -> dict[str, Any]:
    """The same images and boxes, without the rows that fill up to as many as the most of one."""
    return {**streams, "bbox": hr.Ragged.of([boxes[boxes[:, -1] >= 0] for boxes in streams["bbox"]])}


@pytest.mark.parametrize("workers", [1, 2])
def test_boxes_as_sequences_train_and_score_as_those_that_are_filled_up(workers: int) -> None:
    streams = batch()
    streams["bbox"][3, :, -1] = vision.NONE  # an image without any
    fewer = {"image": SHAPES.image[:5], "bbox": SHAPES.bbox[:5].clone()}
    fewer["bbox"][:, 1:, -1] = vision.NONE

    def train(sequences: bool) -> tuple[list[Tensor], dict[str, Any]]:
        metrics = {"map": vision.MeanAveragePrecision(0.1)}
        strategy = hr.Synchronous() if workers > 1 else None
        augment = vision.Augment(turn=10, shift=0.1)
        training = trainer(vision.Detection(), batch_size=4, metrics=metrics, strategy=strategy, augment=augment)
        train, val = (with_sequences(part) if sequences else part for part in (streams, fewer))
        training.fit(train, val=val, epochs=2, progress=False)
        scores = {key: value for key, value in training.history.last.items() if "/" in key and "rate" not in key}
        return [param.detach().clone() for param in training.model.parameters()], scores

    found, expected = (
        hr.launch(train, sequences, workers=workers) if workers > 1 else train(sequences) for sequences in (True, False)
    )
    assert found[1] == pytest.approx(expected[1], abs=1e-6)
    assert {"train/map", "val/map", "val/loss"} <= found[1].keys()
    for one, other in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
