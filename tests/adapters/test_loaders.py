"""Loaders and iterables of others as sources: what they give, and that a training on them can be resumed."""

import gc
import multiprocessing
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import trainees
from kit.foreign import (
    ALL,
    BATCHES,
    LOADERS,
    ROWS,
    SIZE,
    Own,
    Pair,
    Samples,
    Stream,
    TrainState,
    fed,
    pair_of,
    stateful,
    trained,
)
from kit.small import same
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
)

import headrace as hr
from headrace.adapters.iterables import LoaderSource, SampleSource

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it


@pytest.mark.parametrize("name", ALL)
def test_a_loader_gives_what_it_gives_in_a_loop_and_draws_what_it_draws(name: str) -> None:
    """Also for what is drawn in between, by dropout for example; one that reads ahead draws its own earlier."""
    trainees.seed()
    loader, raw = LOADERS[name](), []
    for _ in range(2):
        raw.append([(pair_of(batch), float(torch.rand(()))) for batch in loader])
    trainees.seed()
    feed = hr.Feed(LoaderSource(LOADERS[name]()))
    assert [[(fed(batch), float(torch.rand(()))) for batch in feed] for _ in range(2)] == raw


@pytest.mark.parametrize("name", ALL)
def test_a_training_resumes_after_any_batch(name: str, tmp_path: Path) -> None:
    """In the middle of an epoch, at its end, and again within the second; a chain of stops at that."""
    with torch.random.fork_rng():
        trainees.seed()
        whole = trained(LOADERS[name](), None)
        for stop in (1, 4, 6, 9):
            trainees.seed()
            trained(LOADERS[name](), tmp_path / "run", stop)
        random.seed(99)
        assert trained(LOADERS[name](), tmp_path / "run") == whole
    assert multiprocessing.active_children() == []


def test_a_state_that_is_not_exact_is_not_relied_on() -> None:
    """Of torchdata's: it miscounts what it skips of data without state, and draws a foreign order anew."""
    own = torch.utils.data.BatchSampler(RandomSampler(range(ROWS)), SIZE, False)
    foreign = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(Samples(), batch_sampler=own)
    levels = [LoaderSource(loader).level for loader in (stateful(Stream()), foreign, stateful(TrainState()))]
    assert ["replay" in level for level in levels] == [True, True, False]


def test_a_resume_that_forgets_the_random_numbers_is_another_training(tmp_path: Path) -> None:
    """The control of the one before: where the loader's order comes from is what makes it exact."""
    trainees.seed()
    whole = trained(LOADERS["shuffled"](), None)
    trained(LOADERS["shuffled"](), tmp_path / "run", 4)
    source = LoaderSource(LOADERS["shuffled"]())
    load = source.load_state_dict

    def forgetful(state: dict[str, Any]) -> None:
        if state["given"]:
            state["random"]["torch"] = torch.Generator().manual_seed(3).get_state()
        load(state)

    source.load_state_dict = forgetful  # type: ignore[method-assign]
    assert trained(source, tmp_path / "run") != whole


@pytest.mark.parametrize("name", ["two workers", pytest.param("stateful, two workers", marks=pytest.mark.slow)])
def test_an_epoch_that_is_left_leaves_no_process_and_no_thread(name: str) -> None:
    threads = set(threading.enumerate())
    with hr.Feed(LoaderSource(LOADERS[name]())) as feed:
        for k, _ in enumerate(feed):
            assert len(multiprocessing.active_children()) == 2
            if k == 1:
                break
    assert multiprocessing.active_children() == []
    for thread in set(threading.enumerate()) - threads:  # those of multiprocessing's queues are about to end
        thread.join(400)
        assert not thread.is_alive()


