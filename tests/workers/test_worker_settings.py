"""What workers cannot do together is refused in a sentence that says what to do; what they can, is as with one."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.sampled import sampled
from kit.worker_cases import BATCH, EXACT, Found, Options, apart, columns, make, sgd
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr
from headrace.workers.here import here

# --- workers that are not alike ---------------------------------------------------------------------------


def differ(what: str, strategy: hr.Strategy | None = None) -> None:
    """Worker 1 of 3 does something else than the others."""
    odd = here().shard.index == 1
    settings: Options = {"strategy": strategy}
    data: Any = columns()
    if odd and what == "rate":
        settings["optimizer"] = lambda model: sgd(model, rate=0.1)
    elif odd and what == "batch":
        settings["batch_size"] = BATCH + 1
    elif odd and what == "clip":
        settings["clip_norm"] = 1.0
    elif odd and what == "rows":
        data = columns(20)
    trainer = make("plain", **settings)
    if odd and what == "model":
        wider = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
        trainer = hr.Trainer(wider, hr.CrossEntropy(), sgd(wider), batch_size=BATCH, seed=5, inputs="x")
    if odd and what == "dtype":
        trainer.model.float()
    if odd and what == "loss":
        trainer = make("class weights", **settings)
    if odd and what == "seed":
        trainer.seed = 6
    if odd and what == "weights":
        with torch.no_grad():
            trainer.model[0].weight.zero_()  # type: ignore[index, union-attr]
    trainer.fit(data, steps=2, progress=False)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("model", r"model\.0\.weight: 'float64\[6, 5\]' for worker 0, 'float64\[7, 5\]' for worker 1"),
        ("dtype", r"0\.weight.*float(64|32)"),
        ("rate", "optimizer.*lr"),
        ("batch", "batch_size.*12.*13"),
        ("clip", "clip_norm"),
        ("loss", "loss"),
        ("rows", "rows.*43.*20"),
        ("seed", "seed"),
    ],
)
def test_a_worker_that_is_to_do_something_else_is_named_with_the_difference(what: str, said: str) -> None:
    with pytest.raises(hr.ConfigError, match=r"worker 1 is to do something else than worker 0") as refused:
        hr.launch(differ, what, workers=3)
    assert re.search(said, str(refused.value)), str(refused.value)
    assert "Give every worker the same model, data and settings." in str(refused.value)


@pytest.mark.parametrize("what", ["rate", "batch", "clip", "loss", "seed"])
def test_so_is_one_that_meets_the_others_at_a_center(what: str) -> None:
    with pytest.raises(hr.ConfigError, match=r"worker 1 is to do something else than worker 0") as refused:
        hr.launch(differ, what, hr.Elastic("1 step"), workers=3)
    assert "Give every worker the same model, data and settings." in str(refused.value)


def test_workers_that_are_alike_are_not_refused_and_weights_may_differ() -> None:
    hr.launch(differ, "nothing", workers=3)
    hr.launch(differ, "weights", workers=3)
    hr.launch(differ, "nothing", hr.Elastic("1 step"), workers=3)


@pytest.mark.parametrize("strategy", [None, hr.Periodic("2 steps"), hr.Elastic("2 steps")])
def test_a_model_that_exchanges_gradients_by_itself_is_refused(strategy: Any, tmp_path: Path) -> None:
    def main(given: Any) -> None:
        model = nn.parallel.DistributedDataParallel(nn.Linear(5, 3))
        trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1), strategy=given)
        trainer.fit((torch.zeros(8, 5), torch.zeros(8, dtype=torch.int64)), epochs=1, progress=False)

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        main(None)
        with pytest.raises(hr.ConfigError, match=r"wrapped in DistributedDataParallel.* model\.module"):
            hr.launch(main, strategy, workers=2)
    finally:
        torch.distributed.destroy_process_group()


def test_a_model_that_is_sharded_already_is_refused(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        model = nn.Linear(5, 3)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1))
        with pytest.raises(hr.ModelError, match=r"parameter 'weight' is a DTensor.*strategy=hr\.Sharded"):
            trainer.fit((torch.zeros(8, 5), torch.zeros(8, dtype=torch.int64)), epochs=1, progress=False)
    finally:
        torch.distributed.destroy_process_group()


# --- data of one's own ------------------------------------------------------------------------------------


class Numbers(hr.Source):
    """Every worker has rows of its own, some of them more than others; one worker alone reads those of all."""

    def __init__(self, *rows: int, shards: bool = True, elastic: bool = False) -> None:
        self.shards, self.elastic = shards, elastic
        self._fields, self._rows, self._batch = columns(sum(rows)), rows, 0

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return (hr.Stream("x", (5,), "float64"), hr.Stream("y", (), "int64"))

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        each, lanes = size // len(self._rows), torch.arange(sum(self._rows)).split(self._rows)
        parts = [lane[self._batch * each :][:each] for lane in lanes]
        mine = torch.cat(parts if shard.count == 1 else [parts[shard.index]])
        if not len(mine):
            return None
        self._batch += 1
        fields = {name: self._fields[name][mine] for name in ("x", "y")}
        return hr.Batch(fields, len(mine), total=sum(map(len, parts)))

    def state_dict(self) -> dict[str, Any]:
        return {"batch": self._batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batch = state["batch"]


class InOrder(hr.Source):
    """Rows in order, shared by any number of workers."""

    def __init__(self, rows: int = 43, *, shards: bool = True, elastic: bool = False) -> None:
        self.shards, self.elastic = shards, elastic
        self._fields, self._rows, self._at = columns(rows), rows, 0

    @property
    def streams(self) -> Sequence[hr.Stream]:
        return (hr.Stream("x", (5,), "float64"), hr.Stream("y", (), "int64"))

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        total = min(size, self._rows - self._at)
        if not total:
            return None
        mine = slice(*(self._at + k for k in shard.of(total)))
        self._at += total
        fields = {name: self._fields[name][mine] for name in ("x", "y")}
        return hr.Batch(fields, len(fields["y"]), total=total)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at = state["at"]


def feed(source: hr.Source, fit: Options, strategy: hr.Strategy | None = None, batch: int = BATCH) -> Found:
    """Trains on a source of one's own."""
    trainer = make("plain", strategy, batch_size=batch, macrobatch=24)
    history = trainer.fit(source, **{"epochs": 2, "progress": False, **fit})
    return {"weights": trainer.model.state_dict(), "steps": history.rows[-1]["step"]}


