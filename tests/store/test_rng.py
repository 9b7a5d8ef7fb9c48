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
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


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


@pytest.mark.parametrize("drawn", [0, 1, 2, 700])
def test_what_is_drawn_after_restoring_is_what_was_drawn_after_capturing(drawn: int) -> None:
    seed(3)
    for _ in range(drawn):
        draw()
    state = rng.capture(CPU)
    first = [draw() for _ in range(3)]
    assert draw() not in first, "without restoring, other numbers come"
    seed(4)
    rng.restore(state, CPU)
    assert [draw() for _ in range(3)] == first
    rng.restore(state, CPU)
    assert draw() == first[0]


def test_capturing_draws_nothing() -> None:
    seed(5)
    expected = draw()
    seed(5)
    rng.capture(CPU)
    assert draw() == expected


@pytest.mark.parametrize("part", ["python", "numpy", "torch"])
def test_each_generator_is_a_part_of_the_state(part: str) -> None:
    seed(6)
    state = rng.capture(CPU)
    first = draw()
    later = rng.capture(CPU)
    rng.restore({**state, part: later[part]}, CPU)
    kept = [name for name, a, b in zip(["python", "numpy", "torch"], draw(), first, strict=True) if a == b]
    assert kept == [name for name in ["python", "numpy", "torch"] if name != part]


def test_the_state_survives_a_checkpoint(tmp_path: Path) -> None:
    seed(7)
    draw()
    tensors: dict[str, Tensor] = {}
    document = encode(rng.capture(CPU), tensors, "rng")
    store = Store(tmp_path, "run")
    store.save(Contents(1, {"rank-00000.json": document}, {"rank-00000.safetensors": tensors}))
    first = [draw() for _ in range(3)]

    found = store.load(1)
    rng.restore(decode(found.documents["rank-00000.json"], found.tensors["rank-00000.safetensors"]), CPU)

    assert [draw() for _ in range(3)] == first


def test_a_state_with_a_part_for_a_device_is_restored_where_there_is_none() -> None:
    seed(8)
    state = {**rng.capture(CPU), "cuda": torch.zeros(16, dtype=torch.uint8)}
    first = draw()
    rng.restore(state, CPU)
    assert draw() == first
