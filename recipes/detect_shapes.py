"""Finds drawn shapes, noisy, of many sizes and over each other, as boxes: a small one-stage detector."""

import torch
from shapes import draw_shapes

import headrace as hr
from headrace import vision


def detect_shapes(
    lr: float = 3e-3, epochs: int = 25, batch_size: int = 16, images: int = 2000, seed: int = 0
) -> hr.Recipe:
    """Trains a detector to find the boxes of shapes and to name their kinds.

    Args:
        lr: the highest learning rate of Adam; it rises and falls once.
        epochs: passes over four fifths of the images.
        batch_size: images in one update.
        images: how many are drawn; the last fifth is held out.
        seed: of the images, the initial weights and the order.
    """
    drawn = draw_shapes(images, seed=seed)
    streams = {"image": drawn.image, "bbox": drawn.bbox}
    train, test = hr.head(streams, images * 4 // 5), hr.skip(streams, images * 4 // 5)
    torch.manual_seed(seed)
    model = vision.Detector(classes=4, channels=1, widths=(8, 16, 32, 64, 64), features=32)
    trainer = hr.Trainer(
        model,
        vision.Detection(bbox_heads_weight=4.0, max_boxes=20),
        torch.optim.Adam(model.parameters(), lr=lr),
        batch_size=batch_size,
        target="bbox",
        metrics={"map": vision.MeanAveragePrecision()},
        schedule=hr.OneCycle(),
        seed=seed,
        augment=vision.Augment(mirror_rows=0.5),
    )
    return hr.Recipe(trainer, train, test=test, fit={"epochs": epochs})


if __name__ == "__main__":
    print(f"test mAP {detect_shapes().run().last['test/map']:.3f}")
