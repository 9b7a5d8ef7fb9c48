"""Threads: a hint where one would be faster, which changes nothing, and an argument that sets how many there are."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.train import threads


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def trained(hinted: bool, model: nn.Module | None = None, **options: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The weights after a training, and where torch's generator stands."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=8, **options)
    data = torch.randn(64, 4), torch.arange(64) % 2
    trainer.fit(data, epochs=2, progress="plain" if hinted else False)
    return list(model.state_dict().values()), torch.get_rng_state()


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_the_hint_is_printed_once_and_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "AFTER_S", 0.0)
    monkeypatch.setattr(threads, "TIMES", 0.0)
    weights, random = trained(hinted=True)
    assert capsys.readouterr().err.count("Trainer(threads=1) or OMP_NUM_THREADS=1 uses one") == 1
    assert torch.get_num_threads() == 2
    plain, plain_random = trained(hinted=False)
    assert "threads=1" not in capsys.readouterr().err
    assert all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True))
    assert torch.equal(random, plain_random)


@pytest.mark.usefixtures("two_threads")
def test_a_model_with_code_of_the_users_is_never_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Counts(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Counts.calls += 1
            return x

    monkeypatch.setattr(threads, "AFTER_S", 0.0)
    monkeypatch.setattr(threads, "TIMES", 0.0)
    trained(True, nn.Sequential(nn.Linear(4, 2), Counts()), tape=False)
    assert Counts.calls == 16
    assert "threads=1" not in capsys.readouterr().err


@pytest.mark.usefixtures("two_threads")
def test_a_trainer_sets_how_many_threads_there_are() -> None:
    trained(False, threads=1)
    assert torch.get_num_threads() == 1
