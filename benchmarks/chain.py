"""What training a chain of many small parameters costs, as ratios to the hand-written loop.

    python benchmarks/chain.py [--tensors 1000,5000] [--epochs 5]

The first epochs, with the recording and its comparisons, are on the clock.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

import headrace as hr

ROWS, BATCH, WIDTH, CLASSES = 400, 20, 8, 3


class Chain(nn.Module):
    """Each parameter scales what the one before it gave."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(WIDTH)) for _ in range(tensors)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for scale in self.scales:
            x = torch.tanh(x * scale)
        logits: Tensor = self.head(x)
        return logits


def raw(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    """The hand-written loop."""
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.01), nn.CrossEntropyLoss()
    for _ in range(epochs):
        for rows, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.zero_grad()
            loss(model(rows), labels).backward()
            optimizer.step()


def ours(model: nn.Module, x: Tensor, y: Tensor, epochs: int, tape: bool) -> str:
    """The same by headrace; what became of its passes."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=BATCH, tape="auto" if tape else False)
    trainer.fit({"x": x, "y": y}, epochs=epochs, progress=False)
    return trainer.tape_note


def main() -> None:
    """Print a line for each length of the chain."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tensors", default="1000,5000")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, WIDTH), torch.randint(0, CLASSES, (ROWS,))
    for tensors in map(int, options.tensors.split(",")):
        start = time.perf_counter()
        raw(Chain(tensors), x, y, options.epochs)
        loop_s, start = time.perf_counter() - start, time.perf_counter()
        ours(Chain(tensors), x, y, options.epochs, tape=False)
        eager_s, start = time.perf_counter() - start, time.perf_counter()
        note = ours(Chain(tensors), x, y, options.epochs, tape=True)
        taped_s = time.perf_counter() - start
        print(f"{tensors} tensors: tape=False {eager_s / loop_s:.2f}, 'auto' {taped_s / loop_s:.2f} ({note})")


if __name__ == "__main__":
    main()
