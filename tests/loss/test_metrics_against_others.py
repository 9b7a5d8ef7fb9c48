"""Metrics by name equal those of torchmetrics and scikit-learn: with ties, missing classes, and ignored labels."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from kit.late import late
from kit.metric_sums import metric_sums
from torch import Tensor

sk, tm = late("sklearn.metrics"), late("torchmetrics.classification")
regression = late("torchmetrics.regression")
AVERAGES = ("macro", "micro", "weighted", "none")
KINDS = {"precision": "Precision", "recall": "Recall", "f1": "F1Score"}
CASES = range(12)


@pytest.fixture(autouse=True)
def without_warnings_of_missing_classes() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def drawn(case: int, *shape: int) -> tuple[torch.Generator, Tensor]:
    """Outputs with ties in every other case."""
    draw = torch.Generator().manual_seed(case)
    outputs = torch.randn(*shape, generator=draw)
    return draw, (2 * outputs).round() / 2 if case % 2 else outputs


def agree(wanted: dict[str, Any], outputs: Tensor, targets: Tensor, reads: str, ignore: int | None = None) -> None:
    """Two twins, fed three rows at a time and joined, compute what these libraries compute of all rows."""
    twins = [metric_sums(list(wanted), reads, ignore) for _ in range(2)]
    for number, part in enumerate(zip(outputs.split(3), targets.split(3), strict=True)):
        twins[number % 2].add_rows(*part)
        twins[number % 2].compute()
    joined = metric_sums(list(wanted), reads, ignore)
    joined.join([twin.state_dict() for twin in twins])
    found = joined.compute()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


def of_sklearn(y: Tensor, outputs: Tensor) -> dict[str, Any]:
    """What torchmetrics computes otherwise, or not at all."""
    labels, p = list(range(outputs.shape[1])), outputs.argmax(dim=1)
    return {
        "accuracy:macro": sk.balanced_accuracy_score(y, p),
        "error": 1 - sk.accuracy_score(y, p),
        "error:macro": 1 - sk.balanced_accuracy_score(y, p),
        "top-2": sk.top_k_accuracy_score(y, outputs, k=2, labels=labels),
        "iou": sk.jaccard_score(y, p, average="macro"),
        "iou:none": sk.jaccard_score(y, p, average=None, labels=labels, zero_division=0),
    }


@pytest.mark.parametrize("case", CASES)
def test_several_classes(case: int) -> None:
    classes, met = 3 + case % 3, 1 + case % 4
    draw, outputs = drawn(case, 4 + 3 * case, classes)
    outputs += torch.rand(outputs.shape, generator=draw) * 1e-3  # the best of equals is anybody's
    targets = torch.randint(0, min(met, classes), (len(outputs),), generator=draw)
    ignore = (None, -100, 0)[case % 3]
    wanted = of_sklearn(targets, outputs) if ignore is None else {}
    if ignore is not None:
        targets[::4] = ignore
    options: dict[str, Any] = {"num_classes": classes, "ignore_index": ignore}

    def of(kind: str, **more: Any) -> Any:
        metric = getattr(tm, f"Multiclass{kind}")(**options, **more)
        return metric(outputs.double().softmax(1) if kind == "AUROC" else outputs, targets)

    wanted |= {f"{name}:{a}": of(kind, average=a) for name, kind in KINDS.items() for a in AVERAGES}
    wanted |= {f"accuracy:{a}": of("Accuracy", average=a) for a in ("micro", "weighted", "none")}
    wanted |= {f"top-2:{a}": of("Accuracy", average=a, top_k=2) for a in ("weighted", "none")}
    wanted["top-2"] = of("Accuracy", average="micro", top_k=2)
    wanted["confusion"] = of("ConfusionMatrix")
    wanted["iou:none"] = of("JaccardIndex", average="none")
    if ignore is None or (targets != ignore).any():  # of no rows, torchmetrics has an IndexError
        wanted |= {f"auroc:{a}": of("AUROC", average=a) for a in ("macro", "weighted", "none")}
    agree(wanted, outputs, targets, "classes", ignore)


@pytest.mark.parametrize("case", CASES)
def test_two_classes(case: int) -> None:
    draw, outputs = drawn(case, 2 + 3 * case)
    outputs[outputs == 0] = -0.1  # torchmetrics takes numbers from 0 to 1 for probabilities
    targets = torch.randint(0, 1 + (case % 4 > 0), (len(outputs),), generator=draw)
    accuracy = sk.balanced_accuracy_score(targets, outputs > 0)
    ignore = (None, -1)[case % 2]
    if ignore is not None:
        targets[::4] = ignore
    given = outputs if bool(((outputs < 0) | (outputs > 1)).any()) else outputs.sigmoid()
    options: dict[str, Any] = {"ignore_index": ignore}
    wanted = {name: getattr(tm, f"Binary{kind}")(**options)(given, targets) for name, kind in KINDS.items()}
    wanted["accuracy"] = tm.BinaryAccuracy(**options)(given, targets)
    wanted["error"] = 1 - wanted["accuracy"]
    wanted["confusion"] = tm.BinaryConfusionMatrix(**options)(given, targets)
    wanted["auroc"] = tm.BinaryAUROC(**options)(given.double().sigmoid(), targets)
    wanted |= {"accuracy:macro": accuracy} if ignore is None else {}
    agree(wanted, outputs, targets, "logits", ignore)


@pytest.mark.parametrize("case", CASES)
def test_several_questions(case: int) -> None:
    draw, outputs = drawn(case, 3 + 2 * case, 3)
    outputs[outputs == 0] = -0.1
    shares = outputs.double().sigmoid()
    targets = torch.randint(0, 2, shares.shape, generator=draw)
    targets[:, 0] *= case % 3 > 0
    ignore = (None, -1)[case % 2]
    if ignore is not None:
        targets[::4, 1] = ignore
    options: dict[str, Any] = {"num_labels": 3, "ignore_index": ignore}

    def of(kind: str, **more: Any) -> Any:
        return getattr(tm, f"Multilabel{kind}")(**options, **more)(shares, targets)

    kinds = {**KINDS, "accuracy": "Accuracy", "auroc": "AUROC"}
    wanted = {f"{name}:{a}": of(kind, average=a) for name, kind in kinds.items() for a in AVERAGES}
    wanted["confusion"] = of("ConfusionMatrix")
    agree(wanted, outputs, targets, "logits", ignore)


@pytest.mark.parametrize("case", CASES)
def test_numbers(case: int) -> None:
    draw, outputs = drawn(case, 4 + case, 2)
    targets = outputs + torch.randn(outputs.shape, generator=draw)
    if case % 3 < 2:  # a column of outputs and flat targets are not spread against each other
        outputs, targets = outputs[:, 0] if case % 3 else outputs[:, :1], targets[:, 0]
    kinds = {"mae": "MeanAbsoluteError", "mse": "MeanSquaredError", "r2": "R2Score"}
    flat = outputs.double().view(targets.shape)
    wanted = {n: getattr(regression, k)()(flat, targets.double()) for n, k in kinds.items()}
    agree(wanted, outputs, targets, "numbers")


def test_r2_of_large_and_of_small_numbers_is_exact() -> None:
    draw, outputs = drawn(0, 60)
    outputs, targets = outputs.double(), outputs.double() + torch.randn(60, generator=draw)
    r2 = 1 - (outputs - targets).square().sum() / (targets - targets.mean()).square().sum()
    agree({"r2": r2}, outputs + 1e9, targets + 1e9, "numbers")
    agree({"r2": r2}, outputs * 1e-6, targets * 1e-6, "numbers")
    agree({"r2": 0.0}, outputs, torch.full_like(outputs, 0.1), "numbers")
    constant = torch.full((9,), 0.1, dtype=torch.float64)
    agree({"r2": 1.0}, constant, constant, "numbers")


@pytest.mark.parametrize("label", [3, -1])
def test_labels_that_no_class_has_are_refused(label: int) -> None:
    metrics = metric_sums("accuracy", "classes")
    metrics.add_rows(torch.randn(4, 3), torch.tensor([0, 1, 2, label]))
    with pytest.raises(ValueError, match=r"labels go from .* there are 3 classes"):
        metrics.compute()


def test_metrics_of_many_classes_take_little_memory() -> None:
    """A table of all pairs of classes would take 320 GB."""
    metrics = metric_sums(["accuracy", "f1", "top-5"], "classes")
    metrics.add_rows(torch.nn.functional.one_hot(torch.tensor([7, 8]), 200_000).float(), torch.tensor([7, 9]))
    found = metrics.compute()
    assert found["accuracy"] == 0.5
    assert found["f1"] == pytest.approx(1 / 3)
