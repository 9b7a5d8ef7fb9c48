"""The tape beside everything else that an update does: the bits are torch's, whatever is asked for."""

import itertools
import sys
from typing import Any

import pytest
import torch
from kit import small
from kit.small import Parts, data, same, state
from torch import nn

import headrace as hr
from headrace.step.tape import tapes
from headrace.step.tape.tape import Tape

X, Y = DATA = data(103)


def made(tape: Any, of: nn.Module | None = None, **options: Any) -> hr.Trainer:
    return small.trainer(of, **{"optimizer": small.adam, "batch_size": 10, "tape": tape, **options})


def trained(trainer: hr.Trainer, **options: Any) -> Any:
    torch.manual_seed(7)
    small.fit(trainer, DATA, epochs=4, **options)
    return state(trainer.model)


def test_a_pass_whose_replay_is_not_quicker_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "GAIN", 0.0)
    trainer = made("auto")
    assert same(trained(trainer), trained(made(False)))
    assert "passes are left to torch: a replay takes" in trainer.tape_note
    trained(insisting := made(True))
    assert "replayed from a tape" in insisting.tape_note


def test_a_clock_that_stands_still_during_a_pass_times_none() -> None:
    ticks = (tick / 4 for tick in itertools.count())
    assert not tapes.is_fine(lambda: next(ticks) // 1)
    assert tapes.is_fine(lambda: next(ticks))


@pytest.mark.parametrize(("batches", "compared", "replayed"), [(1, 0, 0), (2, 10, 9), (3, 11, 20)])
def test_the_only_pass_of_an_epoch_is_not_compared(
    batches: int, compared: int, replayed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def count(what: str, call: Any) -> Any:
        return lambda *given: [found.append(what), call(*given)][1]  # type: ignore[func-returns-value]

    monkeypatch.setattr(tapes.Tapes, "_compare", count("compared", tapes.Tapes._compare))
    monkeypatch.setattr(Tape, "update", count("replayed", Tape.update))
    trainer = made(True)
    trainer.batch_size = 8
    small.fit(trainer, data(8 * batches), epochs=12)
    assert (found.count("compared"), found.count("replayed")) == (compared, replayed)


class Meddles(hr.Callback):
    """Does to the gradients, after every update, what a user's code may do."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_step_end(self, info: hr.Info) -> None:
        for param in info.trainer.model.parameters():
            if self.how == "dropped":
                param.grad = None
            elif self.how == "replaced":
                param.grad = torch.full_like(param, 7.0)
            else:
                assert param.grad is not None
                param.grad.fill_(torch.nan)


@pytest.mark.parametrize("how", ["dropped", "replaced", "filled"])
def test_gradients_of_the_last_update_do_not_matter(how: str) -> None:
    assert same(trained(made(False)), trained(made(True), callbacks=[Meddles(how)]))


def scaled() -> nn.Module:
    """Two layers and a single number, which no vector holds."""
    scale = nn.Parameter(torch.tensor(2.0))
    return Parts(lambda self, x: self.layers(x) * self.scale, layers=small.model(), scale=scale)


def test_parameters_outside_of_vectors_are_trained_by_torch() -> None:
    taped = made("auto", scaled())
    assert same(trained(taped), trained(made(False, scaled())))
    assert "stored in a vector" in taped.tape_note


def test_a_training_under_a_profiler_is_left_to_torch() -> None:
    trainer = made("auto")
    sys.setprofile(lambda *_: None)
    try:
        trained(trainer)
    finally:
        sys.setprofile(None)
    assert trainer.tape_note == "passes are left to torch: a profiler looks on"


PRODUCTS = 128 * 2 * (8 + 1) * 8  # of weights and biases, for 128 rows


@pytest.mark.parametrize(
    ("layers", "limits", "note"),
    [
        (40, {"LARGEST": 64 << 10}, "eager pass"),  # of many small operations
        (40, {"LARGEST": 64 << 10, "SMALL": 0}, "so large"),
        (2, {"PRODUCTS": PRODUCTS}, "eager pass"),
        (2, {"PRODUCTS": PRODUCTS - 1}, "so large"),  # mostly arithmetic
    ],
)
def test_a_pass_that_is_mostly_arithmetic_is_not_recorded(
    layers: int, limits: dict[str, int], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(tapes, name, value)
    trainer = made("auto", nn.Sequential(*[each for _ in range(layers) for each in (nn.Linear(8, 8), nn.ReLU())]))
    trainer.batch_size = 128
    small.fit(trainer, (torch.randn(16 * 128, 8), torch.randint(0, 8, (16 * 128,))), epochs=1)
    assert note in trainer.tape_note
