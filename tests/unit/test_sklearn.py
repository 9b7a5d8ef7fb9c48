"""The estimators keep scikit-learn's contract, as its own checks read it."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from headrace.sklearn import EXPECTED_FAILED_CHECKS, Classifier, Regressor

KINDS = pytest.mark.parametrize("kind", [Classifier, Regressor])

QUICK = {
    "check_classifiers_classes",
    "check_classifiers_one_label",
    "check_complex_data",
    "check_dict_unchanged",
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_dont_overwrite_attributes",
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
    "check_sample_weights_invariance",
    "check_supervised_y_2d",
}
"""Of about 60 checks those that cost little with a small network."""


def quick() -> Iterator[Any]:
    for kind in (Classifier, Regressor):
        small = kind(hidden=(4,), epochs=2, dtype="float64")
        for estimator, check in estimator_checks_generator(small):
            name = check.func.__name__ if isinstance(check, partial) else check.__name__
            if name in QUICK:
                yield pytest.param(estimator, check, id=f"{kind.__name__}-{name}")


@pytest.mark.parametrize(("estimator", "check"), list(quick()))
def test_quick_checks_pass(estimator: Any, check: Callable[[Any], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.slow
@KINDS
def test_every_check_passes_in_double_precision(kind: type) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(kind(dtype="float64"), on_skip=None)


@pytest.mark.slow
@KINDS
def test_every_check_but_those_that_are_documented_passes(kind: type) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        warnings.simplefilter("ignore")
        found = check_estimator(kind(), expected_failed_checks=dict(EXPECTED_FAILED_CHECKS), on_skip=None)
    assert {check["status"] for check in found} <= {"passed", "xfail", "skipped"}
    assert all(EXPECTED_FAILED_CHECKS.values())


def test_without_scikit_learn_it_says_what_to_install() -> None:
    script = "import sys; sys.modules['sklearn'] = None; import headrace.sklearn"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert 'needs scikit-learn, which is not installed: pip install "headrace[sklearn]"' in done.stderr
