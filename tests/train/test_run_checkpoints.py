"""When a run is saved, what of it stays, and the weights that it gives away."""

import json
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small
from kit.sampled import each
from kit.small import Clock, data, drive, same, saved_steps, saved_weights
from safetensors.torch import load_file
from torch import Tensor, nn

import headrace as hr
from headrace.train import checkpointer as keeper
from headrace.workers.here import here

X, Y = DATA = data(18)  # five batches, the last of 2
VAL = X[:4], Y[:4]
network = partial(small.model, norm=True)


def make(of: nn.Module | None = None, **options: Any) -> hr.Trainer:
    return small.trainer(network() if of is None else of, **{"optimizer": small.adam, "batch_size": 4, **options})


def fit(run: Path | None, trainer: hr.Trainer | None = None, **options: Any) -> hr.Trainer:
    trainer = make() if trainer is None else trainer
    small.fit(trainer, DATA, VAL, run=run, **{"epochs": 3, "keep": "all"} | options)
    return trainer


class Scripted(hr.Callback):
    """Validations have the losses that it is told: one for each epoch, or each step."""

    def __init__(self, losses: Sequence[float], by_step: bool = False) -> None:
        self.losses, self.by_step, self.now = losses, by_step, 0

    def on_step_end(self, info: hr.Info) -> None:
        self.now = info.step if self.by_step else info.epoch

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(float(self.losses[self.now - 1]))


def scripted(run: Path, *losses: float, k: int = 1, by_step: bool = False, **options: Any) -> hr.Trainer:
    script = Scripted(losses, by_step)
    callbacks = [script, hr.BestModel(k=k), *options.pop("callbacks", [])]
    options = {"epochs": len(losses) // (5 if by_step else 1)} | options
    return fit(run, make(eval_loss=script.loss), callbacks=callbacks, **options)


# --- when ---------------------------------------------------------------------------------------------------

EVERY: dict[str, list[int]] = {
    "1 step": list(range(16)),
    "4 steps": [0, 4, 8, 12, 15],
    "1 epoch": [0, 5, 10, 15],
    "2 epochs": [0, 10, 15],
    "9 epochs": [0, 15],
    "10 samples": [0, 3, 6, 8, 11, 14, 15],
    "1 sample": list(range(16)),
    "1000 samples": [0, 15],
}


@pytest.mark.parametrize("every", EVERY)
def test_a_checkpoint_is_written_at_the_start_whenever_it_is_due_and_at_the_end(every: str, tmp_path: Path) -> None:
    """What is due does not move when a run is resumed."""
    trainer = fit(tmp_path / "whole", every=every)
    assert saved_steps(tmp_path / "whole") == EVERY[every]
    assert same(saved_weights(tmp_path / "whole", 15), trainer.model)
    assert same(saved_weights(tmp_path / "whole", 0), network())
    for step in (1, 6, 11, None):
        drive(make(), DATA, VAL, until=step, run=tmp_path / "parts", keep="all", every=every, epochs=3)
    assert saved_steps(tmp_path / "parts") == sorted({*EVERY[every], 1, 6, 11})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keeper, "time", clock)
    return clock


def ticks(clock: Clock, minutes: int) -> hr.Callback:
    return hr.Lambda(on_step_end=lambda info: clock.passes(minutes * 60 * here().leader))


def test_minutes_are_counted_from_the_last_checkpoint(tmp_path: Path, clock: Clock) -> None:
    fit(tmp_path, every="10 min", callbacks=[ticks(clock, 3)])
    assert saved_steps(tmp_path) == [0, 4, 8, 12, 15]


def test_workers_save_once_for_each_time_that_it_is_due(tmp_path: Path, clock: Clock) -> None:
    def work(run: Path) -> None:
        fit(run, make(nn.Linear(6, 3)), every="10 min", callbacks=[ticks(clock, 5)])

    hr.launch(work, tmp_path, workers=2, network=hr.Network(rows_per_s=2.0))  # so slow that there is always a word
    # due after two steps, it is heard of one later, or at once where an epoch ends
    assert saved_steps(tmp_path) == [0, 3, 5, 8, 10, 13, 15]