def test_workers_that_are_to_stay_do_and_give_every_epoch() -> None:
    loader: Any = DataLoader(Samples(), SIZE, num_workers=1, persistent_workers=True)
    with hr.Feed(LoaderSource(loader)) as feed:
        pids = []
        for _ in range(2):
            assert [n for batch in feed for n in batch["y"].tolist()] == list(range(ROWS))
            pids.append([process.pid for process in multiprocessing.active_children()])
        next(iter(feed))
    assert pids[0] == pids[1] != []
    assert [n for batch in feed for n in batch["y"].tolist()] == list(range(SIZE, ROWS))
    loader._iterator._shutdown_workers()


def test_workers_that_stay_give_the_order_of_a_resume_wherever_it_begins() -> None:
    """A loader draws one number more where it starts its workers than where they have stayed."""

    def made() -> LoaderSource:
        loader = DataLoader(Samples(), SIZE, shuffle=True, num_workers=1, persistent_workers=True)
        return LoaderSource(loader, streams=[hr.Stream("x", (2,)), hr.Stream("y", dtype="int64")])

    trainees.seed()
    source, given = made(), []
    for _ in range(3 * BATCHES):
        batch = source.pull(1)
        given.append((batch["y"].tolist(), batch.cursor, torch.get_rng_state()))
    for at in (1, BATCHES, BATCHES + 2, 2 * BATCHES):
        fresh, (_, cursor, random) = made(), given[at - 1]
        torch.set_rng_state(random)
        fresh.load_state_dict(cursor)
        assert [fresh.pull(1)["y"].tolist() for _ in given[at:]] == [rows for rows, *_ in given[at:]], at


def test_validation_by_workers_that_stay_draws_what_the_plain_loop_draws_also_after_a_resume(tmp_path: Path) -> None:
    def trained(epochs: int, run: Path | None = None, by_hand: bool = False, by_name: bool = False) -> list[Tensor]:
        trainees.seed()
        data, model = Samples(lambda i: (torch.tensor([i, -i]) / 20, i % 2)), nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train, val = (
            DataLoader(data, SIZE, shuffle=True),
            DataLoader(data, SIZE, num_workers=1, persistent_workers=True),
        )
        if not by_hand:
            made = hr.Trainer(model, hr.CrossEntropy(), optimizer)
            made.fit(train, val={"a": val} if by_name else val, epochs=epochs, run=run, progress=False)
        for _ in range(epochs if by_hand else 0):
            for x, y in train:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            for x, _ in val:
                model(x)
        return [*model.state_dict().values(), torch.get_rng_state()]

    wanted = trained(3, by_hand=True)
    assert same(trained(3), wanted)
    for by_name in (False, True):
        trained(1, tmp_path / f"{by_name}", by_name=by_name)
        assert same(trained(3, tmp_path / f"{by_name}", by_name=by_name), wanted)


def test_a_search_leaves_no_workers_to_a_loader_that_had_none() -> None:
    data = Samples(lambda i: (torch.tensor([i, -i]) / 20, i % 2))
    loader, model = DataLoader(data, SIZE, num_workers=1, persistent_workers=True), nn.Linear(2, 2)
    hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1)).find_lr(loader)
    assert loader._iterator is None


def test_how_exactly_a_loader_resumes_is_said_where_workers_draw() -> None:
    """A resume gives other numbers there, as nobody can save where those of a worker stand."""
    said = [
        ("by replay: ", "are dropped", DataLoader(Samples(), SIZE)),
        ("by replay: ", "are dropped", DataLoader(Samples(), SIZE, num_workers=2)),
        (
            "by replay: ",
            "; not so what workers that stay for the next epoch (persistent_workers) draw at random for samples",
            DataLoader(Samples(), SIZE, num_workers=2, persistent_workers=True),
        ),
        ("exactly, ", "'s own state", stateful(Samples())),
        ("exactly, ", "; not so what its workers draw at random for samples", stateful(Samples(), num_workers=2)),
    ]
    for begins, ends, loader in said:
        level = hr.LoaderSource(loader).level
        assert level.startswith(begins)
        assert level.endswith(ends)


