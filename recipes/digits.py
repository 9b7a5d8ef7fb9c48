"""Handwritten digits, 8×8 pixels: a small convolutional network on the data that ships inside scikit-learn."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import headrace as hr


def digits(lr: float = 2e-3, epochs: int = 20, batch_size: int = 64, width: int = 32, seed: int = 0) -> hr.Recipe:
    """Trains a classifier of handwritten digits.

    Args:
        lr: learning rate of AdamW.
        epochs: passes over the 1,257 training images.
        batch_size: images in one update.
        width: channels of the first convolution; the second has twice as many.
        seed: of the split, the initial weights and the order.
    """
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    train, rest = train_test_split(np.arange(len(labels)), test_size=0.3, random_state=seed, stratify=labels)
    val, test = train_test_split(rest, test_size=0.5, random_state=seed, stratify=labels[rest])
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(2 * width * 16, 10),
    )
    trainer = hr.Trainer(
        model,
        loss=hr.CrossEntropy(label_smoothing=0.05),
        optimizer=torch.optim.AdamW(model.parameters(), lr=lr),
        batch_size=batch_size,
        metrics=["accuracy", "f1"],
        seed=seed,
    )
    parts = ((images[part], labels[part]) for part in (train, val, test))
    return hr.Recipe(trainer, *parts, fit={"epochs": epochs})


if __name__ == "__main__":
    torch.set_num_threads(1)  # a model this small spends more time sharing work than doing it
    scores = digits().run().last
    print(f"test accuracy {scores['test/accuracy']:.1%}, test f1 {scores['test/f1']:.3f}")
