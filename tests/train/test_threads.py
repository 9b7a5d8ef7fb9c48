"""Threads: a hint where one would be faster, which changes nothing, and an argument that sets how many there are."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kit.small import Parts, data, fit, model, same, state, trainer
from torch import nn

from headrace.train import threads

HINT = "Trainer(threads=1) or OMP_NUM_THREADS=1 uses one"
DATA = data(64)


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There are two threads; every training is long enough, and every gain large enough."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(threads, "AFTER_S", 0.0)
    monkeypatch.setattr(threads, "TIMES", 0.0)
    yield
    torch.set_num_threads(before)


def test_the_hint_is_printed_once_and_changes_no_bit(capsys: pytest.CaptureFixture[str]) -> None:
    def trained(progress: Any) -> tuple[Any, int]:
        made = trainer(model(norm=True, dropout=0.5))
        fit(made, DATA, progress=progress)
        return state([made, torch.get_rng_state()]), capsys.readouterr().err.count(HINT)

    (hinted, times), (plain, none) = trained("plain"), trained(False)
    assert (times, none, torch.get_num_threads()) == (1, 0, 2)
    assert same(hinted, plain)


def test_a_model_with_code_of_the_users_is_never_tried(capsys: pytest.CaptureFixture[str]) -> None:
    calls = list[int]()

    def counts(_: Any, x: Any) -> Any:
        calls.append(1)
        return x

    fit(trainer(nn.Sequential(nn.Linear(6, 3), Parts(counts)), tape=False), DATA, progress="plain")
    assert len(calls) == 8
    assert HINT not in capsys.readouterr().err


def test_a_trainer_sets_how_many_threads_there_are() -> None:
    fit(trainer(threads=1))
    assert torch.get_num_threads() == 1
