"""Batches that are cut into parts: the same bits on any number of workers, in one training and over resumes."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.forked import start
from kit.sampled import sampled
from kit.torch_workers import fork_workers, is_killed, over_gloo, run_torchrun, with_forks
from kit.worker_trainings import IN_PARTS, PARTS, Bits, columns, differing, make, measured, perceptron, sgd
from kit.worker_trainings import train_in_parts as train
from torch import Tensor, nn

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


@cache
def one(name: str) -> Bits:
    """What one worker finds."""
    return train(name, {})


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


# --- any number of workers --------------------------------------------------------------------------------


ALONE = [(name, 2 + k % 2) for k, name in enumerate(IN_PARTS)]
ALIKE = {"adam", "several terms", "class weights", "loose", "numbers", "bf16", "transformer without a tape", "clipped"}
MORE = [(name, (5, 4, 7, 8)[k % 4]) for k, name in enumerate(IN_PARTS)]
"""Numbers that do not divide the parts alike. What meets them in its own way runs every day, the others nightly."""
MANY = [case for case in MORE if case[0] in ("plain", "BatchNorm, dropout", "uneven parts", "empty parts", "averaged")]


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        *sampled(ALONE, keep=[case for case in ALONE if case[0] not in ALIKE]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in sampled(MORE, keep=MANY)),
    ],
)
def test_any_number_of_workers_finds_the_bits_of_one(name: str, workers: int) -> None:
    assert differing(one(name), hr.launch(train, name, {}, workers=workers)) == []


def test_the_bits_belong_to_the_number_of_parts_and_without_parts_to_that_of_workers() -> None:
    """The negative control."""
    alone, shared = train("plain", {}, None), hr.launch(train, "plain", {}, None, workers=3)
    assert "0.weight" in differing(alone, shared)
    assert torch.allclose(alone["0.weight"], shared["0.weight"], atol=1e-4)
    assert "0.weight" in differing(one("plain"), train("plain", {}, 4))
    assert torch.allclose(alone["0.weight"], one("plain")["0.weight"], atol=1e-4), "as the whole batch, to rounding"


@pytest.mark.parametrize("name", ["a part at a time", "two parts at a time"])
def test_microbatches_of_whole_parts_change_nothing(name: str) -> None:
    assert not [key for key in differing(one("plain"), one(name)) if not key.startswith("reported")]


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


@pytest.mark.parametrize(
    ("name", "callback", "workers"), [("plain", StopAt, 3), ("empty parts", StopAt, 8), ("prior", Coefficient, 3)]
)
def test_callbacks_that_stop_or_change_a_term_do_so_for_all_at_once(
    name: str, callback: type[hr.Callback], workers: int
) -> None:
    assert differing(stopped(name, callback), hr.launch(stopped, name, callback, workers=workers)) == []


def test_predictions_and_updates_by_hand_take_parts_too() -> None:
    def work() -> Any:
        trainer = make("plain", hr.Synchronous(parts=PARTS))
        rows, shard = columns(60), trainer.strategy.shard
        start, stop = shard.of(30)
        for _ in range(3):
            trainer.step({key: rows[key][start:stop] for key in ("x", "y")})
        return trainer.predict(rows["x"][:41]), trainer.model[0].weight.detach().clone()

    alone, shared = work(), hr.launch(work, workers=3)
    assert torch.equal(alone[1], shared[1])
    assert torch.allclose(alone[0], shared[0], atol=1e-5)


# --- workers that are processes ---------------------------------------------------------------------------


def finds(name: str, workers: int, gloo: bool) -> None:
    if gloo:
        over_gloo()
    torch.set_num_threads(1)
    assert differing(train(name, {}), hr.launch(train, name, {}, workers=workers, engine="processes")) == []


@pytest.mark.parametrize(
    ("name", "workers", "gloo"),
    sampled(
        [("BatchNorm, dropout", 2, False), ("empty parts", 3, True), ("LSTM on ragged sequences", 4, False)],
        keep=[("BatchNorm, dropout", 2, False), ("empty parts", 3, True)],
    ),
)
def test_processes_find_the_bits_of_one(name: str, workers: int, gloo: bool, tmp_path: Path) -> None:
    with_forks(finds, tmp_path, name, workers, gloo)


def compares(at: str) -> None:
    torch.set_num_threads(1)
    found = train("BatchNorm, dropout", {})
    if here().leader:
        torch.save(found, at)


def runs_torchrun(at: str) -> None:
    run_torchrun(["--nproc-per-node=3", "--standalone"], compares, at)


def test_torchrun_finds_the_bits_of_one(tmp_path: Path) -> None:
    with_forks(runs_torchrun, tmp_path, str(tmp_path / "found.pt"))
    assert differing(one("BatchNorm, dropout"), torch.load(tmp_path / "found.pt")) == []


# --- resumes ----------------------------------------------------------------------------------------------

LONG = {"epochs": 4, "log_every": "3 steps"}
KILLS = 4


class KilledError(Exception):
    """Ends a training in the middle, as by an error of anybody's."""


class Kill(hr.Callback):
    """Ends the training at an update; with processes, by killing that of one of the workers."""

    everywhere = True

    def __init__(self, at: int, process: bool) -> None:
        self.at, self.process = at, process

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == self.at and here().shard.index == self.at % here().count:
            if self.process:
                is_killed()
            raise KilledError


def goes_on(name: str, run: str, kill: int, process: bool = False) -> Bits:
    saved = {"run": hr.Run(run, every="1 step", logs=False), "callbacks": [Kill(kill, process)]}
    return train(name, LONG | saved)


