"""Names the kind of drawn shapes, noisy, of many sizes and over each other: a small residual network."""

import torch
from shapes import draw_shapes

import headrace as hr
from headrace import vision


def classify_shapes(
    lr: float = 3e-3, epochs: int = 30, batch_size: int = 32, images: int = 2000, seed: int = 0
) -> hr.Recipe:
    """Trains a network to name the kind of the shapes in an image.

    Args:
        lr: the highest learning rate of Adam; it rises and falls once.
        epochs: passes over four fifths of the images.
        batch_size: images in one update.
        images: how many are drawn; the last fifth is held out.
        seed: of the images, the initial weights and the order.
    """
    drawn = draw_shapes(images, seed=seed, alike=True)
    streams = {"image": drawn.image, "image_label_id": drawn.image_label_id}
    train, test = hr.head(streams, images * 4 // 5), hr.skip(streams, images * 4 // 5)
    torch.manual_seed(seed)
    model = vision.ImageClassifier(classes=4, channels=1, widths=(8, 16, 32, 64))
    trainer = hr.Trainer(
        model,
        hr.CrossEntropy(),
        torch.optim.Adam(model.parameters(), lr=lr),
        batch_size=batch_size,
        target="image_label_id",
        metrics="accuracy",
        schedule=hr.OneCycle(),
        seed=seed,
        augment=vision.Augment(mirror_rows=0.5, turn=180),
    )
    return hr.Recipe(trainer, train, test=test, fit={"epochs": epochs})


if __name__ == "__main__":
    print(f"test accuracy {classify_shapes().run().last['test/accuracy']:.1%}")
