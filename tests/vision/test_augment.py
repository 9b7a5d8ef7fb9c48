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


def test_a_box_that_has_mostly_left_the_image_is_left_out() -> None:
    fields = {"image": torch.zeros(1, 1, 10, 10), "bbox": torch.tensor([[[0.0, 0, 4, 2, 1], [0, 2, 4, 10, 0]]])}
    matrix, offset = torch.eye(2).unsqueeze(0), torch.tensor([[0.0, -1.5]])
    found = vision.Augment()._boxes(fields["bbox"], matrix, offset, torch.Size([10, 10]))
    assert found.tolist() == [[[0, 0, 0, 0, -1], [0, 0.5, 4, 8.5, 0]]]


def test_what_a_row_draws_is_the_same_in_any_batch_and_another_in_every_epoch() -> None:
    table = hr.ArrayTable({k: v.repeat(4, *[1] * (v.dim() - 1)) for k, v in marked().items()})
    augmented = hr.map(table, vision.Augment(turn=20, noise=0.1, contrast=0.2, brightness=0.2))

    def epochs(size: int) -> list[Tensor]:
        reader = hr.Reader(augmented, "none", 3)
        batches = [reader.next_batch(size) for _ in range(2 * len(table) // size)]
        return [torch.cat([batch["image"] for batch in batches if batch is not None])]

    assert torch.equal(epochs(4)[0], epochs(6)[0])
    first, second = epochs(4)[0].chunk(2)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"zoom": (1.2, 0.8)}, r"zoom= .* \(1.2, 0.8\)"), ({"mirror": 2.0}, "mirror= is between 0 and 1, got 2.0")],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(hr.ConfigError, match=said):
        vision.Augment(**options)


def test_augmentation_wants_a_stream_of_images() -> None:
    with pytest.raises(hr.DataError, match=r"wants a stream 'image' .* got \['x'\]"):
        vision.Augment()({"x": torch.zeros(2, 3)}, draws(2))
