"""Golden trajectories: toy weights after every update, for each strategy; they change only if a promise does.

`python tests/unit/test_strategy_golden.py` writes them anew.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

sys.path.append(str(Path(__file__).parents[1]))
from toy_workers import Worker, together

from headrace.comm import Comm
from headrace.strategy import Strategy
from headrace.strategy.block_momentum import BlockMomentum
from headrace.strategy.diloco import DiLoCo
from headrace.strategy.periodic import Periodic

GOLDEN = Path(__file__).parents[1] / "golden" / "strategies.json"
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
    "BlockMomentum('3 steps', time_constant=50)": lambda: BlockMomentum("3 steps", time_constant=50),
    "BlockMomentum('36 samples', nesterov=True, form='cntk')": lambda: BlockMomentum(
        "36 samples", nesterov=True, form="cntk"
    ),
    "DiLoCo('3 steps')": lambda: DiLoCo("3 steps"),
}


def trajectory(make: Callable[[], Strategy]) -> dict[str, list[list[float]]]:
    """Every worker's weights after the last update, worker 0's after each, and what all would agree on then."""

    def work(comm: Comm) -> tuple[list[list[float]], list[list[float]]]:
        worker = Worker(comm, make(), _model(), partial(SGD, lr=0.1, momentum=0.5), _data(), BATCH)
        found = [(_flat(worker.weights), _flat(worker.agreed)) for _ in worker.run(STEPS)]
        return [own for own, _ in found], [agreed for _, agreed in found]

    workers = together(WORKERS, work)
    return {
        "worker 0": workers[0][0],
        "agreed": workers[0][1],
        "last": [own[-1] for own, _ in workers],
    }


def _model() -> nn.Module:
    layer = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -0.25]]))
        layer.bias.fill_(0.125)
    return layer


def _data() -> tuple[Tensor, Tensor]:
    at = torch.arange(ROWS, dtype=torch.float64)[:, None]
    return (at * torch.tensor([7.0, 13.0])) % 11 / 8, (at * 5) % 7 / 4


def _flat(weights: dict[str, Tensor]) -> list[float]:
    return [value for name in ("weight", "bias") for value in weights[name].reshape(-1).tolist()]


@pytest.mark.parametrize("name", SETTINGS)
def test_the_trajectory_is_the_one_that_was_written_down(name: str) -> None:
    expected = json.loads(GOLDEN.read_text())[name]
    for what, found in trajectory(SETTINGS[name]).items():
        torch.testing.assert_close(found, expected[what], rtol=1e-12, atol=1e-12)


def test_every_trajectory_is_of_its_own() -> None:
    found = json.loads(GOLDEN.read_text())
    assert list(found) == list(SETTINGS)
    ends = [tuple(map(tuple, held["last"])) for held in found.values()]
    assert len(set(ends)) == len(ends)


if __name__ == "__main__":
    torch.set_num_threads(1)
    lines = [f"{json.dumps(name)}: {json.dumps(trajectory(make))}" for name, make in SETTINGS.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
