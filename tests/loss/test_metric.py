"""Metrics by name equal scikit-learn on the whole set, however many batches and blocks it comes in."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from kit.late import late
from kit.stand_ins import Recorder
from torch import Tensor, nn

import headrace as hr
from headrace.loss.metrics import Metrics

sk, tm = late("sklearn.metrics"), late("torchmetrics.classification")
N, K, BATCH = 61, 4, 9
GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


LOGIT, PAIR, X, QUESTIONS = normal(N), normal(N, 2), normal(N, K), normal(N, 3)
Y2, Y = (LOGIT + normal(N) > 0.3).long(), (X + normal(N, K)).argmax(1)
ANSWERS = (QUESTIONS + normal(N, 3) > 0.5).long()
PAID = normal(N, 2)
PRICES = PAID + 0.3 * normal(N, 2)


@pytest.fixture(params=[400, 16 << 20], ids=["blocks", "whole"])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("headrace.loss.metrics.BLOCK_BYTES", request.param)
    return request.param


def scores(wanted: Any, outputs: Tensor, targets: Tensor, reads: str | None = None) -> dict[str, Any]:
    metrics = Metrics(wanted, reads)
    for part in zip(outputs.split(BATCH), targets.split(BATCH), strict=True):
        metrics.add(*part)
    return metrics.compute()


def expect(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-6, atol=2e-7, err_msg=name)


def by_class(y: Any, p: Any, first: str) -> dict[str, Any]:
    """What scikit-learn says of predicted classes; `first` is the average of a name without one."""
    found: dict[str, Any] = {}
    for name, fn in {"precision": sk.precision_score, "recall": sk.recall_score, "f1": sk.f1_score}.items():
        found[name] = fn(y, p, average=first)
        for average in ("macro", "micro", "weighted"):
            found[f"{name}:{average}"] = fn(y, p, average=average)
        found[f"{name}:none"] = fn(y, p, average=None)
    return found


@cache
def binary(scores: Tensor) -> dict[str, Any]:
    p = scores > 0
    return {
        "accuracy": sk.accuracy_score(Y2, p),
        "accuracy:macro": sk.balanced_accuracy_score(Y2, p),
        "error": 1 - sk.accuracy_score(Y2, p),
        "auroc": sk.roc_auc_score(Y2, scores),
        "confusion": sk.confusion_matrix(Y2, p),
        **by_class(Y2, p, "binary"),
    }


BINARY = {
    "column": (LOGIT[:, None], Y2, "logits", LOGIT),
    "flat": (LOGIT, Y2, "logits", LOGIT),
    "flat-float": (LOGIT, Y2.float(), "logits", LOGIT),
    "column-column": (LOGIT[:, None], Y2[:, None].float(), "logits", LOGIT),
    "probabilities": (LOGIT[:, None].sigmoid(), Y2, "probabilities", LOGIT),
    "probabilities-flat": (LOGIT.sigmoid(), Y2, "probabilities", LOGIT),
    "numbers": (LOGIT + 0.5, Y2.float(), "numbers", LOGIT),
    "numbers-column": (LOGIT[:, None] + 0.5, Y2, "numbers", LOGIT),
    "pair": (PAIR, Y2, "classes", PAIR[:, 1] - PAIR[:, 0]),
    "pair-seen": (PAIR, Y2, None, PAIR[:, 1] - PAIR[:, 0]),
    "pair-one-hot": (PAIR, nn.functional.one_hot(Y2), "classes", PAIR[:, 1] - PAIR[:, 0]),
    "pair-probabilities": (PAIR.softmax(1), Y2, "class probabilities", PAIR[:, 1] - PAIR[:, 0]),
}


@pytest.mark.parametrize("case", BINARY)
def test_two_classes(case: str, block_bytes: int) -> None:
    outputs, targets, reads, by = BINARY[case]
    wanted = binary(by)
    expect(scores(list(wanted), outputs, targets, reads), wanted)


SEVERAL = {
    "indices": (X, Y),
    "int32": (X, Y.int()),
    "one-hot": (X, nn.functional.one_hot(Y, K)),
    "one-hot-float": (X, nn.functional.one_hot(Y, K).float()),
    "probabilities": (X.softmax(1), Y, "class probabilities"),
    "probabilities-one-hot": (X.softmax(1), nn.functional.one_hot(Y, K), "class probabilities"),
    "log-probabilities": (X.log_softmax(1), Y),
}


@cache
def several() -> dict[str, Any]:
    p, shares = X.argmax(1), X.double().softmax(1)
    return {
        "accuracy": sk.accuracy_score(Y, p),
        "accuracy:macro": sk.balanced_accuracy_score(Y, p),
        "error": 1 - sk.accuracy_score(Y, p),
        "top-1": sk.accuracy_score(Y, p),
        "top-2": sk.top_k_accuracy_score(Y, X, k=2),
        "top-3": sk.top_k_accuracy_score(Y, X, k=3),
        "auroc": sk.roc_auc_score(Y, shares, multi_class="ovr"),
        "auroc:weighted": sk.roc_auc_score(Y, shares, multi_class="ovr", average="weighted"),
        "confusion": sk.confusion_matrix(Y, p),
        **by_class(Y, p, "macro"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", SEVERAL)
def test_several_classes(case: str, block_bytes: int) -> None:
    outputs, targets, reads = (*SEVERAL[case], "classes")[:3]
    expect(scores(list(several()), outputs, targets, reads), several())


QUIZ = {
    "logits": (QUESTIONS, ANSWERS, "logits"),
    "logits-float": (QUESTIONS, ANSWERS.float(), "logits"),
    "probabilities": (QUESTIONS.sigmoid(), ANSWERS.float(), "probabilities"),
    "numbers": (QUESTIONS + 0.5, ANSWERS.float(), "numbers"),
}


@cache
def questions() -> dict[str, Any]:
    p = QUESTIONS > 0
    return {
        "accuracy": (p == ANSWERS).double().mean(),
        "error": (p != ANSWERS).double().mean(),
        "auroc": sk.roc_auc_score(ANSWERS, QUESTIONS),
        "auroc:micro": sk.roc_auc_score(ANSWERS, QUESTIONS, average="micro"),
        "auroc:none": sk.roc_auc_score(ANSWERS, QUESTIONS, average=None),
        "confusion": sk.multilabel_confusion_matrix(ANSWERS, p),
        **by_class(ANSWERS, p, "macro"),
    }


@pytest.mark.parametrize("case", QUIZ)
def test_several_questions(case: str, block_bytes: int) -> None:
    expect(scores(list(questions()), *QUIZ[case]), questions())


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cut", [lambda t: t, lambda t: t[:, 0], lambda t: t[:, :1]], ids=["two", "flat", "column"])
def test_numbers(cut: Callable[[Tensor], Tensor], dtype: torch.dtype, offset: float, block_bytes: int) -> None:
    outputs, targets = cut(PRICES).to(dtype) + offset, cut(PAID).to(dtype) + offset
    wanted = {
        "mae": sk.mean_absolute_error(targets.double(), outputs.double()),
        "mse": sk.mean_squared_error(targets.double(), outputs.double()),
        "r2": sk.r2_score(targets.double(), outputs.double()),
    }
    expect(scores(list(wanted), outputs, targets), wanted)


def test_a_column_of_outputs_and_flat_targets_are_not_spread_against_each_other() -> None:
    wanted = {"mse": sk.mean_squared_error(PAID[:, 0], PRICES[:, 0]), "r2": sk.r2_score(PAID[:, 0], PRICES[:, 0])}
    expect(scores(["mse", "r2"], PRICES[:, :1], PAID[:, 0]), wanted)


def test_every_pixel_counts() -> None:
    images, masks, one = normal(N, K, 3, 2), (normal(N, 3, 2) > 0).long() + 1, normal(N, 1, 3, 2)
    wanted = sk.f1_score(masks.flatten(), images.argmax(1).flatten(), average="weighted")
    expect(scores("f1:weighted", images, masks, "classes"), {"f1:weighted": wanted})
    answers = masks.float() - 1
    y, p = answers.flatten(), one.flatten() > 0
    wanted = {
        "accuracy": sk.accuracy_score(y, p),
        "f1": sk.f1_score(y, p),
        "auroc": sk.roc_auc_score(y, one.flatten()),
        "confusion": sk.confusion_matrix(y, p),
    }
    expect(scores(list(wanted), one, answers[:, None], "logits"), wanted)
    expect(scores("accuracy", one[:, 0], answers, "logits"), {"accuracy": wanted["accuracy"]})


def test_auroc_keeps_the_order_of_scores_that_a_sigmoid_would_make_equal() -> None:
    large = 1000 + 1e4 * LOGIT
    assert sk.roc_auc_score(Y2, large.sigmoid()) != sk.roc_auc_score(Y2, large)
    expect(scores("auroc", large, Y2, "logits"), {"auroc": sk.roc_auc_score(Y2, large)})
    expect(scores("auroc", torch.stack([-large, large], 1), Y2, "classes"), {"auroc": sk.roc_auc_score(Y2, large)})


UNSAID = {
    "accuracy": (LOGIT.sigmoid(), Y2),
    "f1": (LOGIT[:, None], Y2[:, None].float()),
    "confusion": (QUESTIONS, ANSWERS),
    "auroc": (X.softmax(1), Y),
    "perplexity": (X, Y),
}


@pytest.mark.parametrize("name", UNSAID)
def test_a_metric_is_refused_at_the_first_batch_if_the_loss_does_not_say_what_outputs_are(name: str) -> None:
    outputs, targets = UNSAID[name]
    metrics = Metrics(["mae", name] if outputs.dim() == targets.dim() else name)
    with pytest.raises(hr.ConfigError, match=rf"metric '{name}' depends on what the outputs are, .*reads="):
        metrics.add(outputs, targets)


def test_what_outputs_may_be_is_one_of_a_few_words() -> None:
    with pytest.raises(hr.ConfigError, match="unknown reads 'logit'"):
        Metrics("accuracy", "logit").add(LOGIT, Y2)


@pytest.mark.parametrize("name", ["accuracy", "f1", "top-2", "confusion", "iou"])
def test_the_class_with_the_largest_output_is_the_answer_whatever_outputs_are(name: str) -> None:
    expect(scores(name, X, Y), scores(name, X.softmax(1), Y))


@pytest.mark.parametrize("last", [1.1, 0.95])
def test_the_numbers_of_a_regression_are_not_taken_for_logits_by_their_values(last: float) -> None:
    """Of answers that are 0 or 1, more than one half is yes."""
    outputs, answers = torch.tensor([0.2, 0.2, 0.9, last]), torch.tensor([0.0, 0.0, 1.0, 1.0])
    for loss in (hr.MSE(), hr.L1(), hr.Huber()):
        assert trainer(loss, "accuracy").validate((outputs, answers))["val/accuracy"] == 1


def test_numbers_that_leave_zero_to_one_late_do_not_end_a_training() -> None:
    outputs = torch.cat([torch.full((BATCH,), 0.4), torch.full((BATCH,), 1.5)])
    answers = torch.cat([torch.zeros(BATCH), torch.ones(BATCH)])
    last = trainer(hr.MSE(), ["accuracy"]).fit((outputs, answers), epochs=2, progress=False).last
    assert last["train/accuracy"] == 1


class Through(nn.Module):
    """Returns what it gets, times one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def trainer(loss: Any, metrics: Any) -> hr.Trainer:
    model = Through()
    still = torch.optim.SGD(model.parameters(), 0.0)
    return hr.Trainer(model, loss, still, metrics=metrics, batch_size=BATCH, device="cpu")


