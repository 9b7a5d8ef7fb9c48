"""Tabular data with missing values: each score of a search of scikit-learn is that of a loop by hand."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.slow

WIDTHS, DECAYS, RATE, EPOCHS = (4, 16), (0.0, 0.1), 0.02, 15
NUMBERS = ["alcohol", "malic_acid", "ash", "proline"]


class Net(nn.Sequential):
    def __init__(self, n_features: int, n_outputs: int, width: int = 8) -> None:
        super().__init__(nn.Linear(n_features, width), nn.ReLU(), nn.Linear(width, n_outputs))


def wine() -> tuple[np.ndarray, np.ndarray]:
    """Measurements of wines with a tenth of them missing, and the kind of wine."""
    from sklearn.datasets import load_wine

    data = load_wine(as_frame=True)
    x = data.data[NUMBERS].to_numpy(copy=True)
    drawn = np.random.default_rng(0)
    x[drawn.random(x.shape) < 0.1] = np.nan
    order = drawn.permutation(len(x))
    return x[order], data.target.to_numpy()[order]


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

    x, y = wine()
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
