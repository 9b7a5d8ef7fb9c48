"""Processes that SLURM or MPI has started several times train a model each: that is told."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch, headrace as hr
model = torch.nn.Linear(2, 1)
trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1))
trainer.fit((torch.zeros(8, 2), torch.zeros(8, 1)), epochs=1, progress=False)
"""
SAID = "has started 4 of these processes, and each of them is a worker alone"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, f"SLURM {SAID}"),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "3"}, f"SLURM {SAID}"),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"}, f"Open MPI {SAID}"),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, ""),  # the script of a job, of which there is one
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, ""),
    ],
)
def test_several_processes_of_slurm_or_mpi_without_torchrun_are_warned_of(
    variables: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )
    assert (said in found.stderr) if said else ("worker alone" not in found.stderr), found.stderr
    assert found.stderr.count(SAID) <= 1, "once"