@pytest.mark.parametrize(
    ("loss", "positive"),
    [
        (hr.BinaryCrossEntropy(), True),
        (nn.BCEWithLogitsLoss(), True),
        (hr.Focal(), True),
        (hr.BinaryCrossEntropy(inputs="probs"), False),
    ],
)
def test_the_loss_says_whether_outputs_are_logits(loss: Any, positive: bool) -> None:
    low = torch.linspace(0.01, 0.4, N)
    got = trainer(loss, "accuracy").validate((low, Y2.float()))
    assert got["val/accuracy"] == pytest.approx(((Y2 == 1) == positive).double().mean().item())


@pytest.mark.parametrize("loss", [hr.CrossEntropy(ignore_index=-100), nn.CrossEntropyLoss()])
def test_ignored_targets_are_not_scored(loss: Any) -> None:
    kept = torch.arange(N) % 3 > 0
    got = trainer(loss, ["accuracy", "f1", "confusion"]).validate((X, Y.where(kept, -100)))
    y, p = Y[kept], X[kept].argmax(1)
    wanted = {"accuracy": sk.accuracy_score(y, p), "f1": sk.f1_score(y, p, average="macro")}
    wanted["confusion"] = sk.confusion_matrix(y, p)
    expect({name: got[f"val/{name}"] for name in wanted}, wanted)


