"""Data on a GPU: sequences and sparse rows move, are cut and joined there, and maps are done there, as on a CPU."""

from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.data.draws import Draws
from headrace.data.fields import cat, take
from headrace.data.ragged import Ragged
from headrace.data.sparse import Sparse
from headrace.testing.makers import ragged_table, sparse_sequences

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LENGTHS = [3, 0, 1, 7, 2, 5, 4, 4]


def fields() -> dict[str, Any]:
    words = ragged_table("words", LENGTHS).columns["words"]
    spread = sparse_sequences(LENGTHS).columns["words"]
    return {"ragged": words, "sparse": spread.values, "sparse sequences": spread}


def host(field: Any) -> list[Any]:
    return [tensor.cpu().tolist() for tensor in field.to("cpu").tensors()]


@pytest.mark.parametrize("kind", ["ragged", "sparse", "sparse sequences"])
def test_fields_are_taken_cut_and_joined_as_on_a_cpu(kind: str) -> None:
    here = fields()[kind]
    there = here.to("cuda")
    rows = torch.tensor([2, 0, 0, len(here) - 1])
    counts = [2, len(here) - 3, 1]
    assert host(take(there, rows)) == host(take(here, rows))
    assert [host(part) for part in there.split(counts)] == [host(part) for part in here.split(counts)]
    assert host(cat(there.split(counts))) == host(here)
    assert host(there[1:4]) == host(here[1:4])


def test_the_forms_of_sequences_are_those_of_a_cpu() -> None:
    here = fields()["ragged"]
    there = here.to("cuda")
    assert torch.equal(there.padded().cpu(), here.padded())
    assert torch.equal(there.mask.cpu(), here.mask)
    assert torch.equal(there.with_padded(there.padded()).values.cpu(), here.values)
    spread = fields()["sparse"]
    assert torch.equal(spread.to("cuda").to_dense().cpu(), spread.to_dense())


def test_draws_are_those_of_a_cpu() -> None:
    here, there = (Draws.at(3, [(0, 5, 90), (1, 0, 20)]).to(torch.device(name)) for name in ("cpu", "cuda"))
    assert torch.equal(here.uniform(4), there.uniform(4).cpu())
    assert torch.equal(here.integers(-3, 50), there.integers(-3, 50).cpu())
    torch.testing.assert_close(here.normal(8), there.normal(8).cpu())


def test_an_augmentation_on_the_device_gives_what_one_on_the_host_does() -> None:
    def noisy(fields: Any, draws: Draws) -> Any:
        return {**fields, "x": fields["x"] + draws.uniform(3)}

    table = hr.ArrayTable({"x": torch.randn(100, 3)}, block=10)  # as a file would be: staged by a thread
    found = []
    for device in ("cpu", "cuda"):
        feed = hr.Feed(hr.Reader(table, augment=noisy), device, batch_size=7, macrobatch=21)
        found.append(torch.cat([batch["x"] for batch in feed]).cpu())
        feed.close()
    torch.testing.assert_close(found[0], found[1])


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(self, words: Ragged) -> Ragged:
        return words.with_values(self.out(self.embed(words.ids.values)))


def test_sequences_train_and_are_predicted() -> None:
    words = sparse_sequences(LENGTHS * 20).columns["words"]
    data = {"words": words, "y": words.ids.with_values(words.values.ids % 3)}
    torch.manual_seed(0)
    model = Tagger()
    trainer = hr.Trainer(
        model, hr.CrossEntropy(), torch.optim.Adam(model.parameters(), 0.05), batch_size=16, metrics="accuracy"
    )
    history = trainer.fit(data, data, epochs=10, progress=False)
    assert history.last["val/accuracy"] > 0.9
    found = trainer.predict({"words": words})
    assert isinstance(found, Ragged)
    assert len(found) == len(words)
    assert found.device.type == "cpu"
    assert isinstance(words.values, Sparse)
