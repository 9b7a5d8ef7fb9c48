"""Workers that are processes of this machine or of several: started, called, and started again together."""

import os
import pickle
import random
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.forked import start
from kit.process_workers import launched, pids
from kit.sockets import LOOPBACK, listening
from kit.torch_workers import fork_workers, run_torchrun
from torch import nn

from headrace.engines import processes
from headrace.engines.job import Job, Result
from headrace.engines.launch import launch
from headrace.engines.processes import run
from headrace.workers.here import here


def looks_around(model: nn.Linear, word: str) -> dict[str, Any]:
    """Trains a little, and says what it was given."""
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
        "tensor": torch.arange(3),
    }


def are_called(workers: int) -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    found = run(Job(looks_around, (model, "hello"), workers=workers, timeout_s=20.0))
    value = found.value
    assert value["word"] == "hello"
    assert value["workers"] == list(range(workers))
    assert len({drawn[0] for drawn in value["drawn"]}) == workers
    assert value["drawn"][0] == _drawn_by(0)  # so that a rerun repeats
    assert value["threads"] == [os.environ["OMP_NUM_THREADS"], int(os.environ["OMP_NUM_THREADS"])]
    assert torch.equal(value["tensor"], torch.arange(3))
    assert torch.equal(model.weight, before)  # nothing is shared
    assert torch.equal(found.weights[0]["weight"], before)
    assert list(found.weights[0]) == ["weight", "bias"]


def calls_forks() -> None:
    fork_workers()
    are_called(2)


@pytest.mark.slow
def test_workers_are_called_and_worker_0_s_value_and_weights_come_back(tmp_path: Path) -> None:
    with start(calls_forks, tmp_path) as child:
        assert child.ending() == 0, child.output


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_that_no_test_has_prepared_are_called_just_so(workers: int) -> None:
    """Each is an interpreter of its own, which imports what it needs; all other tests fork them."""
    are_called(workers)


def visible() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def calls_without_devices() -> None:
    fork_workers()
    assert launch(visible, workers=2, engine="processes", devices=[]) == ""


@pytest.mark.slow
@pytest.mark.slow
def test_an_empty_list_of_devices_hides_all_of_them(tmp_path: Path) -> None:
    with start(calls_without_devices, tmp_path) as child:
        assert child.ending() == 0, child.output


def _drawn_by(worker: int) -> list[float]:
    with torch.random.fork_rng():
        torch.manual_seed(worker)
        first = torch.rand(()).item()
    return [first, float(np.random.RandomState(worker).rand()), random.Random(worker).random()]


def test_what_comes_back_is_what_was_returned() -> None:
    packed = processes.unpack((pickle.dumps({1, 2}), _bytes([{"w": torch.ones(2)}, {}])))
    assert isinstance(packed, Result)
    assert packed.value == {1, 2}
    assert packed.weights[0]["w"].tolist() == [1, 1]


def _bytes(weights: Any) -> bytes:
    from headrace.workers.wire import pack

    return pack(weights).numpy().tobytes()


@pytest.mark.slow
def test_workers_start_again_after_a_failure(tmp_path: Path) -> None:
    with launched(tmp_path, "raises_once", restarts=2) as child:
        assert child.until("result") == "done"
        assert child.ending() == 0
    assert len([line for line in child.told if line.startswith("pid")]) == 4
    assert child.output.splitlines() == [
        "headrace: worker 1 failed at step 5: ValueError: a bad start",
        "headrace: all workers start again (1 of 2).",
    ]


@pytest.mark.slow
def test_nobody_but_this_machine_is_listened_to(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="waits") as child:
        workers = pids(child, 2)
        found = listening([child.pid, *workers])
        assert len(found) >= 3  # the store, and gloo's
        assert set(found) <= LOOPBACK
        (tmp_path / "go").touch()
        assert child.ending() == 0, child.output


# --- under torchrun -------------------------------------------------------------------------------------

SCRIPT = """
import torch
from headrace.workers.here import here

comm = here()
total = torch.full((3,), 1.0 + comm.shard.index)
comm.all_reduce(total)
assert total.tolist() == [3.0, 3.0, 3.0], total
if comm.leader:
    print("total", total.tolist(), comm.all_gather("x"))
else:
    comm.all_gather("x")
"""

ONE_HOST = ["--standalone", "--nproc-per-node=2"]


def runs_script(script: str) -> None:
    runpy.run_path(script)


def runs_torchrun(script: str) -> None:
    run_torchrun(ONE_HOST, runs_script, script)


@pytest.mark.slow
def test_a_plain_script_works_as_torchrun_starts_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with start(runs_torchrun, tmp_path, tmp_path / "train.py") as child:
        assert child.ending() == 0, child.output
    said = "headrace: 2 workers, as torchrun has started them.\n"
    assert child.output == f"{said}total [3.0, 3.0, 3.0] ['x', 'x']\n"


@pytest.mark.slow
def test_a_plain_script_works_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", *ONE_HOST]
    ended = subprocess.run([*torchrun, script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "total [3.0, 3.0, 3.0] ['x', 'x']\n"
    assert "Traceback" not in ended.stderr
    assert "destroy_process_group" not in ended.stderr
