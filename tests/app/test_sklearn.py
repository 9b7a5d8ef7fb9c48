"""The estimators keep scikit-learn's contract, as its own checks read it."""

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr

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


def digest(*values: Any) -> str:
    from headrace.sklearn.digest import digest  # scikit-learn takes a second to import

    return digest(*values)


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


def made(width: int, share: float = 0.5) -> Any:
    return lambda n_features, n_outputs: (width, share, n_features, n_outputs)


def drawn(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2)


DISTINCT: list[Callable[[], Any]] = [
    lambda: None,
    lambda: 1,
    lambda: 1.0,
    lambda: True,
    lambda: "1",
    lambda: [1],
    lambda: (1,),
    lambda: [[1], []],
    lambda: [[], [1]],
    lambda: {"a": 1},
    lambda: {"ab", "bc", "cd"},
    lambda: {"ab", "bc", "ce"},
    lambda: np.zeros((2, 3)),
    lambda: np.zeros((3, 2)),
    lambda: np.zeros((3, 2), np.float32),
    lambda: np.array(["a", None], object),
    lambda: torch.zeros(6, dtype=torch.bfloat16),
    lambda: torch.zeros(6),
    lambda: torch.zeros(6).requires_grad_(),
    lambda: np.random.RandomState(3),
    lambda: np.random.RandomState(4),
    lambda: torch.optim.Adam,
    lambda: torch.optim.AdamW,
    lambda: partial(torch.optim.SGD, momentum=0.9),
    lambda: partial(torch.optim.SGD, momentum=0.8),
    lambda: made(8),
    lambda: made(9),
    lambda: drawn(0),
    lambda: drawn(1),
    lambda: hr.Focal(2.0),
    lambda: hr.Focal(3.0),
    lambda: hr.EarlyStopping(patience=3),
    lambda: hr.EarlyStopping(patience=4),
    lambda: hr.WarmupCosine(0.1),
    lambda: hr.Schedule(lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, 3)),
    lambda: hr.Schedule(lambda optimizer, steps: torch.optim.lr_scheduler.StepLR(optimizer, 4)),
]


def test_equal_values_have_equal_digests_and_others_have_others() -> None:
    found = [digest(make()) for make in DISTINCT]
    assert found == [digest(make()) for make in DISTINCT]
    assert len(set(found)) == len(found)
    assert {len(each) for each in found} == {12}


def test_an_order_in_memory_does_not_count() -> None:
    columns = np.arange(6.0).reshape(2, 3)
    assert digest(columns) == digest(np.asfortranarray(columns)) == digest(np.repeat(columns, 2, axis=1)[:, ::2])


def test_what_holds_itself_or_a_lock_has_a_digest() -> None:
    import threading

    ring: list[Any] = [1]
    ring.append(ring)
    assert digest(ring) == digest(ring) != digest([1, [1]])
    assert digest(threading.Lock()) == digest(threading.Lock())


def test_the_order_of_a_set_does_not_count() -> None:
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other), "otherwise this could pass by accident"
    assert digest(one) == digest(other)


SCRIPT = """
from torch import nn, optim
from headrace.sklearn.digest import digest

class Net(nn.Module):
    share = {share}
    def __init__(self, n, m):
        super().__init__()
        self.layer = nn.Linear(n, m)
    def forward(self, x):
        return self.layer(x) if x in {{"u", "v", "w"}} else x

class Own(optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

def names():
    return [digest(value) for value in (Net, Own, optim.Adam, lambda x: x + {share}, {{"ab", "bc", "cd"}})]

before = names()
Own(nn.Linear(2, 2).parameters(), lr=0.1)
assert names() == before, "torch has wrapped step meanwhile"
print(*before)
"""


def names_in_a_script(share: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Of what a script has defined itself."""
    monkeypatch.setitem(sys.modules, "__main__", main := ModuleType("__main__"))
    exec(SCRIPT.format(share=share), main.__dict__)
    return capsys.readouterr().out.split()


def test_a_digest_tells_code_of_a_script_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, same, other = (names_in_a_script(share, monkeypatch, capsys) for share in (0.5, 0.5, 0.6))
    assert one == same
    assert [a == b for a, b in zip(one, other, strict=True)] == [False, True, True, False, True]


@pytest.mark.slow
def test_a_digest_is_the_same_in_every_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"  # of the order of sets, which is another here
    command, environment = [sys.executable, "-c", SCRIPT.format(share=0.5)], {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stderr
    assert done.stdout.split() == names_in_a_script(0.5, monkeypatch, capsys)
