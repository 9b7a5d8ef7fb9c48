"""Processes that SLURM, Open MPI or anything with torchrun's variables has started find each other without a launch."""

import os
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from kit.forked import start_script
from kit.sockets import free_port

PROGRAM = """
import torch, headrace as hr
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), batch_size=4, strategy=STRATEGY)
x = torch.arange(32.0).reshape(16, 2) / 32
history = trainer.fit((x, x[:, :1]), epochs=2, progress=False)
weight = model.weight.full_tensor() if hasattr(model.weight, "full_tensor") else model.weight
if trainer.workers.comm.leader:
    print(trainer.workers.comm.count, history.rows[-1]["samples"], weight.tolist())
"""
SLURM = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
PLAIN = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}


def run(variables: list[dict[str, str]], at: Path, strategy: str = "None") -> list[str]:
    """What one process for each of these sets of variables prints, all at the same time."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI"))}
    (at / "program.py").write_text(PROGRAM.replace("STRATEGY", strategy))
    with ExitStack() as stack:
        started = [start_script(at / "program.py", environment=clean | own) for own in variables]
        children = [stack.enter_context(each) for each in started]
        for child in children:
            assert child.ending() == 0, child.output
        return [child.output for child in children]


@cache
def alone() -> str:
    """What one worker prints."""
    with tempfile.TemporaryDirectory() as at:
        return run([{}], Path(at))[0]


@pytest.mark.parametrize(
    ("common", "rank", "starter", "strategy"),
    [
        (SLURM, "SLURM_PROCID", "SLURM", "None"),
        (SLURM, "SLURM_PROCID", "SLURM", "hr.Sharded()"),
        (MPI, "OMPI_COMM_WORLD_RANK", "Open MPI", "None"),
        (PLAIN, "RANK", "the environment (RANK, WORLD_SIZE)", "hr.Elastic('1 step')"),
    ],
)
def test_processes_that_others_have_started_are_workers_of_one_training(
    common: dict[str, str], rank: str, starter: str, strategy: str, tmp_path: Path
) -> None:
    meet = {"MASTER_PORT": str(free_port())}
    first, second = run([common | meet | {rank: str(k)} for k in range(2)], tmp_path, strategy)
    assert "\n2 32 " in first, "both have read every row once an epoch, together"
    assert "2 32 " not in second
    assert f"headrace: 2 workers, as {starter} has started them." in first
    if "Elastic" not in strategy:
        assert alone().split("32 ")[1][:8] == first.split("32 ")[1][:8], "as one worker trains"


ALONE = [
    {},
    {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # the script of a job, of which there is one
    {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
    {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
]


def test_one_process_of_slurm_or_mpi_is_a_worker_alone(tmp_path: Path) -> None:
    for found in run(ALONE, tmp_path):
        assert "1 32 " in found
        assert "workers, as" not in found
