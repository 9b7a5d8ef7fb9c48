"""Tabular data with missing values: a search of scikit-learn, and a study of Optuna that MLflow follows.

Each number is that of a program written by hand with torch, NumPy and pandas.
"""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.late import pandas as pd
from torch import nn

import headrace as hr

pytestmark = pytest.mark.slow

WIDTHS, DECAYS, RATE, EPOCHS = (4, 16), (0.0, 0.1), 0.02, 15
NUMBERS = ["alcohol", "malic_acid", "ash", "proline"]


class Net(nn.Sequential):
    def __init__(self, n_features: int, n_outputs: int, width: int = 8) -> None:
        super().__init__(nn.Linear(n_features, width), nn.ReLU(), nn.Linear(width, n_outputs))


def wine() -> Any:
    """Measurements of wines with a tenth of them missing, a region that is missing too, and the kind of wine."""
    from sklearn.datasets import load_wine

    data = load_wine(as_frame=True)
    frame = data.data[NUMBERS].copy()
    frame["region"] = np.where(data.data["hue"] > 1, "north", "south")
    drawn = np.random.default_rng(0)
    frame = frame.mask(drawn.random(frame.shape) < 0.1)
    frame["kind"] = data.target
    return frame.sample(frac=1, random_state=0).reset_index(drop=True)


def trained(x: torch.Tensor, y: torch.Tensor, width: int, decay: float, seed: int) -> nn.Module:
    """The loop by hand: all rows at every step."""
    torch.manual_seed(seed)
    model = Net(x.shape[1], 3, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=decay)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def test_a_search_of_scikit_learn_finds_the_scores_of_a_search_by_hand() -> None:
    from sklearn.impute import SimpleImputer
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from headrace.sklearn import Classifier

    frame = wine()
    x, y = frame[NUMBERS].to_numpy(), frame["kind"].to_numpy()
    folds = StratifiedKFold(3)
    network = Classifier(
        Net, optimizer=torch.optim.AdamW, lr=RATE, epochs=EPOCHS, batch_size=len(y), random_state=0, device="cpu"
    )
    settings = {"classifier__module__width": WIDTHS, "classifier__optimizer__weight_decay": DECAYS}
    search = GridSearchCV(make_pipeline(SimpleImputer(), StandardScaler(), network), settings, cv=folds).fit(x, y)

    seed, expected = int(np.random.RandomState(0).randint(2**31 - 1)), {}
    for width, decay in product(WIDTHS, DECAYS):
        scores = []
        for train, test in folds.split(x, y):
            means = np.nanmean(x[train], axis=0)
            filled = np.where(np.isnan(x), means, x)
            filled = (filled - filled[train].mean(axis=0)) / filled[train].std(axis=0)
            rows = torch.tensor(filled, dtype=torch.float32)
            model = trained(rows[train], torch.tensor(y[train]), width, decay, seed)
            scores.append((model(rows[test]).argmax(1).numpy() == y[test]).mean())
        expected[width, decay] = np.mean(scores)
    found = search.cv_results_
    given = zip(found["params"], found["mean_test_score"], strict=True)
    for params, score in given:
        assert score == pytest.approx(expected[tuple(params.values())], abs=0.5 / len(y)), params
    assert search.best_score_ == pytest.approx(max(expected.values()), abs=0.5 / len(y))


class Mixed(nn.Module):
    """Numbers as they are filled, where they were missing, and the region."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.region = nn.Embedding(3, 2)
        self.net = Net(2 * len(NUMBERS) + 2, 3, width)

    def forward(self, x: torch.Tensor, region: torch.Tensor, x_null: torch.Tensor) -> torch.Tensor:
        scaled = (x - SHIFT) / SCALE
        out: torch.Tensor = self.net(torch.cat([scaled, x_null, self.region(region)], 1))
        return out


SHIFT, SCALE = torch.tensor([13.0, 2.3, 2.4, 750.0]), torch.tensor([0.8, 1.1, 0.3, 300.0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's use of SQLAlchemy
def test_a_study_of_optuna_that_mlflow_follows_has_the_numbers_of_a_study_by_hand(tmp_path: Path) -> None:
    import optuna
    from mlflow import MlflowClient

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    frame, uri = wine(), f"sqlite:///{tmp_path / 'mlflow.db'}"
    frame[:120].to_csv(tmp_path / "train.csv", index=False)
    frame[120:].to_csv(tmp_path / "val.csv", index=False)
    columns = {"x": NUMBERS, "region": "region", "kind": "kind"}
    options: dict[str, Any] = {"columns": columns, "dtypes": {"x": "float32"}}
    train = hr.open_table(tmp_path / "train.csv", nulls={"x": ["mean", "indicate"], "region": "unknown"}, **options)
    val = hr.open_table(tmp_path / "val.csv", nulls=train.nulls, categories=train.categories, **options)

    def objective(trial: Any) -> float:
        width = trial.suggest_categorical("width", WIDTHS)
        torch.manual_seed(0)
        model = Mixed(width)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
        inputs = ["x", "region", "x_null"]
        trainer = hr.Trainer(
            model, hr.CrossEntropy(), optimizer, inputs=inputs, target="kind", batch_size=120, device="cpu", seed=0
        )
        tracker = hr.MLflow("wine", uri=uri, name=f"width {width}")
        history = trainer.fit(train, val, epochs=EPOCHS, callbacks=[tracker], progress=False)
        return float(history.rows[-1]["val/loss"])

    study = optuna.create_study(sampler=optuna.samplers.GridSampler({"width": WIDTHS}))
    study.optimize(objective)

    found = {trial.params["width"]: trial.value for trial in study.trials}
    expected = {width: by_hand(frame, width) for width in WIDTHS}
    assert found == pytest.approx(expected, rel=1e-5)
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("wine")
    followed = {
        run.info.run_name: run.data.metrics["val/loss"] for run in client.search_runs([experiment.experiment_id])
    }
    assert followed == pytest.approx({f"width {width}": value for width, value in found.items()})


def by_hand(frame: Any, width: int) -> float:
    """The loss on the validation rows of a network trained by hand, with pandas to fill what is missing."""
    train = frame[:120]
    x = torch.tensor(frame[NUMBERS].fillna(train[NUMBERS].mean()).to_numpy(), dtype=torch.float32)
    missing = torch.tensor(frame[NUMBERS].isna().to_numpy(), dtype=torch.float32)
    kinds = ["north", "south", "unknown"]
    region = torch.tensor(pd.Categorical(frame["region"].fillna("unknown"), categories=kinds).codes.astype("int64"))
    y = torch.tensor(frame["kind"].to_numpy())
    torch.manual_seed(0)
    model = Mixed(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    drawn = slice(0, 120), slice(120, None)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[drawn[0]], region[drawn[0]], missing[drawn[0]]), y[drawn[0]]).backward()
        optimizer.step()
    with torch.no_grad():
        rest = drawn[1]
        return nn.functional.cross_entropy(model(x[rest], region[rest], missing[rest]), y[rest]).item()
