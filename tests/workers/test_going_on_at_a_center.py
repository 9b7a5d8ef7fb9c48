"""Trainings with a center that go on with other workers: from worker 0's checkpoint, with its epochs and its rates."""

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.center_workers import Seat
from kit.sampled import sampled
from torch import nn

import headrace as hr
from headrace.engines.network import Network
from headrace.workers.center import Lease
from headrace.workers.center_state import CenterState
from headrace.workers.here import here, use_comm

ROWS, BATCH = 96, 4
EVEN = {"rows_per_s": 1000, "latency": "0 s"}


def decay(optimizer: torch.optim.Optimizer, steps: int | None) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def trainer_of(schedule: Any = None, strategy: Callable[[], hr.Strategy] | None = None) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    own = hr.Elastic("1 step") if strategy is None else strategy()
    return hr.Trainer(model, hr.MSE(), optimizer, batch_size=BATCH, strategy=own, schedule=schedule)


def train(
    epochs: int, run: str | None = None, schedule: Any = None, strategy: Callable[[], hr.Strategy] | None = None
) -> list[dict[str, Any]]:
    """Of every worker and each update: how far all had come, its rate, and the rows a second of all."""
    found, trainer = [], trainer_of(schedule, strategy)
    x = torch.arange(float(ROWS))[:, None] / ROWS
    for info in trainer.steps((x, 2 * x), epochs=epochs, run=hr.Run(run, every="1 epoch"), progress=False):
        found.append({name: getattr(info, name) for name in ("epoch", "samples", "rate", "rates")})
    last = {"after": trainer.optimizer.param_groups[0]["lr"], "rows": trainer.history.rows}
    return [*found[:-1], {**(found[-1] if found else {}), **last}]


def everybody(*arguments: Any, workers: int, **network: Any) -> list[list[dict[str, Any]]]:
    """What every worker has found; `train` gives that of worker 0 alone."""
    found: dict[int, list[dict[str, Any]]] = {}

    def main() -> None:
        found[here().shard.index] = train(*arguments)

    hr.launch(main, workers=workers, network=Network(**(EVEN | network)))
    return [found[worker] for worker in range(workers)]


