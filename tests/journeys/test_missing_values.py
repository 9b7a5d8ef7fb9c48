"""Tabular data with missing values: each score of a search of scikit-learn is that of a loop by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

WIDTHS, RATE, EPOCHS = (4, 16), 0.02, 15
NUMBERS = ["alcohol", "malic_acid", "ash", "proline"]


class Net(nn.Sequential):
    def __init__(self, n_features: int, n_outputs: int, width: int = 8) -> None:
        super().__init__(nn.Linear(n_features, width), nn.ReLU(), nn.Linear(width, n_outputs))


def test_a_search_of_scikit_learn_finds_the_scores_of_a_search_by_hand() -> None:
    from sklearn.datasets import load_wine
    from sklearn.impute import SimpleImputer
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from headrace.sklearn import Classifier

    data, drawn = load_wine(as_frame=True), np.random.default_rng(0)
    x, y = data.data[NUMBERS].to_numpy(copy=True), data.target.to_numpy()
    x[drawn.random(x.shape) < 0.1] = np.nan
    options = dict[str, Any](optimizer=torch.optim.AdamW, lr=RATE, epochs=EPOCHS, batch_size=len(y), random_state=0)
    line = make_pipeline(SimpleImputer(), StandardScaler(), Classifier(Net, **options, device="cpu"))
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(line, {"classifier__module__width": WIDTHS}, cv=folds).fit(x, y)

    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    for width, score in zip(WIDTHS, search.cv_results_["mean_test_score"], strict=True):
        scores = []
        for train, test in folds.split(x, y):
            filled = np.where(np.isnan(x), np.nanmean(x[train], axis=0), x)
            rows = torch.tensor((filled - filled[train].mean(axis=0)) / filled[train].std(axis=0), dtype=torch.float32)
            torch.manual_seed(seed)
            model = Net(x.shape[1], 3, width)
            optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
            for _ in range(EPOCHS):  # all rows at every step
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(rows[train]), torch.tensor(y[train])).backward()
                optimizer.step()
            scores.append((model(rows[test]).argmax(1).numpy() == y[test]).mean())
        assert score == pytest.approx(np.mean(scores), abs=0.5 / len(y)), width
