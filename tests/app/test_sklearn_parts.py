"""Settings of the module and of the optimizer, by name in an estimator."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from torch import nn

import headrace as hr
from headrace.sklearn import Classifier, Regressor

X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


class Net(nn.Sequential):
    def __init__(self, n_features: int, n_outputs: int, width: int = 5) -> None:
        super().__init__(nn.Linear(n_features, width), nn.Tanh(), nn.Linear(width, n_outputs))


def test_settings_by_name_make_the_module_and_the_optimizer():
    by_name = Classifier(
        Net, module__width=7, optimizer=torch.optim.SGD, optimizer__momentum=0.9, epochs=2, random_state=0
    )
    by_hand = Classifier(
        lambda n_in, n_out: Net(n_in, n_out, 7),
        optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
        epochs=2,
        random_state=0,
    )
    assert by_name.fit(X, Y).module_[0].out_features == 7
    assert np.array_equal(by_name.predict_proba(X), by_hand.fit(X, Y).predict_proba(X))
    without = clone(by_name).set_params(optimizer__momentum=0.0).fit(X, Y)
    assert not np.array_equal(by_name.predict_proba(X), without.predict_proba(X))


def test_settings_of_the_parts_are_copied_changed_and_searched():
    made = Classifier(Net, module__width=7)
    assert clone(made).get_params()["module__width"] == 7
    assert made.set_params(module__width=4, lr=0.1).get_params()["module__width"] == 4
    assert made.lr == 0.1
    assert "module__width=4" in repr(made)
    searched = GridSearchCV(Classifier(Net, epochs=1, random_state=0), {"module__width": [6]}, cv=2).fit(X, Y)
    assert searched.best_estimator_.module_[0].out_features == 6


def test_settings_that_no_part_takes_are_refused():
    with pytest.raises(TypeError, match="no setting 'widht'"):
        Classifier(Net, widht=3)
    with pytest.raises(TypeError, match="no setting 'loss__weight'"):
        Regressor(loss__weight=3)
    with pytest.raises(hr.errors.ConfigError, match="module__width= is for what makes the module, got module=NoneType"):
        Classifier(module__width=3).fit(X, Y)


def test_estimators_that_are_fitted_in_threads_have_the_weights_of_one_that_is_fitted_alone() -> None:
    rows, targets = np.random.RandomState(0).randn(120, 6), np.arange(120) % 3

    def fitted(_: int = 0) -> list[torch.Tensor]:
        estimator = Classifier(hidden=(16,), epochs=3, batch_size=20, random_state=0)
        return [*estimator.fit(rows, targets).module_.state_dict().values()]

    expected = fitted()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(fitted, range(12)):
            assert all(map(torch.equal, found, expected))
