"""What torchmetrics computes otherwise, or not at all, equals scikit-learn: balanced accuracy, errors, mean iou."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kit.late import late
from kit.metric_sums import metric_sums

from headrace.errors import ConfigError

sk = late("sklearn.metrics")
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def without_what_scikit_learn_says_of_missing_classes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def agree(wanted: dict[str, Any], outputs: Array, targets: Array, reads: str) -> None:
    """Fed three rows at a time, metrics say what scikit-learn says of the whole."""
    metrics = metric_sums(list(wanted), reads)
    for part in zip(torch.tensor(outputs).split(3), torch.tensor(targets).split(3), strict=True):
        metrics.add_rows(*part)
    found = metrics.compute()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=2e-7, err_msg=f"{name} of {targets}, {outputs}")


def sets(seed: int) -> Iterator[tuple[np.random.Generator, int]]:
    """A generator and a number of rows, six times: of the first set so many that it has all there is."""
    for number in range(6):
        draw = np.random.default_rng([seed, number])
        yield draw, int(draw.integers(1, 14)) if number else 40


@pytest.mark.parametrize("met", [2, 5], ids=["some classes never met", "all classes"])
def test_several_classes(met: int) -> None:
    for draw, rows in sets(met):
        labels = list(range(5))
        y, outputs = draw.integers(0, met, rows), draw.normal(size=(rows, 5)).astype(np.float32)
        p = outputs.argmax(axis=1)
        wanted = {
            "accuracy:macro": sk.balanced_accuracy_score(y, p),
            "error": 1 - sk.accuracy_score(y, p),
            "error:macro": 1 - sk.balanced_accuracy_score(y, p),
            "top-2": sk.top_k_accuracy_score(y, outputs, k=2, labels=labels),
            "iou": sk.jaccard_score(y, p, average="macro"),
            "iou:none": sk.jaccard_score(y, p, average=None, labels=labels, zero_division=0),
        }
        agree(wanted, outputs, y, "classes")


@pytest.mark.parametrize("both", [False, True], ids=["one class never met", "both classes"])
def test_two_classes(both: bool) -> None:
    for draw, rows in sets(7):
        y = draw.integers(0, 2, rows) if both else np.full(rows, draw.integers(0, 2))
        outputs = draw.normal(size=rows).astype(np.float32)
        p = outputs > 0
        wanted = {"accuracy:macro": sk.balanced_accuracy_score(y, p), "error": 1 - sk.accuracy_score(y, p)}
        wanted["confusion"] = sk.confusion_matrix(y, p, labels=[0, 1])
        agree(wanted, outputs, y, "logits")


def test_an_average_that_iou_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="metric 'iou:weighted': unknown average 'weighted'"):
        metric_sums("iou:weighted")
