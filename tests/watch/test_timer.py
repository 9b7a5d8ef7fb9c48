"""How fast a training is: rows and tokens a second, and the share of what the device can compute."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr

ROWS, LENGTH, WIDTH, WORDS = 96, 7, 8, 11
X = torch.randint(0, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
DATA = {"x": X, "y": X.roll(-1, 1), "mask": torch.arange(LENGTH) < 1 + torch.arange(ROWS)[:, None] % LENGTH}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.drop, self.head = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Any) -> Any:
        if isinstance(x, hr.Ragged):
            return x.with_values(self.head(self.embed(x.dense())))
        scores: Tensor = self.head(self.drop(self.embed(x)))
        return scores.transpose(1, 2)


def fit(data: Any, *callbacks: hr.Callback, **options: Any) -> hr.Trainer:
    model = Words()
    made = hr.Trainer(model, hr.CrossEntropy(), torch.optim.AdamW(model.parameters()), batch_size=32, inputs="x")
    torch.manual_seed(1)
    made.fit(data, epochs=2, callbacks=callbacks, **{"progress": False, **options})
    return made


@pytest.mark.parametrize(("stream", "per_row"), [("x", LENGTH), ("mask", DATA["mask"].sum().item() / ROWS)])
def test_tokens_are_counted_by_positions_or_by_a_mask(stream: str, per_row: float) -> None:
    last = fit(DATA, hr.Timer(tokens=stream)).history.last
    assert last["time/tokens_per_s"] == pytest.approx(per_row * last["time/rows_per_s"])
    assert "time/mfu" not in last


def test_tokens_of_sequences_are_their_items() -> None:
    lengths = [1 + k % 5 for k in range(ROWS)]
    ragged = hr.Ragged.of([X[k, : lengths[k]] for k in range(ROWS)])
    last = fit({"x": ragged, "y": ragged}, hr.Timer(tokens="x")).history.last
    assert last["time/tokens_per_s"] == pytest.approx(sum(lengths) / ROWS * last["time/rows_per_s"])


def test_the_share_of_the_peak_follows_from_the_operations_of_a_token() -> None:
    per_token = 6 * WIDTH * WORDS
    last = fit(DATA, hr.Timer("x", flops=per_token, peak=1e9)).history.last
    assert last["time/mfu"] == pytest.approx(last["time/tokens_per_s"] * per_token / 1e9)
    last = fit(DATA, hr.Timer(flops=LENGTH * per_token, peak=1e9)).history.last  # of a row
    assert last["time/mfu"] == pytest.approx(last["time/rows_per_s"] * LENGTH * per_token / 1e9)


def test_whoever_measures_changes_nothing() -> None:
    with_timer, without = fit(DATA, hr.Timer("x", flops=6, peak=1e9)), fit(DATA)
    assert all(map(torch.equal, with_timer.model.parameters(), without.model.parameters()))