def test_a_source_that_shards_is_shared_as_a_table_is() -> None:
    one = hr.launch(feed, InOrder(), {})
    for workers in (2, 8):
        several = hr.launch(feed, InOrder(), {}, workers=workers)
        assert apart(one, several) < EXACT
        assert several["steps"] == one["steps"] == 8


@pytest.mark.parametrize("rows", [(29, 14), (14, 29), (24, 6), (12, 11)])
def test_a_source_that_ends_earlier_on_one_worker_is_read_to_its_end_by_the_others(rows: tuple[int, int]) -> None:
    one = hr.launch(feed, Numbers(*rows), {})
    several = hr.launch(feed, Numbers(*rows), {}, workers=2)
    assert one["steps"] == several["steps"] == 2 * -(-max(rows) // (BATCH // 2))
    assert apart(one, several) < EXACT


def test_rounds_wait_for_the_worker_that_has_most_rows() -> None:
    found = hr.launch(feed, Numbers(29, 14), {}, hr.Periodic("3 steps"), BATCH // 2, workers=2)
    assert found["steps"] == 10
    assert all(bool(torch.isfinite(value).all()) for value in found["weights"].values())


@pytest.mark.parametrize("step", [3, 4])
def test_a_source_that_ends_earlier_on_one_worker_goes_on_to_the_bit(step: int, tmp_path: Path) -> None:
    at = {"run": str(tmp_path / "run")}
    hr.launch(feed, Numbers(29, 14), at | {"steps": step}, workers=2)
    resumed = hr.launch(feed, Numbers(29, 14), at | {"steps": 10}, workers=2)
    assert apart(hr.launch(feed, Numbers(29, 14), {}, workers=2), resumed) == 0.0


def test_a_source_that_other_workers_cannot_share_says_how_many_can(tmp_path: Path) -> None:
    at = {"run": str(tmp_path / "run")}
    hr.launch(feed, InOrder(), at | {"steps": 3}, workers=2)
    with pytest.raises(hr.CheckpointError, match=r"saved by 2 workers .* with 3, .* `elastic` is False. Use 2 workers"):
        hr.launch(feed, InOrder(), at | {"steps": 8}, workers=3)
    resumed = hr.launch(feed, InOrder(), at | {"steps": 8}, workers=2)
    assert apart(hr.launch(feed, InOrder(), {}, workers=2), resumed) == 0.0


def test_an_elastic_source_goes_on_with_other_workers(tmp_path: Path) -> None:
    at = {"run": str(tmp_path / "run")}
    hr.launch(feed, InOrder(elastic=True), at | {"steps": 3}, workers=2)
    resumed = hr.launch(feed, InOrder(elastic=True), at | {"steps": 8}, workers=3)
    assert apart(hr.launch(feed, InOrder(elastic=True), {}), resumed) < EXACT


def test_a_source_that_does_not_shard_is_read_by_all_and_each_keeps_its_part() -> None:
    with pytest.warns(UserWarning, match="InOrder does not shard: each of the 3 workers reads all of it"):
        several = hr.launch(feed, InOrder(shards=False), {}, workers=3)
    assert apart(hr.launch(feed, InOrder(shards=False), {}), several) < EXACT


class Untold(InOrder):
    """Does not say how large the whole batch is."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size, shard)
        return batch if batch is None else hr.Batch(batch.fields, batch.rows)


class Less(InOrder):
    """Says that the whole batch is smaller than a part of it."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        batch = super().next_batch(size, shard)
        return batch if batch is None else hr.Batch(batch.fields, batch.rows, total=batch.rows - 1)


def test_a_source_that_shards_says_how_large_the_whole_batch_is() -> None:
    """Without that, each part would count as a whole, and the mean over workers be taken twice."""
    assert hr.launch(feed, Untold(), {})["steps"] == 8  # one worker has all of it
    for workers in (2, 3):
        with pytest.raises(hr.SourceError, match=rf"Untold declares shards = True, .* of {workers} .* without total="):
            hr.launch(feed, Untold(), {}, workers=workers)
    with pytest.raises(hr.SourceError, match=r"Less declares shards = True, .* rows and total="):
        hr.launch(feed, Less(), {}, workers=2)
    with pytest.raises(hr.SourceError, match=r"without total="):
        hr.launch(feed, hr.head(Untold(), 20), {}, workers=2)


def load(
    seeded: bool | None, shuffled: bool, strategy: hr.Strategy | None, batch: int, rows: int | None = None
) -> Found:
    """Trains on a DataLoader, whose generator is seeded alike, otherwise (`None`), or not at all."""
    fields = columns()
    data = TensorDataset(fields["x"], fields["y"])
    seed = here().shard.index if seeded is None else 7
    generator = None if seeded is False else torch.Generator().manual_seed(seed)
    loader = DataLoader(data, batch_size=batch, shuffle=shuffled, generator=generator)
    trainer = make("plain", strategy, inputs=None, batch_size=None)
    torch.manual_seed(here().shard.index)  # as launch has left it
    trainer.fit(loader if rows is None else hr.head(loader, rows), epochs=2, progress=False)
    return {"weights": trainer.model.state_dict()}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not shard")
@pytest.mark.parametrize("shuffled", [True, False])
def test_a_loader_that_all_read_alike_trains_as_with_one_worker(shuffled: bool) -> None:
    one = hr.launch(load, True, shuffled, None, BATCH)
    for workers in (2, 8):
        assert apart(one, hr.launch(load, shuffled, shuffled, None, BATCH, workers=workers)) < EXACT


@pytest.mark.filterwarnings("ignore:.*does not shard")
@pytest.mark.parametrize(
    ("rows", "strategy", "seeded"),
    sampled(
        [
            pytest.param(rows, strategy, seeded, id=f"{rows}-{name}-{seeded}")
            for rows in (None, 32)
            for name, strategy in (("None", None), ("periodic", hr.Periodic("3 steps")))
            for seeded in (False, None)
        ],
        keep=["32-None-False"],
        of=4,
    ),
)
def test_a_loader_that_shuffles_anew_on_every_worker_is_refused(
    rows: int | None, strategy: hr.Strategy | None, seeded: bool | None
) -> None:
    """So are epochs made of it."""
    with pytest.raises(hr.SourceError, match=r"worker 1 has read another batch .* generator=torch.Generator"):
        hr.launch(load, seeded, True, strategy, BATCH, rows, workers=2)


# --- what cannot be added up ------------------------------------------------------------------------------


class Words(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(43, 3, sparse=sparse), nn.Linear(3, 3)

    def forward(self, row: Tensor) -> Tensor:
        found: Tensor = self.out(self.embedding(row))
        return found


def embed(sparse: bool, strategy: hr.Strategy | None) -> Found:
    torch.manual_seed(3)
    model = Words(sparse).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=6, inputs="row", strategy=strategy)
    trainer.fit(columns(), epochs=2, progress=False)
    return {"weights": model.state_dict()}


def test_sparse_gradients_are_refused_where_they_would_have_to_be_added_up() -> None:
    with pytest.raises(hr.ModelError, match=r"'embedding.weight' has sparse gradients.* sparse=False.* Periodic"):
        hr.launch(embed, True, None, workers=2)
    dense = hr.launch(embed, False, hr.Periodic("1 step"), workers=2)
    assert apart(hr.launch(embed, True, hr.Periodic("1 step"), workers=2), dense) < EXACT


# --- updates by hand --------------------------------------------------------------------------------------


def by_hand(strategy: hr.Strategy | None, name: str) -> Found:
    """Updates of batches of which every worker brings its part."""
    trainer, shard, fields = make(name, strategy), here().shard, columns()
    losses = []
    for first in range(0, 43, BATCH):
        stop = min(first + BATCH, 43)
        mine = slice(*(first + k for k in shard.of(stop - first)))
        losses.append(trainer.step({key: value[mine] for key, value in fields.items()})["total_loss"])
    trainer.release()
    return {"weights": trainer.model.state_dict(), "losses": [float(loss) for loss in losses]}


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["plain", "all three", "several terms"], keep=["all three"], of=2))
def test_updates_by_hand_are_made_together(name: str) -> None:
    one = hr.launch(by_hand, None, name)
    for workers in (2, 5, 8):
        several = hr.launch(by_hand, None, name, workers=workers)
        assert apart(one, several) < EXACT
        assert several["losses"] == pytest.approx(one["losses"], abs=EXACT)