def fails_at(step: int) -> hr.Callback:
    def on_step_end(info: hr.Info) -> None:
        if info.step == step:
            raise ZeroDivisionError

    return hr.Lambda(on_step_end=on_step_end)


@pytest.mark.parametrize("every", ["1 step", "3 steps", "1 epoch"])
def test_what_the_driver_of_a_loop_does_at_a_step_is_in_the_checkpoint_of_that_step(every: str, tmp_path: Path) -> None:
    """And nothing is saved of a step that raises."""

    def driven(trainer: hr.Trainer, run: Path | None, *callbacks: hr.Callback) -> hr.Trainer:
        torch.manual_seed(5)
        run_ = hr.Run(run, every=every, keep="all")
        for _ in trainer.steps(DATA, VAL, epochs=3, run=run_, callbacks=callbacks):
            with torch.no_grad():
                trainer.model[3].weight += 0.1 * torch.rand(3, 8)
            trainer.optimizer.param_groups[0]["lr"] *= 0.9
        return trainer

    whole = driven(make(), None)
    with pytest.raises(ZeroDivisionError):
        driven(make(), tmp_path, fails_at(8))
    assert saved_steps(tmp_path) == {"1 step": [*range(8)], "3 steps": [0, 3, 6], "1 epoch": [0, 5]}[every]
    resumed = driven(make(network(seed=3)), tmp_path)
    assert same(resumed.model, whole.model)
    assert resumed.history.rows == whole.history.rows


# --- what stays -----------------------------------------------------------------------------------------------


def test_the_best_stay_beyond_the_last_although_no_checkpoint_was_due(tmp_path: Path) -> None:
    scripted(tmp_path / "k", 3, 1, 9, 2, 8, 7, k=2, keep=1)
    assert saved_steps(tmp_path / "k") == [10, 20, 30]
    assert hr.load_weights(network(), tmp_path / "k") == 10
    losses = [9, 9, 9, 9, 9, 9, 1, 9, 9, 9, 9, 9, 9, 9, 9]
    scripted(tmp_path / "not due", *losses, by_step=True, every="9 epochs", keep=1, validate_every="1 step")
    assert saved_steps(tmp_path / "not due") == [7, 15]


def test_the_best_of_a_run_that_is_resumed_stays(tmp_path: Path) -> None:
    for epochs in (1, 2, 3, 4, 5, 6, 7):
        scripted(tmp_path, 3, 1, 2, 4, 5, 6, 7, epochs=epochs, keep=1)
        assert saved_steps(tmp_path) == sorted({5, 5 * epochs} if epochs == 1 else {10, 5 * epochs})
        assert hr.load_weights(network(), tmp_path) == min(2, epochs) * 5
    best = json.loads((tmp_path / "best" / "best.json").read_text())
    assert best == {"step": 10, "val/loss": 1}
    assert same(load_file(tmp_path / "best" / "model.safetensors"), saved_weights(tmp_path, 10))


def test_the_best_has_a_folder_that_is_right_after_every_epoch(tmp_path: Path) -> None:
    seen = []

    def look(info: hr.Info) -> None:
        path = tmp_path / "best" / "best.json"
        seen.append(json.loads(path.read_text())["val/loss"] if path.exists() else None)

    scripted(tmp_path, 3, 4, 1, 2, 0.5, callbacks=[hr.Lambda(on_epoch_start=look)], wait=True)
    assert seen == [None, 3, 3, 1, 1]
    assert json.loads((tmp_path / "best" / "best.json").read_text()) == {"step": 25, "val/loss": 0.5}
    assert same(load_file(tmp_path / "best" / "model.safetensors"), saved_weights(tmp_path, 25))
    assert sorted(file.name for file in (tmp_path / "best").iterdir()) == ["best.json", "model.safetensors"]


# --- weights for others ---------------------------------------------------------------------------------------


