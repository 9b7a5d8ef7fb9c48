"""Sequences packed into rows of one length, and batches of rows of like length."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import headrace as hr

LENGTH = 16
SIZES = [1 + (7 * k) % 13 for k in range(60)]


def table(sizes: list[int] = SIZES) -> hr.ArrayTable:
    """Document k has the items 100 k, 100 k + 1, and so on."""
    words = hr.Ragged.of([torch.arange(100 * k, 100 * k + size) for k, size in enumerate(sizes)])
    return hr.ArrayTable({"words": words, "tags": words.with_values(words.dense() % 5)})


# --- packing ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, LENGTH), min_size=1, max_size=50), st.randoms())
def test_every_sequence_is_whole_in_one_row_and_its_items_are_numbered(sizes: list[int], random: Any) -> None:
    packed = hr.pack(table(sizes), LENGTH, "words", fill={"tags": -100})
    rows = list(range(len(packed)))
    random.shuffle(rows)
    batch = packed.take(torch.tensor(rows))
    found = []
    for words, tags, places, segments, mask in zip(
        *(batch[name] for name in ("words", "tags", "positions", "segments", "mask")), strict=True
    ):
        assert torch.equal(mask, segments > 0)
        for segment in range(1, int(segments.max()) + 1):
            own = segments == segment
            found.append(words[own].tolist())
            assert places[own].tolist() == list(range(len(found[-1])))
            assert torch.equal(tags[own], words[own] % 5)
        assert (tags[~mask] == -100).all()
        assert places[~mask].tolist() == list(range(int((~mask).sum())))
    assert sorted(found) == [list(range(100 * k, 100 * k + size)) for k, size in enumerate(sizes)]


def test_rows_are_few() -> None:
    packed = hr.pack(table(), LENGTH, "words")
    assert len(packed) <= -(-sum(SIZES) // LENGTH) + 2
    assert len(hr.pack(table([10, 6, 9, 7, 16]), LENGTH, "words")) == 3


class Reads(nn.Module):
    """Attention within the sequences of a row, or across them."""

    def __init__(self, across: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(6000, 8), nn.Embedding(LENGTH, 8)
        self.qkv, self.head, self.across = nn.Linear(8, 24), nn.Linear(8, 5), across

    def forward(self, words: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        x = self.embed(words) + self.place(positions)
        block = (segments[:, :, None] == segments[:, None, :]) | self.across
        q, k, v = self.qkv(x).chunk(3, -1)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=block.tril())
        return self.head(attended).transpose(1, 2)  # type: ignore[no-any-return]


@pytest.mark.parametrize("across", [False, True])
def test_packed_sequences_train_as_they_would_by_themselves_unless_attention_crosses_them(across: bool) -> None:
    packed, alone = hr.pack(table(), LENGTH, "words"), hr.pack(table(), 13, "words")
    rows = packed.take(torch.arange(len(packed)))
    one, other = Reads(across), Reads()
    _backward(one, rows)
    words = table().rows(0, len(SIZES))["words"]
    for k, size in enumerate(SIZES):
        x = words[k][None]
        scores = other(x, torch.arange(size)[None], torch.ones(1, size, dtype=torch.int64))
        (F.cross_entropy(scores, x % 5, reduction="sum") / sum(SIZES)).backward()
    same = [
        torch.allclose(p.grad, q.grad, atol=1e-6)  # type: ignore[arg-type]
        for p, q in zip(one.parameters(), other.parameters(), strict=True)
    ]
    assert all(same) is not across
    assert len(alone) >= len(packed)


def _backward(model: nn.Module, batch: hr.Batch) -> None:
    trainer = hr.Trainer(
        model,
        hr.CrossEntropy(target="tags", weight="mask"),
        torch.optim.SGD(model.parameters(), lr=0.0),
        inputs=["words", "positions", "segments"],
        target="tags",
        arena=False,
    )
    trainer.step(batch)


# --- batches of like length ---------------------------------------------------------------------------------


def many() -> hr.ArrayTable:
    generator = torch.Generator().manual_seed(3)
    sizes = torch.randint(1, 200, (1000,), generator=generator).tolist()
    words = hr.Ragged.of([torch.full((size,), k) for k, size in enumerate(sizes)])
    return hr.ArrayTable({"words": words, "id": torch.arange(1000)})


def batches(reader: hr.Reader, count: int, size: int = 8) -> list[hr.Batch]:
    return [batch for _ in range(count) if (batch := reader.next_batch(size)) is not None]


def test_rows_of_a_batch_have_like_lengths_and_each_epoch_has_every_row_once() -> None:
    def spread(reader: hr.Reader) -> float:
        return sum(float(batch["words"].lengths.float().std()) for batch in batches(reader, 125)) / 125

    reader = hr.Reader(many(), buckets="words", batch_size=8)
    assert spread(reader) < 0.1 * spread(hr.Reader(many()))
    for epoch in (1, 2):
        ids = torch.cat([batch["id"] for batch in batches(reader, 125)])
        assert sorted(ids.tolist()) == list(range(1000)), epoch
    first, second = (
        hr.Reader(many(), buckets="words", batch_size=8),
        hr.Reader(many(), seed=1, buckets="words", batch_size=8),
    )
    assert not torch.equal(batches(first, 1)[0]["id"], batches(second, 1)[0]["id"])


def test_a_reader_in_buckets_goes_on_after_any_batch_and_finds_every_row() -> None:
    def reader() -> hr.Reader:
        return hr.Reader(many(), buckets="words", batch_size=8)

    expected = [batch["id"] for batch in batches(reader(), 260)]
    for at in (1, 63, 64, 65, 124, 125, 126, 200):
        saved, resumed = reader(), reader()
        batches(saved, at)
        resumed.load_state_dict(saved.state_dict())
        assert all(map(torch.equal, [batch["id"] for batch in batches(resumed, 20)], expected[at : at + 20]))
    order = reader().order
    rows = order.indices(1, 0, 1000)
    assert all(order.positions(1, int(row)) == [at] for at, row in enumerate(rows) if at % 37 == 0)
