"""Metrics by name are the same however outputs and targets are written, and in however many blocks they come."""

from typing import Any

import numpy as np
import pytest
import torch
from kit.late import late
from kit.metric_sums import metric_sums
from kit.stand_ins import Recorder, Through
from torch import Tensor, nn

import headrace as hr
from headrace.loss.tally import LossSums

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
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("headrace.loss.tally.BLOCK_BYTES", request.param)
    return request.param


def scores(wanted: Any, outputs: Tensor, targets: Tensor, reads: str | None = None) -> dict[str, Any]:
    metrics = metric_sums(wanted, reads)
    for part in zip(outputs.split(BATCH), targets.split(BATCH), strict=True):
        metrics.add_rows(*part)
    return metrics.compute()


def expect(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-6, atol=2e-7, err_msg=name)


# --- forms of outputs and targets -------------------------------------------------------------------------------

BY_CLASS = [f"{name}{average}" for name in ("precision", "recall", "f1") for average in ("", ":macro", ":none")]
COMMON = ["accuracy", "error", "auroc", "confusion", *BY_CLASS]
FORMS: dict[str, tuple[list[str], list[tuple[Any, ...]]]] = {
    "two classes": (
        [*COMMON, "accuracy:macro"],
        [
            (LOGIT, Y2, "logits"),
            (LOGIT[:, None], Y2, "logits"),
            (LOGIT, Y2.float(), "logits"),
            (LOGIT[:, None], Y2[:, None].float(), "logits"),
            (LOGIT[:, None].sigmoid(), Y2, "probabilities"),
            (LOGIT.sigmoid(), Y2, "probabilities"),
            (LOGIT + 0.5, Y2.float(), "numbers"),
            (LOGIT[:, None] + 0.5, Y2, "numbers"),
        ],
    ),
    "two classes in columns": (
        [*COMMON, "accuracy:macro"],
        [
            (PAIR[:, 1] - PAIR[:, 0], Y2, "logits"),
            (PAIR, Y2, "classes"),
            (PAIR, Y2, None),
            (PAIR, nn.functional.one_hot(Y2), "classes"),
            (PAIR.softmax(1), Y2, "class probabilities"),
        ],
    ),
    "several classes": (
        [*COMMON, "top-1", "top-2", "top-3", "auroc:weighted"],
        [
            (X, Y, "classes"),
            (X, Y.int(), "classes"),
            (X, nn.functional.one_hot(Y, K), "classes"),
            (X, nn.functional.one_hot(Y, K).float(), "classes"),
            (X.softmax(1), Y, "class probabilities"),
            (X.softmax(1), nn.functional.one_hot(Y, K), "class probabilities"),
            (X.log_softmax(1), Y, "classes"),
        ],
    ),
    "several questions": (
        [*COMMON, "auroc:micro", "auroc:none"],
        [
            (QUESTIONS, ANSWERS, "logits"),
            (QUESTIONS, ANSWERS.float(), "logits"),
            (QUESTIONS.sigmoid(), ANSWERS.float(), "probabilities"),
            (QUESTIONS + 0.5, ANSWERS.float(), "numbers"),
        ],
    ),
}
"""Metrics, and forms of the same outputs and targets; the first is compared with torchmetrics elsewhere."""


@pytest.mark.parametrize("kind", FORMS)
def test_every_form_of_outputs_and_targets_has_the_same_metrics(kind: str, block_bytes: int) -> None:
    names, (plain, *others) = FORMS[kind]
    wanted = scores(names, *plain)
    for form in others:
        expect(scores(names, *form), wanted)


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


# --- what is refused ----------------------------------------------------------------------------------------------


