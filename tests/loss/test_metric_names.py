"""Which metrics can be asked for, and how they start, go on and start anew."""

import re
from typing import Any

import pytest
import torch
from kit.metric_sums import metric_sums
from kit.stand_ins import Recorder
from torch import Tensor

import headrace as hr

N, K = 61, 4
GENERATOR = torch.Generator().manual_seed(4)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR)


LOGIT, PAIR, X, QUESTIONS = normal(N), normal(N, 2), normal(N, K), normal(N, 3)
Y2, Y, ANSWERS = (LOGIT > 0.3).long(), (X + normal(N, K)).argmax(1), (QUESTIONS > 0.5).long()
PRICES, PAID = normal(N, 2), normal(N, 2)


def score(wanted: Any, outputs: Tensor, targets: Tensor, reads: str | None = None) -> dict[str, Any]:
    metrics = metric_sums(wanted, reads)
    metrics.add_rows(outputs, targets)
    return metrics.compute()


def test_an_object_may_be_called_as_what_another_metric_adds_up() -> None:
    metrics = metric_sums({"counts:1": Recorder(), "accuracy": "accuracy"}, "classes")
    metrics.add_rows(X, X.argmax(1))
    assert metrics.compute() == {"counts:1": [len(X)], "accuracy": 1.0}


def test_two_sums_of_the_same_metrics_are_independent_and_leave_the_objects_given_alone() -> None:
    own = Recorder()
    metrics, twin = (metric_sums({"accuracy": "accuracy", "own": own}) for _ in range(2))
    metrics.add_rows(X, Y)
    before = metrics.compute()
    assert twin.compute() == {}
    twin.add_rows(X[:5], 1 + X[:5].argmax(1))
    assert twin.compute() == {"accuracy": 0.0, "own": [5]}
    assert metrics.compute() == before
    assert before == {"accuracy": pytest.approx((X.argmax(1) == Y).double().mean().item()), "own": [N]}
    assert own.rows == []


def test_reading_goes_on_and_a_reset_starts_anew() -> None:
    metrics = metric_sums(("mae", "mse"))
    metrics.add_rows(PRICES[:20], PAID[:20])
    metrics.compute()
    metrics.add_rows(PRICES[20:], PAID[20:])
    assert metrics.compute() == pytest.approx(
        {"mae": (PRICES - PAID).abs().mean().item(), "mse": ((PRICES - PAID) ** 2).mean().item()}
    )
    metrics.add_rows(PRICES, PAID)
    metrics.reset()
    metrics.add_rows(PRICES[:3], PAID[:3])
    assert metrics.compute() == pytest.approx(
        {"mae": (PRICES - PAID)[:3].abs().mean().item(), "mse": ((PRICES - PAID)[:3] ** 2).mean().item()}
    )


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("acuracy", "unknown metric 'acuracy'. Did you mean 'accuracy'?"),
        (["mae", "presicion"], "Did you mean 'precision'?"),
        ({"mine": "roc"}, "Did you mean 'auroc'?"),
        ("f1:wieghted", "'f1:wieghted': unknown average 'wieghted'. Did you mean 'weighted'?"),
        ("top-k", "'top-k'"),
        ("mae:macro", "'mae:macro': mae has no averages. Say 'mae'"),
        ("perplexity:micro", "perplexity has no averages"),
        ("top-0", "'top-0'"),
        (["f1", "f1"], "'f1' is given twice"),
        ([Recorder(), Recorder()], "'recorder' is given twice"),
        ([3], "update, compute and reset; got a int"),
        ([Recorder], "Recorder"),
    ],
)
def test_what_is_no_metric_is_refused_at_once(wanted: Any, message: str) -> None:
    with pytest.raises(hr.ConfigError, match=re.escape(message)):
        metric_sums(wanted)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "reads"),
    [
        ("accuracy", PRICES, PAID, None),
        ("top-5", X, Y, "classes"),
        ("top-2", LOGIT, Y2, "logits"),
        ("top-3", QUESTIONS, ANSWERS, "logits"),
        ("auroc:micro", X, Y, "classes"),
        ("mae", X, Y, "classes"),
    ],
)
def test_a_metric_that_cannot_be_of_these_outputs_says_so(
    name: str, outputs: Tensor, targets: Tensor, reads: Any
) -> None:
    with pytest.raises(hr.HeadraceError, match=f"metric '{name}'"):
        score(name, outputs, targets, reads)


def test_top_1_of_two_classes_is_accuracy() -> None:
    accuracy = (PAIR.argmax(1) == Y2).double().mean().item()
    assert score("top-1", PAIR, Y2, "classes") == {"top-1": pytest.approx(accuracy)}


def test_several_outputs_ask_for_the_one_that_is_meant() -> None:
    with pytest.raises(hr.ConfigError, match=r"returned a tuple.*output="):
        metric_sums("f1").add((X, X), hr.Batch({"y": Y}, len(Y)))


def test_twins_that_were_fed_on_several_workers_add_up_also_where_their_blocks_were_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.loss.tally.BLOCK_BYTES", 1)
    wanted = ["accuracy", "f1:macro", "error:macro", "auroc", "confusion"]
    twins, joined = [metric_sums(wanted, "classes") for _ in range(2)], metric_sums(wanted, "classes")
    for twin, part in zip(twins, (slice(40), slice(40, None)), strict=True):
        twin.add_rows(X[part], Y[part])
    joined.join([twin.state_dict() for twin in twins])
    whole = score(wanted, X, Y, "classes")
    assert joined.compute().pop("confusion") == whole.pop("confusion")
    assert {name: joined.compute()[name] for name in whole} == pytest.approx(whole)
