"""Metrics by name equal scikit-learn on small sets too, where classes are missing, never met, or all there is."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kit.late import late
from kit.sampled import sampled

from headrace.errors import ConfigError
from headrace.loss.metrics import Metrics

sk = late("sklearn.metrics")
SETS = 15
BY_CLASS = ("precision", "recall", "f1")
AVERAGES = ("macro", "micro", "weighted")
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def without_what_scikit_learn_says_of_missing_classes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def agree(wanted: dict[str, Any], outputs: Array, targets: Array, reads: str) -> None:
    """Fed three rows at a time, metrics say what scikit-learn says of the whole."""
    metrics = Metrics(list(wanted), reads)
    for part in zip(torch.tensor(outputs).split(3), torch.tensor(targets).split(3), strict=True):
        metrics.add(*part)
    found = metrics.compute()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=2e-7, err_msg=f"{name} of {targets}, {outputs}")


def by_class(y: Array, p: Array, first: str, labels: list[int] | None) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for name in BY_CLASS:
        score = getattr(sk, f"{name}_score")
        wanted[name] = score(y, p, average=first, zero_division=0)
        wanted |= {f"{name}:{a}": score(y, p, average=a, zero_division=0) for a in AVERAGES}
        wanted[f"{name}:none"] = score(y, p, average=None, labels=labels, zero_division=0)
    return wanted


def sets(seed: int) -> Iterator[tuple[np.random.Generator, int]]:
    """A generator and a number of rows, over and over: of the first set so many that it has all there is."""
    for number in sampled(range(SETS), keep=[0, 1], of=6):
        draw = np.random.default_rng([seed, number])
        yield draw, int(draw.integers(1, 14)) if number else 40


@pytest.mark.takes_turns
@pytest.mark.parametrize("met", [2, 5], ids=["some classes never met", "all classes"])
def test_several_classes(met: int) -> None:
    for draw, rows in sets(met):
        labels = list(range(5))
        y, outputs = draw.integers(0, met, rows), draw.normal(size=(rows, 5)).astype(np.float32)
        p = outputs.argmax(axis=1)
        wanted = {
            "accuracy": sk.accuracy_score(y, p),
            "accuracy:macro": sk.balanced_accuracy_score(y, p),
            "error": 1 - sk.accuracy_score(y, p),
            "error:macro": 1 - sk.balanced_accuracy_score(y, p),
            "top-2": sk.top_k_accuracy_score(y, outputs, k=2, labels=labels),
            "confusion": sk.confusion_matrix(y, p, labels=labels),
            **by_class(y, p, "macro", labels),
        }
        if len(set(y)) == 5:
            shares = torch.tensor(outputs).double().softmax(dim=1).numpy()
            for name, average in {"auroc": "macro", "auroc:weighted": "weighted"}.items():
                wanted[name] = sk.roc_auc_score(y, shares, multi_class="ovr", average=average)
            each = [sk.roc_auc_score(y == k, shares[:, k]) for k in labels]
            wanted["auroc:none"] = each
        agree(wanted, outputs, y, "classes")


@pytest.mark.parametrize("both", [False, True], ids=["one class never met", "both classes"])
def test_two_classes(both: bool) -> None:
    for draw, rows in sets(7):
        y = draw.integers(0, 2, rows) if both else np.full(rows, draw.integers(0, 2))
        outputs = draw.normal(size=rows).astype(np.float32)
        p = outputs > 0
        wanted = {
            "accuracy": sk.accuracy_score(y, p),
            "accuracy:macro": sk.balanced_accuracy_score(y, p),
            "error": 1 - sk.accuracy_score(y, p),
            "confusion": sk.confusion_matrix(y, p, labels=[0, 1]),
            **by_class(y, p, "binary", [0, 1]),
        }
        if len(set(y)) == 2:
            wanted["auroc"] = sk.roc_auc_score(y, outputs)
        agree(wanted, outputs, y, "logits")


@pytest.mark.takes_turns
@pytest.mark.parametrize("met", [False, True], ids=["a label never met", "all labels"])
def test_several_labels(met: bool) -> None:
    for draw, rows in sets(9):
        y, outputs = draw.integers(0, 2, (rows, 3)), draw.normal(size=(rows, 3)).astype(np.float32)
        y[:, 0] *= met
        p = outputs > 0
        wanted = {
            "accuracy": (y == p).mean(),
            "accuracy:macro": (y == p).mean(axis=0).mean(),
            "accuracy:none": (y == p).mean(axis=0),
            "error": (y != p).mean(),
            "confusion": sk.multilabel_confusion_matrix(y, p),
            **by_class(y, p, "macro", None),
        }
        if all(len(set(column)) == 2 for column in y.T):
            wanted["auroc"] = sk.roc_auc_score(y, outputs)
            wanted |= {f"auroc:{a}": sk.roc_auc_score(y, outputs, average=a) for a in AVERAGES}
            wanted["auroc:none"] = sk.roc_auc_score(y, outputs, average=None)
        agree(wanted, outputs, y, "logits")


@pytest.mark.parametrize("classes", [2, 5])
def test_intersection_over_union_is_the_mean_of_the_classes_that_were_met_or_answered(classes: int) -> None:
    for draw, rows in sets(classes + 20):
        y, logits = draw.integers(0, classes, rows), draw.normal(size=(rows, classes))
        answer = logits.argmax(1)
        wanted = {
            "iou": sk.jaccard_score(y, answer, average="macro"),
            "iou:none": sk.jaccard_score(y, answer, average=None, labels=range(classes), zero_division=0),
        }
        agree(wanted, logits, y, "classes")


def test_an_average_that_iou_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="metric 'iou:weighted': unknown average 'weighted'"):
        Metrics("iou:weighted")
