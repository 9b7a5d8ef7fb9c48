"""The native twin of `puzzlelib_legacy.py`."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import headrace as hr


def main() -> tuple[list[float], float]:
    """The mean error of every epoch, and the error rate of the end."""
    digits = load_digits()
    data, target = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=64, order="none", metrics="accuracy")
    history = trainer.fit((data, target), epochs=3, progress=False)
    return history["train/loss"], 1 - trainer.validate((data, target))["val/accuracy"]


if __name__ == "__main__":
    print(main())