def test_a_loader_that_is_not_needed_any_more_is_gone_at_once() -> None:
    """Found by the garbage collector later, one with workers that stay would hold up the process for seconds."""

    def used(how: str) -> list[weakref.ref[Any]]:
        loader, other = (DataLoader(sentences([4, 4, 4, 4]), 2) for _ in range(2))
        trainer = reading()
        if how == "left":
            for _ in trainer.steps(loader, epochs=1):
                break
        elif how == "failed":
            trainer.model.out.register_forward_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                trainer.fit(loader, epochs=1, progress=False)
        elif how == "fed":
            next(iter(hr.Feed(hr.LoaderSource(loader))))
        else:
            data = hr.head(loader, 2) if how == "epochs" else loader
            trainer.fit(data, val=other if how == "val" else None, epochs=1, progress=False)
        return [weakref.ref(loader), weakref.ref(other)]

    ways = ("fit", "val", "epochs", "left", "failed", "fed")
    for how in ways:
        used(how)  # what torch imports at its first step holds the frames of that step
    gc.collect()
    gc.disable()
    try:
        assert [how for how in ways if [held() for held in used(how)] != [None, None]] == []
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("batch", "fields"),
    [
        (torch.zeros(3, 2), {"x": [3, 2]}),
        ((torch.zeros(3, 2),), {"x": [3, 2]}),
        ([torch.zeros(3, 2), np.zeros(3)], {"x": [3, 2], "y": [3]}),
        ({"a": torch.zeros(3), "b": [1, 2, 3]}, {"a": [3], "b": [3]}),
        (Pair(torch.zeros(3), torch.zeros(3)), {"left": [3], "right": [3]}),
        (hr.Batch({"z": torch.zeros(3)}), {"z": [3]}),
    ],
    ids=["tensor", "one", "two", "dict", "named tuple", "Batch"],
)
def test_batches_of_every_kind_are_read(batch: Any, fields: dict[str, list[int]]) -> None:
    [found] = list(hr.Feed(LoaderSource([batch])))
    assert {name: list(field.shape) for name, field in found.fields.items()} == fields
    assert found.ends_epoch


def padded(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([row["ids"] for row in batch], batch_first=True)
    return {"ids": ids, "y": torch.tensor([row["y"] for row in batch])}


def sentences(lengths: Iterable[int]) -> Any:
    return [{"ids": torch.arange(1, length + 1), "y": k % 2} for k, length in enumerate(lengths)]


class Bag(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(99, 4), torch.nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(self.embed(ids).mean(1))
        return found


def reading() -> hr.Trainer:
    model = Bag()
    return hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1))


BY_LENGTH: dict[str, Any] = {"batch_sampler": [[0, 1], [2, 3]]}  # rows of one length are put together
PADDED: dict[str, tuple[Any, ...]] = {
    "collated": tuple(DataLoader(sentences(rows), 2, collate_fn=padded) for rows in ([3, 5, 9, 2], [7, 7])),
    "one by one": tuple(DataLoader(sentences(rows), 1) for rows in ([3, 5, 9, 2], [7, 7])),
    "by length": tuple(DataLoader(sentences(rows), **BY_LENGTH) for rows in ([3, 3, 5, 5], [7, 7, 2, 2])),
    "in memory": tuple([padded(sentences(rows)) for rows in lengths] for lengths in ([[3, 5], [9, 2]], [[7, 7]])),
}


@pytest.mark.parametrize("kind", PADDED)
def test_data_whose_batches_are_padded_apart_are_trained_on_and_scored(kind: str) -> None:
    train, val = PADDED[kind]
    history = reading().fit(train, val=val, test=val, epochs=2, progress=False)
    assert len(history["val/loss"]) == 2
    assert str(hr.LoaderSource(train).streams[0]) == "ids: int64[?]"