@pytest.mark.parametrize(
    ("block_bytes", "rows"), [(16 << 20, [61]), (20 * 16, [27, 27, 7]), (1, [9] * 6 + [7])], indirect=["block_bytes"]
)
def test_an_object_of_ones_own_is_fed_once_per_block(block_bytes: int, rows: list[int]) -> None:
    assert scores({"rows": Recorder()}, PAIR, Y2) == {"rows": rows}


def test_a_trainer_scores_training_and_validation_apart_and_leaves_the_objects_given_alone() -> None:
    theirs, own = tm.MulticlassAccuracy(num_classes=K, average="macro"), Recorder()
    training = trainer(hr.CrossEntropy(), {"theirs": theirs, "own": own, "f1": "f1:weighted"})
    history = training.fit((X[:40], Y[:40]), (X[40:], Y[40:]), epochs=2, progress=False)
    row = history.last
    for name, part in {"train": slice(40), "val": slice(40, None)}.items():
        y, p = Y[part], X[part].argmax(1)
        assert row[f"{name}/theirs"] == pytest.approx(sk.balanced_accuracy_score(y, p), rel=1e-6)
        assert row[f"{name}/f1"] == pytest.approx(sk.f1_score(y, p, average="weighted"), rel=1e-6)
        assert row[f"{name}/own"] == [len(y)]
    assert own.rows == []
    assert theirs.update_count == 0
