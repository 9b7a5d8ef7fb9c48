"""Models and losses whose passes are not what they were: with a tape they give torch's bits, or an error."""

import random
import types
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from kit.tape_cheats import CHEATS, LATE, Cheat, annealed, scaled
from torch import Tensor
from torch.nn.functional import cross_entropy

import headrace as hr

ROWS, BATCH, EPOCHS = 100, 10, 3
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (ROWS,), generator=torch.Generator().manual_seed(2))


def trained(cheat: Callable[[], Cheat], tape: Any) -> tuple[list[Tensor], str]:
    """The weights at the end of a training, and what became of its passes."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model, loss, change = cheat()
    trainer = hr.Trainer(model, loss, torch.optim.SGD(model.parameters(), 0.05, 0.9), batch_size=BATCH, tape=tape)
    for step, _ in enumerate(trainer.steps((X, Y), epochs=EPOCHS), 1):
        if change is not None and step == LATE:
            change()
    return [value.clone() for value in model.state_dict().values()], trainer.tape_note


@pytest.mark.filterwarnings("ignore:functools.partial will be a method:FutureWarning")  # of Python 3.13
@pytest.mark.parametrize("name", CHEATS)
def test_a_pass_that_changes_gives_the_bits_of_torch_or_is_an_error(name: str) -> None:
    expected, _ = trained(CHEATS[name], False)
    found, _ = trained(CHEATS[name], "auto")
    assert all(map(torch.equal, expected, found))
    with suppress(hr.ModelError):  # torch or a tape with the same bits, or an error
        insisted, note = trained(CHEATS[name], True)
        assert all(map(torch.equal, expected, insisted)), note


def test_a_change_that_only_who_insists_does_not_see_is_found_in_the_next_epoch() -> None:
    def cheat() -> Cheat:
        held = types.SimpleNamespace(factor=1.0)
        return scaled(lambda self: held.factor), cross_entropy, lambda: setattr(held, "factor", 3.0)

    with pytest.raises(hr.ModelError, match=r"differs from torch's after .* replays.*tape=False"):
        trained(cheat, True)
    expected, _ = trained(cheat, False)
    found, note = trained(cheat, "auto")
    assert all(map(torch.equal, expected, found))
    assert "'held' of" in note
    assert "test_tape_cheats.py" in note
    assert "SimpleNamespace" in note


def test_what_does_not_change_is_replayed() -> None:
    """The control: the cheats are not all left to torch."""

    def unchanged() -> Cheat:
        model, loss, _ = annealed()
        return model, loss, None

    assert "replayed" in trained(unchanged, True)[1]
    changed, steady = trained(annealed, True)[0], trained(unchanged, True)[0]
    assert not all(map(torch.equal, changed, steady))
