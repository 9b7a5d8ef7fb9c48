"""Models and maps that work in place leave the data as they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.own_data import Pulled
from kit.sums import Elsewhere, X, Y
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr

WIDE = 16  # float32: a row of 64 bytes, so that batches need not be copied for the sake of their addresses


def as_stored(x: Tensor) -> hr.Reader:
    return hr.Reader(hr.ArrayTable({"x": x, "y": torch.zeros(len(x))}), "none")


def cut(x: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(rows, torch.zeros(len(rows))) for rows in x.split(8)]


class Views(TensorDataset):
    def __getitem__(self, row: Any) -> Any:
        return tuple(column[8 * row : 8 * row + 8] for column in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0]) // 8


USES: dict[str, Any] = {
    "predict": lambda trainer, x: trainer.predict(x),
    "validate": lambda trainer, x: trainer.validate((x, torch.zeros(len(x)))),
    "step": lambda trainer, x: trainer.step((x, torch.zeros(len(x)))),
    "val": lambda trainer, x: trainer.fit((x.clone(), torch.zeros(len(x))), val=(x, torch.zeros(len(x))), steps=1),
    "order none": lambda trainer, x: trainer.fit(as_stored(x), epochs=1),
    "epochs of a reader": lambda trainer, x: trainer.fit(hr.head(as_stored(x), 16), epochs=1),
    "joined": lambda trainer, x: trainer.predict(hr.zip({"x": x})),
    "end to end": lambda trainer, x: trainer.predict(hr.concat({"x": x[:8]}, {"x": x[8:]})),
    "a part": lambda trainer, x: trainer.predict(hr.head({"x": x}, 24)),
    "a source": lambda trainer, x: trainer.fit(Pulled({"x": x, "y": torch.zeros(len(x))}), epochs=1),
    "batches in memory": lambda trainer, x: trainer.fit(cut(x), epochs=1),
    "a loader of batches": lambda trainer, x: trainer.fit(
        DataLoader(Views(x, torch.zeros(len(x))), batch_size=None), epochs=1
    ),
    "a reader": lambda trainer, x: trainer.model(as_stored(x).next_batch(8)["x"]),
}


def in_place(use: str) -> hr.Trainer:
    """A model that writes into what it is given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDE, 1), nn.Flatten(0))
    size = None if use in ("batches in memory", "a loader of batches") else 8
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.01), batch_size=size)


@pytest.mark.parametrize("use", USES)
def test_a_model_that_works_in_place_leaves_the_data_as_they_are(use: str) -> None:
    x = torch.randn(32, WIDE)
    before = x.clone()
    with torch.set_grad_enabled(use != "a reader"):
        USES[use](in_place(use), x)
    assert torch.equal(x, before)


def test_a_model_that_works_in_place_leaves_memory_that_cannot_be_written_as_it_is(tmp_path: Path) -> None:
    """A file that is mapped for reading, and the bytes of a constant."""
    x = np.random.default_rng(0).standard_normal((32, WIDE)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped, constant = np.load(tmp_path / "x.npy", mmap_mode="r"), np.frombuffer(x.tobytes(), np.float32)
    expected = in_place("predict").predict(x.copy())
    for data in (mapped, constant.reshape(x.shape), tmp_path / "x.npy"):
        assert torch.equal(in_place("predict").predict(data), expected)
    assert np.array_equal(mapped, x)
    assert np.array_equal(constant, x.reshape(-1))


def test_a_table_may_say_that_its_rows_are_copies() -> None:
    """Nothing is copied twice; without a word, a table with `rows` of its own is taken to give views."""

    class Views(Elsewhere):
        def rows(self, start: int, stop: int) -> hr.Batch:
            return hr.Batch({"x": X[start:stop], "y": Y[start:stop]})

    class Copies(Views):
        aliases = False

    given = [next(iter(hr.Feed(hr.Reader(kind(), "none"), batch_size=40)))["x"] for kind in (Views, Copies)]
    assert [rows.data_ptr() == X.data_ptr() for rows in given] == [False, True]
    assert not Elsewhere().aliases


@pytest.mark.parametrize("drawn", [False, True])
def test_a_map_that_works_in_place_leaves_the_data_as_they_are(drawn: bool) -> None:
    x = torch.zeros(200, 2)

    def plain(fields: Any) -> Any:
        return {"x": fields["x"].sub_(1)}

    def with_draws(fields: Any, draws: hr.Draws) -> Any:
        return {"x": fields["x"].sub_(1)}

    table, augment = (hr.ArrayTable({"x": x}), with_draws) if drawn else (hr.map({"x": x}, plain), None)
    for order in ("none", "full"):
        for batch in hr.Feed(hr.Reader(table, order, augment=augment), batch_size=16):
            assert (batch["x"] == -1).all()
    assert not x.any()


class OneBuffer:
    """A loader whose batches all have the same memory; it has no length, so that a batch is read ahead."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = torch.empty(5, 6), torch.empty(5, 1)
        generator = torch.Generator().manual_seed(1)
        for _ in range(4):
            yield x.normal_(generator=generator), y.normal_(generator=generator)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loader_may_write_its_next_batch_into_the_memory_of_the_last(accumulate: int) -> None:
    copies = [(x.clone(), y.clone()) for x, y in OneBuffer()]
    models = []
    for loader in (copies, OneBuffer()):
        torch.manual_seed(0)
        models.append(nn.Linear(6, 1))
        trainer = hr.Trainer(models[-1], hr.MSE(), torch.optim.SGD(models[-1].parameters(), lr=0.1))
        trainer.fit(hr.LoaderSource(loader, accumulate=accumulate), epochs=2, progress=False)
    assert torch.equal(models[0].weight, models[1].weight)
