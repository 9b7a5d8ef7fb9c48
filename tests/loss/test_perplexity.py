"""The perplexity of labels, by name: e to the mean cross entropy of those that count."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import headrace as hr

TEXT = torch.randint(0, 11, (37, 6), generator=torch.Generator().manual_seed(0))
NEXT = TEXT.roll(-1, dims=1).where(torch.arange(6) < 5, -1)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.words(x)).movedim(-1, 1)


def make(loss: Any, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = Language()
    return hr.Trainer(model, loss, torch.optim.SGD(model.parameters(), 1.0), batch_size=5, **options)


def test_it_is_of_the_labels_that_count() -> None:
    trainer = make(hr.CrossEntropy(ignore_index=-1), metrics=["perplexity"])
    history = trainer.fit((TEXT, NEXT), (TEXT, NEXT), epochs=2, progress=False)
    with torch.no_grad():
        expected = cross_entropy(trainer.model(TEXT), NEXT, ignore_index=-1).exp().item()
    assert history.last["val/perplexity"] == pytest.approx(expected, rel=1e-5)
    for data in ("train", "val"):
        assert history.last[f"{data}/perplexity"] == pytest.approx(math.exp(history.last[f"{data}/loss"]), rel=1e-5)


def test_other_tasks_have_none() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    trainer = hr.Trainer(model, hr.MSE(), metrics="perplexity", device="cpu")
    with pytest.raises(hr.DataError, match="'perplexity' needs one label for each place"):
        trainer.validate((torch.randn(4, 2), torch.randn(4)))
    with pytest.raises(hr.ConfigError, match="'perplexity:macro'"):
        hr.Trainer(model, hr.MSE(), metrics="perplexity:macro", device="cpu")
