"""`requires_grad` that is set by hand, between two updates: a run that is left and resumed keeps it."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import headrace as hr

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(dim=1)
EPOCHS, FROZEN_AT, LEFT_AT = 3, 7, 13
Set = Callable[[nn.Module, int], None]


def trainer() -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    return hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=10)


def weights(model: nn.Module) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in model.state_dict().items()}


def trained(run: Path, change: Set, *callbacks: hr.Callback, stop: int | None = None) -> dict[str, list[float]]:
    """What the weights are at the end, or where the loop is left."""
    made = trainer()
    for info in made.steps((X, Y), epochs=EPOCHS, run=run, callbacks=callbacks):
        change(made.model, info.step)
        if info.step == stop:
            break
    return weights(made.model)


def freeze_first(model: nn.Module, step: int) -> None:
    if step == FROZEN_AT:
        model[0].requires_grad_(False)


def freeze_norm(model: nn.Module, step: int) -> None:
    if step == FROZEN_AT:
        model[1].requires_grad_(False)


def train_what_is_frozen(model: nn.Module, step: int) -> None:
    if step == FROZEN_AT:
        model[3].bias.requires_grad_(True)


@pytest.mark.parametrize("change", [freeze_first, freeze_norm, train_what_is_frozen])
@pytest.mark.parametrize("until", [None, "15 steps"])
def test_a_run_that_is_left_goes_on_with_the_parameters_that_were_frozen_by_hand(
    change: Set, until: str | None, tmp_path: Path
) -> None:
    """Beside a callback that freezes others, or the same."""
    expected = trained(tmp_path / "whole", change, hr.Freeze("3.*", until=until))
    trained(tmp_path / "left", change, hr.Freeze("3.*", until=until), stop=LEFT_AT)
    assert trained(tmp_path / "left", change, hr.Freeze("3.*", until=until)) == expected


def test_a_callback_that_freezes_by_hand_need_not_repeat_it_after_a_resume(tmp_path: Path) -> None:
    class Once(hr.Callback):
        def on_step_end(self, info: hr.Info) -> None:
            freeze_first(info.trainer.model, info.step)

    expected = trained(tmp_path / "whole", lambda model, step: None, Once())
    trained(tmp_path / "left", lambda model, step: None, Once(), stop=LEFT_AT)
    assert trained(tmp_path / "left", lambda model, step: None, Once()) == expected


def test_a_run_goes_on_in_the_process_that_has_left_it(tmp_path: Path) -> None:
    expected = trained(tmp_path / "whole", freeze_first)
    made = trainer()
    for info in made.steps((X, Y), epochs=EPOCHS, run=tmp_path / "left"):
        freeze_first(made.model, info.step)
        if info.step == LEFT_AT:
            break
    made.fit((X, Y), epochs=EPOCHS, run=tmp_path / "left", progress=False)
    assert weights(made.model) == expected


def test_another_requires_grad_than_that_of_the_run_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    trained(tmp_path / "run", lambda model, step: None, stop=LEFT_AT)
    other = trainer()
    other.model[0].requires_grad_(False)
    with pytest.raises(hr.CheckpointError, match=r"0\.bias is not trained now, 0\.weight is not trained now"):
        other.fit((X, Y), epochs=EPOCHS, run=tmp_path / "run", progress=False)
    other.fit((X, Y), epochs=EPOCHS, run=hr.Run(tmp_path / "run", override=True), progress=False)
    assert not other.model[0].weight.requires_grad


def test_what_was_frozen_before_the_run_and_trained_in_it_goes_on_being_trained(tmp_path: Path) -> None:
    def made() -> hr.Trainer:
        found = trainer()
        found.model[0].requires_grad_(False)
        return found

    def run(where: Path, stop: int | None) -> dict[str, list[float]]:
        held = made()
        for info in held.steps((X, Y), epochs=EPOCHS, run=where):
            if info.step == FROZEN_AT:
                held.model.requires_grad_(True)
            if info.step == stop:
                break
        return weights(held.model)

    expected = run(tmp_path / "whole", None)
    run(tmp_path / "left", LEFT_AT)
    assert run(tmp_path / "left", None) == expected


@pytest.mark.parametrize("partly", [False, True])
def test_a_parameter_that_is_thawed_and_in_no_optimizer_is_named(partly: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    optimized = model[1] if partly else model
    made = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(optimized.parameters(), lr=0.1), batch_size=10)
    with pytest.warns(UserWarning, match="2 of 2 parameters that are thawed") if partly else nullcontext():
        made.fit((X, Y), epochs=2, callbacks=[hr.Freeze("0.*", until="1 epoch")], progress=False)