@pytest.mark.parametrize(
    ("every", "workers"), sampled(itertools.product(["1 step", "1 epoch"], [1, 3]), keep=[("1 epoch", 3)], of=3)
)
def test_a_schedule_by_progress_moves_with_every_update(workers: int, every: str) -> None:
    for found in everybody(4, None, hr.Linear(0.25), lambda: hr.Elastic(every), workers=workers):
        rates = [step["rate"] for step in found]
        assert len(set(rates[: len(rates) // 4])) >= len(rates) // 4 - 1, "up, update by update, in the first epoch"
        assert max(rates) > 0.4
        assert rates[-1] < 0.15
        top = rates.index(max(rates))
        assert all(after <= before + 0.2 for before, after in zip(rates[top:], rates[top + 1 :], strict=False))


def test_epochs_are_counted_once_whoever_goes_on(tmp_path: Path) -> None:
    """What was left of an epoch when its end was reported is read after the resume, and ends none."""
    for workers, epochs in ((2, 2), (3, 4), (2, 5), (1, 6)):
        first = everybody(epochs, str(tmp_path / "run"), hr.Schedule(decay), workers=workers)[0]
        rows = first[-1]["rows"]
        assert [row["epoch"] for row in rows] == list(range(1, epochs + 1))
        assert rows[-1]["samples"] == epochs * ROWS
        assert first[-1]["after"] == 0.5 * 0.5**epochs, "a step of the schedule for each epoch"


def test_all_workers_go_on_with_the_rates_of_worker_0(tmp_path: Path) -> None:
    everybody(2, str(tmp_path / "run"), hr.Schedule(decay), workers=2)
    for found in everybody(3, str(tmp_path / "run"), hr.Schedule(decay), workers=3):
        assert found[0]["rate"] == 0.5**3, "two epochs have ended"
        assert found[0]["epoch"] == 2


@pytest.mark.parametrize("step", sampled([1, 8, 14], keep=[8], of=2))
def test_a_schedule_by_progress_goes_on_where_it_was(step: int, tmp_path: Path) -> None:
    def main(stop: int | None) -> tuple[int, list[float]]:
        trainer, x = trainer_of(hr.Cosine(0.5), lambda: hr.Elastic("1 step")), torch.arange(float(ROWS))[:, None]
        found: list[float] = []
        options: dict[str, Any] = {"run": hr.Run(str(tmp_path / "run"), every="1 step"), "progress": False}
        for info in trainer.steps((x / ROWS, 2 * x / ROWS), epochs=2, **options):
            found.append(info.rate)
            if here().leader and info.step == stop:
                rates.extend(found)
                raise KeyError("stopped")
        return trainer.history[-1]["samples"], found

    rates: list[float] = []
    network = Network(**EVEN | {"latency": "1 ms", "speeds": {1: 0.6}})
    with pytest.raises(KeyError, match="stopped"):
        hr.launch(main, step, workers=2, network=network)
    samples, after = hr.launch(main, None, workers=2, network=network)
    assert abs(after[0] - rates[-1]) < 0.06, "a step or two of the warmup"
    assert samples == 2 * ROWS


def test_what_counts_rows_counts_those_of_all_workers() -> None:
    timer = hr.Timer()
    rates = hr.Lambda(on_step_end=lambda info: info.fires(every) and info.log({"rate/0": info.rate}))
    every = hr.Length(24, "samples")

    def main(*callbacks: hr.Callback) -> list[dict[str, Any]]:
        trainer = trainer_of()
        x = torch.arange(float(ROWS))[:, None] / ROWS
        trainer.fit((x, 2 * x), epochs=2, progress=False, callbacks=callbacks)
        return list(trainer.history.rows)

    rows = hr.launch(main, timer, rates, workers=2, network=Network(**EVEN))
    assert [row["epoch"] for row in rows if "time/rows_per_s" in row] == [1, 2]
    assert sum("rate/0" in row for row in rows) >= 2 * ROWS // 24 - 1


@pytest.mark.parametrize("workers", [2, 3])
def test_worker_0_brings_the_checkpoint_though_others_come_before_it(workers: int, tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    everybody(2, run, workers=2)

    def main() -> list[dict[str, Any]]:
        if here().leader:
            here().worked(5 * ROWS)  # it takes long to read it
        return train(3, run)

    first = hr.launch(main, workers=workers, network=Network(**EVEN))
    assert first[0]["samples"] >= 2 * ROWS, "the rows of before count"
    assert first[-1]["rows"][-1]["samples"] == 3 * ROWS


def test_a_worker_that_comes_when_all_is_over_has_nothing_to_do() -> None:
    steps: dict[int, int] = {}

    def main() -> None:
        if not here().leader:
            here().worked(100 * ROWS)
        steps[here().shard.index] = len([step for step in train(2) if "rate" in step])

    hr.launch(main, workers=2, network=Network(**EVEN))
    assert steps == {0: 2 * ROWS // BATCH, 1: 0}


def test_the_rows_a_second_of_every_worker_are_those_since_the_last_report(tmp_path: Path) -> None:
    everybody(2, str(tmp_path / "run"), workers=2)
    for workers, epochs in ((2, 4), (3, 6)):
        last = everybody(epochs, str(tmp_path / "run"), workers=workers)[0][-1]
        assert last["rates"] == pytest.approx([1000.0] * workers, rel=0.15)


# --- one training after the other -------------------------------------------------------------------------


class Visits(nn.Module):
    """Its weights count how often each row was trained with, under SGD with the rate 1 and a sum of absolute errors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(ROWS))

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return self.seen[row]


@pytest.mark.parametrize("step", sampled([1, 2, 5], keep=[2], of=2))
def test_rows_that_were_given_to_a_worker_and_not_read_before_the_save_are_read_after_it(
    step: int, tmp_path: Path
) -> None:
    def main(stop: int | None) -> list[float]:
        model, strategy = Visits(), hr.Asynchronous("1 step", staleness=100, down_weight=False, lease=BATCH)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = hr.Trainer(model, hr.L1(reduce="sum"), optimizer, batch_size=BATCH, strategy=strategy)
        rows = torch.arange(ROWS), torch.full((ROWS,), 1e6)
        options: dict[str, Any] = {"run": hr.Run(str(tmp_path), every="1 step"), "progress": False}
        for info in trainer.steps(rows, epochs=2, **options):
            if here().leader and info.step == stop:
                raise KeyError("stopped")
        return model.seen.tolist()

    network = Network(**EVEN | {"latency": "1 ms", "speeds": {1: 0.6}})
    with pytest.raises(KeyError, match="stopped"):
        hr.launch(main, step, workers=2, network=network)
    assert hr.launch(main, None, workers=2, network=network) == [2.0] * ROWS


def test_one_worker_goes_on_alone_though_another_had_rows_that_it_never_trained_with(tmp_path: Path) -> None:
    """A checkpoint of workers in processes of their own has what was worker 0's, and nothing of the others."""
    data = torch.arange(ROWS), torch.full((ROWS,), 1e6)

    def trainer() -> hr.Trainer:
        model, strategy = Visits(), hr.Asynchronous("1 step", staleness=100, down_weight=False, lease=16)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return hr.Trainer(model, hr.L1(reduce="sum"), optimizer, batch_size=BATCH, strategy=strategy)

    held = CenterState()
    with use_comm(Seat(held, 0, 2)):
        for _ in trainer().steps(data, epochs=1, run=str(tmp_path), progress=False):
            assert held.rule is not None
            held.join(1, 0.0, held.rule, held.ledger.terms, held.weights)
            assert isinstance(held.lease(1, 0.0, 1), Lease)
            break
    with use_comm(Seat(CenterState(), 0, 1)):  # who may not wait
        again = trainer()
        again.fit(data, epochs=1, run=str(tmp_path), progress=False)
    assert torch.equal(again.model.seen, torch.ones(ROWS)), "every row once"
    assert again.history.rows[-1]["samples"] == ROWS


@pytest.mark.parametrize("make", [hr.Elastic, hr.Asynchronous])
def test_the_log_says_that_a_run_with_a_center_does_not_resume_exactly_and_what_it_keeps(
    make: type[hr.Strategy], tmp_path: Path
) -> None:
    """It says so when the run begins and when it goes on; the weights are indeed others, and each row is used once."""

    def main(run: Path, leave: int | None = None) -> tuple[torch.Tensor, list[int]]:
        torch.manual_seed(0)
        model, x = torch.nn.Linear(4, 1), torch.randn(480, 4, generator=torch.Generator().manual_seed(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=16, strategy=make("2 steps"))
        for info in trainer.steps((x, x.sum(dim=1, keepdim=True)), epochs=4, run=run):
            if info.step == leave:
                break
        return model.weight.detach(), trainer.history["samples"]

    undisturbed, _ = hr.launch(main, tmp_path / "whole", workers=3)
    hr.launch(main, tmp_path / "run", 17, workers=3)
    resumed, samples = hr.launch(main, tmp_path / "run", workers=3)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("does not resume exactly: it goes on from the center's weights, and only worker 0 keeps") == 2
    assert "exactly after any batch" not in log
    assert not torch.equal(undisturbed, resumed), "if it resumes exactly by now, the log and the pages may say so"
    assert samples[-1] == 4 * 480


@pytest.mark.parametrize("page", ["guarantees.md", "resume.md"])
def test_no_page_promises_that_a_run_with_a_center_resumes_exactly(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `Elastic`, `Asynchronous`")]
    assert rows
    assert all("| exact |" not in row and "bit for bit" not in row for row in rows)
    assert not re.search(r"virtual workers[^.]*(bit for bit|exactly)", text)
