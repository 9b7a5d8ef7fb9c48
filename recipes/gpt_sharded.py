"""A small GPT that learns to continue its own source, sharded over two processes: python recipes/gpt_sharded.py."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr

LENGTH, LETTERS = 32, 128


class Block(nn.Module):
    """Attention to earlier letters, and two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, attn_mask=self.mask, need_weights=False)[0]
        return x + self.layers(self.norms[1](x))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Predicts the next letter at each place. The first and the last weights are the same."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, LETTERS, bias=False)
        nn.init.normal_(self.letters.weight, std=0.02)
        self.head.weight = self.letters.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.letters(x) + self.places.weight
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)).transpose(1, 2).contiguous()  # type: ignore[no-any-return]


def gpt(lr: float = 3e-3, epochs: int = 3, batch_size: int = 32, width: int = 32, depth: int = 2) -> hr.Recipe:
    """Trains a GPT on the letters of this file.

    Args:
        lr: learning rate of AdamW.
        epochs: passes over the text.
        batch_size: pieces of text in one update.
        width: numbers for each letter.
        depth: blocks.
    """
    torch.manual_seed(0)
    text = torch.tensor(list(Path(__file__).read_bytes())).clamp(max=LETTERS - 1)
    pieces = text.unfold(0, LENGTH + 1, 4)
    trainer = hr.Trainer(
        GPT(width, depth),
        hr.CrossEntropy(),
        lambda params: torch.optim.AdamW(params, lr=lr),
        batch_size=batch_size,
        clip_norm=1.0,
        strategy=hr.Sharded("blocks.*"),
    )
    return hr.Recipe(trainer, (pieces[:, :-1], pieces[:, 1:]), fit={"epochs": epochs})


def train(**arguments: Any) -> float:
    """The loss at the end. Every worker calls this."""
    return float(gpt(**arguments).run().last["train/loss"])


if __name__ == "__main__":
    print(f"train loss {hr.launch(train, workers=2, engine='processes'):.3f}")
