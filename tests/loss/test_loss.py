"""Every term equals torch on the whole set, however the set is cut into batches and microbatches."""

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.sampled import sampled
from kit.stand_ins import Through, through
from torch import Tensor, nn

import headrace as hr

N, K = 23, 5
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


def labels(*shape: int, classes: int = K) -> Tensor:
    return torch.randint(classes, shape, generator=GENERATOR)


X, Y, R = normal(N, K), labels(N), normal(N).exp()
W = torch.tensor([0.5, 2.0, 0.0, 1.25, 3.0], dtype=torch.float64)  # class weights
P = normal(N, K).softmax(dim=1)  # probability rows
IMAGES, MASKS = normal(N, K, 3, 2), labels(N, 3, 2)
QUESTIONS, ANSWERS = normal(N, 3), labels(N, 3, classes=2)
POSITIVE = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
PRICES, PAID = normal(N, 2), normal(N, 2)
CE = F.cross_entropy(X, Y, reduction="none")
MASK_CE = F.cross_entropy(IMAGES, MASKS, reduction="none")
KEPT = (Y != 2).double()
FAR = (PRICES - PAID).abs()
SMOOTH_L1 = torch.where(FAR <= 0.11, FAR**2 / (2 * 0.11), FAR - 0.11 / 2)
P_TRUE = X.softmax(dim=1)[torch.arange(N), Y]
FOCAL = -((1 - P_TRUE) ** 2) * P_TRUE.log()
P_ANSWER = torch.where(ANSWERS == 1, QUESTIONS.sigmoid(), 1 - QUESTIONS.sigmoid())
FOCAL_ANSWER = -((1 - P_ANSWER) ** 1.5) * P_ANSWER.log()
P_YES, ALPHA = QUESTIONS.sigmoid(), torch.tensor([0.25, 0.5, 0.9], dtype=torch.float64)
FOCAL_YES, FOCAL_NO = -((1 - P_YES) ** 1.5) * P_YES.log(), -(P_YES**1.5) * (1 - P_YES).log()
PERHAPS = torch.where(ANSWERS == 1, 0.7, 0.2).double()


def bce(logits: Tensor, targets: Tensor, **options: Any) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets.double(), **options)


PIXELS = normal(N, 3, 2).exp()
"""A weight for every pixel of the masks."""
KNOWN = normal(N, 2) > 0
GIVEN = normal(N, 3) > -0.5
"""Which of the questions have an answer."""
SERIES, OTHERS = normal(N, 4, 2), normal(N, 4, 2)
WORDS, NEXT = normal(N, K, 4), labels(N, 4)
ITEMS = torch.arange(4) < labels(N, classes=4)[:, None]
"""Which places of padded sequences have an item; some sequences have none."""
MASKED = {"known": KNOWN, "asked": GIVEN, "items": ITEMS, "map": PIXELS[:, None]}
TO_IGNORE = torch.where(ANSWERS == 1, ANSWERS, torch.where(normal(N, 3) > 0, -1, 0))
ASKED = (TO_IGNORE >= 0).double()


class Case(NamedTuple):
    term: hr.Loss
    outputs: Tensor
    targets: Tensor
    expected: Tensor

    def streams(self) -> dict[str, Tensor]:
        return {"x": self.outputs, "y": self.targets, "r": R, "pixels": PIXELS, **MASKED}