def test_a_loader_that_stacks_rows_declares_their_shape() -> None:
    """So that data for which the model is not made are refused before the first update."""
    wide, narrow = (DataLoader[Any]([(torch.zeros(width), 0.0) for _ in range(4)], 2) for width in (5, 4))  # type: ignore[arg-type]
    assert str(hr.LoaderSource(wide).streams[0]) == "x: float32[5]"
    trainer = reading()
    with pytest.raises(
        hr.DataError, match=r"the val data have x: float32\[4\] where the training data have x: float32\[5"
    ):
        trainer.fit(wide, val=narrow, epochs=1, progress=False)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "list gives no batches in epoch 0"),
        ([(torch.zeros(2), torch.zeros(2), torch.zeros(2))], "list gives 3 parts.*names="),
        ([torch.tensor(1.0)], "'x' is a single number, not rows.*batch_size"),
        ([{"x": torch.zeros(2), "name": [None, "b"]}], "'name' is a list of NoneType"),
        ([(torch.zeros(2), torch.zeros(3))], "'x' has 2, 'y' has 3 rows"),
        (
            [{"x": torch.zeros(2)}, {"y": torch.zeros(2)}],
            r"list \(x\) declares stream 'x', which is missing in a batch with \['y'\]",
        ),
        ([torch.zeros(2), torch.zeros(2).long()], r"list \(x\): expected stream x: float32\[\], got x: int64\[\]"),
        ([torch.zeros(2), torch.zeros(0)], r"list \(x\) gave a batch without rows"),
        (DataLoader(Samples(), 30, drop_last=True), "22 rows do not fill a batch of 30"),
    ],
)
def test_batches_that_cannot_be_read_are_explained(batches: Any, message: str) -> None:
    with pytest.raises(hr.DataError, match=message):
        list(hr.Feed(LoaderSource(batches)))


def test_what_can_be_read_once_has_one_epoch() -> None:
    data = (torch.arange(k, k + 2) for k in (0, 2, 4))
    feed = hr.Feed(LoaderSource(data))
    assert [batch["x"].tolist() for batch in feed] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(hr.SourceError, match=r"is an iterator, which can be read once, and has been.*Pass a list"):
        next(iter(feed))


def test_what_can_be_read_once_goes_on_but_not_back() -> None:
    def numbers() -> Iterator[Tensor]:
        yield from torch.arange(10).split(2)

    source = LoaderSource(numbers())
    cursors = [batch.cursor for batch in islice(hr.Feed(source), 3)]
    fresh = LoaderSource(numbers())
    assert len(fresh.streams) == 1
    fresh.load_state_dict(cursors[1])
    assert fresh.next_batch(1)["x"].tolist() == [4, 5]
    with pytest.raises(hr.SourceError, match="an iterator, which cannot go back"):
        fresh.load_state_dict(cursors[0])


def test_a_loader_that_was_made_otherwise_cannot_go_on() -> None:
    def cursor(loader: Any) -> Any:
        return LoaderSource(loader).pull(1).cursor

    other = LoaderSource(DataLoader(Samples(), 8, shuffle=True))
    with pytest.raises(hr.SourceError, match=r"batch_size: saved 4, now 8"):
        other.load_state_dict(cursor(LOADERS["shuffled"]()))
    with pytest.raises(hr.SourceError, match=r"num_workers: saved 0, now 2"):
        LoaderSource(stateful(Samples(), num_workers=2)).load_state_dict(cursor(stateful(Samples())))
    with pytest.raises(hr.SourceError, match=r"exact: saved False, now True"):
        LoaderSource(stateful(Samples())).load_state_dict(cursor(LOADERS["shuffled"]()))
    with pytest.raises(hr.SourceError, match="not a state of DataLoader of Samples"):
        LoaderSource(LOADERS["shuffled"]()).load_state_dict({"epoch": 0})