@pytest.mark.parametrize("make_it", [hr.Periodic, hr.BlockMomentum, hr.DiLoCo])
def test_a_strategy_of_rounds_makes_no_update_by_hand(make_it: Callable[[], hr.Strategy]) -> None:
    said = rf"step\(\) makes one update, and {make_it.__name__} has rounds .* fit\(\) or steps\(\)"
    with pytest.raises(hr.ConfigError, match=said):
        hr.launch(by_hand, make_it(), "plain", workers=2)


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_workers_in_step_replay_their_passes_with_the_bits_of_torch(engine: str) -> None:
    replayed, note = hr.launch(trained_in_step, "auto", workers=3, engine=engine)
    by_torch, _ = hr.launch(trained_in_step, False, workers=3, engine=engine)
    assert note.startswith("passes are replayed")
    assert all(torch.equal(replayed[name], by_torch[name]) for name in by_torch)


def test_a_model_that_waits_for_other_workers_is_left_to_torch() -> None:
    _, note = hr.launch(trained_in_step, "auto", True, workers=2)
    assert note.startswith("passes are left to torch")


def trained_in_step(tape: Any, waits: bool = False) -> tuple[dict[str, Tensor], str]:
    torch.manual_seed(1)
    model = nn.Sequential(Waits() if waits else nn.Identity(), nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    strategy = hr.Synchronous()
    trainer = hr.Trainer(model, hr.CrossEntropy(), adam, batch_size=12, strategy=strategy, device="cpu", tape=tape)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(48, 5, generator=generator), torch.randint(3, (48,), generator=generator)
    trainer.fit(rows, epochs=4, progress=False)
    return model.state_dict(), trainer.tape_note


class Waits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = x.detach().sum().reshape(1)
        here().all_reduce(total)
        return x + 0 * total