_CE, _BCE, _FOCAL = hr.CrossEntropy, hr.BinaryCrossEntropy, hr.Focal
MEANS = {
    "ce": Case(_CE(), X, Y, F.cross_entropy(X, Y)),
    "ce-int32": Case(_CE(), X, Y.int(), F.cross_entropy(X, Y)),
    "ce-ignore-outside": Case(_CE(ignore_index=-1), X, Y.where(Y != 2, -1), F.cross_entropy(X, Y, ignore_index=2)),
    "ce-ignore-met": Case(_CE(ignore_index=1, class_weights=W), X, Y, F.cross_entropy(X, Y, W, ignore_index=1)),
    "ce-ignore-classes": Case(
        _CE(ignore_index=1, class_weights=W, normalize="classes"),
        *(X, Y, ((W[Y] * CE)[Y != 1]).sum() / ((Y != 1).sum() * W.sum())),
    ),
    "ce-smoothing-met-ignore": Case(
        _CE(label_smoothing=0.2, class_weights=W, ignore_index=0),
        *(X, Y, F.cross_entropy(X, Y, W, label_smoothing=0.2, ignore_index=0)),
    ),
    "ce-probabilities": Case(_CE(), X, P, F.cross_entropy(X, P)),
    "ce-probabilities-met": Case(_CE(class_weights=W), X, P, F.cross_entropy(X, P, W)),
    "ce-probabilities-rows": Case(_CE(weight="r"), X, P, (R * -(P * X.log_softmax(1)).sum(1)).sum() / R.sum()),
    "ce-log-probabilities": Case(_CE(inputs="log_probs", class_weights=W), P.log(), Y, F.nll_loss(P.log(), Y, W)),
    "ce-log-probabilities-smoothing": Case(
        _CE(inputs="log_probs", label_smoothing=0.2), P.log(), Y, F.cross_entropy(P.log(), Y, label_smoothing=0.2)
    ),
    "ce-from-probabilities": Case(_CE(inputs="probs", class_weights=W), P, Y, F.nll_loss(P.log(), Y, W)),
    "ce-from-probabilities-ignore": Case(
        _CE(inputs="probs", ignore_index=1), P, Y, F.nll_loss(P.log(), Y, ignore_index=1)
    ),
    "ce-from-probabilities-soft": Case(_CE(inputs="probs"), P, P, -(P * P.log()).sum(1).mean()),
    "ce-masks-met-ignore": Case(
        _CE(class_weights=W, ignore_index=4), IMAGES, MASKS, F.cross_entropy(IMAGES, MASKS, W, ignore_index=4)
    ),
    "ce-masks-rows": Case(_CE(weight="r"), IMAGES, MASKS, (R[:, None, None] * MASK_CE).sum() / (6 * R.sum())),
    "ce-pixels-met-ignore": Case(
        _CE(weight="pixels", class_weights=W, ignore_index=1),
        *(IMAGES, MASKS, (PIXELS * W[MASKS] * MASK_CE)[MASKS != 1].sum() / (PIXELS * W[MASKS])[MASKS != 1].sum()),
    ),
    "ce-pixels-classes": Case(
        _CE(weight="pixels", class_weights=W, normalize="classes"),
        *(IMAGES, MASKS, (PIXELS * W[MASKS] * MASK_CE).sum() / (PIXELS.sum() * W.sum())),
    ),
    "ce-pixels-probabilities": Case(
        _CE(weight="pixels"),
        *(IMAGES, F.one_hot(MASKS, K).movedim(-1, 1).double(), (PIXELS * MASK_CE).sum() / PIXELS.sum()),
    ),
    "ce-rows-met": Case(_CE(weight="r", class_weights=W), X, Y, (R * W[Y] * CE).sum() / (R * W[Y]).sum()),
    "bce-one-column": Case(_BCE(), QUESTIONS[:, :1], ANSWERS[:, 0].double(), bce(QUESTIONS[:, 0], ANSWERS[:, 0])),
    "bce-probabilities": Case(_BCE(inputs="probs"), QUESTIONS.sigmoid(), ANSWERS, bce(QUESTIONS, ANSWERS)),
    "bce-rows": Case(
        _BCE(weight="r"),
        *(QUESTIONS, ANSWERS, (R[:, None] * bce(QUESTIONS, ANSWERS, reduction="none")).sum() / (3 * R.sum())),
    ),
    "mse-one-column": Case(hr.MSE(), PRICES[:, :1], PAID[:, 0], F.mse_loss(PRICES[:, 0], PAID[:, 0])),
    "l1": Case(hr.L1(), PRICES, PAID, F.l1_loss(PRICES, PAID)),
    "huber-classic-torch": Case(hr.Huber(0.7, form="classic"), PRICES, PAID, F.huber_loss(PRICES, PAID, delta=0.7)),
    "focal-classes": Case(_FOCAL(class_weights=W), X, Y, (W[Y] * FOCAL).mean()),
    "focal-ignore-rows": Case(_FOCAL(ignore_index=2, weight="r"), X, Y, (R * KEPT * FOCAL).sum() / (R * KEPT).sum()),
    "focal-pixels": Case(_FOCAL(0, weight="pixels"), IMAGES, MASKS, (PIXELS * MASK_CE).sum() / PIXELS.sum()),
    "focal-questions-ignore": Case(
        _FOCAL(1.5, ignore_index=-1), QUESTIONS, TO_IGNORE, (ASKED * FOCAL_ANSWER).sum() / ASKED.sum()
    ),
    "focal-questions-alpha": Case(
        _FOCAL(1.5, alpha=0.25), QUESTIONS, ANSWERS, (torch.where(ANSWERS == 1, 0.25, 0.75) * FOCAL_ANSWER).mean()
    ),
    "focal-questions-alphas-float": Case(
        _FOCAL(1.5, alpha=ALPHA, class_weights=POSITIVE),
        *(QUESTIONS, ANSWERS.double()),
        (POSITIVE * torch.where(ANSWERS == 1, ALPHA, 1 - ALPHA) * FOCAL_ANSWER).mean(),
    ),
    "focal-questions-shares": Case(
        _FOCAL(1.5, alpha=ALPHA),
        *(QUESTIONS, PERHAPS, (PERHAPS * ALPHA * FOCAL_YES + (1 - PERHAPS) * (1 - ALPHA) * FOCAL_NO).mean()),
    ),
    "l1-elements": Case(hr.L1(weight="known"), PRICES, PAID, FAR[KNOWN].mean()),
    "l1-elements-column": Case(hr.L1(weight="r"), PRICES[:, :1], PAID[:, 0], (R * FAR[:, 0]).sum() / R.sum()),
    "bce-elements-positive": Case(
        _BCE(weight="asked", positive_weight=POSITIVE),
        *(QUESTIONS, ANSWERS, bce(QUESTIONS, ANSWERS, pos_weight=POSITIVE, reduction="none")[GIVEN].mean()),
    ),
    "focal-elements": Case(_FOCAL(1.5, weight="asked"), QUESTIONS, ANSWERS, FOCAL_ANSWER[GIVEN].mean()),
    "mse-padded": Case(hr.MSE(weight="items"), SERIES, OTHERS, ((SERIES - OTHERS) ** 2)[ITEMS].mean()),
    "mse-maps": Case(
        hr.MSE(weight="map"),
        *(IMAGES, IMAGES.flip(0), (PIXELS[:, None] * (IMAGES - IMAGES.flip(0)) ** 2).sum() / (K * PIXELS.sum())),
    ),
    "ce-padded": Case(_CE(weight="items"), WORDS, NEXT, F.cross_entropy(WORDS, NEXT, reduction="none")[ITEMS].mean()),
    "ce-padded-rows": Case(
        _CE(weight="r", ignore_index=-1),
        *(WORDS, NEXT.where(ITEMS, -1)),
        (R[:, None] * ITEMS * F.cross_entropy(WORDS, NEXT, reduction="none")).sum() / (R[:, None] * ITEMS).sum(),
    ),
    "row-mean": Case(hr.RowMean(F.soft_margin_loss), PRICES, PAID.sign(), F.soft_margin_loss(PRICES, PAID.sign())),
}
SUMS = {
    "focal-positives-ignore": Case(
        _FOCAL(ignore_index=2, normalize="positives"), X, Y, (KEPT * FOCAL).sum() / (1 + (KEPT * (Y > 0)).sum())
    ),
    "focal-questions-shares-positives": Case(
        _FOCAL(1.5, normalize="positives"),
        *(QUESTIONS, PERHAPS, (PERHAPS * FOCAL_YES + (1 - PERHAPS) * FOCAL_NO).sum() / (1 + PERHAPS.sum())),
    ),
    "focal-questions-positives": Case(
        _FOCAL(1.5, ignore_index=-1, normalize="positives"),
        *(QUESTIONS, TO_IGNORE, (ASKED * FOCAL_ANSWER).sum() / (1 + ANSWERS.sum())),
    ),
}
MEANS |= {  # sums are reported as means
    "huber-sum": Case(hr.Huber(reduce="sum"), PRICES, PAID, SMOOTH_L1.mean()),
    "ce-sum": Case(_CE(class_weights=W, reduce="sum"), X, Y, F.cross_entropy(X, Y, W)),
    "ce-sum-ignore": Case(_CE(reduce="sum", ignore_index=2), X, Y, F.cross_entropy(X, Y, ignore_index=2)),
    "bce-sum": Case(_BCE(reduce="sum"), QUESTIONS, ANSWERS, bce(QUESTIONS, ANSWERS)),
    "mse-sum": Case(hr.MSE(reduce="sum"), PRICES, PAID, F.mse_loss(PRICES, PAID)),
    "mse-sum-rows": Case(hr.MSE(reduce="sum", weight="r"), PRICES, PAID, (R[:, None] * FAR**2).sum() / (2 * R.sum())),
    "focal-sum": Case(_FOCAL(class_weights=W, reduce="sum"), X, Y, (W[Y] * FOCAL).mean()),
}
CASES = MEANS | SUMS


