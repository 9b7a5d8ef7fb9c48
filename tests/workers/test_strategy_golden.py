"""Golden trajectories: toy weights after every update, for each strategy; they change only if a promise does.

`PYTHONPATH=tests python tests/workers/test_strategy_golden.py` writes them anew.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.bare_workers import Worker, together
from torch import Tensor, nn
from torch.optim import SGD, Adam

import headrace as hr
from headrace import BlockMomentum, DiLoCo, Elastic, Network, Periodic, Strategy, Synchronous, launch
from headrace.workers.comm import Comm
from headrace.workers.here import here

GOLDEN = Path(__file__).parents[1] / "golden" / "strategies.json"
GOLDEN_VIRTUAL = GOLDEN.with_stem("strategies_virtual")
WORKERS, STEPS, BATCH, ROWS = 3, 12, 4, 43  # the last batch of an epoch has 4 and 3 rows, and none

SETTINGS: dict[str, Callable[[], Strategy]] = {
    "Periodic('1 step')": lambda: Periodic("1 step"),
    "Periodic('3 steps')": lambda: Periodic("3 steps"),
    "Periodic('1 epoch', weights='equal')": lambda: Periodic("1 epoch", weights="equal"),
    "Periodic('end')": lambda: Periodic("end"),
    "Periodic('3 steps', reset_inner=True)": lambda: Periodic("3 steps", reset_inner=True),
    "Periodic('3 steps', outer=Adam)": lambda: Periodic("3 steps", outer=partial(Adam, lr=0.1)),
    "BlockMomentum('3 steps')": lambda: BlockMomentum("3 steps"),
    "BlockMomentum('3 steps', nesterov=True)": lambda: BlockMomentum("3 steps", nesterov=True),
    "DiLoCo('3 steps')": lambda: DiLoCo("3 steps"),
}


def trajectory(make: Callable[[], Strategy]) -> dict[str, list[list[float]]]:
    """Every worker's weights after the last update, worker 0's after each, and what all would agree on then."""

    def work(comm: Comm) -> tuple[list[list[float]], list[list[float]]]:
        worker = Worker(comm, make(), _model(), partial(SGD, lr=0.1, momentum=0.5), _data(), BATCH)
        found = [(_flat(worker.weights), _flat(worker.consensus)) for _ in worker.run(STEPS)]
        return [own for own, _ in found], [agreed for _, agreed in found]

    workers = together(WORKERS, work)
    return {
        "worker 0": workers[0][0],
        "agreed": workers[0][1],
        "last": [own[-1] for own, _ in workers],
    }


VIRTUAL: dict[str, Callable[[], Strategy]] = {
    "Synchronous()": Synchronous,
    "Synchronous(compress='bf16')": lambda: Synchronous(compress="bf16"),
    "Periodic('3 steps')": lambda: Periodic("3 steps"),
    "DiLoCo('20 samples')": lambda: DiLoCo("20 samples"),
    "Elastic('2 steps')": lambda: Elastic("2 steps"),
    "Elastic('1 step', alpha=0.5, take_center=True)": lambda: Elastic("1 step", alpha=0.5, take_center=True),
}
"""Trained by the trainer, on workers of different speeds."""


def on_virtual_workers(make: Callable[[], Strategy]) -> dict[str, list[list[float]]]:
    """Weights after every update of each worker, and those at the end."""
    lives: list[list[list[float]]] = [[] for _ in range(WORKERS)]
    network = Network(bandwidth="1 Mbit", rows_per_s=1e4, speeds=[1.0, 0.7, 0.4])

    def main() -> list[float]:
        model = _model()
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.5)
        trainer = hr.Trainer(model, nn.MSELoss(), optimizer, batch_size=BATCH, strategy=make())
        for _ in trainer.steps(_data(), epochs=1):
            lives[here().shard.index].append(_flat(model.state_dict()))
        return _flat(model.state_dict())

    end = launch(main, workers=WORKERS, network=network)
    return {f"worker {k}": life for k, life in enumerate(lives)} | {"end": [end]}


def _model() -> nn.Module:
    layer = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -0.25]]))
        layer.bias.fill_(0.125)
    return layer


def _data() -> tuple[Tensor, Tensor]:
    at = torch.arange(ROWS, dtype=torch.float64)[:, None]
    return (at * torch.tensor([7.0, 13.0])) % 11 / 8, (at * 5) % 7 / 4


def _flat(weights: Mapping[str, Tensor]) -> list[float]:
    return [value for name in ("weight", "bias") for value in weights[name].reshape(-1).tolist()]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_trajectory_is_the_one_that_was_written_down(name: str) -> None:
    expected = json.loads(GOLDEN.read_text())[name]
    for what, found in trajectory(SETTINGS[name]).items():
        torch.testing.assert_close(found, expected[what], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", VIRTUAL)
def test_the_trajectory_on_virtual_workers_is_the_one_that_was_written_down(name: str) -> None:
    expected = json.loads(GOLDEN_VIRTUAL.read_text())[name]
    for what, found in on_virtual_workers(VIRTUAL[name]).items():
        torch.testing.assert_close(found, expected[what], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("path", "settings"), [(GOLDEN, SETTINGS), (GOLDEN_VIRTUAL, VIRTUAL)], ids=["toy", "virtual"])
def test_every_trajectory_is_of_its_own(path: Path, settings: Mapping[str, Any]) -> None:
    found = json.loads(path.read_text())
    assert list(found) == list(settings)
    texts = [json.dumps(held) for held in found.values()]
    assert len(set(texts)) == len(texts)


def _write(path: Path, found: Mapping[str, Any]) -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(held)}" for name, held in found.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    _write(GOLDEN, {name: trajectory(make) for name, make in SETTINGS.items()})
    _write(GOLDEN_VIRTUAL, {name: on_virtual_workers(make) for name, make in VIRTUAL.items()})
