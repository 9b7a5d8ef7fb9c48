"""A small GPT that learns to write Python, with Muon for its matrices and AdamW for the rest."""

import argparse
import inspect
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr


class Block(nn.Module):
    """Attention to what came before, then a small network, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        split = self.qkv(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*split.unbind(0), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    """Scores of the next character at every position, in dimension 1."""

    def __init__(self, characters: int, length: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        scores: Tensor = self.head(self.norm(self.blocks(self.embed(x) + self.place(places))))
        return scores.transpose(1, 2)


def muon(lr: float = 0.02, adamw_lr: float = 3e-3, epochs: int = 10, width: int = 64, layers: int = 2) -> hr.Recipe:
    """Trains a GPT on the characters of `argparse`, of Python's standard library.

    Args:
        lr: learning rate of Muon, for the matrices of the blocks; with 0 AdamW has all parameters.
        adamw_lr: learning rate of AdamW, for embeddings, gains, biases and the last layer.
        epochs: passes over about 1,400 pieces of 64 characters.
        width: numbers at every position.
        layers: blocks of attention.
    """
    text, length = inspect.getsource(argparse), 64
    number = {character: k for k, character in enumerate(sorted(set(text)))}
    count = (len(text) - 1) // length
    codes = torch.tensor([number[character] for character in text[: count * length + 1]])
    pieces = {"x": codes[:-1].view(count, length), "y": codes[1:].view(count, length)}
    train, val = hr.split(hr.ArrayTable(pieces), 0.9, 0.1)
    torch.manual_seed(0)
    model = GPT(len(number), length, width, layers)
    matrices = [param for param in model.blocks.parameters() if param.ndim == 2] if lr else []
    others = [param for param in model.parameters() if all(param is not each for each in matrices)]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=adamw_lr)]
    if matrices:
        optimizers.insert(0, torch.optim.Muon(matrices, lr=lr))
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizers, batch_size=32, clip_norm=1.0, schedule=hr.Cosine(0.05))
    return hr.Recipe(trainer, train, val, fit={"epochs": epochs})


if __name__ == "__main__":
    torch.set_num_threads(1)
    loss = muon().run().last["val/loss"]
    print(f"{loss / math.log(2):.3f} bits for a character")
