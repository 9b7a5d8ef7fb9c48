"""The estimators among scikit-learn's own tools: pipelines, searches, copies, files, other processes."""

import copy
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import headrace as hr

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(120, 6))
Y = X[:, :3].argmax(axis=1)
A = DRAW.normal(size=(100, 5))
B = A @ DRAW.normal(size=(5, 2))
B = B / B.std(axis=0)
SMALL: dict[str, Any] = {"hidden": (8,), "epochs": 10, "lr": 0.02, "batch_size": 32, "random_state": 0}


def small(*module: Any, **options: Any) -> Any:
    from headrace.sklearn.estimators import Classifier

    return Classifier(*module, **SMALL | options)


def small_regressor(**options: Any) -> Any:
    from headrace.sklearn.estimators import Regressor

    return Regressor(**SMALL | options)


class Narrow(nn.Module):
    """A module of one's own, with everything that has a mode or random numbers."""

    def __init__(self, n_features: int, n_outputs: int, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(n_features, width), nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, n_outputs)
        )

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e)), "joblib"])
def test_a_fitted_one_can_be_copied_and_sent(copied: Any, tmp_path: Path) -> None:
    fitted = small(Narrow, validation=0.2, patience=3, metrics=["accuracy"]).fit(X, Y)
    if copied == "joblib":
        import joblib

        joblib.dump(fitted, tmp_path / "model")
        other = joblib.load(tmp_path / "model")
    else:
        other = copied(fitted)
    np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))
    assert other.history_.rows == fitted.history_.rows
    assert other.module_ is not fitted.module_
    assert len({p.untyped_storage().data_ptr() for p in fitted.module_.parameters()}) > 1, "no arena is left"


@pytest.mark.parametrize("module", [None, Narrow, Narrow(6, 3)], ids=["none", "class", "instance"])
def test_one_random_state_makes_one_model_and_moves_nobody_elses_numbers(module: Any) -> None:
    torch.manual_seed(5)
    fitted = small(module).fit(X, Y)
    after = torch.rand(3)
    torch.rand(7)
    again = small(module).fit(X, Y)
    other = small(module, random_state=1).fit(X, Y)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(3)), "the global generator is as it was"
    np.testing.assert_array_equal(fitted.predict_proba(X), again.predict_proba(X))
    assert (fitted.predict_proba(X) != other.predict_proba(X)).any()


@pytest.mark.parametrize("targets", [B, B[:, :1], B[:, 0]], ids=["two", "column", "flat"])
def test_numbers_have_the_shape_they_had(targets: np.ndarray) -> None:
    fitted = small_regressor(epochs=60).fit(A, targets)
    assert fitted.predict(A).shape == targets.shape
    assert fitted.score(A, targets) > 0.9


def test_weights_and_class_weights_pull() -> None:
    plain = small(epochs=20).fit(X, Y)
    pulled = small(epochs=20, class_weight={0: 1, 1: 1, 2: 50}).fit(X, Y)
    same = small(epochs=20).fit(X, Y, sample_weight=np.where(Y == 2, 50, 1))
    assert (pulled.predict(X) == 2).sum() > (plain.predict(X) == 2).sum()
    np.testing.assert_array_equal(pulled.predict_proba(X), same.predict_proba(X))
    balanced = small(class_weight="balanced").fit(X, Y)
    assert balanced.history_.rows != plain.history_.rows


def test_options_reach_the_trainer_and_a_run_is_left(tmp_path: Path) -> None:
    options = {"clip_norm": 1.0, "schedule": hr.Cosine(0.1)}
    optimizer = partial(torch.optim.SGD, momentum=0.9)
    fitted = small(optimizer=optimizer, trainer_options=options, run=hr.Run(tmp_path / "run", keep="all"))
    fitted.fit(X, Y)
    rates = fitted.history_["rate"]
    assert max(rates) > 5 * rates[-1]
    assert fitted.run_ == tmp_path / "run"
    assert len(list((fitted.run_ / "checkpoints").glob("step-*"))) > 5
    assert small(epochs=1).fit(X, Y).run_ is None


class Pressed(hr.Callback):
    """Ctrl-C at a step, as long as a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == 14 and self.file.exists():
            raise KeyboardInterrupt


def test_the_same_fit_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    def fit(run: str, X: Any = X) -> Any:
        options = {"epochs": 6, "validation": 0.2, "patience": 9, "callbacks": watching}
        return small(Narrow, random_state=0, run=tmp_path / run, **options).fit(X, Y)

    watching = [Pressed(tmp_path / "pressed"), hr.Timer(), hr.EarlyStopping("val/loss"), hr.EMA(0.9)]
    undisturbed = fit("undisturbed")
    (tmp_path / "pressed").touch()
    with pytest.raises(KeyboardInterrupt):
        fit("parts")
    (tmp_path / "pressed").unlink()
    with pytest.raises(hr.errors.HeadraceError, match="other data"):
        fit("parts", X[::-1])
    rest = fit("parts")
    assert rest.run_ == tmp_path / "parts"
    assert "going on from step 12" in (rest.run_ / "log.txt").read_text()
    assert rest.history_["train/loss"] == undisturbed.history_["train/loss"]
    np.testing.assert_array_equal(rest.predict_proba(X), undisturbed.predict_proba(X))
    again = fit("parts")
    assert (again.run_ / "log.txt").read_text().count("started") == 1
    np.testing.assert_array_equal(again.predict_proba(X), undisturbed.predict_proba(X))


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(3)])
def test_a_run_wants_a_number_to_draw_by(random_state: Any, tmp_path: Path) -> None:
    with pytest.raises(hr.errors.ConfigError, match="random_state="):
        small(random_state=random_state, run=tmp_path / "run").fit(X, Y)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"patience": 3}, "nothing is held out for one. Say validation=0.1"),
        ({"validation": 1.5}, "validation= is the share of rows to hold out, from 0 to 1, or .X, y., got 1.5"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
        ({"module": lambda a, b: None}, "module= makes an nn.Module .*, got a NoneType"),
        ({"trainer_options": {"nonfinite": "stopp"}}, "Did you mean 'stop'"),
        ({"epochs": 0}, "epochs"),
        ({"run": ""}, "run= is the path of a directory, or .*; got ''"),
        ({"run": 3}, "run= is the path of a directory, or .*; got 3"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_fit(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small(**options).fit(X, Y)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Linear(4, 5), r"an output for each class: expected \[3\] for a row, got \[5\]. The classes are 0, 1, 2."),
        (nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2))), r"expected \[3\] for a row, got \[3, 2\]"),
        (nn.LSTM(4, 3), "returns a tensor with a row for each row, got a tuple"),
    ],
)
def test_a_module_without_an_output_for_each_class_is_refused_at_fit(module: nn.Module, said: str) -> None:
    seen: Any = []
    loss = hr.RowMean(lambda outputs, target: seen.append(1) or torch.zeros((), requires_grad=True), name="own")
    with pytest.raises(hr.ConfigError, match=said):
        small(module, loss=loss).fit(np.zeros((9, 4), np.float32), np.arange(9) % 3)
    assert not seen, "nothing has been trained"


def test_a_loss_that_knows_no_rows_refuses_weights() -> None:
    mean = hr.RowMean(lambda outputs, target: nn.functional.cross_entropy(outputs, target), name="own")
    small(loss=mean).fit(X, Y)
    with pytest.raises(hr.ConfigError, match="'own' gives the mean over rows itself"):
        small(loss=mean).fit(X, Y, sample_weight=np.ones(120))
