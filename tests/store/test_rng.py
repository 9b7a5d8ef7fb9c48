"""The random state of a process: captured, saved, and set again where it stood."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headrace.store import rng
from headrace.store.checkpoints import Store
from headrace.store.codec import decode, encode
from headrace.store.contents import Contents

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    state = rng.capture(CPU)
    yield
    rng.restore(state, CPU)


def draw() -> list[Any]:
    """A few numbers of each kind; with `gauss` and `randn` also those that a generator keeps for the next time."""
    return [
        [random.random(), random.getrandbits(64), random.gauss(0, 1)],
        [np.random.random(), np.random.randn(), np.random.randint(1 << 40)],
        [torch.rand(()).item(), torch.randn(3).tolist(), torch.randperm(9).tolist()],
    ]


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def saved(state: dict[str, Any], path: Path) -> dict[str, Any]:
    """The same by way of a checkpoint."""
    tensors: dict[str, Tensor] = {}
    document = encode(state, tensors, "rng")
    Store(path, "run").save(Contents(1, {"rank-00000.json": document}, {"rank-00000.safetensors": tensors}))
    found = Store(path, "run").load(1)
    restored: dict[str, Any] = decode(found.documents["rank-00000.json"], found.tensors["rank-00000.safetensors"])
    return restored


@pytest.mark.parametrize("drawn", [0, 1, 2, 700])
def test_what_is_drawn_after_restoring_is_what_was_drawn_after_capturing(drawn: int, tmp_path: Path) -> None:
    for captures in (False, True):  # which draws nothing
        seed(3)
        for _ in range(drawn):
            draw()
        state = rng.capture(CPU) if captures else {}
        first = [draw() for _ in range(3)]
        assert draw() not in first, "without restoring, other numbers come"
        if not captures:
            expected = first
    assert first == expected
    of_a_device = {"cuda": torch.zeros(16, dtype=torch.uint8)}  # that is not here
    for given in (state, saved(state, tmp_path), state | of_a_device):
        seed(4)
        rng.restore(given, CPU)
        assert [draw() for _ in range(3)] == first
