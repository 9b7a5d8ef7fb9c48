"""A run goes on with another number of workers: every row once per epoch, and what one worker would have come to."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.sampled import sampled
from kit.worker_trainings import BATCH, EPOCHS, EXACT, FEATURES, ROWS, UPDATES, Found, Options, apart, columns, run, sgd
from torch import Tensor, nn

import headrace as hr
from headrace.workers.here import here

Make = Callable[[], hr.Strategy]


class Logged(hr.Trainer):
    """Writes down the rows of every update."""

    log: list[list[int]]

    def train_step(self, batch: hr.Batch) -> Any:
        self.log.append(batch["row"].tolist())
        return super().train_step(batch)


class Counted(nn.Module):
    """Counts in a buffer how often it has learnt from each row."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(FEATURES, 3)
        self.register_buffer("seen", torch.zeros(ROWS))

    def forward(self, x: Tensor, row: Tensor) -> Tensor:
        if self.training:
            self.seen[row] += 1
        found: Tensor = self.inner(x)
        return found


def train(strategy: hr.Strategy | None, fit: Options, batch: int) -> Found:
    """In a worker: fits; the rows of all updates, each by all workers in order."""
    torch.manual_seed(3)
    model = Counted().double()
    settings: Options = {"batch_size": batch, "inputs": ["x", "row"], "seed": 5}
    trainer = Logged(model, hr.CrossEntropy(), sgd(model), strategy=strategy, **settings)
    trainer.log = []
    history = trainer.fit(columns(), **{"epochs": EPOCHS, "progress": False, **fit})
    found: Found = {"weights": model.state_dict(), "samples": history.rows[-1]["samples"]}
    if strategy is None or not strategy.centered:
        updates = zip(*here().all_gather(trainer.log), strict=True)
        found["updates"] = [[row for part in parts for row in part] for parts in updates]
    return found


def rows_of(found: Found) -> list[int]:
    return [row for update in found["updates"] for row in update]


@pytest.fixture(scope="module")
def one() -> Any:
    return hr.launch(train, None, {}, BATCH)


# --- one update by all ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stop", "workers"), sampled(itertools.product((2, 4), (1, 2, 5)), keep=[(2, 5)], of=3))
def test_synchronous_workers_go_on_with_the_same_batches(one: Found, stop: int, workers: int, tmp_path: Path) -> None:
    at = {"run": str(tmp_path / "run")}
    before = hr.launch(train, None, at | {"steps": stop}, BATCH, workers=3)
    after = hr.launch(train, None, at | {"steps": 2 * UPDATES}, BATCH, workers=workers)
    assert before["updates"] + after["updates"] == one["updates"]
    weights = {name: value for name, value in after["weights"].items() if name != "seen"}
    assert apart({"weights": {name: one["weights"][name] for name in weights}}, {"weights": weights}) < EXACT


CHANGING = ["plain", "adam", "all three", "two optimizers", "sequences", "rare", "clipped"]


@pytest.mark.parametrize("name", sampled(CHANGING, keep=["two optimizers"], of=6))
def test_workers_may_change_again_and_again(name: str, tmp_path: Path) -> None:
    one = run(1, name)
    for stop, workers in ((1, 5), (3, 7), (5, 3), (2 * UPDATES, 8)):
        several = run(workers, name, fit={"run": str(tmp_path / "run"), "steps": stop})
    assert apart(one, several) < EXACT
    assert several["resumed"] == 5


# --- rounds -----------------------------------------------------------------------------------------------

ROUNDS: dict[str, Make] = {
    "Periodic": lambda: hr.Periodic("3 steps"),
    "BlockMomentum": lambda: hr.BlockMomentum("3 steps"),
    "DiLoCo": lambda: hr.DiLoCo("3 steps"),
    "once": lambda: hr.Periodic("end"),
}


@pytest.mark.parametrize(
    ("name", "workers"), sampled(itertools.product(ROUNDS, (1, 2, 5)), keep=[("DiLoCo", 5), ("once", 2)], of=5)
)
def test_another_number_of_workers_begins_the_round_anew(name: str, workers: int, one: Found, tmp_path: Path) -> None:
    """What was learnt since all had the same weights is lost with its rows, which are read again."""
    at = {"run": str(tmp_path / "run"), "steps": 100}
    before = hr.launch(train, ROUNDS[name](), at | {"steps": 4}, BATCH // 3, workers=3)
    assert [len(update) for update in before["updates"]] == [12, 12, 12, 7]
    agreed = before["updates"][: 0 if name == "once" else 3]
    after = hr.launch(train, ROUNDS[name](), at, BATCH // 3, workers=workers)
    rows = [row for update in [*agreed, *after["updates"]] for row in update]
    assert rows == rows_of(one), "every row once per epoch, in the order of one worker"
    assert after["samples"] == EPOCHS * ROWS
    assert all(bool(torch.isfinite(value).all()) for value in after["weights"].values())


class Untold(hr.Strategy):
    """Has rounds, and does not save the weights at their beginning."""

    def after(self, replica: Any, counters: Any, rows: int, total: int, ends_epoch: bool) -> bool:
        return False


def test_a_strategy_that_does_not_save_where_its_round_began_is_not_resumed_by_others(tmp_path: Path) -> None:
    at = {"run": str(tmp_path / "run")}
    hr.launch(train, Untold(), at | {"steps": 2}, BATCH // 3, workers=2)
    with pytest.raises(
        hr.CheckpointError, match=r"2 workers of Untold were saved within a round.* Go on with 2 workers"
    ):
        hr.launch(train, Untold(), at, BATCH // 3, workers=3)
    assert hr.launch(train, Untold(), at, BATCH // 3, workers=2)["samples"] == EPOCHS * ROWS
