"""Names the kind of shape at every pixel, of drawn shapes that are noisy and lie over each other: a small U-net."""

import torch
from shapes import draw_shapes

import headrace as hr
from headrace import vision


def segment_shapes(
    lr: float = 5e-3, epochs: int = 18, batch_size: int = 16, images: int = 2000, seed: int = 0
) -> hr.Recipe:
    """Trains a network to name the kind of shape at every pixel.

    Args:
        lr: the highest learning rate of Adam; it rises and falls once.
        epochs: passes over four fifths of the images.
        batch_size: images in one update.
        images: how many are drawn; the last fifth is held out.
        seed: of the images, the initial weights and the order.
    """
    drawn = draw_shapes(images, seed=seed, max_shapes=2, radii=(0.13, 0.27))
    streams = {"image": drawn.image, "segmentation_image": drawn.segmentation_image}
    train, test = hr.head(streams, images * 4 // 5), hr.skip(streams, images * 4 // 5)
    torch.manual_seed(seed)
    model = vision.Segmenter(classes=5, channels=1, widths=(8, 16, 32, 64, 64))
    trainer = hr.Trainer(
        model,
        hr.CrossEntropy(),
        torch.optim.Adam(model.parameters(), lr=lr),
        batch_size=batch_size,
        target="segmentation_image",
        metrics="iou",
        schedule=hr.OneCycle(),
        seed=seed,
        augment=vision.Augment(mirror_rows=0.5),
    )
    return hr.Recipe(trainer, train, test=test, fit={"epochs": epochs})


if __name__ == "__main__":
    print(f"test mean IoU {segment_shapes().run().last['test/iou']:.3f}")