UNSAID, OF_OTHERS = "depends on what the outputs are, .*reads=", ""


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "reads", "message"),
    [
        ("accuracy", LOGIT.sigmoid(), Y2, None, UNSAID),
        ("f1", LOGIT[:, None], Y2[:, None].float(), None, UNSAID),
        ("confusion", QUESTIONS, ANSWERS, None, UNSAID),
        ("auroc", X.softmax(1), Y, None, UNSAID),
        ("accuracy", PRICES, PAID, None, OF_OTHERS),
        ("top-5", X, Y, "classes", OF_OTHERS),
        ("top-2", LOGIT, Y2, "logits", OF_OTHERS),
        ("top-3", QUESTIONS, ANSWERS, "logits", OF_OTHERS),
        ("auroc:micro", X, Y, "classes", OF_OTHERS),
        ("mae", X, Y, "classes", OF_OTHERS),
    ],
)
def test_a_metric_that_cannot_be_of_these_outputs_says_so(
    name: str, outputs: Tensor, targets: Tensor, reads: Any, message: str
) -> None:
    wanted = ["mse", name] if outputs.dim() == targets.dim() and not reads else name
    with pytest.raises(hr.HeadraceError, match=f"metric '{name}' ?{message}"):
        scores(wanted, outputs, targets, reads)


def test_what_outputs_may_be_is_one_of_a_few_words_and_of_several_one_has_to_be_meant() -> None:
    with pytest.raises(hr.ConfigError, match="unknown reads 'logit'"):
        metric_sums("accuracy", "logit").add_rows(LOGIT, Y2)
    with pytest.raises(hr.ConfigError, match=r"returned a tuple.*output="):
        metric_sums("f1").add((X, X), hr.Batch({"y": Y}, len(Y)))


# --- sums ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block_bytes", "rows"), [(16 << 20, [61]), (20 * 16, [27, 27, 7]), (1, [9] * 6 + [7])], indirect=["block_bytes"]
)
def test_an_object_of_ones_own_is_fed_once_per_block(block_bytes: int, rows: list[int]) -> None:
    assert scores({"rows": Recorder()}, PAIR, Y2) == {"rows": rows}


# --- what the loss says -------------------------------------------------------------------------------------------


def trainer(loss: Any, metrics: Any) -> hr.Trainer:
    model = Through()
    still = torch.optim.SGD(model.parameters(), 0.0)
    return hr.Trainer(model, loss, still, metrics=metrics, batch_size=BATCH, device="cpu")


LOGITS = [hr.BinaryCrossEntropy(), nn.BCEWithLogitsLoss(), hr.Focal()]
NUMBERS = [hr.MSE(), hr.L1(), hr.Huber()]


@pytest.mark.parametrize(
    ("loss", "top", "least"),
    [
        *((loss, 0.99, 0.0) for loss in LOGITS),
        *((loss, 1.1, 0.5) for loss in NUMBERS),  # of answers that are 0 or 1, more than one half is yes
        (hr.BinaryCrossEntropy(inputs="probs"), 0.99, 0.5),
    ],
)
def test_the_loss_says_whether_outputs_are_logits_and_not_their_values(loss: Any, top: float, least: float) -> None:
    outputs = torch.linspace(0.01, top, N)
    expected = ((outputs > least) == (Y2 == 1)).double().mean().item()
    assert trainer(loss, "accuracy").validate((outputs, Y2.float()))["val/accuracy"] == pytest.approx(expected)


def test_a_trainer_scores_training_and_validation_apart_and_leaves_the_objects_given_alone() -> None:
    theirs, own = tm.MulticlassAccuracy(num_classes=K, average="macro"), Recorder()
    training = trainer(hr.CrossEntropy(), {"theirs": theirs, "own": own, "f1": "f1:weighted"})
    row = training.fit((X[:40], Y[:40]), (X[40:], Y[40:]), epochs=2, progress=False).last
    for name, part in {"train": slice(40), "val": slice(40, None)}.items():
        y, p = Y[part], X[part].argmax(1)
        assert row[f"{name}/theirs"] == pytest.approx(sk.balanced_accuracy_score(y, p), rel=1e-6)
        assert row[f"{name}/f1"] == pytest.approx(sk.f1_score(y, p, average="weighted"), rel=1e-6)
        assert row[f"{name}/own"] == [len(y)]
    assert (own.rows, theirs.update_count) == ([], 0)


def test_single_precision_sums_are_added_in_double() -> None:
    tally = LossSums()
    for _ in range(3000):  # more than wait on the device at once
        tally.add("mse", torch.tensor(1e6 + 0.0625), torch.tensor(1), 1.0)
    tally.add("mse", 0.0, 1, 1.0)
    assert tally.read()["mse"] == pytest.approx(3000 * (1e6 + 0.0625) / 3001, rel=1e-12)