def test_data_that_have_become_shorter_cannot_go_on() -> None:
    shorter: list[Any] = [Own(), list(Own())[:2]]
    source = LoaderSource(shorter[0])
    cursor = [source.pull(1) for _ in range(4)][-1].cursor
    source._data = shorter[1]
    source.load_state_dict({**cursor, "made": source.state_dict()["made"]})
    with pytest.raises(hr.SourceError, match="ended after 2 batches of epoch 0, of which 4 had been used"):
        source.next_batch(1)


def test_a_sampler_that_lies_about_its_length_is_noticed() -> None:
    class Short(RandomSampler):
        def __iter__(self) -> Iterator[int]:
            yield from range(8)

    source = LoaderSource(DataLoader(Samples(), SIZE, sampler=Short(range(ROWS))))
    with pytest.raises(hr.SourceError, match="says that it has 6 batches, and ended after 2"):
        list(hr.Feed(source))


def test_state_that_cannot_be_saved_is_refused_when_it_is_taken() -> None:
    class Odd(TrainState):
        def state_dict(self) -> dict[str, Any]:
            return {"deep": {"file": b"bytes"}}

    with pytest.raises(hr.CheckpointError, match=r"state of Odd/deep/file' holds a bytes"):
        SampleSource(Odd()).next_batch(4)


def test_a_sampler_hears_the_epoch() -> None:
    epochs = []

    class Sampler(RandomSampler):
        def set_epoch(self, epoch: int) -> None:
            epochs.append(epoch)

    declared = [hr.Stream("x", (2,)), hr.Stream("y", dtype="int64")]
    feed = hr.Feed(LoaderSource(DataLoader(Samples(), SIZE, sampler=Sampler(range(ROWS))), streams=declared))
    assert [len(list(feed)) for _ in range(3)] == [BATCHES] * 3
    assert epochs == [0, 1, 2]


def test_a_sampler_that_shares_out_rows_is_refused() -> None:
    sampler: Any = torch.utils.data.DistributedSampler(Samples(), num_replicas=2, rank=0)
    with pytest.raises(hr.ConfigError, match="DistributedSampler gives each worker a share"):
        LoaderSource(DataLoader(Samples(), SIZE, sampler=sampler))


# --- samples as sources -----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Stream, TrainState])
def test_samples_are_collated_in_the_size_that_is_asked(make: Callable[[], Any], tmp_path: Path) -> None:
    source = SampleSource(make())
    assert [batch["y"].tolist() for batch in hr.Feed(source, batch_size=10)] == [
        list(range(10)),
        list(range(10, 20)),
        [20, 21],
    ]
    assert source.next_batch(3)["y"].tolist() == [0, 1, 2]
    whole = trained(make(), None)
    trained(make(), tmp_path / "run", 1)
    assert trained(make(), tmp_path / "run") == whole


def test_samples_with_a_state_are_not_replayed() -> None:
    source, fresh = SampleSource(TrainState()), TrainState()
    cursors = [batch.cursor for batch in hr.Feed(source, batch_size=5)]
    going_on = SampleSource(fresh)
    going_on.load_state_dict(cursors[1])
    assert going_on.next_batch(4)["y"].tolist() == [10, 11, 12, 13]
    assert fresh.at == 15  # one more is known, to tell the end
    assert fresh.loads == 1
    assert "own state" in going_on.level
    assert "replay" in SampleSource(Stream()).level


def test_a_dataset_may_use_gradients_and_its_batches_have_none() -> None:
    weight = torch.ones(2, requires_grad=True)

    def give(i: int) -> Any:
        x: Any = torch.full((2,), float(i), requires_grad=True)
        (x**2).sum().backward()
        return x.grad * weight, i

    for batch in hr.Feed(LoaderSource(DataLoader(Samples(give), SIZE))):
        assert not batch["x"].requires_grad
        assert batch["x"].tolist() == [[2 * i] * 2 for i in batch["y"].tolist()]
