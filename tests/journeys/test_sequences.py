"""Losses and metrics over sequences are those of a loop over padded batches with a mask."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from kit.sampled import each
from kit.sequence_parts import (
    CASES,
    DATA,
    ITEMS,
    OFFSETS,
    OPEN,
    ROWS,
    TAGS,
    WORDS,
    Tagger,
    by_hand,
    make,
    plain_loss,
    ragged,
    tagger,
    weights,
    without,
)
from kit.small import Parts
from torch import nn

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse

# --- losses ------------------------------------------------------------------------------------------------


FORMS = ["padded", "Ragged", "flat"]


@pytest.mark.parametrize(("case", "form", "data"), each(CASES, FORMS, ["holes", "full"]))
def test_losses_and_updates_are_those_of_a_loop_with_a_mask(case: str, form: str, data: str) -> None:
    tried, rows = CASES[case], DATA if data == "full" else OPEN
    ours, theirs = tried.model(form), tried.model()
    expected = by_hand(theirs, tried, rows, epochs=2)
    trainer = make(ours, tried.loss, tried.target)
    found = [info.losses["total_loss"] for info in trainer.steps(rows, epochs=2)]
    assert found == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=1e-5, atol=1e-6)
    assert not torch.equal(weights(ours), weights(tried.model()))


@pytest.mark.parametrize(("case", "microbatch"), each(CASES, [1, 3, 7, "auto"]))
def test_any_microbatch_gives_the_same_update(case: str, microbatch: int | str) -> None:
    tried, found = CASES[case], []
    for size in (None, microbatch):
        model = tried.model()
        history = make(model, tried.loss, tried.target, microbatch=size).fit(OPEN, epochs=2, progress=False)
        found.append((weights(model), history.last["train/loss"]))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-6, atol=1e-6)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if case != "a sum"])  # its report is a mean over batches
def test_a_validation_is_the_loss_over_all_items_whatever_its_batches_are(case: str) -> None:
    tried = CASES[case]
    model = tried.model()
    with torch.no_grad():
        expected = plain_loss(model, tried, OPEN, slice(0, ROWS)).item()
    trainer = make(model, tried.loss, tried.target)
    found = [trainer.validate(OPEN, batch_size=size)["val/loss"] for size in (5, 16, ROWS)]
    assert found == pytest.approx([expected] * 3, rel=1e-5)


def test_several_terms_compare_with_sequences_and_with_rows() -> None:
    def two(self: Any, tokens: Ragged) -> dict[str, Any]:
        padded = self.inner.padded(tokens.padded())
        mean = (padded * tokens.mask[..., None]).sum(dim=1)
        return {"tags": tokens.with_padded(padded), "kind": self.head(mean)}

    def made() -> nn.Module:
        torch.manual_seed(0)
        return Parts(two, inner=tagger(TAGS), head=nn.Linear(TAGS, 2))

    loss = hr.CrossEntropy(output="tags", target="tags") + 0.5 * hr.CrossEntropy(output="kind", target="kind", name="k")
    rows = {**DATA, "kind": torch.arange(ROWS) % 2}
    found = []
    for microbatch in (None, 5):
        first = make(made(), loss, "tags", microbatch=microbatch).step(hr.ArrayTable(rows).rows(0, 16))
        found.append({name: float(value) for name, value in first.items()})
        with torch.no_grad():
            out = made()(rows["tokens"][:16])
            tags = F.cross_entropy(out["tags"].values, rows["tags"][:16].values).item()
            kind = F.cross_entropy(out["kind"], rows["kind"][:16]).item()
    assert found[0] == pytest.approx({"total_loss": tags + 0.5 * kind, "cross_entropy": tags, "k": kind})
    assert found[1] == pytest.approx(found[0])


def test_sparse_targets_are_compared_as_the_dense_ones_that_they_stand_for() -> None:
    class Both(Tagger):
        def forward(self, tokens: Ragged) -> dict[str, Any]:
            padded = self.padded(tokens.padded())
            return {"items": padded, "rows": (padded * tokens.mask[..., None]).sum(dim=1)}

    kinds = Sparse(torch.arange(ROWS) % TAGS, None, torch.arange(ROWS + 1), TAGS)
    tags = Sparse.one_hot(DATA["tags"].values, TAGS)
    sparse = {"tokens": DATA["tokens"], "kinds": kinds, "tags": ragged(tags)}
    dense = {"tokens": DATA["tokens"], "kinds": kinds.to_dense(), "tags": ragged(tags.to_dense())}
    loss = hr.BinaryCrossEntropy(output="rows", target="kinds") + hr.CrossEntropy(output="items", target="tags")
    found = []
    for rows, microbatch in ((dense, None), (sparse, None), (sparse, 5)):
        torch.manual_seed(1)
        model = Both(TAGS)
        history = make(model, loss, "kinds", microbatch=microbatch).fit(rows, rows, epochs=2, progress=False)
        found.append((weights(model), history.last["val/loss"]))
    for trained, score in found[1:]:
        torch.testing.assert_close(trained, found[0][0], rtol=1e-5, atol=1e-6)
        assert score == pytest.approx(found[0][1], rel=1e-5)


# --- metrics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_metrics_are_those_of_scikit_learn_over_the_items(form: str) -> None:
    from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

    model = tagger(TAGS, form)
    trainer = make(model, hr.CrossEntropy(), "tags", metrics=["accuracy", "f1", "confusion", "top-2"])
    history = trainer.fit(OPEN, OPEN, epochs=1, progress=False)
    with torch.no_grad():
        scores = OPEN["tokens"].with_padded(model.padded(OPEN["tokens"].padded())).values
    guess, truth = scores.argmax(dim=1), OPEN["tags"].values
    assert history.last["val/accuracy"] == pytest.approx(accuracy_score(truth, guess))
    assert history.last["val/f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    assert history.last["val/confusion"] == confusion_matrix(truth, guess, labels=range(TAGS)).tolist()
    best = (scores.topk(2).indices == truth[:, None]).any(dim=1)
    assert history.last["val/top-2"] == pytest.approx(best.float().mean().item())
    assert 0 < history.last["train/accuracy"] < 1


# --- forms of outputs --------------------------------------------------------------------------------------


@given(lengths=st.lists(st.integers(0, 3), min_size=1, max_size=6), outputs=st.integers(1, 4))
def test_flat_padded_and_ragged_outputs_mean_the_same_whatever_the_lengths_are(
    lengths: list[int], outputs: int
) -> None:
    """With as many items as rows, and as many outputs as the longest has items, flat outputs look like padded ones."""
    if not sum(lengths):
        return
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    tokens = Ragged(torch.arange(sum(lengths)) % WORDS, offsets)
    targets = {"numbers": Ragged(torch.linspace(-1, 1, sum(lengths) * outputs).view(-1, outputs), offsets)}
    losses: list[tuple[Any, str]] = [(hr.MSE(), "numbers")]
    if outputs > 1:
        targets["tags"] = Ragged(torch.arange(sum(lengths)) % outputs, offsets)
        losses.append((hr.CrossEntropy(), "tags"))
    for loss, target in losses:
        found = []
        for form in FORMS:
            trainer = make(tagger(outputs, form), loss, target)
            found.append(trainer.validate({"tokens": tokens, target: targets[target]})["val/loss"])
        assert found[1:] == pytest.approx([found[0]] * 2, rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (lambda t: torch.ones(len(t), TAGS), r"for \d+ items, or of shape \[16, \d\] and more, got \[16, 3\]"),
        (lambda t: torch.ones(len(t), t.longest + 1, TAGS), r"got \[16, \d, 3\]"),
        (lambda t: torch.ones(t.items + 1, TAGS), r"expected outputs for"),
        (lambda t: torch.ones(t.longest, len(t), TAGS), r"expected outputs for"),
        (lambda t: (first := t[: len(t) - 1]).with_values(torch.ones(first.items, TAGS)), "items"),
    ],
)
def test_outputs_that_fit_no_sequence_are_refused(wrong: Any, expected: str) -> None:
    class Wrong(Tagger):
        def forward(self, tokens: Ragged) -> Any:
            made = wrong(tokens)
            zero = 0 * self.out.weight.sum()
            return made.with_values(made.values + zero) if isinstance(made, Ragged) else made + zero

    with pytest.raises(hr.DataError, match=expected):
        make(Wrong(TAGS), hr.CrossEntropy(), "tags").fit(DATA, epochs=1, progress=False)


# --- what does not fit -------------------------------------------------------------------------------------


def test_streams_that_do_not_fit_are_named_before_the_first_update() -> None:
    offsets, tags = OFFSETS.clone(), DATA["tags"].values.clone()
    offsets[1] -= 1
    tags[int(OFFSETS[30])] = 9
    wrong: list[tuple[Any, str, dict[str, Any], str]] = [
        (hr.CrossEntropy(weight="by_item"), "tags", {"by_item": ragged(torch.ones(ITEMS), offsets)}, "by_item"),
        (hr.CrossEntropy(), "tags", {"tags": ragged(tags)}, r"train data: stream 'tags', row 30\b.*label 9 is out of"),
    ]
    for loss, target, stream, said in wrong:
        model = tagger(TAGS)
        before, trainer = weights(model), make(model, loss, target)
        with pytest.raises(hr.DataError, match=said):
            trainer.fit({**DATA, **stream}, epochs=1, progress=False)
        assert torch.equal(weights(model), before)


# --- empty sequences ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("microbatch", [None, 1])
def test_a_batch_of_nothing_but_empty_sequences_teaches_nothing(form: str, microbatch: int | None) -> None:
    none = without(torch.arange(ROWS) < 16)
    model = tagger(TAGS, form)
    before = weights(model)
    trainer = make(model, hr.CrossEntropy(), "tags", microbatch=microbatch)
    seen = []
    for info in trainer.steps(none, epochs=1):
        seen.append((info.step, info.losses["total_loss"] == 0, torch.equal(weights(model), before)))
    assert seen == [(1, True, True), (2, False, False), (3, False, False), (4, False, False)]
    assert torch.isfinite(weights(model)).all()
