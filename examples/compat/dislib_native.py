"""The native twin of `dislib_legacy.py`."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import headrace as hr


def in_turn(data):
    """Six blocks of eight batches, of which three workers read one each: the batches in the order of the updates."""
    rounds = data.reshape(2, 3, 8, 37, *data.shape[1:])
    return rounds.swapaxes(1, 2).reshape(data.shape)


def main() -> tuple[list[np.ndarray], list[float]]:
    """The parameters at the end, and the loss of every epoch."""
    digits = load_digits()
    data, target = (digits.data[:1776] / 16).astype(np.float32), digits.target[:1776]
    table = hr.ArrayTable({"x": in_turn(data), "y": in_turn(target)})
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        strategy = hr.Periodic("2 epochs", weights="equal")
        trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=37, strategy=strategy, device="cpu")
        return trainer.fit(hr.Reader(table, order="none"), epochs=4, progress=False)

    history = hr.launch(train, model, workers=3)
    return [param.detach().numpy() for param in model.parameters()], history["train/loss"]


if __name__ == "__main__":
    print(main()[1])
