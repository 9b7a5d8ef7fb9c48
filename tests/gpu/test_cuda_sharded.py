"""Sharded models on GPUs: one in a group of its own, and several."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.forked import start
from kit.sharded_models import data, distance, full, make
from kit.sockets import free_port

import headrace as hr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
KINDS = ("layers", "tied", "adapted", "measuring")


def trained(kind: str, strategy: hr.Strategy | None, run: Any = None, epochs: int = 3) -> dict[str, torch.Tensor]:
    trainer = make(kind, strategy=strategy, device="cuda")
    trainer.fit(data(kind), epochs=epochs, progress=False, run=run)
    return {name: tensor.cpu() for name, tensor in full(trainer.model).items()}


def is_equal(run: str) -> None:
    for kind in KINDS:
        expected = trained(kind, hr.Synchronous())
        assert distance(trained(kind, hr.Sharded("blocks.*")), expected) <= 1e-4
        assert distance(trained(kind, hr.Sharded("blocks.*", offload=True)), expected) <= 1e-4
        trained(kind, hr.Sharded("blocks.*"), f"{run}-{kind}", 2)
        assert distance(trained(kind, hr.Sharded("blocks.*"), f"{run}-{kind}"), expected) <= 1e-4


def in_a_group_of_one(port: int, run: str) -> None:
    import os

    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    is_equal(run)


def on_all(run: str) -> None:
    hr.launch(is_equal, run, workers=torch.cuda.device_count(), engine="processes")


def test_a_model_on_one_gpu_may_be_sharded(tmp_path: Path) -> None:
    with start(in_a_group_of_one, tmp_path, free_port(), str(tmp_path / "run")) as child:
        assert child.ending() == 0, child.output


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_a_model_is_sharded_over_all_gpus(tmp_path: Path) -> None:
    with start(on_all, tmp_path, str(tmp_path / "run")) as child:
        assert child.ending() == 0, child.output
