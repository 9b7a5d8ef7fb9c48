"""How fast a training is: rows and tokens a second, and the share of what the device can compute."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

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
    by_hand, measured = hr.Timer("x", flops=6 * WIDTH * WORDS, peak=1e9), hr.Timer("x", flops="auto", peak=1e9)
    for timer in (by_hand, measured):
        last = fit(DATA, timer).history.last
        assert last["time/mfu"] == pytest.approx(last["time/tokens_per_s"] * 6 * WIDTH * WORDS / 1e9)
    last = fit(DATA, hr.Timer(flops="auto", peak=1e9)).history.last  # of a row
    assert last["time/mfu"] == pytest.approx(last["time/rows_per_s"] * LENGTH * 6 * WIDTH * WORDS / 1e9)


def test_whoever_measures_changes_nothing() -> None:
    with_timer, without = fit(DATA, hr.Timer("x", flops="auto", peak=1e9)), fit(DATA)
    assert all(map(torch.equal, with_timer.model.parameters(), without.model.parameters()))


def test_progress_and_history_show_them() -> None:
    shown = io.StringIO()
    fit(DATA, hr.Timer("x", flops="auto", peak=1e9), hr.Progress("plain", file=shown))
    assert "tokens/s  MFU " in shown.getvalue()


@pytest.mark.slow
def test_ten_updates_under_torchs_profiler_are_seen() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        fit(DATA)
    names = {event.key: event.count for event in found.key_averages()}
    assert names["Optimizer.step#AdamW.step"] >= 1
    assert "aten::addmm" in names


class Layered(nn.Module):
    """A layer that torch computes as one operation, and a head of the mean."""

    def __init__(self, layer: nn.Module, width: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        return self.head((found[0] if isinstance(found, tuple) else found).mean(1))


@pytest.mark.parametrize(
    ("layer", "width", "products"),
    [
        (nn.LSTM(8, 16, batch_first=True), 16, LENGTH * (64 * 8 + 64 * 16)),
        (nn.LSTM(8, 16, bidirectional=True, batch_first=True), 32, LENGTH * 2 * (64 * 8 + 64 * 16)),
        (nn.GRU(8, 16, batch_first=True), 16, LENGTH * (48 * 8 + 48 * 16)),
        (
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            8,
            LENGTH * (8 * 24 + 8 * 8 + 2 * 8 * 16) + 2 * LENGTH * LENGTH * 8,
        ),
    ],
    ids=["LSTM", "both ways", "GRU", "transformer"],
)
def test_layers_that_torch_computes_as_one_operation_are_counted(layer: nn.Module, width: int, products: int) -> None:
    model = Layered(layer, width)
    made = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=32)
    data = torch.randn(ROWS, LENGTH, 8), torch.arange(ROWS) % 2
    last = made.fit(data, epochs=1, progress=False, callbacks=[hr.Timer(flops="auto", peak=1e9)]).last
    assert last["time/mfu"] == pytest.approx(last["time/rows_per_s"] * 6 * (products + width * 2) / 1e9)
