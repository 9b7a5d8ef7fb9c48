"""The estimators keep scikit-learn's contract, as its own checks read it."""

import importlib
import sys
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest

KINDS = pytest.mark.parametrize("kind", ["Classifier", "Regressor"])

QUICK = {
    "check_classifiers_classes",
    "check_classifiers_one_label",
    "check_complex_data",
    "check_dict_unchanged",
    "check_dtype_object",
    "check_estimator_sparse_matrix",
    "check_estimator_tags_renamed",
    "check_estimators_dtypes",
    "check_estimators_fit_returns_self",
    "check_estimators_nan_inf",
    "check_estimators_overwrite_params",
    "check_estimators_pickle",
    "check_estimators_unfitted",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_fit_idempotent",
    "check_methods_subset_invariance",
    "check_n_features_in",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_readonly_memmap_input",
    "check_regressors_int",
    "check_supervised_y_2d",
}
"""Of about 60 checks those that cost little with a small network."""


OF_ONE = {"check_classifiers_classes": "C", "check_classifiers_one_label": "C", "check_regressors_int": "R"}
"""Those of one kind alone, by its first letter."""


def estimator(kind: str, **options: Any) -> Any:
    import headrace.sklearn

    return getattr(headrace.sklearn, kind)(**options)


@cache
def checks(kind: str) -> list[tuple[str, Any, Callable[[Any], None]]]:
    """By their names, each with an estimator for it."""
    from sklearn.utils.estimator_checks import estimator_checks_generator

    made = estimator_checks_generator(estimator(kind, hidden=(4,), epochs=2, dtype="float64"))
    return [(check.func.__name__ if isinstance(check, partial) else check.__name__, one, check) for one, check in made]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in ("Classifier", "Regressor")
        for name in sorted(QUICK)
        if kind[0] in OF_ONE.get(name, "CR")
    ],
)
def test_quick_checks_pass(kind: str, name: str) -> None:
    found = [(one, check) for each, one, check in checks(kind) if each == name]
    assert found
    for one, check in found:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            check(one)


@pytest.mark.slow
@KINDS
def test_every_check_passes_in_double_precision(kind: str) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(estimator(kind, dtype="float64"), on_skip=None)


@pytest.mark.slow
@KINDS
def test_every_check_but_those_that_are_documented_passes(kind: str) -> None:
    from sklearn.utils.estimator_checks import check_estimator

    from headrace.sklearn import EXPECTED_FAILED_CHECKS

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(estimator(kind), expected_failed_checks=dict(EXPECTED_FAILED_CHECKS), on_skip=None)
    assert {check["status"] for check in found} <= {"passed", "xfail", "skipped"}
    assert all(EXPECTED_FAILED_CHECKS.values())


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "headrace.sklearn", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'needs scikit-learn, .*: pip install "headrace\[sklearn\]"'):
        importlib.import_module("headrace.sklearn")
