"""What workers on Ray do in tests: functions of a module that their processes can import, and that needs no Ray."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import headrace as hr
from headrace.engines.worker import environment
from headrace.workers.here import here
from kit import merges
from kit.worker_trainings import Bits, train_in_parts

ROWS = 48
PARTS = "BatchNorm, dropout"
CENTER: dict[str, Any] = {"every": "2 steps", "alpha": 0.5}


@contextmanager
def cluster() -> Iterator[Any]:
    """A cluster with room for three workers, which launches join."""
    import ray

    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    with environment({"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}):
        ray.init(address="local", num_cpus=3, include_dashboard=False)
        try:
            yield ray
        finally:
            ray.shutdown()


class Visits(nn.Module):
    """Its weights count how often each row was trained with, under SGD with the rate 1 and a sum of absolute errors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(ROWS))

    def forward(self, row: Tensor) -> Tensor:
        return self.seen[row]


def visit(model: Visits, run: str | None = None, epochs: int = 2, lose: str | None = None) -> dict[str, Any]:
    """Trains; worker 1 is killed once, after its third update, if `lose` names a file to be made then."""
    comm = here()

    def on_step_end(info: hr.Info) -> None:
        if lose and info.step == 3 and comm.shard.index == 1 and not Path(lose).exists():
            Path(lose).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    trainer = hr.Trainer(model, hr.L1(reduce="sum"), optimizer, batch_size=8)
    saved = hr.Run(run, every="1 step") if run else None
    call = hr.Lambda(on_step_end=on_step_end)
    row = torch.arange(ROWS)
    history = trainer.fit((row, torch.full((ROWS,), 1e6)), epochs=epochs, run=saved, progress=False, callbacks=[call])
    return {
        "count": comm.count,
        "samples": history.rows[-1]["samples"],
        "steps": [row["step"] for row in history.rows],
        "variables": comm.all_gather({name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}),
        "processes": comm.all_gather(os.getpid()),
        "directory": os.getcwd(),
    }


def visit_and_train(model: Visits, at: str, epochs: int, lose: str) -> tuple[dict[str, Any], Bits]:
    """In a worker: visits rows, and once nobody is lost any more a training with a center, and one in parts."""
    found = visit(model, f"{at}/run", epochs, lose)
    merges.train([(f"{at}/center", CENTER, {}, None)])
    return found, train_in_parts(PARTS, {})


def fail(how: str) -> None:
    """Worker 1 ends by an error, or asks to end."""
    if here().shard.index == 1:
        if how == "exit":
            sys.exit(3)
        raise hr.ConfigError("a setting of mine")
    here().all_gather(None)
