"""Masks, boxes and images are moved together, by draws that belong to the rows."""

from typing import Any

import pytest
import torch
from torch import Tensor

import headrace as hr
from headrace import vision
from headrace.data.draws import Draws


def draws(rows: int, epoch: int = 0) -> Draws:
    return Draws.at(7, [(epoch, 0, rows)])


def marked(size: tuple[int, int] = (40, 60)) -> dict[str, Any]:
    """Images with a rectangle each, its mask, and its box, once axis-parallel."""
    boxes = torch.tensor([[8.0, 10, 20, 40], [12, 20, 30, 32], [13, 13, 25, 23]])
    image, mask = torch.zeros(3, 1, *size), torch.zeros(3, *size, dtype=torch.int64)
    for k, (r1, c1, r2, c2) in enumerate(boxes.int().tolist()):
        image[k, 0, r1:r2, c1:c2] = 1
        mask[k, r1:r2, c1:c2] = 2
    target = torch.cat([boxes, torch.tensor([[0.0], [1], [2]])], dim=1).unsqueeze(1)
    return {"image": image, "segmentation_image": mask, "bbox": torch.cat([target, target * 0 - 1], dim=1)}


def hull(mask: Tensor) -> list[float]:
    rows, columns = mask.nonzero().unbind(1)
    return [float(rows.min()), float(columns.min()), float(rows.max() + 1), float(columns.max() + 1)]


@pytest.mark.parametrize(
    "options",
    [
        {"mirror": 1.0},
        {"mirror": 0.0, "mirror_rows": 1.0},
        {"mirror": 0.5, "zoom": (0.6, 1.2)},
        {"mirror": 0.5, "shift": 0.1},
    ],
)
def test_boxes_masks_and_images_move_together(options: dict[str, Any]) -> None:
    before = marked()
    after = vision.Augment(**options)(before, draws(3))
    for k in range(3):
        box = after["bbox"][k, 0, :4].tolist()
        assert hull(after["segmentation_image"][k] == 2) == pytest.approx(box, abs=1.01)
        assert hull(after["image"][k, 0] > 0.5) == pytest.approx(box, abs=1.01)
        assert box != before["bbox"][k, 0, :4].tolist()
    assert (after["bbox"][:, 1, -1] == -1).all()


def test_a_box_that_is_seen_as_a_whole_stays_whatever_is_to_be_visible() -> None:
    before = marked()
    after = vision.Augment(mirror=1.0, min_visible=1.0)(before, draws(3))
    assert (after["bbox"][..., -1] == before["bbox"][..., -1]).all()


def test_a_mirrored_image_is_the_image_reversed() -> None:
    before = {"image": torch.randn(3, 2, 9, 12)}
    after = vision.Augment(mirror=1.0)(before, draws(3))["image"]
    torch.testing.assert_close(after, before["image"].flip(-1), rtol=0, atol=1e-5)


def test_a_box_that_has_mostly_left_the_image_is_left_out() -> None:
    fields = {"image": torch.zeros(1, 1, 10, 10), "bbox": torch.tensor([[[0.0, 0, 4, 2, 1], [0, 2, 4, 10, 0]]])}
    matrix, offset = torch.eye(2).unsqueeze(0), torch.tensor([[0.0, -1.5]])
    found = vision.Augment()._boxes(fields["bbox"], matrix, offset, torch.Size([10, 10]))
    assert found.tolist() == [[[0, 0, 0, 0, -1], [0, 0.5, 4, 8.5, 0]]]


def test_what_a_row_draws_is_the_same_in_any_batch_and_another_in_every_epoch() -> None:
    table = hr.ArrayTable({k: v.repeat(4, *[1] * (v.dim() - 1)) for k, v in marked().items()})
    augment = vision.Augment(turn=20, noise=0.1, contrast=0.2, brightness=0.2)

    def epochs(size: int) -> list[Tensor]:
        reader = hr.Reader(table, "none", 3, augment=augment)
        batches = [reader.next_batch(size) for _ in range(2 * len(table) // size)]
        return [torch.cat([batch["image"] for batch in batches if batch is not None])]

    assert torch.equal(epochs(4)[0], epochs(6)[0])
    first, second = epochs(4)[0].chunk(2)
    assert not torch.equal(first, second)


def test_a_turned_box_is_the_one_around_what_was_turned() -> None:
    after = vision.Augment(mirror=0.5, mirror_rows=0.5, turn=40, zoom=(0.5, 0.8))(marked(), draws(3))
    for k in range(3):
        assert hull(after["segmentation_image"][k] == 2) == pytest.approx(after["bbox"][k, 0, :4].tolist(), abs=1.6)
