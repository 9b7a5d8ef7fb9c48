"""Models of sequences and sparse rows: trained, predicted from, sized by items, and resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.own_data import Elsewhere
from kit.sequence_parts import (
    DATA,
    GENERATOR,
    IDS,
    ITEMS,
    LENGTHS,
    OFFSETS,
    OPEN,
    ROWS,
    TAGS,
    WORDS,
    Tagger,
    make,
    ragged,
    tagger,
    weights,
)
from kit.small import Parts, stop_and_resume
from torch import Tensor, nn

import headrace as hr
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse

# --- models ------------------------------------------------------------------------------------------------


def test_a_bag_of_words_is_what_a_dense_layer_makes_of_the_dense_rows() -> None:
    bag = lambda self, words: self.out(self.table(**words.bag()))  # noqa: E731
    dense = lambda self, words: self.out(words @ self.table.weight)  # noqa: E731
    counts = Sparse(IDS, torch.rand(ITEMS, generator=GENERATOR), OFFSETS, WORDS)
    y = torch.arange(ROWS) % 2
    for sparse in (counts, Sparse(IDS, None, OFFSETS, WORDS), OPEN_BAG):
        found = []
        for call, words, microbatch in ((dense, sparse.to_dense(), None), (bag, sparse, None), (bag, sparse, 5)):
            torch.manual_seed(0)
            model = Parts(call, table=nn.EmbeddingBag(WORDS, 5, mode="sum"), out=nn.Linear(5, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
            trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=16, microbatch=microbatch)
            history = trainer.fit({"words": words, "y": y}, epochs=2, progress=False)
            found.append((weights(model), history.last["train/loss"], trainer.predict({"words": words})))
        for each in found[1:]:
            torch.testing.assert_close(each[0], found[0][0], rtol=1e-5, atol=1e-6)
            assert each[1] == pytest.approx(found[0][1], rel=1e-5)
            torch.testing.assert_close(each[2], found[0][2], rtol=1e-5, atol=1e-5)


OPEN_BAG = Sparse(OPEN["tokens"].values, None, OPEN["tokens"].offsets, WORDS)


def test_views_of_a_stream_are_passed_by_name() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.seen = tagger(TAGS), list[tuple[Any, ...]]()

        def forward(self, ids: Tensor, mask: Tensor, *, lengths: Tensor | None = None) -> Tensor:
            self.seen.append((ids.dtype, tuple(ids.shape), mask.dtype, tuple(mask.shape), lengths))
            assert not ids[~mask].any()
            return self.inner.padded(ids)

    plain = tagger(TAGS)
    make(plain, hr.CrossEntropy(), "tags").fit(DATA, epochs=1, progress=False)
    for inputs in (
        ("words.ids.padded", "words.mask"),
        {"ids": "tokens.padded", "mask": "words.mask", "lengths": "tokens.lengths"},
    ):
        model = Masked()
        trainer = make(model, hr.CrossEntropy(), "tags", inputs=inputs)
        trainer.fit(DATA, epochs=1, progress=False)
        dtype, shape, mask_dtype, mask_shape, lengths = model.seen[-1]
        assert (dtype, mask_dtype, shape) == (torch.int64, torch.bool, mask_shape)
        assert lengths is None or lengths.tolist() == LENGTHS[48:].tolist()
        assert torch.equal(weights(model.inner), weights(plain))


@pytest.mark.parametrize(
    ("inputs", "error"),
    [(("words.idz",), "idz"), (("wrds.ids",), "Did you mean 'words'"), (("tokens.ids",), "only sparse ones have ids")],
)
def test_views_that_do_not_exist_are_named(inputs: Any, error: str) -> None:
    with pytest.raises(hr.HeadraceError, match=error):
        make(tagger(TAGS), hr.CrossEntropy(), "tags", inputs=inputs).fit(DATA, epochs=1, progress=False)


def test_the_model_may_take_the_batch_whole() -> None:
    class Whole(Tagger):
        def forward(self, batch: hr.Batch) -> Any:  # type: ignore[override]
            return super().forward(batch["words"].ids)

    plain = tagger(TAGS)
    make(plain, hr.CrossEntropy(), "tags").fit(DATA, epochs=1, progress=False)
    torch.manual_seed(1)
    model = Whole(TAGS)
    make(model, hr.CrossEntropy(), "tags", inputs="batch").fit(DATA, epochs=1, progress=False)
    assert torch.equal(weights(model), weights(plain))


# --- predict -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("macrobatch", [1, 20, "auto"])
def test_sequences_that_are_predicted_keep_their_order(macrobatch: int | str) -> None:
    model = tagger(TAGS, "Ragged")
    trainer = make(model, hr.CrossEntropy(), "tags", macrobatch=macrobatch)
    with torch.no_grad():
        expected = model(OPEN["tokens"])
    for size in (1, 7, 16, 100):
        found = trainer.predict(OPEN, batch_size=size)
        assert isinstance(found, Ragged)
        assert torch.equal(found.host_offsets, OPEN["tokens"].host_offsets)
        torch.testing.assert_close(found.values, expected.values)
        assert not found.values.requires_grad


def test_sequences_within_a_dict_are_predicted_too() -> None:
    class Two(Tagger):
        def forward(self, tokens: Ragged) -> dict[str, Any]:
            return {"tags": super().forward(tokens), "length": tokens.lengths, "n": tokens.lengths.sum()}

    model = Two(TAGS, "Ragged")
    found = make(model, hr.CrossEntropy(output="tags"), "tags").predict(DATA)
    assert torch.equal(found["tags"].host_offsets, OFFSETS)
    assert torch.equal(found["length"], LENGTHS)
    assert found["n"].tolist() == [LENGTHS[k : k + 16].sum().item() for k in range(0, ROWS, 16)]


def test_padded_outputs_are_joined_if_all_are_as_long_and_else_refused_with_what_to_return() -> None:
    trainer = make(tagger(TAGS), hr.CrossEntropy(), "tags")
    with pytest.raises(hr.DataError, match=r"cannot be joined. For sequences, return a Ragged: words.with_values"):
        trainer.predict(DATA, batch_size=2)
    assert trainer.predict(DATA, batch_size=100).shape == (ROWS, 7, TAGS)
    tokens = ragged(torch.arange(8), torch.tensor([0, 2, 4, 6, 8]))
    assert trainer.predict({"tokens": tokens}, batch_size=2).shape == (4, 2, TAGS)


# --- resume ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", ["rows", "words"])
@pytest.mark.parametrize("table", [hr.ArrayTable, Elsewhere])
def test_a_training_on_sequences_is_resumed_bit_for_bit_anywhere(
    table: Callable[[Any], hr.Table], count: str, tmp_path: Path
) -> None:
    def trainer() -> hr.Trainer:
        torch.manual_seed(0)
        model = Dropped(TAGS, "Ragged")
        options = {"microbatch": 7, "macrobatch": 40, "metrics": ["accuracy"], "order": "full"}
        return make(model, hr.CrossEntropy(), "tags", **options)

    def data() -> Any:
        return hr.Reader(table(OPEN), seed=2, count=count)

    stop_and_resume(trainer, [1, 4, 7], tmp_path, data, epochs=2, val=DATA, log_every="3 steps")


class Dropped(Tagger):
    def forward(self, tokens: Ragged) -> Any:
        return super().forward(tokens).with_values(F.dropout(super().forward(tokens).values, 0.2, self.training))
