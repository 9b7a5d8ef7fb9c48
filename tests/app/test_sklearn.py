"""The estimators keep scikit-learn's contract, as its own checks read it, and take settings of their parts by name."""

import importlib
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any
from unittest import SkipTest

import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr

LEARNING = ("check_classifiers_train", "check_class_weight_classifiers", "check_regressors_train")
"""Those that ask how good it is."""
X = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


def estimator(kind: str, *module: Any, **options: Any) -> Any:
    import headrace.sklearn  # scikit-learn takes a second to import

    return getattr(headrace.sklearn, kind)(*module, **options)


def checks(kind: str, dtype: str) -> list[tuple[str, Any, Callable[[Any], None]]]:
    """By their names, each with an estimator for it."""
    from sklearn.utils.estimator_checks import estimator_checks_generator

    made = estimator_checks_generator(estimator(kind, hidden=(4,), epochs=2, dtype=dtype))
    return [(check.func.__name__ if isinstance(check, partial) else check.__name__, one, check) for one, check in made]


@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
def test_every_check_passes_in_single_precision_or_as_is_documented_in_double(kind: str) -> None:
    from sklearn.base import clone

    from headrace.sklearn import EXPECTED_FAILED_CHECKS

    single, double = checks(kind, "float32"), checks(kind, "float64")
    found = [case for case in single if case[0] not in EXPECTED_FAILED_CHECKS]
    for name, one, check in [*found, *(case for case in double if case[0] in EXPECTED_FAILED_CHECKS)]:
        learns = {"hidden": (16,), "epochs": 20, "lr": 0.03} if name in LEARNING else {}
        with warnings.catch_warnings(), suppress(SkipTest):
            warnings.simplefilter("ignore")
            check(clone(one).set_params(**learns))
    assert len(found) > 40
    assert {name for name, *_ in found} & {*LEARNING}
    assert len(single) - len(found) == len(EXPECTED_FAILED_CHECKS)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "headrace.sklearn", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'needs scikit-learn, .*: pip install "headrace\[sklearn\]"'):
        importlib.import_module("headrace.sklearn")


# --- settings of the parts --------------------------------------------------------------------------------


class Net(nn.Sequential):
    def __init__(self, n_features: int, n_outputs: int, width: int = 5) -> None:
        super().__init__(nn.Linear(n_features, width), nn.Tanh(), nn.Linear(width, n_outputs))


def test_settings_by_name_make_the_module_and_the_optimizer() -> None:
    from sklearn.base import clone

    by_name = estimator(
        "Classifier", Net, module__width=7, optimizer=torch.optim.SGD, optimizer__momentum=0.9, epochs=2, random_state=0
    )
    by_hand = estimator(
        "Classifier",
        lambda n_in, n_out: Net(n_in, n_out, 7),
        optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
        epochs=2,
        random_state=0,
    )
    assert by_name.fit(X, Y).module_[0].out_features == 7
    assert np.array_equal(by_name.predict_proba(X), by_hand.fit(X, Y).predict_proba(X))
    without = clone(by_name).set_params(optimizer__momentum=0.0).fit(X, Y)
    assert not np.array_equal(by_name.predict_proba(X), without.predict_proba(X))


def test_settings_of_the_parts_are_copied_changed_and_searched() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV

    made = estimator("Classifier", Net, module__width=7)
    assert clone(made).get_params()["module__width"] == 7
    assert made.set_params(module__width=4, lr=0.1).get_params()["module__width"] == 4
    assert made.lr == 0.1
    assert "module__width=4" in repr(made)
    searched = GridSearchCV(estimator("Classifier", Net, epochs=1, random_state=0), {"module__width": [6]}, cv=2).fit(
        X, Y
    )
    assert searched.best_estimator_.module_[0].out_features == 6


def test_settings_that_no_part_takes_are_refused() -> None:
    with pytest.raises(TypeError, match="no setting 'widht'"):
        estimator("Classifier", Net, widht=3)
    with pytest.raises(TypeError, match="no setting 'loss__weight'"):
        estimator("Regressor", loss__weight=3)
    with pytest.raises(hr.ConfigError, match="module__width= is for what makes the module, got module=NoneType"):
        estimator("Classifier", module__width=3).fit(X, Y)


def test_estimators_that_are_fitted_in_threads_have_the_weights_of_one_that_is_fitted_alone() -> None:
    rows, targets = np.random.RandomState(0).randn(120, 6), np.arange(120) % 3

    def fitted(_: int = 0) -> list[torch.Tensor]:
        made = estimator("Classifier", hidden=(16,), epochs=3, batch_size=20, random_state=0)
        return [*made.fit(rows, targets).module_.state_dict().values()]

    expected = fitted()
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(fitted, range(12)):
            assert all(map(torch.equal, found, expected))
