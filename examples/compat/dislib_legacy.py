"""A program for dislib, with its imports changed: digits of scikit-learn, in blocks that three workers share."""

from types import SimpleNamespace

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from headrace.compat.dislib import EncapsulatedFunctionsDistributedEddl


def blocks(data):
    """Six blocks, as a ds_tensor has them."""
    parts = np.split(data, 6)
    return SimpleNamespace(tensors=[parts[:3], parts[3:]], shape=(2, 3))


def main() -> tuple[list[np.ndarray], list[float]]:
    """The parameters at the end, and the loss of every epoch."""
    digits = load_digits()
    data, target = (digits.data[:1776] / 16).astype(np.float32), digits.target[:1776]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    training = EncapsulatedFunctionsDistributedEddl(num_workers=3)
    training.build(net, {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, "soft_cross_entropy", "accuracy")
    parameters = training.fit_synchronous_every_n_epochs_with_GPU(
        blocks(data),
        blocks(target),
        num_batches_per_worker=8,
        num_epochs=4,
        n_epocs_sync=2,
        shuffle_blocks=False,
        shuffle_block_data=False,
    )
    return parameters, training.history["train/loss"]


if __name__ == "__main__":
    print(main()[1])
