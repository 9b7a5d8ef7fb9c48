"""A program for PuzzleLib, with its imports changed: digits of scikit-learn, batches in their order."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from headrace.compat.puzzlelib import SGD, CrossEntropy, Trainer, Validator


def main() -> tuple[list[float], float]:
    """The mean error of every epoch, and the error rate of the end."""
    digits = load_digits()
    data, target = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
    torch.manual_seed(0)
    seq = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = SGD(learnRate=0.1)
    optimizer.setupOn(seq, useGlobalState=True)
    trainer = Trainer(seq, CrossEntropy(), optimizer, batchsize=64)
    errors = []
    for epoch in range(3):
        trainer.trainFromHost(data, target, macroBatchSize=640, random=False)
        errors.append(trainer.cost.getMeanError())
        print(f"Epoch {epoch}: {errors[-1]:.4f}")
    return errors, Validator(seq, CrossEntropy()).validateFromHost(data, target)


if __name__ == "__main__":
    main()
