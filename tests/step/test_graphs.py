"""Passes of a GPU that are captured: how batches, seeds, gradients and outputs go in and out, shown without a GPU.

The capture itself is replaced: what is captured runs once more, on the memory that it was captured with.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.step.repeat import Repeat
from headrace.step.tape import graphs, tapes

ROWS, BATCH = 104, 8
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What has been captured."""
    found: list[Any] = []

    def capture(work: Callable[[], None], pool: Any) -> tuple[Callable[[], None], Any]:
        work()
        found.append(work)
        return work, "a pool"

    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(tapes, "captures", lambda device: True)
    monkeypatch.setattr(Repeat, "of", lambda *given, **options: None)  # which is of a CPU
    return found


class Two(nn.Module):
    """Gives two outputs by name; one parameter is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(6, 3), nn.Linear(6, 1), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"a": self.a(x), "b": self.b(x)}


def simple() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


WAYS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "as it is": (simple, {}),
    "class weights": (simple, {"loss": nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))}),
    "two terms": (Two, {"loss": hr.CrossEntropy(output="a") + 0.1 * hr.L2Prior(0.1)}),
    "microbatches": (lambda: nn.Linear(6, 3), {"microbatch": 3}),
    "clipped": (simple, {"clip_norm": 0.1}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_captured_pass_has_the_bits_of_an_eager_one(way: str, captured: list[Any]) -> None:
    build, options = WAYS[way]
    ends = []
    for tape in (False, True):
        torch.manual_seed(3)
        model = build()
        given: dict[str, Any] = {"loss": nn.CrossEntropyLoss(), "batch_size": BATCH, **options}
        trainer = hr.Trainer(model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2), tape=tape, **given)
        torch.manual_seed(7)
        trainer.fit((X, Y), (X, Y), epochs=3, progress=False)
        assert bool(captured) is tape
        predicted = trainer.predict(X)
        outputs = list(predicted.values()) if isinstance(predicted, dict) else [predicted]
        rows = [{k: v for k, v in row.items() if k != "minutes"} for row in trainer.history.rows]
        ends.append(([*model.state_dict().values(), *outputs], rows))
    (tensors, rows), (others, reports) = ends
    assert all(map(torch.equal, tensors, others))
    assert rows == reports