def test_load_weights_gives_the_best_the_last_or_those_of_a_step(tmp_path: Path) -> None:
    trainer = scripted(tmp_path / "run", 3, 1, 2)
    for which, step in dict[Any, int]({"best": 10, "last": 15, 5: 5, 0: 0, None: 10}).items():
        model = network(seed=7)
        assert hr.load_weights(model, str(tmp_path / "run"), which=which) == step
        assert same(model, saved_weights(tmp_path / "run", step))
        assert same(model, trainer.model) == (step == 15)
    for wrong in ("worst", 7, True, 1.0):
        with pytest.raises(hr.HeadraceError, match=str(wrong)):
            hr.load_weights(model, tmp_path / "run", which=wrong)  # type: ignore[arg-type]
    with pytest.raises(hr.RunError, match="is not a run"):
        hr.load_weights(model, tmp_path / "nowhere")
    fit(tmp_path / "without")  # nobody tells good from bad there
    assert not (tmp_path / "without" / "best").exists()
    with pytest.raises(hr.CheckpointError, match="no best checkpoint"):
        hr.load_weights(model, tmp_path / "without", which="best")
    assert same(model, saved_weights(tmp_path / "run", 10)), "what is refused changes nothing"
    assert hr.load_weights(model, tmp_path / "without") == 15


def test_load_weights_refuses_another_model_unless_it_need_not_be_strict(tmp_path: Path) -> None:
    fit(tmp_path)
    other = network(seed=7)
    other[3] = nn.Linear(8, 5)
    other.append(nn.PReLU())
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(hr.CheckpointError, match=r"missing in the checkpoint: 4.weight\n.*another shape: 3.weight"):
        hr.load_weights(other, tmp_path, which="last")
    assert same(other, before)
    with pytest.warns(UserWarning, match=r"(?s)7 of 10 tensors .*0.weight.*checkpoint: 4.weight\n.*shape: 3.weig"):
        assert hr.load_weights(other, tmp_path, which="last", strict=False) == 15
    saved = saved_weights(tmp_path, 15)
    assert same(other, before | {name: value for name, value in saved.items() if not name.startswith("3.")})


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.json"])
def test_load_weights_verifies_what_it_reads(name: str, tmp_path: Path) -> None:
    scripted(tmp_path, 3, 1, 2)
    [path] = tmp_path.glob(f"checkpoints/step-000000000010-*/{name}")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    model = network(seed=7)
    for which in ("best", 10):
        with pytest.raises(hr.CorruptError, match=name):
            hr.load_weights(model, tmp_path, which=which)
    assert same(model, network(seed=7))
    [path] = tmp_path.glob(f"checkpoints/step-000000000015-*/{name}")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="step-000000000015"), pytest.warns(UserWarning, match="step-000000000010"):
        assert hr.load_weights(model, tmp_path, which="last") == 5


# --- compiled models ------------------------------------------------------------------------------------------


def compiled(model: Any, how: str) -> Any:
    """The model as it is, wrapped as a whole, in a part, or with its call exchanged."""
    if how == "whole":
        return torch.compile(model, backend="eager")
    if how == "part":
        model[0] = torch.compile(model[0], backend="eager")
    if how == "in place":
        model.compile(backend="eager")
    return model


HOW = ["not", "whole", "part", "in place"]


@pytest.mark.parametrize(("first", "second"), each(HOW, [*HOW[1:], HOW[0]]))
def test_a_run_goes_on_whether_or_not_its_model_is_compiled(first: str, second: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of compiling
        drive(make(compiled(network(), first)), DATA, VAL, until=3, run=tmp_path, epochs=1)
        trainer, whole = fit(tmp_path, make(compiled(network(seed=1), second)), epochs=1), fit(None, epochs=1)
    for mine, raw in zip(trainer.model.state_dict().values(), whole.model.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, raw)
    plain, wrapped = network(seed=2), compiled(network(seed=3), second)
    assert hr.load_weights(plain, tmp_path, which="last") == hr.load_weights(wrapped, tmp_path, which="last") == 5
    assert saved_weights(tmp_path, 5).keys() == network().state_dict().keys()
    assert same([*plain.state_dict().values()], [*wrapped.state_dict().values()])
