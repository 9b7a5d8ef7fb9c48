"""Optuna prunes what promises little; the run stays whole, and an interrupted trial goes on without a double report."""

import importlib
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from optuna.trial import TrialState
from torch import nn

import headrace as hr
from headrace.optuna import Pruning

optuna.logging.set_verbosity(optuna.logging.ERROR)

EPOCHS = 6
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(64, 4, generator=DRAW)
Y = (X[:, 0] > X[:, 1]).long()
VAL = (X[:24] + 0.1, Y[:24])
NEVER = optuna.pruners.NopPruner()
AFTER_THREE = optuna.pruners.ThresholdPruner(upper=-1.0, n_warmup_steps=3)
"""Prunes whatever it is, with the third report."""


def make(lr: float = 0.1, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 2))
    return hr.Trainer(
        model, hr.CrossEntropy(), torch.optim.Adam(model.parameters(), lr=lr), batch_size=16, device="cpu", **options
    )


def fit(trainer: hr.Trainer, *callbacks: hr.Callback, **options: Any) -> hr.History:
    return trainer.fit((X, Y), VAL, progress=False, callbacks=callbacks, **{"epochs": EPOCHS, **options})


def test_the_median_prunes_what_learns_too_slowly() -> None:
    found: dict[int, list[float]] = {}

    def objective(trial: optuna.Trial) -> Any:
        trainer = make(trial.suggest_categorical("lr", [0.03, 1e-6]))
        try:
            return min(fit(trainer, Pruning(trial))["val/loss"])
        finally:
            found[trial.number] = trainer.history["val/loss"]

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=2)
    study = optuna.create_study(pruner=pruner)
    for lr in (0.03, 0.03, 1e-6, 0.03, 1e-6):
        study.enqueue_trial({"lr": lr})
    study.optimize(objective, n_trials=5)
    complete, pruned = TrialState.COMPLETE, TrialState.PRUNED
    assert [trial.state for trial in study.trials] == [complete, complete, pruned, complete, pruned]
    for trial in study.trials:
        assert trial.intermediate_values == dict(enumerate(found[trial.number], start=1))
        assert len(found[trial.number]) == (2 if trial.state == pruned else EPOCHS)


class Noting(hr.Callback):
    """What it was told of the end."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_fit_end(self, info: hr.Info) -> None:
        self.heard.append(f"end: {info.stopping}")

    def on_error(self, info: hr.Info, error: BaseException) -> None:
        self.heard.append(f"error: {error}")


def asked(pruner: optuna.pruners.BasePruner, **options: Any) -> optuna.Trial:
    return optuna.create_study(pruner=pruner, **options).ask()


def test_a_pruned_training_has_ended_well_and_can_go_on(tmp_path: Path) -> None:
    pruned, after, best = make(), Noting(), hr.BestModel("val/loss", restore=True)
    with pytest.raises(optuna.TrialPruned, match=r"pruned by Optuna: val/loss 0\.\d+ at its step 3"):
        fit(pruned, best, Pruning(asked(AFTER_THREE)), after, run=tmp_path / "run")
    assert len(pruned.history) == 3
    assert after.heard == [f"end: {pruned.history.stopped}"]
    assert "pruned by Optuna" in pruned.history.stopped
    assert pruned.validate(VAL)["val/loss"] == pytest.approx(best.best), "the best model was put back"
    assert len({p.untyped_storage().data_ptr() for p in pruned.model.parameters()}) == 4, "no arena is left"
    fit(again := make(), hr.BestModel("val/loss", restore=True), run=tmp_path / "run")
    fit(whole := make(), hr.BestModel("val/loss", restore=True))
    assert again.history.rows == whole.history.rows
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))


class Broken(hr.Callback):
    """The power fails after this epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_epoch_start(self, info: hr.Info) -> None:
        if info.epoch == self.epoch:
            raise InterruptedError


def test_an_interrupted_trial_goes_on_and_reports_nothing_twice(tmp_path: Path) -> None:
    trial = asked(NEVER)
    options = {"run": hr.Run(tmp_path / "run", every="3 epochs")}
    with pytest.raises(InterruptedError):
        fit(make(), Pruning(trial), Broken(5), **options)
    same = optuna.trial.Trial(trial.study, trial._trial_id)
    with pytest.warns(UserWarning, match="already reported"):  # this test can tell
        same.report(0.0, 5)
    history = fit(make(), Pruning(same), **options)
    values = trial.study.trials[0].intermediate_values
    assert values == dict(enumerate(history["val/loss"], start=1))
    assert len(values) == EPOCHS


def test_every_measurement_is_a_step_and_those_that_a_retried_trial_inherits_are_not_repeated() -> None:
    trial = asked(NEVER)
    for step in (1, 2):
        trial.report(9.0, step)
    history = fit(make(), Pruning(trial), epochs=2, validate_every="2 steps")
    expected = dict(enumerate([9.0, 9.0, *history["val/loss"][2:]], start=1))
    assert trial.study.trials[0].intermediate_values == expected
    assert len(expected) == 4
    history = fit(make(), Pruning(optuna.trial.FixedTrial({"lr": 0.1})))  # of a best one again, which has no study
    assert len(history) == EPOCHS


class Gap:
    """A metric of which less is better."""

    higher_is_better = False

    def update(self, outputs: Any, target: Any) -> None: ...

    def compute(self) -> float:
        return 0.5

    def reset(self) -> None: ...


def test_a_number_of_ones_own_is_reported_and_if_it_never_comes_it_is_told() -> None:
    own = hr.Lambda(on_validation_end=lambda info, scores: info.log({"bleu": float(info.epoch)}))
    trial = asked(NEVER, direction="maximize")
    fit(make(), own, Pruning(trial, "bleu", mode="max"), epochs=2)
    assert trial.study.trials[0].intermediate_values == {1: 1.0, 2: 2.0}
    with pytest.warns(UserWarning, match="Pruning looks at 'blue', which never came"):
        fit(make(), own, Pruning(asked(NEVER), "blue", mode="min"), epochs=1)


class Sideless(Gap):
    """A metric that does not say which side is better."""

    higher_is_better = None  # type: ignore[assignment]


def test_a_study_that_wants_something_else_is_an_error() -> None:
    with pytest.raises(hr.ConfigError, match="'val/accuracy' is to be large, and the study is to minimize"):
        fit(make(metrics="accuracy"), Pruning(asked(NEVER), "val/accuracy"))
    with pytest.raises(hr.ConfigError, match="'val/loss' is to be small, and the study is to maximize"):
        fit(make(), Pruning(asked(NEVER, direction="maximize")))
    with pytest.raises(hr.ConfigError, match="'val/loss' is to be small, and the study is to maximize"):
        fit(make(), Pruning(asked(NEVER, direction="maximize"), mode="min"))
    with pytest.raises(hr.ConfigError, match=r"looks at 'loss', which is not measured\. Did you mean 'train/loss'"):
        fit(make(), Pruning(asked(NEVER), "loss"))
    with pytest.raises(hr.ConfigError, match="one objective; this one has 2"):
        fit(make(), Pruning(asked(NEVER, directions=["minimize", "maximize"])))
    with pytest.raises(hr.ConfigError, match="'val/dice' should be small or large is not known"):
        fit(make(metrics={"dice": Sideless()}), Pruning(asked(NEVER), "val/dice"))
    Pruning(asked(NEVER, direction="maximize"), "val/dice", mode="max")


def test_without_optuna_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "headrace.optuna", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'needs Optuna, .*: pip install "headrace\[optuna\]"'):
        importlib.import_module("headrace.optuna")
