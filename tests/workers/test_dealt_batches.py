"""Workers with models of their own share the batches of a loader as those of a Dataset: each gets whole ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr
from headrace.workers.here import here

pytestmark = pytest.mark.filterwarnings("ignore:.*does not shard")
X = torch.randn(224, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = X.sum(dim=1, keepdim=True)
SIZE = 8


def loader(rows: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X[:rows], Y[:rows]), batch_size=SIZE)


def listed(rows: int) -> list[Any]:
    return [(X[start:stop], Y[start:stop]) for start in range(0, rows, SIZE) for stop in [min(rows, start + SIZE)]]


def lengths(rows: int) -> Any:
    return hr.head(loader(rows), rows)


class Sizes(nn.Linear):
    """Notes how many rows it is given."""

    def __init__(self) -> None:
        super().__init__(4, 1, dtype=torch.float64)
        self.rows: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.rows.append(len(x))
        return super().forward(x)


def train(data: Any, strategy: hr.Strategy | None, size: int | None = None, **fit: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Sizes()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=size, strategy=strategy, order="none", tape=False)
    history = trainer.fit(data, progress=False, **({"epochs": 2} | fit))
    every = here().all_gather(model.rows)
    return {
        "weight": model.weight.detach(),
        "steps": history.last["step"],
        "rows": every,
        "samples": history["samples"],
    }


@pytest.mark.parametrize(
    ("make", "strategy", "workers"),
    [
        (loader, hr.Periodic("2 steps"), 2),
        (listed, hr.DiLoCo("3 steps"), 3),
        (lengths, hr.BlockMomentum("1 step"), 3),
    ],
)
def test_each_worker_updates_with_whole_batches_of_a_loader_as_of_a_dataset(
    make: Any, strategy: hr.Strategy, workers: int
) -> None:
    rows = SIZE * workers * 4
    table = hr.launch(train, (X[:rows], Y[:rows]), strategy, SIZE, workers=workers)
    batches = hr.launch(train, make(rows), strategy, workers=workers)
    assert batches["steps"] == table["steps"] == 8
    assert batches["rows"] == [[SIZE] * 8] * workers
    assert batches["samples"] == table["samples"] == [rows, 2 * rows]
    assert torch.allclose(batches["weight"], table["weight"], rtol=0, atol=1e-14)


@pytest.mark.parametrize("make", [loader, listed])
def test_batches_that_are_left_at_the_end_of_an_epoch_are_used_once(make: Any) -> None:
    found = hr.launch(train, make(14 * SIZE), hr.Periodic("2 steps"), workers=3)
    assert found["steps"] == 2 * 5  # an epoch is 14 updates of one worker
    assert [sum(rows) for rows in found["rows"]] == [2 * 5 * SIZE, 2 * 5 * SIZE, 2 * 4 * SIZE]
    assert found["samples"] == [14 * SIZE, 28 * SIZE]


@pytest.mark.parametrize("step", [2, 5])
def test_a_run_goes_on_with_the_next_whole_batches(step: int, tmp_path: Path) -> None:
    at = {"run": str(tmp_path / "run")}

    def fit(**options: Any) -> dict[str, Any]:
        return train(loader(14 * SIZE), hr.Periodic("2 steps"), **options)

    hr.launch(lambda: fit(steps=step, **at), workers=3)
    resumed, whole = hr.launch(lambda: fit(**at), workers=3), hr.launch(fit, workers=3)
    assert torch.equal(resumed["weight"], whole["weight"])
    assert resumed["steps"] == whole["steps"] == 10
