"""Drawn images are the same for a seed, and their masks, labels and boxes belong together."""

import torch
from kit.shapes import draw_shapes


def test_a_seed_gives_the_same_images_and_another_seed_others() -> None:
    one, same, other = (draw_shapes(4, seed=seed) for seed in (1, 1, 2))
    for name in ("image", "image_label_id", "segmentation_image", "bbox"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.image, other.image)


def test_boxes_are_around_what_is_seen_of_a_shape() -> None:
    drawn = draw_shapes(20, max_shapes=1, seed=3)
    for mask, label, boxes in zip(drawn.segmentation_image, drawn.image_label_id, drawn.bbox, strict=True):
        rows, columns = mask.nonzero().unbind(1)
        around = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1, label]
        assert boxes[0].tolist() == [float(each) for each in around]
        assert (mask[mask > 0] == label + 1).all()
