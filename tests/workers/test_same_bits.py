"""Batches that are cut into parts: the same bits on any number of workers, in one training and over resumes."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import same_bits
from kit.forked import start
from kit.same_bits import CASES, PARTS, Bits, differing, train
from kit.torch_workers import fork_workers, is_killed, over_gloo, run_torchrun
from torch import nn

import headrace as hr
from headrace.errors import ConfigError, DataError, ModelError
from headrace.workers.here import here
from headrace.workers.tree import is_part, nodes_of, tree_sum

pytestmark = pytest.mark.filterwarnings(
    "ignore:the model has:UserWarning",
    "ignore:DataLoader:UserWarning",
    "ignore:.*does not shard:UserWarning",
    "ignore:.*jit:DeprecationWarning",
)
COUNTS = (2, 3, 4, 5, 7, 8)
_ones: dict[str, Bits] = {}


def one(name: str) -> Bits:
    """What one worker finds."""
    if name not in _ones:
        _ones[name] = train(name, {})
    return _ones[name]


# --- the tree ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [2, 3, 5, 8, 12, 16])
def test_the_sums_of_workers_subtrees_are_those_of_the_whole_tree(parts: int) -> None:
    values = torch.randn(parts, generator=torch.Generator().manual_seed(parts)).tolist()
    values[parts // 2] = None  # a part without rows
    whole = tree_sum((0, parts), lambda node: values[node[0]], is_part, float.__add__)
    for count in range(1, parts + 1):
        shards = [hr.Shard(worker, count, parts) for worker in range(count)]
        sums = {
            n: tree_sum(n, lambda node: values[node[0]], is_part, float.__add__) for s in shards for n in nodes_of(s)
        }
        assert [part for s in shards for part in s.mine] == list(range(parts))
        assert tree_sum((0, parts), sums.__getitem__, sums.__contains__, float.__add__) == whole
        assert max(len(nodes_of(shard)) for shard in shards) <= 2 * (parts - 1).bit_length()


def test_a_tree_adds_otherwise_than_a_row_of_additions() -> None:
    values = torch.randn(999, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    row = 0.0
    for value in values:
        row += value
    assert tree_sum((0, len(values)), lambda node: values[node[0]], is_part, float.__add__) != row


# --- any number of workers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        pytest.param(name, workers, marks=() if workers == 2 + k % 2 else pytest.mark.slow)
        for k, name in enumerate(CASES)
        for workers in COUNTS
    ],
)
def test_any_number_of_workers_finds_the_bits_of_one(name: str, workers: int) -> None:
    found = hr.launch(train, name, {}, workers=workers)
    assert differing(one(name), found) == []


def test_without_parts_the_bits_belong_to_the_number_of_workers() -> None:
    """The negative control."""
    alone, shared = train("perceptron", {}, None), hr.launch(train, "perceptron", {}, None, workers=3)
    assert "0.weight" in differing(alone, shared)
    assert torch.allclose(alone["0.weight"], shared["0.weight"], atol=1e-4)


def test_the_bits_belong_to_the_number_of_parts() -> None:
    assert "0.weight" in differing(one("perceptron"), train("perceptron", {}, 4))


def test_parts_train_as_the_whole_batch_does_up_to_rounding() -> None:
    whole, parts = train("momentum, clipped", {}, None), one("momentum, clipped")
    assert all(torch.allclose(whole[name], parts[name], rtol=1e-4, atol=1e-5) for name in whole if "state" not in name)


@pytest.mark.parametrize("name", ["a part at a time", "two parts at a time"])
def test_microbatches_of_whole_parts_change_nothing(name: str) -> None:
    assert not [key for key in differing(one("perceptron"), one(name)) if not key.startswith("reported")]


class StopAt(hr.Callback):
    def on_step_end(self, info: hr.Info) -> None:
        if info.step == 7:
            info.stop("enough")


class Coefficient(hr.Callback):
    """A term counts from the third update on."""

    def on_step_end(self, info: hr.Info) -> None:
        loss = next(iter(info.trainer.objectives.values())).loss
        loss["l2_prior"].coefficient = 0.1 * info.step


def stopped(name: str, callback: type[hr.Callback]) -> Bits:
    return train(name, {"callbacks": [callback()]})


@pytest.mark.parametrize("workers", [3, 8])
@pytest.mark.parametrize(
    ("name", "callback"), [("perceptron", StopAt), ("empty parts", StopAt), ("row weights and a prior", Coefficient)]
)
def test_callbacks_that_stop_or_change_a_term_do_so_for_all_at_once(
    name: str, callback: type[hr.Callback], workers: int
) -> None:
    assert differing(stopped(name, callback), hr.launch(stopped, name, callback, workers=workers)) == []


def test_predictions_and_updates_by_hand_take_parts_too() -> None:
    def work() -> Any:
        torch.manual_seed(0)
        model = same_bits.perceptron()
        trainer = hr.Trainer(model, hr.CrossEntropy(), same_bits.adamw(model), strategy=hr.Synchronous(parts=PARTS))
        columns, shard = same_bits.columns(), trainer.strategy.shard
        start, stop = shard.of(30)
        for _ in range(3):
            trainer.step({key: columns[key][start:stop] for key in ("x", "y")})
        return trainer.predict(columns["x"][:41]), model[0].weight.detach().clone()  # type: ignore[index, union-attr]

    alone, shared = work(), hr.launch(work, workers=3)
    assert torch.equal(alone[1], shared[1])
    assert torch.allclose(alone[0], shared[0], atol=1e-5)


# --- workers that are processes ---------------------------------------------------------------------------


def finds(name: str, workers: int, engine: str, gloo: bool) -> None:
    fork_workers()
    if gloo:
        over_gloo()
    torch.set_num_threads(1)
    expected = train(name, {})
    assert differing(expected, hr.launch(train, name, {}, workers=workers, engine=engine)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers", "gloo"),
    [
        ("BatchNorm, dropout", 2, False),
        ("numbers", 3, True),
        pytest.param("transformer, dropout", 4, True, marks=pytest.mark.slow),
        pytest.param("BatchNorm, dropout", 3, False, marks=pytest.mark.slow),
        pytest.param("LSTM on ragged sequences", 4, False, marks=pytest.mark.slow),
        pytest.param("convolutions", 2, True, marks=pytest.mark.slow),
        pytest.param("empty parts", 3, True, marks=pytest.mark.slow),
        pytest.param("fp16", 2, False, marks=pytest.mark.slow),
    ],
)
def test_processes_find_the_bits_of_one(name: str, workers: int, gloo: bool, tmp_path: Path) -> None:
    with start(finds, tmp_path, name, workers, "processes", gloo) as child:
        assert child.ending() == 0, child.output


def compares(at: str) -> None:
    torch.set_num_threads(1)
    found = train("BatchNorm, dropout", {})
    if hr.Trainer(nn.Linear(1, 1)).workers.comm.leader:
        torch.save(found, at)


def runs_torchrun(at: str) -> None:
    run_torchrun(["--nproc-per-node=3", "--standalone"], compares, at)


@pytest.mark.slow
@pytest.mark.slow
def test_torchrun_finds_the_bits_of_one(tmp_path: Path) -> None:
    with start(runs_torchrun, tmp_path, str(tmp_path / "found.pt")) as child:
        assert child.ending() == 0, child.output
    found = torch.load(tmp_path / "found.pt")
    assert differing(one("BatchNorm, dropout"), found) == []


# --- resumes ----------------------------------------------------------------------------------------------

EPOCHS, KILLS = 12, 20


class KilledError(Exception):
    """Ends a training in the middle, as by an error of anybody's."""


