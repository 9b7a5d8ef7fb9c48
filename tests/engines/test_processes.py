"""Workers that are processes of this machine: started, called, and listened to by nobody else."""

import gc
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.forked import LIMIT_S, start
from kit.process_workers import launched, pids
from kit.sockets import LOOPBACK, listening
from kit.torch_workers import fork_workers
from torch import nn

from headrace.engines.job import Job
from headrace.engines.launch import launch
from headrace.engines.processes import run
from headrace.errors import WorkerError
from headrace.workers.here import here


def looks_around(model: nn.Linear, word: str) -> dict[str, Any]:
    """Trains a little, and returns what it was given."""
    comm = here()
    drawn = [torch.rand(()).item(), float(np.random.rand()), random.random()]
    with torch.no_grad():
        model.weight.add_(comm.shard.index)  # its own: nobody else sees that
    comm.broadcast(model.weight.data)
    return {
        "word": word,
        "workers": comm.all_gather(comm.shard.index),
        "drawn": comm.all_gather(drawn),
        "threads": [os.environ["OMP_NUM_THREADS"], torch.get_num_threads()],
    }


def are_called(workers: int) -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    found = run(Job(looks_around, (model, "hello"), workers=workers, timeout_s=400.0))
    assert (found.value["word"], found.value["workers"]) == ("hello", [*range(workers)])
    assert found.value["drawn"] == [_drawn_by(worker) for worker in range(workers)]  # so that a rerun repeats
    assert found.value["threads"] == [os.environ["OMP_NUM_THREADS"], int(os.environ["OMP_NUM_THREADS"])]
    assert torch.equal(model.weight, before)  # nothing is shared
    assert torch.equal(found.weights[0]["weight"], before)
    assert list(found.weights[0]) == ["weight", "bias"]


def _drawn_by(worker: int) -> list[float]:
    with torch.random.fork_rng():
        torch.manual_seed(worker)
        first = torch.rand(()).item()
    return [first, float(np.random.RandomState(worker).rand()), random.Random(worker).random()]


def fails() -> None:
    raise ValueError("not today")


def calls_forks() -> None:
    fork_workers()
    are_called(2)
    gc.disable()
    with pytest.raises(WorkerError, match="not today"):
        launch(fails, workers=2, engine="processes")
    end = time.monotonic() + LIMIT_S / 2
    while len(os.listdir("/proc/self/task")) > 1:  # the kernel's threads end a little later than those of the program
        assert time.monotonic() < end, "the store has ended, and nobody who forks takes half of it along"
        time.sleep(0.001)
    gc.enable()
    assert launch(visible, workers=2, engine="processes", devices=[]) == "", "an empty list hides all devices"


def visible() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_workers_are_called_and_worker_0_s_value_and_weights_come_back(tmp_path: Path) -> None:
    with start(calls_forks, tmp_path) as child:
        assert child.ending() == 0, child.output


def test_workers_that_no_test_has_prepared_are_called_just_so() -> None:
    """Each is an interpreter of its own, which imports what it needs; all other tests fork them."""
    are_called(2)


def test_nobody_but_this_machine_is_listened_to(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="waits") as child:
        workers = pids(child, 2)
        found = listening([child.pid, *workers])
        assert len(found) >= 3  # the store, and gloo's
        assert set(found) <= LOOPBACK
        (tmp_path / "go").touch()
        assert child.ending() == 0, child.output


SCRIPT = """
import torch
from headrace.workers.here import here

comm = here()
total = torch.full((3,), 1.0 + comm.shard.index)
comm.all_reduce(total)
assert total.tolist() == [3.0, 3.0, 3.0], total
every = comm.all_gather("x")
if comm.leader:
    print("total", total.tolist(), every)
"""


def test_a_plain_script_works_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    ended = subprocess.run([*torchrun, script], capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "total [3.0, 3.0, 3.0] ['x', 'x']\n"
    assert "headrace: 2 workers, as torchrun has started them.\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "destroy_process_group" not in ended.stderr
