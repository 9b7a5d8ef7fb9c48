"""A detector's losses are those of the formulas, and its updates are the same however a batch is cut."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr
from headrace import vision

SHAPES = vision.draw_shapes(8, 32, seed=1, max_shapes=3)
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


def test_sums_over_all_instances_are_a_setting() -> None:
    focal = hr.Focal(ignore_index=vision.NONE, reduce="sum")
    model, plain = detector(), detector()
    training = trainer(vision.Detection(focal, hr.Huber(reduce="sum")), model)
    focal_sum, huber_sum, positives = by_hand(plain, batch())
    (focal_sum + huber_sum).backward()
    losses = training.step(batch())
    training.release()
    assert float(losses["huber"]) == pytest.approx(huber_sum.item() / (4 * positives), rel=1e-5)  # reported are means
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(ours, theirs - 0.01 * theirs.grad, rtol=1e-4, atol=1e-5)


def weights_after(steps: int, **options: Any) -> list[Tensor]:
    training = trainer(vision.Detection(prior=hr.L2Prior(1e-3)), **options)
    for _ in range(steps):
        training.step(batch(7))
    training.release()
    return [param.detach() for param in training.model.parameters()]


def test_strides_have_to_be_those_of_the_stages() -> None:
    with pytest.raises(hr.ConfigError, match=r"strides \[4, 8\]; with 3 widths they are powers of 2 that rise to 4"):
        vision.Detector(2, 1, widths=(4, 4, 4), anchors=ANCHORS)


def test_a_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(tmp_path: Any) -> None:
    def training() -> hr.Trainer:
        metrics = {"map": vision.MeanAveragePrecision(0.5)}
        return trainer(vision.Detection(), batch_size=3, metrics=metrics)

    whole = training()
    whole.fit(batch(), epochs=3, progress=False)
    first, second = training(), training()
    first.fit(batch(), steps=4, progress=False, run=tmp_path / "run")
    second.fit(batch(), epochs=3, progress=False, run=hr.Run(tmp_path / "run", override=True))
    for one, other in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert second.history.last["train/map"] == whole.history.last["train/map"]


@pytest.mark.parametrize("microbatch", [None, 2])
def test_several_workers_make_the_updates_of_one(microbatch: int | None) -> None:
    def train(strategy: Any = None) -> list[float]:
        model = detector()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss = vision.Detection(prior=hr.L2Prior(1e-3))
        options: dict[str, Any] = {"strategy": strategy, "batch_size": 7, "microbatch": microbatch, "target": "bbox"}
        hr.Trainer(model, loss, optimizer, device="cpu", **options).fit(batch(), epochs=2, progress=False)
        return [param.sum().item() for param in model.parameters()]

    assert hr.launch(train, workers=2) == pytest.approx(train(), abs=1e-5)


def test_the_terms_of_a_detection_are_copies_that_it_keeps() -> None:
    focal = hr.Focal(ignore_index=vision.NONE)
    kept = copy.copy(vars(focal))
    objective = vision.Detection(focal, class_heads_weight=2.0)
    assert objective.focal.coefficient == 2
    assert vars(focal) == kept
