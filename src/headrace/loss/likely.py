"""What a classifier's outputs mean: the class of each row, and how likely the model holds it to be."""

import torch
from torch import Tensor


def are_shares(outputs: Tensor) -> bool:
    """Whether the numbers of every row are probabilities of classes that exclude each other."""
    return bool((outputs >= 0).all()) and bool(((outputs.sum(dim=1) - 1).abs() < 1e-3).all())


def likeliest(outputs: Tensor, reads: str | None) -> tuple[Tensor, Tensor]:
    """One of several classes for each row, each of which has a column, and its probability."""
    given = reads == "probabilities" or are_shares(outputs)
    probability, code = (outputs if given else outputs.float().softmax(dim=1)).max(dim=1)
    return code, probability


def yes_or_no(outputs: Tensor, reads: str | None) -> tuple[Tensor, Tensor]:
    """1 or 0 for each number, and the probability of that."""
    yes = outputs.float().sigmoid() if reads == "logits" else outputs.float()
    said = yes > 0.5
    return said.long(), torch.where(said, yes, 1 - yes)
