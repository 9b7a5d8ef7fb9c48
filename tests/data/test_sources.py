"""Sources that users write: pulled batch by batch, rewound between epochs, and validated and predicted from."""

from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr

ROWS, BATCH = 50, 16  # batches of 16, 16, 16 and 2
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(dim=1)


class Loader(hr.Source):
    """As a loader would do it: one pass, `None` at its end, a state to go back to."""

    def __init__(self, rows: int = ROWS) -> None:
        self.rows, self.at = rows, 0
        self.given: list[int] = []

    @property
    def streams(self) -> list[hr.Stream]:
        return [hr.Stream("x", (6,)), hr.Stream("y", (), "int64")]

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard(0, 1)) -> hr.Batch | None:
        if self.at >= self.rows:
            return None
        rows = slice(self.at, min(self.rows, self.at + size))
        self.at = rows.stop
        self.given.append(rows.start)
        return hr.Batch({"x": X[rows], "y": Y[rows]})

    def state_dict(self) -> dict[str, Any] | None:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Forgetful(Loader):
    """Has no state, and starts again by itself after `None`."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard(0, 1)) -> hr.Batch | None:
        batch = super().next_batch(size)
        if batch is None:
            self.at = 0
        return batch

    def state_dict(self) -> None:
        return None


class Endless(Loader):
    """Never says `None`: marks the last batch of every pass."""

    marks_ends = True

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard(0, 1)) -> hr.Batch | None:
        batch = super().next_batch(size)
        assert batch is not None
        if self.at >= self.rows:
            self.at, batch.ends_epoch = 0, True
        return batch


class Both(Loader):
    """Marks the last batch of a pass, and says `None` then as well."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard(0, 1)) -> hr.Batch | None:
        batch = super().next_batch(size)
        if batch is not None:
            batch.ends_epoch = self.at >= self.rows
        return batch


class Threaded(Loader):
    """May be read ahead in a thread, many batches at a time."""

    thread_safe = True
    shards = True


class Dead(Loader):
    """Ends once and for all."""

    def state_dict(self) -> None:
        return None


def make(**options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=BATCH, **options)


KINDS = [Loader, Forgetful, Endless, Both, Threaded]


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_trains_for_several_epochs_as_the_same_rows_in_memory_do(kind: type[Loader]) -> None:
    source, ours, arrays = kind(), make(macrobatch=2 * BATCH), make(order="none")
    seen = []
    for info in ours.steps(source, epochs=3):
        seen.append((info.epoch, info.batch, info.ends_epoch))
    history = arrays.fit((X, Y), epochs=3, progress=False)
    assert seen == [(e + (b == 4), b, b == 4) for e in range(3) for b in (1, 2, 3, 4)]
    assert info.history.last == pytest.approx(history.last)
    assert all(map(torch.equal, ours.model.state_dict().values(), arrays.model.state_dict().values()))
    assert source.given[:12] == [0, 16, 32, 48] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_is_scored_whole_every_time(kind: type[Loader]) -> None:
    source, trainer = kind(), make()
    history = trainer.fit((X, Y), val=source, epochs=3, progress=False)
    assert len(history["val/loss"]) == 3
    expected = trainer.validate((X, Y))
    assert history.last["val/loss"] == pytest.approx(expected["val/loss"])
    assert trainer.validate(source) == pytest.approx(expected)
    assert trainer.validate(source) == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_is_predicted_whole_every_time(kind: type[Loader]) -> None:
    source, trainer = kind(), make()
    expected = trainer.predict(X)
    for _ in range(3):
        torch.testing.assert_close(trainer.predict(source), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_limit_in_the_middle_of_an_epoch_ends_the_training(kind: type[Loader]) -> None:
    history = make().fit(kind(), steps=6, progress=False)
    assert (history.last["step"], history.last["epoch"], history.last["samples"]) == (6, 1, 82)


def test_a_source_that_ends_for_good_is_told_so() -> None:
    trainer = make()
    with pytest.raises(hr.DataError, match=r"no rows.*state_dict"):
        trainer.fit(Dead(), epochs=3, progress=False)


@pytest.mark.parametrize("call", ["fit", "validate", "predict"])
def test_a_source_without_rows_is_told_so(call: str) -> None:
    options = {"epochs": 1, "progress": False} if call == "fit" else {}
    with pytest.raises(hr.DataError, match="no rows"):
        getattr(make(), call)(Loader(rows=0), **options)


def test_what_goes_wrong_in_a_source_is_named_and_chained() -> None:
    class Broken(Loader):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard(0, 1)) -> hr.Batch | None:
            if self.at >= 32:
                raise OSError("the disk is gone")
            return super().next_batch(size)

    with pytest.raises(hr.SourceError, match=r"Broken.*x, y.*'at': 32.*OSError: the disk is gone") as caught:
        make().fit(Broken(), epochs=1, progress=False)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_source_that_gives_more_than_it_was_asked_for_is_named() -> None:
    class Greedy(Loader):
        def next_batch(self, size: int, shard: hr.Shard = hr.Shard(0, 1)) -> hr.Batch | None:
            return super().next_batch(size + 1)

    with pytest.raises(hr.SourceError, match=r"Greedy was asked for 16 rows and gave 17"):
        make().fit(Greedy(), epochs=1, progress=False)
