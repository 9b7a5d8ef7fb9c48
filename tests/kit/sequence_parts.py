"""What trainings on sequences are made of: rows, a model, losses, and each of these as one writes it by hand."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse

ROWS, WORDS, TAGS = 60, 20, 3
GENERATOR = torch.Generator().manual_seed(4)
LENGTHS = torch.randint(1, 8, (ROWS,), generator=GENERATOR)
OFFSETS = torch.cat([torch.zeros(1, dtype=torch.int64), LENGTHS.cumsum(0)])
ITEMS = int(OFFSETS[-1])
IDS = torch.randint(0, WORDS, (ITEMS,), generator=GENERATOR)
HOLES = torch.arange(ROWS) % 4 == 1  # rows that are empty in OPEN


def ragged(values: Any, offsets: Tensor = OFFSETS) -> Ragged:
    return Ragged(values, offsets)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


TARGETS = {
    "tags": ragged(IDS % TAGS),
    "number": ragged(random(ITEMS)),
    "numbers": ragged(random(ITEMS, 2)),
    "yes": ragged((random(ITEMS) > 0).float()),
    "ignored": ragged(torch.where(IDS % 5 == 0, -1, IDS % TAGS)),
}
PER_ROW, PER_ITEM = torch.rand(ROWS, generator=GENERATOR), ragged(torch.rand(ITEMS, generator=GENERATOR))
DATA: dict[str, Any] = {"words": ragged(Sparse.one_hot(IDS, WORDS)), "tokens": ragged(IDS), **TARGETS}
DATA |= {"by_row": PER_ROW, "by_item": PER_ITEM, "id": torch.arange(ROWS)}


def without(rows: Tensor) -> dict[str, Any]:
    """The same data where these rows are empty sequences."""
    lengths = torch.where(rows, 0, LENGTHS)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    kept = ~rows.repeat_interleave(LENGTHS)

    def changed(field: Any) -> Any:
        if not isinstance(field, Ragged):
            return field
        values = field.values
        return ragged(values[kept] if isinstance(values, Tensor) else values.take(torch.nonzero(kept)[:, 0]), offsets)

    return {name: changed(field) for name, field in DATA.items()}


OPEN = without(HOLES)


class Tagger(nn.Module):
    """Some numbers for every item, from what stands before it; given back in one of three forms."""

    def __init__(self, outputs: int, form: str = "padded", squeeze: bool = False) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, outputs)
        self.form, self.squeeze = form, squeeze

    def padded(self, ids: Tensor) -> Tensor:
        """For a tensor of ids, of shape (rows, longest)."""
        scores: Tensor = self.out(torch.tanh(self.embedding(ids).cumsum(dim=1)))
        return scores.squeeze(-1) if self.squeeze else scores

    def forward(self, tokens: Ragged) -> Any:
        padded = self.padded(tokens.padded())
        if self.form == "padded":
            return padded
        return tokens.with_padded(padded) if self.form == "Ragged" else tokens.with_padded(padded).values


def make(model: nn.Module, loss: Any, target: str, **options: Any) -> hr.Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = {"batch_size": 16, "inputs": "tokens", "target": target, "order": "none"}
    return hr.Trainer(model, loss, optimizer, **{**given, **options})


def tagger(outputs: int, form: str = "padded", squeeze: bool = False) -> Tagger:
    torch.manual_seed(1)
    return Tagger(outputs, form, squeeze)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in model.state_dict().values()])


# --- losses ------------------------------------------------------------------------------------------------

By = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A loss by hand: of padded outputs, padded targets, the mask, and weights by row and by item."""


class Case(NamedTuple):
    """A loss, the stream that it compares with, and what it is by hand."""

    loss: Any
    target: str
    outputs: int
    by_hand: By

    @property
    def squeeze(self) -> bool:
        """Whether the model gives one number for each item, and no dimension for it."""
        return self.target in ("number", "yes")

    def model(self, form: str = "padded") -> "Tagger":
        return tagger(self.outputs, form, self.squeeze)


def over(each: Tensor, weight: Tensor) -> Tensor:
    """A weighted mean."""
    weight = weight.to(each.dtype).view(*weight.shape, *[1] * (each.dim() - weight.dim())).expand_as(each)
    return (each * weight).sum() / weight.sum()


def entropy(outputs: Tensor, wanted: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(outputs.movedim(-1, 1), wanted, reduction="none", **options)


def squared(outputs: Tensor, wanted: Tensor) -> Tensor:
    return (outputs - wanted) ** 2


def rugged(outputs: Tensor, wanted: Tensor) -> Tensor:
    """A mean over whatever there is, that no term of the library computes."""
    return (outputs - wanted).abs().pow(1.5).mean()


def binary(outputs: Tensor, wanted: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="none")


CASES = {
    "cross entropy": Case(hr.CrossEntropy(), "tags", TAGS, lambda o, t, m, r, i: over(entropy(o, t), m)),
    "ignore_index": Case(
        hr.CrossEntropy(ignore_index=-1),
        "ignored",
        TAGS,
        lambda o, t, m, r, i: over(entropy(o, t, ignore_index=-1), m & (t != -1)),
    ),
    "weights of rows": Case(
        hr.CrossEntropy(weight="by_row"), "tags", TAGS, lambda o, t, m, r, i: over(entropy(o, t), m * r)
    ),
    "weights of items": Case(
        hr.CrossEntropy(weight="by_item"), "tags", TAGS, lambda o, t, m, r, i: over(entropy(o, t), m * i)
    ),
    "squared error": Case(hr.MSE(), "number", 1, lambda o, t, m, r, i: over(squared(o, t), m)),
    "squared errors, weights of items": Case(
        hr.MSE(weight="by_item"), "numbers", 2, lambda o, t, m, r, i: over(squared(o, t), m * i)
    ),
    "binary": Case(hr.BinaryCrossEntropy(), "yes", 1, lambda o, t, m, r, i: over(binary(o, t), m)),
    "mean over items": Case(hr.RowMean(rugged), "number", 1, lambda o, t, m, r, i: over((o - t).abs().pow(1.5), m)),
    "a sum": Case(0.02 * hr.MSE(reduce="sum"), "number", 1, lambda o, t, m, r, i: 0.02 * (squared(o, t) * m).sum()),
}


def by_hand(model: "Tagger", case: Case, data: Any, epochs: int) -> list[float]:
    """A loop as one would write it: rows of a list, padded, with a mask."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for start in [*range(0, ROWS, 16)] * epochs:
        value = plain_loss(model, case, data, slice(start, start + 16))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        items = sum(map(len, list(data["tokens"])[start : start + 16])) if case.loss.reduce == "sum" else 1
        losses.append(value.item() / items)  # a sum is reported as the mean
    return losses


def plain_loss(model: "Tagger", case: Case, data: Any, rows: slice) -> Tensor:
    """The loss of these rows by hand."""
    lists = {name: list(data[name])[rows] for name in ("tokens", case.target, "by_item")}
    tokens, wanted, items = (nn.utils.rnn.pad_sequence(each, batch_first=True) for each in lists.values())
    there = [torch.ones(len(each), dtype=torch.bool) for each in lists["tokens"]]
    mask = nn.utils.rnn.pad_sequence(there, batch_first=True)
    return case.by_hand(model.padded(tokens), wanted, mask, data["by_row"][rows, None].expand(mask.shape), items)
