"""What workers cannot do together is refused in a sentence that says what to do; what they can, is as with one."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.torch_workers import with_forks
from kit.worker_trainings import BATCH, EXACT, FEATURES, Found, Options, apart, columns, make, sgd
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr
from headrace.workers.here import here

# --- workers that are not alike ---------------------------------------------------------------------------

ODD: dict[str, tuple[Options, str]] = {
    "rate": ({"optimizer": lambda model: sgd(model, rate=0.1)}, "optimizer.*lr"),
    "batch": ({"batch_size": BATCH + 1}, "batch_size.*12.*13"),
    "clip": ({"clip_norm": 1.0}, "clip_norm"),
    "dtype": ({"dtype": torch.float32}, r"0\.weight.*float(64|32)"),
    "loss": ({}, "loss"),
    "rows": ({}, "rows.*43.*20"),
    "seed": ({}, "seed"),
    "model": ({}, r"model\.0\.weight: 'float64\[6, 20\]' for worker 0, 'float64\[7, 20\]' for worker 1"),
    "weights": ({}, ""),  # which become those of worker 0
    "nothing": ({}, ""),
}


def differ(what: str, strategy: hr.Strategy | None = None) -> None:
    """Worker 1 of 3 does something else than the others."""
    odd = what if here().shard.index == 1 else ""
    settings = dict(ODD[what][0]) if odd else {}
    trainer = make("class weights" if odd == "loss" else "plain", strategy, **settings)
    if odd == "model":
        wider = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, 3)).double()
        trainer = hr.Trainer(wider, hr.CrossEntropy(), sgd(wider), batch_size=BATCH, seed=5, inputs="x")
    if odd == "seed":
        trainer.seed = 6
    if odd == "weights":
        with torch.no_grad():
            trainer.model[0].weight.zero_()
    trainer.fit(columns(20 if odd == "rows" else 43), steps=2, progress=False)


@pytest.mark.parametrize(("what", "strategy"), [*((what, None) for what in ODD), ("rate", hr.Elastic("1 step"))])
def test_a_worker_that_is_to_do_something_else_is_named_with_the_difference(
    what: str, strategy: hr.Strategy | None
) -> None:
    if not ODD[what][1]:
        hr.launch(differ, what, strategy, workers=3)
        return
    with pytest.raises(hr.ConfigError, match=r"worker 1 is to do something else than worker 0") as refused:
        hr.launch(differ, what, strategy, workers=3)
    assert re.search(ODD[what][1], str(refused.value)), str(refused.value)
    assert "Give every worker the same model, data and settings." in str(refused.value)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def fit_zeros(model: nn.Module, strategy: hr.Strategy | None = None) -> None:
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1), strategy=strategy)
    trainer.fit((torch.zeros(8, 5), torch.zeros(8, dtype=torch.int64)), epochs=1, progress=False)


@pytest.mark.usefixtures("group")
def test_models_that_exchange_gradients_by_themselves_or_are_sharded_already_are_refused() -> None:
    def main(given: Any) -> None:
        fit_zeros(nn.parallel.DistributedDataParallel(nn.Linear(5, 3)), given)

    main(None)
    for strategy in (None, hr.Periodic("2 steps"), hr.Elastic("2 steps")):
        with pytest.raises(hr.ConfigError, match=r"wrapped in DistributedDataParallel.* model\.module"):
            hr.launch(main, strategy, workers=2)
    fully_shard(model := nn.Linear(5, 3), mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(hr.ModelError, match=r"parameter 'weight' is a DTensor.*strategy=hr\.Sharded"):
        fit_zeros(model)


# --- data of one's own ------------------------------------------------------------------------------------


class InOrder(hr.Source):
    """Rows in order, shared by any number of workers."""

    streams = (hr.Stream("x", (FEATURES,), "float64"), hr.Stream("y", (), "int64"))

    def __init__(self, *rows: int, shards: bool = True, elastic: bool = False) -> None:
        self.shards, self.elastic = shards, elastic
        self._rows, self._at = rows or (43,), 0
        self._fields = columns(sum(self._rows))

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        total = min(size, self._rows[0] - self._at)
        if not total:
            return None
        start, stop = (self._at + k for k in shard.of(total))
        self._at += total
        return self.batch(torch.arange(start, stop), total)

    def batch(self, rows: Tensor, total: int | None) -> hr.Batch:
        return hr.Batch({name: self._fields[name][rows] for name in ("x", "y")}, len(rows), total=total)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at = state["at"]


class Lanes(InOrder):
    """Every worker has rows of its own, some of them more than others; one worker alone reads those of all."""

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        each, lanes = size // len(self._rows), torch.arange(sum(self._rows)).split(self._rows)
        parts = [lane[self._at * each :][:each] for lane in lanes]
        mine = torch.cat(parts if shard.count == 1 else [parts[shard.index]])
        self._at += 1
        return self.batch(mine, sum(map(len, parts))) if len(mine) else None


class Untold(InOrder):
    """Does not say how large the whole batch is."""

    def batch(self, rows: Tensor, total: int | None) -> hr.Batch:
        return super().batch(rows, None)


class Less(InOrder):
    """Says that the whole batch is smaller than a part of it."""

    def batch(self, rows: Tensor, total: int | None) -> hr.Batch:
        return super().batch(rows, len(rows) - 1)


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
    with pytest.warns(UserWarning, match="InOrder does not shard: each of the 3 workers reads all of it"):
        several = hr.launch(feed, InOrder(shards=False), {}, workers=3)
    assert apart(one, several) < EXACT


@pytest.mark.parametrize("rows", [(29, 14), (14, 29), (24, 6), (12, 11)])
def test_a_source_that_ends_earlier_on_one_worker_is_read_to_its_end_by_the_others(rows: tuple[int, int]) -> None:
    one = hr.launch(feed, Lanes(*rows), {})
    several = hr.launch(feed, Lanes(*rows), {}, workers=2)
    assert one["steps"] == several["steps"] == 2 * -(-max(rows) // (BATCH // 2))
    assert apart(one, several) < EXACT


def test_rounds_wait_for_the_worker_that_has_most_rows() -> None:
    found = hr.launch(feed, Lanes(29, 14), {}, hr.Periodic("3 steps"), BATCH // 2, workers=2)
    assert found["steps"] == 10
    assert all(bool(torch.isfinite(value).all()) for value in found["weights"].values())


def test_sources_go_on_to_the_bit_and_elastic_ones_with_other_workers(tmp_path: Path) -> None:
    for name, make_source, step in (("lanes", lambda: Lanes(29, 14), 4), ("in order", InOrder, 3)):
        at = {"run": str(tmp_path / name)}
        hr.launch(feed, make_source(), at | {"steps": step}, workers=2)
        if make_source is InOrder:
            text = r"saved by 2 workers .* with 3, .* `elastic` is False. Use 2 workers"
            with pytest.raises(hr.CheckpointError, match=text):
                hr.launch(feed, InOrder(), at | {"steps": 8}, workers=3)
        resumed = hr.launch(feed, make_source(), at | {"steps": 10 if name == "lanes" else 8}, workers=2)
        assert apart(hr.launch(feed, make_source(), {}, workers=2), resumed) == 0.0
    at = {"run": str(tmp_path / "elastic")}
    hr.launch(feed, InOrder(elastic=True), at | {"steps": 3}, workers=2)
    resumed = hr.launch(feed, InOrder(elastic=True), at | {"steps": 8}, workers=3)
    assert apart(hr.launch(feed, InOrder(), {}), resumed) < EXACT


def test_a_source_that_shards_says_how_large_the_whole_batch_is() -> None:
    """Without that, each part would count as a whole, and the mean over workers be taken twice."""
    assert hr.launch(feed, Untold(), {})["steps"] == 8  # one worker has all of it
    for source, workers, text in (
        (Untold(), 2, r"Untold declares shards = True, .* of 2 .* without total="),
        (Untold(), 3, r"Untold declares shards = True, .* of 3 .* without total="),
        (Less(), 2, r"Less declares shards = True, .* rows and total="),
        (hr.head(Untold(), 20), 2, r"without total="),
    ):
        with pytest.raises(hr.SourceError, match=text):
            hr.launch(feed, source, {}, workers=workers)


def load(seeded: bool | None, shuffled: bool, strategy: Any = None, rows: int | None = None) -> Found:
    """Trains on a DataLoader, whose generator is seeded alike, otherwise (`None`), or not at all."""
    fields = columns()
    seed = here().shard.index if seeded is None else 7
    generator = None if seeded is False else torch.Generator().manual_seed(seed)
    data = TensorDataset(fields["x"], fields["y"])
    loader = DataLoader(data, batch_size=BATCH, shuffle=shuffled, generator=generator)
    trainer = make("plain", strategy, inputs=None, batch_size=None)
    torch.manual_seed(here().shard.index)  # as launch has left it
    trainer.fit(loader if rows is None else hr.head(loader, rows), epochs=2, progress=False)
    return {"weights": trainer.model.state_dict()}


@pytest.mark.filterwarnings("ignore:.*does not shard")
@pytest.mark.parametrize("shuffled", [True, False])
def test_a_loader_that_all_read_alike_trains_as_with_one_worker(shuffled: bool) -> None:
    one = hr.launch(load, True, shuffled)
    for workers in (2, 8):
        assert apart(one, hr.launch(load, shuffled, shuffled, workers=workers)) < EXACT


@pytest.mark.filterwarnings("ignore:.*does not shard")
@pytest.mark.parametrize(
    ("rows", "strategy", "seeded"), [(None, hr.Periodic("3 steps"), None), (None, None, False), (32, None, False)]
)
def test_a_loader_that_shuffles_anew_on_every_worker_is_refused(
    rows: int | None, strategy: hr.Strategy | None, seeded: bool | None
) -> None:
    """So are epochs made of it."""
    with pytest.raises(hr.SourceError, match=r"worker 1 has read another batch .* generator=torch.Generator"):
        hr.launch(load, seeded, True, strategy, rows, workers=2)


# --- what cannot be added up, and updates by hand ---------------------------------------------------------


def embed(sparse: bool, strategy: hr.Strategy | None) -> Found:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(43, 3, sparse=sparse), nn.Linear(3, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=6, inputs="row", strategy=strategy)
    trainer.fit(columns(), epochs=2, progress=False)
    return {"weights": model.state_dict()}


def test_sparse_gradients_are_refused_where_they_would_have_to_be_added_up() -> None:
    with pytest.raises(hr.ModelError, match=r"'0.weight' has sparse gradients.* sparse=False.* Periodic"):
        hr.launch(embed, True, None, workers=2)
    dense = hr.launch(embed, False, hr.Periodic("1 step"), workers=2)
    assert apart(hr.launch(embed, True, hr.Periodic("1 step"), workers=2), dense) < EXACT


def by_hand(strategy: hr.Strategy | None) -> Found:
    """Updates of batches of which every worker brings its part."""
    trainer, shard, fields = make("all three", strategy), here().shard, columns()
    losses = []
    for first in range(0, 43, BATCH):
        stop = min(first + BATCH, 43)
        mine = slice(*(first + k for k in shard.of(stop - first)))
        losses.append(trainer.step({key: value[mine] for key, value in fields.items()})["total_loss"])
    trainer.release()
    return {"weights": trainer.model.state_dict(), "losses": [float(loss) for loss in losses]}


def test_updates_by_hand_are_made_together() -> None:
    one = hr.launch(by_hand, None)
    for workers in (2, 5, 8):
        several = hr.launch(by_hand, None, workers=workers)
        assert apart(one, several) < EXACT
        assert several["losses"] == pytest.approx(one["losses"], abs=EXACT)


@pytest.mark.parametrize("make_it", [hr.Periodic, hr.BlockMomentum, hr.DiLoCo])
def test_a_strategy_of_rounds_makes_no_update_by_hand(make_it: Callable[[], hr.Strategy]) -> None:
    text = rf"step\(\) makes one update, and {make_it.__name__} has rounds .* fit\(\) or steps\(\)"
    with pytest.raises(hr.ConfigError, match=text):
        hr.launch(by_hand, make_it(), workers=2)


# --- replayed passes --------------------------------------------------------------------------------------


class Waits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = x.detach().sum().reshape(1)
        here().all_reduce(total)
        return x + 0 * total


class Late(hr.Objective):
    """Only the forward pass tells the weight, so that other workers have their turn before the backward pass."""

    splits = True

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        found = nn.functional.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
        return {"loss": hr.Term(found, float(batch.rows))}


def trained_in_step(tape: Any, waits: bool = False, late: bool = False) -> tuple[dict[str, Tensor], list[str]]:
    torch.manual_seed(1)
    model = nn.Sequential(Waits() if waits else nn.Identity(), nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    adam = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = hr.Trainer(model, Late() if late else hr.CrossEntropy(), adam, batch_size=12, device="cpu", tape=tape)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(48, 5, generator=generator), torch.randint(3, (48,), generator=generator)
    trainer.fit(rows, epochs=4, progress=False)
    return model.state_dict(), here().all_gather(trainer.tape_note)


def are_in_step(engine: str, late: bool) -> None:
    replayed, notes = hr.launch(trained_in_step, True, False, late, workers=3, engine=engine)
    by_torch, _ = hr.launch(trained_in_step, False, False, late, workers=3, engine=engine)
    assert all(note.startswith("passes are replayed") for note in notes)
    assert all(torch.equal(replayed[name], by_torch[name]) for name in by_torch)


@pytest.mark.parametrize("late", [False, True])
def test_workers_in_step_replay_their_passes_with_the_bits_of_torch(late: bool) -> None:
    are_in_step("local", late)


def test_processes_in_step_replay_their_passes_with_the_bits_of_torch(tmp_path: Path) -> None:
    with_forks(are_in_step, tmp_path, "processes", False)


def test_a_model_that_waits_for_other_workers_is_left_to_torch() -> None:
    _, notes = hr.launch(trained_in_step, "auto", True, workers=2)
    assert notes[0].startswith("passes are left to torch")
