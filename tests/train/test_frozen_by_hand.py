"""`requires_grad` that is set by hand, between two updates: a run that is left and resumed keeps it."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from kit.small import data, fit, model, same, state, trainer
from torch import nn

import headrace as hr

DATA = data()  # four batches
FROZEN_AT, LEFT_AT = 5, 9
Set = Callable[[Any], Any]


def make(thaws: bool = False) -> hr.Trainer:
    """With momentum, so that a frozen parameter would move on."""
    made = trainer(model(norm=True))
    made.model[0].requires_grad_(not thaws)
    return made


def trained(made: hr.Trainer, run: Path, change: Set, *callbacks: hr.Callback, stop: int | None = None) -> Any:
    """What the model is at the end, or where the loop is left."""
    for info in made.steps(DATA, epochs=3, run=run, callbacks=callbacks):
        if info.step == FROZEN_AT:
            change(made.model)
        if info.step == stop:
            break
    return state(made.model)


def nothing(model: nn.Module) -> None:
    pass


CHANGES: list[tuple[Set, bool]] = [
    (lambda model: model[0].requires_grad_(False), False),
    (lambda model: model[1].requires_grad_(False), False),
    (lambda model: model[3].bias.requires_grad_(True), False),  # which a callback has frozen
    (lambda model: model.requires_grad_(True), True),  # of which a part was frozen before the run
]


@pytest.mark.parametrize(("change", "thaws"), CHANGES)
@pytest.mark.parametrize("until", [None, "10 steps"])
def test_a_run_that_is_left_goes_on_with_the_parameters_that_were_frozen_by_hand(
    change: Set, thaws: bool, until: str | None, tmp_path: Path
) -> None:
    """Beside a callback that freezes others, or the same; in another process, or in the one that has left it."""
    expected = trained(make(thaws), tmp_path / "whole", change, hr.Freeze("3.*", until=until))
    left = make(thaws)
    trained(left, tmp_path / "left", change, hr.Freeze("3.*", until=until), stop=LEFT_AT)
    made = left if until is None else make(thaws)
    found = trained(made, tmp_path / "left", change, hr.Freeze("3.*", until=until))
    assert same(found, expected)
    assert not same(found, trained(make(thaws), tmp_path / "plain", nothing, hr.Freeze("3.*", until=until)))


def test_another_requires_grad_than_that_of_the_run_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    trained(make(), tmp_path / "run", nothing, stop=LEFT_AT)
    other = make(thaws=True)
    with pytest.raises(hr.CheckpointError, match=r"0\.bias is not trained now, 0\.weight is not trained now"):
        fit(other, DATA, epochs=3, run=tmp_path / "run")
    fit(other, DATA, epochs=3, run=tmp_path / "run", override=True)
    assert not other.model[0].weight.requires_grad


@pytest.mark.parametrize("partly", [False, True])
def test_a_parameter_that_is_thawed_and_in_no_optimizer_is_named(partly: bool) -> None:
    whole = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    optimizer = trainer(whole[1] if partly else whole).optimizer
    made = trainer(whole, optimizer=optimizer)
    with pytest.warns(UserWarning, match="2 of 2 parameters that are thawed") if partly else nullcontext():
        fit(made, callbacks=[hr.Freeze("0.*", until="1 epoch")])