def trainer(loss: Any, model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    return through(copy.deepcopy(loss), model, inputs="x", **options)


def test_validation_in_batches_gives_the_mean_over_the_whole_set() -> None:
    found = {n: trainer(case.term).validate(case.streams(), batch_size=7)["val/loss"] for n, case in MEANS.items()}
    assert found == {name: pytest.approx(case.expected.item(), rel=1e-12) for name, case in MEANS.items()}


HARD = ["ce-smoothing-met-ignore", "ce-masks-rows", "bce-rows", "focal-classes", "mse-sum-rows"]
"""Cases that have weights of every kind."""


@pytest.mark.parametrize("name", sampled(CASES, keep=[*HARD[:-1], *SUMS], of=3))
def test_a_step_in_microbatches_gives_the_loss_of_the_whole_batch(name: str) -> None:
    case = CASES[name]
    losses = trainer(case.term, microbatch=7).step(case.streams())
    assert losses["total_loss"] == pytest.approx(case.expected.item(), rel=1e-12)


def sums_over_weights(terms: Sequence[hr.Term]) -> float:
    weight = sum(float(term.weight) for term in terms)
    return sum(float(term.sum) * term.times for term in terms) / weight if weight else 0.0


def mean_of_means(terms: Sequence[hr.Term]) -> float:
    return sum(sums_over_weights([term]) for term in terms) / len(terms)


def cutting_changes(case: Case, combine: Callable[[Sequence[hr.Term]], float], rows: list[int], cuts: set[int]) -> bool:
    """Whether a batch of these rows in several pieces gives anything else than in one piece."""
    streams = {name: stream[rows] for name, stream in case.streams().items()}
    edges = [0, *sorted(cut for cut in cuts if 0 < cut < len(rows)), len(rows)]
    pieces = [{name: stream[a:b] for name, stream in streams.items()} for a, b in pairwise(edges)]
    term, model = copy.deepcopy(case.term), Through()
    parts = [term.term(model, part["x"], hr.Batch(part, total=len(rows))) for part in pieces]
    whole = term.term(model, streams["x"], hr.Batch(streams))
    return combine(parts) != pytest.approx(combine([whole]), rel=1e-12, abs=1e-13)


ROWS = st.lists(st.integers(0, N - 1), min_size=1, max_size=40)
CUTS = st.sets(st.integers(1, 39), max_size=6)


@pytest.mark.parametrize("name", sampled(CASES, keep=HARD, of=6))
@settings(max_examples=12)
@given(rows=ROWS, cuts=CUTS)
def test_any_cut_of_a_batch_gives_what_the_batch_gives(name: str, rows: list[int], cuts: set[int]) -> None:
    assert not cutting_changes(CASES[name], sums_over_weights, rows, cuts)


def test_the_mean_of_means_fails_where_the_cut_is_uneven() -> None:
    """The control."""
    blind = [n for n, case in MEANS.items() if not cutting_changes(case, mean_of_means, list(range(N)), {4, 6})]
    assert blind == []


@pytest.mark.parametrize("name", sampled(CASES, keep=HARD, of=5))
def test_gradients_are_those_of_the_formula(name: str) -> None:
    case = CASES[name]
    batch = hr.Batch({key: stream[:6] for key, stream in case.streams().items()})
    term, outputs = copy.deepcopy(case.term), case.outputs[:6].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: term.term(Through(), x, batch).sum, outputs)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("form", ["classes", "questions"])