class Kill(hr.Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == self.at:
            raise KilledError


def goes_on(name: str, run: str, kill: int) -> Bits:
    fit = {"epochs": EPOCHS, "log_every": "3 steps", "run": hr.Run(run, every="1 step", logs=False)}
    return train(name, fit | {"callbacks": [Kill(kill)]})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer, dropout", "numbers", "convolutions", "averaged"])
def test_a_run_that_goes_on_with_other_numbers_of_workers_ends_with_the_bits_of_one(name: str, tmp_path: Path) -> None:
    rng, counts, step = random.Random(name), [], 0
    for _ in range(KILLS):
        counts.append(rng.randint(1, 8))
        step += rng.randint(1, 3)
        with pytest.raises(KilledError):
            hr.launch(goes_on, name, str(tmp_path / "run"), step, workers=counts[-1])
    found = hr.launch(goes_on, name, str(tmp_path / "run"), 0, workers=3)
    assert len(set(counts)) > 5
    assert differing(train(name, {"epochs": EPOCHS, "log_every": "3 steps"}), found) == []


class KillProcess(Kill):
    """Kills the process of one of the workers."""

    everywhere = True

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == self.at and here().shard.index == self.at % here().count:
            is_killed()


def goes_on_in_processes(name: str, run: str, kill: int) -> Bits:
    fit = {"epochs": EPOCHS, "log_every": "3 steps", "run": hr.Run(run, every="1 step", logs=False)}
    return train(name, fit | {"callbacks": [KillProcess(kill)]})


def launches(name: str, run: str, kill: int, workers: int) -> None:
    fork_workers()
    found = hr.launch(goes_on_in_processes, name, run, kill, workers=workers, engine="processes")
    torch.save(found, f"{run}.pt")


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_run_of_one_to_three_processes_that_are_killed_ends_with_the_bits_of_one(tmp_path: Path) -> None:
    name, rng, run, step = "BatchNorm, dropout", random.Random(6), str(tmp_path / "run"), 0
    for _ in range(KILLS):
        step += rng.randint(1, 3)
        with start(launches, tmp_path, name, run, step, rng.randint(1, 3)) as child:
            assert child.ending() == 1
            assert "killed (SIGKILL)" in child.output, child.output
    with start(launches, tmp_path, name, run, 0, 2) as child:
        assert child.ending() == 0, child.output
    assert differing(train(name, {"epochs": EPOCHS, "log_every": "3 steps"}), torch.load(f"{run}.pt")) == []


# --- what is refused --------------------------------------------------------------------------------------


class OwnShards(hr.Source):
    """Gives every worker every second row."""

    shards = True

    @property
    def streams(self) -> list[hr.Stream]:
        return [hr.Stream("x", (20,)), hr.Stream("y", (), "int64")]

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        return None


class Contrast(nn.Module):
    """A loss with a buffer that every update changes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3))


def queue() -> nn.Module:
    """A model that keeps what it has seen last."""

    class Queue(nn.Linear):
        def __init__(self) -> None:
            super().__init__(20, 3)
            self.register_buffer("seen", torch.zeros(1 << 17))

        def forward(self, x: Any) -> Any:
            self.seen[: len(x)] = x[:, 0].detach()
            return super().forward(x)

    return Queue()


def fits(
    model: nn.Module | None = None, data: Any = None, loss: Any = None, parts: int = PARTS, **settings: Any
) -> None:
    model = model or same_bits.perceptron()
    columns = same_bits.columns()
    strategy = hr.Synchronous(parts=parts)
    given = {"batch_size": 48} | settings
    trainer = hr.Trainer(model, loss or hr.CrossEntropy(), same_bits.sgd(model), strategy=strategy, **given)
    trainer.fit((columns["x"], columns["y"]) if data is None else data, steps=2, progress=False)


class Teacher(nn.Module):
    """Changes a parameter that is not trained in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.mean = nn.Linear(20, 3), nn.Parameter(torch.zeros(20), requires_grad=False)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.mean.lerp_(x.mean(dim=0), 0.1)
        return self.out(x - self.mean)


class Lazy(nn.Linear):
    """Makes a buffer in its first forward pass."""

    def __init__(self) -> None:
        super().__init__(20, 3)
        self.register_buffer("seen", None)

    def forward(self, x: Any) -> Any:
        self.seen = x.detach().mean(dim=0) if self.seen is None else self.seen
        return super().forward(x)


class Own(hr.Trainer):
    def train_step(self, batch: hr.Batch) -> hr.Outcome:
        return super().train_step(batch)


def fits_by_own_steps() -> None:
    model, columns = same_bits.perceptron(), same_bits.columns()
    trainer = Own(model, hr.CrossEntropy(), same_bits.sgd(model), strategy=hr.Synchronous(parts=PARTS))
    trainer.fit((columns["x"], columns["y"]), steps=2, progress=False)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: hr.Synchronous(parts=1), ConfigError, "from 2 on"),
        (lambda: hr.Synchronous(parts=2.5), ConfigError, "whole number"),
        (lambda: hr.Synchronous(parts=4, compress="bf16"), ConfigError, "compress="),
        (lambda: hr.launch(fits, None, None, None, 2, workers=3), ConfigError, "3 workers cannot share 2 parts"),
        (lambda: fits(microbatch=5), ConfigError, "Use more than|use more than parts=8"),
        (lambda: fits(compile=True), ConfigError, "compiled model"),
        (lambda: fits(data=OwnShards()), ConfigError, "elastic"),
        (lambda: fits(loss=lambda outputs, y: outputs.logsumexp(dim=0).sum()), ConfigError, "parts=8 cuts"),
        (lambda: fits(queue()), ModelError, "'seen' of 131,072 elements"),
        (lambda: fits(Teacher()), ModelError, "changes parameters"),
        (lambda: fits(Lazy()), ModelError, "makes or removes the buffer 'seen'"),
        (fits_by_own_steps, ConfigError, "train_step"),
        (lambda: fits(same_bits.measured(), batch_size=9), DataError, "single row"),
    ],
)
def test_what_could_not_be_the_same_is_refused(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_a_run_goes_on_with_as_many_parts_as_it_had(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    with pytest.raises(KilledError):
        goes_on("perceptron", run, 3)
    with pytest.raises(hr.CheckpointError, match="parts"):
        train("perceptron", {"epochs": EPOCHS, "run": run}, 4)


def test_a_map_in_which_rows_meet_is_refused_and_one_that_changes_each_is_not() -> None:
    def centered(fields: Any) -> Any:
        return {**fields, "x": fields["x"] - fields["x"].mean(0)}

    def doubled(fields: Any) -> Any:
        return {**fields, "x": 2 * fields["x"]}

    x = torch.randn(40, 4)
    for change, augments in product((doubled, centered), (False, True)):
        model = torch.nn.Linear(4, 2)
        trainer = hr.Trainer(
            model,
            hr.CrossEntropy(),
            torch.optim.SGD(model.parameters(), lr=0.1),
            batch_size=8,
            strategy=hr.Synchronous(parts=4),
            augment=change if augments else None,
        )
        data: Any = {"x": x, "y": (x[:, 0] > 0).long()}
        data, refused = data if augments else hr.map(data, change), change is centered
        with pytest.raises(ConfigError, match="centered makes other bits") if refused else nullcontext():
            trainer.fit(data, epochs=1, progress=False)
        assert trainer.updates.count == (0 if refused else 5), "before the first update"


def test_a_microbatch_that_a_later_batch_does_not_fit_is_refused_before_the_first_update() -> None:
    model, strategy = torch.nn.Linear(4, 2), hr.Synchronous(parts=4)
    sizes: Any = {0: 8, "1 epoch": 32}
    settings: dict[str, Any] = {"batch_size": sizes, "microbatch": 4, "strategy": strategy}
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), **settings)
    with pytest.raises(ConfigError, match="less than the 8 rows of a part of the largest batch"):
        trainer.fit((torch.randn(40, 4), torch.zeros(40, dtype=torch.int64)), epochs=2, progress=False)
    assert trainer.updates.count == 0