@pytest.mark.parametrize("name", sampled(["transformer, dropout", "averaged"], keep=["averaged"]))
def test_a_run_that_goes_on_with_other_numbers_of_workers_ends_with_the_bits_of_one(name: str, tmp_path: Path) -> None:
    rng, counts, step = random.Random(name), [], 0
    for _ in range(KILLS):
        counts.append(rng.randint(1, 8))
        step += rng.randint(1, 3)
        with pytest.raises(KilledError):
            hr.launch(goes_on, name, str(tmp_path / "run"), step, workers=counts[-1])
    found = hr.launch(goes_on, name, str(tmp_path / "run"), 0, workers=3)
    assert len(set(counts)) > 2
    assert differing(train(name, LONG), found) == []


def launches(name: str, run: str, kill: int, workers: int) -> None:
    fork_workers()
    found = hr.launch(goes_on, name, run, kill, True, workers=workers, engine="processes")
    torch.save(found, f"{run}.pt")


def test_a_run_of_one_to_three_processes_that_are_killed_ends_with_the_bits_of_one(tmp_path: Path) -> None:
    name, rng, run, step = "BatchNorm, dropout", random.Random(6), str(tmp_path / "run"), 0
    for k in range(3):
        step += rng.randint(1, 4)
        with start(launches, tmp_path, name, run, step, 1 + k % 3) as child:
            assert child.ending() == 1
            assert "killed (SIGKILL)" in child.output, child.output
    with start(launches, tmp_path, name, run, 0, 2) as child:
        assert child.ending() == 0, child.output
    assert differing(train(name, LONG), torch.load(f"{run}.pt")) == []


# --- what is refused --------------------------------------------------------------------------------------


class OwnShards(hr.Source):
    """Gives every worker every second row."""

    shards = True
    streams = (hr.Stream("x", (20,)), hr.Stream("y", (), "int64"))

    def next_batch(self, size: int, shard: hr.Shard = hr.Shard()) -> hr.Batch | None:
        return None


class Odd(nn.Linear):
    """Changes in every forward pass what the others do not: a large buffer, a parameter, or a buffer that it makes."""

    seen: Any

    def __init__(self, what: str) -> None:
        super().__init__(20, 3)
        self.what, self.mean = what, nn.Parameter(torch.zeros(20), requires_grad=False)
        self.register_buffer("seen", torch.zeros(1 << 17) if what == "queue" else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "queue":
            self.seen[: len(x)] = x[:, 0].detach()
        elif self.what == "teacher":
            with torch.no_grad():
                self.mean.lerp_(x.mean(dim=0), 0.1)
        elif self.seen is None:
            self.seen = x.detach().mean(dim=0)
        return super().forward(x)


class Own(hr.Trainer):
    def train_step(self, batch: hr.Batch) -> hr.Outcome:
        return super().train_step(batch)


def fits(
    model: Any = None, data: Any = None, loss: Any = None, parts: int = PARTS, kind: Any = hr.Trainer, **how: Any
) -> None:
    model, rows = model or perceptron(), columns(240)
    trainer = kind(
        model, loss or hr.CrossEntropy(), sgd(model), strategy=hr.Synchronous(parts=parts), **{"batch_size": 48} | how
    )
    try:
        trainer.fit((rows["x"].float(), rows["y"]) if data is None else data, steps=2, progress=False)
    except ConfigError:
        assert trainer.updates.count == 0, "before the first update"
        raise


def meet(fields: Any) -> Any:
    return {**fields, "x": fields["x"] - fields["x"].mean(0)}


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: hr.Synchronous(parts=1), ConfigError, "from 2 on"),
        (lambda: hr.Synchronous(parts=2.5), ConfigError, "whole number"),  # type: ignore[arg-type]
        (lambda: hr.Synchronous(parts=4, compress="bf16"), ConfigError, "compress="),
        (lambda: hr.launch(fits, None, None, None, 2, workers=3), ConfigError, "3 workers cannot share 2 parts"),
        (lambda: fits(microbatch=5), ConfigError, "Use more than|use more than parts=8"),
        (
            lambda: fits(microbatch=4, batch_size={0: 8, "1 epoch": 64}),
            *(ConfigError, "less than the 8 rows of a part of a batch of"),
        ),
        (lambda: fits(compile=True), ConfigError, "compiled model"),
        (lambda: fits(data=OwnShards()), ConfigError, "elastic"),
        (lambda: fits(loss=lambda outputs, y: outputs.logsumexp(dim=0).sum()), ConfigError, "parts=8 cuts"),
        (lambda: fits(Odd("queue")), ModelError, "'seen' of 131,072 elements"),
        (lambda: fits(Odd("teacher")), ModelError, "changes parameters"),
        (lambda: fits(Odd("lazy")), ModelError, "makes or removes the buffer 'seen'"),
        (lambda: fits(kind=Own), ConfigError, "train_step"),
        (lambda: fits(measured(), batch_size=9), DataError, "single row"),
        (lambda: fits(augment=meet), ConfigError, "meet makes other bits"),
        (
            lambda: fits(data=hr.map({"x": torch.randn(40, 20), "y": torch.zeros(40).long()}, meet)),
            *(ConfigError, "meet makes other bits"),
        ),
    ],
)
def test_what_could_not_be_the_same_is_refused(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


def test_a_map_that_changes_each_row_by_itself_is_not_refused() -> None:
    fits(augment=lambda fields: {**fields, "x": 2 * fields["x"]})


def test_a_run_goes_on_with_as_many_parts_as_it_had(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    with pytest.raises(KilledError):
        goes_on("plain", run, 3)
    with pytest.raises(hr.CheckpointError, match="parts"):
        train("plain", LONG | {"run": run}, 4)