def test_focal_is_finite_where_probabilities_are_0_or_1(gamma: float, form: str) -> None:
    sizes = torch.tensor([1e4, 200.0, 88.0, 17.0, 0.0])
    right = torch.cat([sizes, -sizes]).requires_grad_()
    outputs, targets = right, torch.ones_like(right)
    if form == "classes":
        outputs, targets = torch.stack([torch.zeros_like(right), right], 1), targets.long()
    loss = hr.Focal(gamma).sum(outputs, hr.Batch({"y": targets}))
    (slope,) = torch.autograd.grad(loss, right)
    assert loss.isfinite()
    assert slope.isfinite().all()
    assert loss >= 1e4
    torch.testing.assert_close(slope[[5, 0]], torch.tensor([-1.0, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_focal_has_the_values_of_the_paper_also_where_all_is_well(dtype: torch.dtype) -> None:
    """For p = 0.9, α = 0.25 and γ = 2: 0.25 · 0.1² · −log 0.9 where the answer is yes, else 0.75 · 0.9² · −log 0.1."""
    miss = 1 / (1 + math.exp(12.0))
    for logit, target, alpha, wanted in (
        (math.log(9.0), 1, 0.25, 0.0025 * 0.1053605157),
        (math.log(9.0), 0, 0.25, 0.6075 * 2.302585093),
        (12.0, 1, None, -(miss**2) * math.log1p(-miss)),
    ):
        batch = hr.Batch({"y": torch.tensor([target]).to(dtype)})
        loss = hr.Focal(2.0, alpha=alpha).sum(torch.tensor([logit]), batch)
        assert loss.item() == pytest.approx(wanted, rel=1e-5, abs=0)


def test_class_weights_stay_exact_after_outputs_of_low_precision() -> None:
    term, batch = hr.CrossEntropy(class_weights=[0.1, 0.7, 1.3, 0.3, 0.9]), hr.Batch({"y": Y})
    before: Any = term.weight(batch)
    term.sum(X.bfloat16(), batch)
    after: Any = term.weight(batch)
    assert float(after) == pytest.approx(float(before), rel=1e-6)


def test_rows_that_are_ignored_count_nothing_also_where_it_is_found_later() -> None:
    """By a train_step that marks them, or in an array that changes between two passes."""

    class Hides(hr.Trainer):
        def train_step(self, batch: hr.Batch) -> Any:
            batch.fields = {**batch.fields, "y": batch["y"].where(batch["y"] != 2, -1)}
            return super().train_step(batch)

    model = Through()
    still = torch.optim.SGD(model.parameters(), 0.0)
    training = Hides(model, hr.CrossEntropy(ignore_index=-1), still, batch_size=7, device="cpu")
    history = training.fit((X, Y), epochs=1, progress=False)
    assert history.last["train/loss"] == pytest.approx(F.cross_entropy(X, Y, ignore_index=2).item(), rel=1e-12)
    array = Y.numpy().copy()
    table, scoring = hr.ArrayTable({"x": X, "y": array}), trainer(hr.CrossEntropy(ignore_index=-1))
    assert scoring.validate(table, batch_size=7)["val/loss"] == pytest.approx(CE.mean().item())
    array[:10] = -1
    assert scoring.validate(table, batch_size=7)["val/loss"] == pytest.approx(CE[10:].mean().item())
    model = Through()
    assert trainer(hr.CrossEntropy(ignore_index=-1), model).step({"x": X, "y": torch.full((N,), -1)})["total_loss"] == 0
    assert model.scale.item() == 1


@pytest.mark.parametrize(
    ("loss", "train", "val"),
    [(hr.CrossEntropy(), P, Y + 1), (hr.CrossEntropy(), P, normal(N, K + 1).softmax(1)), (hr.MSE(), X, Y)],
)
def test_targets_of_a_validation_that_do_not_fit_are_refused_before_the_first_update(
    loss: Any, train: Tensor, val: Tensor
) -> None:
    made = trainer(loss, model := Through())
    with pytest.raises(hr.DataError):
        made.fit((X, train), (X, val), epochs=1, progress=False)
    assert model.scale.item() == 1
