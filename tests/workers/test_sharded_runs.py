"""Runs of sharded models: written by all workers, killed while they are, and gone on with by any number of workers."""

import math
import os
import random
import signal
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from kit.cli_parts import headrace
from kit.forked import Child, start, tell
from kit.sampled import nightly
from kit.sharded_models import BATCH, MODELS, ROWS, by_workers, data, distance, full, in_workers, make
from kit.sockets import free_port
from torch import Tensor

import headrace as hr
from headrace.errors import CorruptError
from headrace.store.checkpoints import Store
from headrace.store.shards import RowPart

EPOCHS = 2
State = dict[str, Tensor]


def trains(kind: str, run: str, epochs: int, sharded: bool = True, stop: int | None = None, rows: int = ROWS) -> State:
    """Trains until so many epochs or steps have been; the weights then."""

    trainer = make(kind, **({} if sharded else {"strategy": None}))
    callbacks = [hr.BestModel("val/loss"), *([hr.EMA(0.9)] if kind == "tied" else [])]
    where = hr.Run(run, every="1 step", keep=2)
    sets = data(kind, rows)
    history = trainer.fit(sets, sets, epochs=epochs, steps=stop, progress=False, callbacks=callbacks, run=where)
    assert history.rows[-1]["step"] == (stop or math.ceil(rows / BATCH) * epochs)
    return full(trainer.model)


def as_group_of_one(port: int, kind: str, run: str, epochs: int) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    trains(kind, run, epochs)


def store_of(run: Path) -> Store:
    return Store(run / "checkpoints", None)


def test_a_run_goes_on_with_any_number_of_workers_and_without_shards(tmp_path: Path) -> None:
    run, other = tmp_path / "sharded", tmp_path / "alone"
    for epochs, workers in enumerate((2, 3), 1):
        in_workers(trains, tmp_path, "tied", str(run), epochs, workers=workers)
    assert (store_of(run).at(6) / "shard-00002-optim.safetensors").is_file()
    with start(as_group_of_one, tmp_path, free_port(), "tied", str(run), 3) as child:
        assert child.ending() == 0, child.output
    assert not (store_of(run).at(9) / "shard-00001-optim.safetensors").exists()
    model, read = MODELS["tied"](), MODELS["tied"]()
    assert hr.load_weights(read, run, which="last") == 9
    after = trains("tied", str(run), 4, sharded=False)
    for epochs in range(1, 5):  # the last batches' cursors, and averages, are those of one worker, too
        expected = trains("tied", str(other), epochs, sharded=False)
    assert distance(after, expected) <= 1e-5
    hr.load_weights(model, other, which=9)
    assert distance(read.state_dict(), model.state_dict()) <= 1e-5


def resumes_exactly(kind: str, run: str, other: str) -> None:
    by_workers(trains, kind, run, EPOCHS, True, 4)
    found = by_workers(trains, kind, run, EPOCHS)
    expected = by_workers(trains, kind, other, EPOCHS)
    assert distance(found, expected) == 0


@pytest.mark.parametrize("kind", ["tied", *nightly("measuring")])
def test_as_many_workers_go_on_to_the_bit(kind: str, tmp_path: Path) -> None:
    with start(resumes_exactly, tmp_path, kind, str(tmp_path / "a"), str(tmp_path / "b")) as child:
        assert child.ending() == 0, child.output


# --- what reads a run, and goes on from one --------------------------------------------------------------------


def forks(run: str, fork: str) -> None:
    trainer = make("tied")
    where = hr.Run(fork, parent=f"{run}@5")
    sets = data("tied")
    callbacks = [hr.BestModel("val/loss"), hr.EMA(0.9)]
    trainer.fit(sets, sets, epochs=2, progress=False, callbacks=callbacks, run=where)


def test_what_reads_a_run_reads_a_sharded_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, fork = tmp_path / "run", tmp_path / "fork"
    in_workers(trains, tmp_path, "tied", str(run), 2)
    in_workers(forks, tmp_path, str(run), str(fork))
    weights = {which: MODELS["tied"]() for which in ("read", "whole")}
    assert hr.load_weights(weights["read"], run, which="last") == 6
    assert [(each["run"], each["step"]) for each in hr.Record(fork).parents] == [(str(run), 5)]
    assert hr.load_weights(weights["whole"], fork, which="last") == 6
    assert distance(weights["read"].state_dict(), weights["whole"].state_dict()) == 0

    answers = weights["read"].eval()(data("tied")["x"])
    assert torch.allclose(
        hr.load(run, MODELS["tied"](), which="last").trainer.predict({"x": data("tied")["x"]}), answers
    )

    assert headrace("verify", str(run)) == 0
    assert headrace("checkpoint", "export", str(run), "--out", str(tmp_path / "w.safetensors")) == 0
    exported = safetensors.torch.load_file(tmp_path / "w.safetensors")
    best = MODELS["tied"]()
    hr.load_weights(best, run)
    assert distance(exported, {name: best.state_dict()[name] for name in exported}) == 0
    damage(store_of(run).at(6) / "shard-00001-model.safetensors")
    assert headrace("verify", str(run)) == 1
    assert "shard-00001-model.safetensors" in capsys.readouterr().out


# --- damage ----------------------------------------------------------------------------------------------------


def test_a_damaged_shard_is_noticed_and_the_checkpoint_before_it_used(tmp_path: Path) -> None:
    run = tmp_path / "run"
    in_workers(trains, tmp_path, "layers", str(run), 1)
    store = store_of(run)
    assert store.verify(3).world == 2
    halves = [RowPart(0, 2), RowPart(1, 2)]
    parts = [store.load(3, lambda name: name == "model.safetensors", half).tensors for half in halves]
    complete = store.load(3).tensors["model.safetensors"]
    assert {n: torch.cat([p["model.safetensors"][n] for p in parts]).tolist() for n in complete} == {
        n: tensor.tolist() for n, tensor in complete.items()
    }
    damage(store.at(3) / "shard-00001-optim.safetensors")
    with pytest.raises(CorruptError, match=r"shard-00001-optim.safetensors is not what was written"):
        store.verify(3)
    with pytest.raises(CorruptError, match=r"shard-00001-optim.safetensors is not what was written"):
        store.load(3)
    store.load(3, lambda name: name == "model.safetensors")  # which is sound
    assert "going on from step 2" in in_workers(trains, tmp_path, "layers", str(run), 2)
    assert hr.load_weights(MODELS["layers"](), run, which="last") == 6


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


# --- kills ---------------------------------------------------------------------------------------------------


def is_killed(run: str) -> None:
    by_workers(tells_and_trains, run)


def tells_and_trains(run: str) -> None:
    tell(f"pid {os.getpid()}")
    trains("layers", run, 4, rows=7 * BATCH)


def test_workers_that_are_killed_while_they_save_lose_nothing(tmp_path: Path) -> None:
    """Each start is killed at a random moment of its savings, until one comes to the end."""
    run, draw = tmp_path / "run", random.Random(7)
    kills = 0
    for attempt in range(8):
        place = tmp_path / str(attempt)
        place.mkdir()
        with start(is_killed, place, str(run)) as child:
            pids = [int(child.until("pid ")) for _ in range(2)]
            if kills < 2:
                until_saved(run, child)
                time.sleep(draw.uniform(0, 0.6))
                kills += is_sent(pids[draw.randrange(2)])
            code = child.ending()
        for step in store_of(run).steps():
            store_of(run).verify(step)
        if code == 0:
            break
    assert code == 0, child.output
    assert kills > 0
    with start(is_killed, tmp_path, str(tmp_path / "undisturbed")) as child:
        assert child.ending() == 0, child.output
    found, expected = (
        {**store_of(each).load(28).tensors["model.safetensors"]} for each in (run, tmp_path / "undisturbed")
    )
    assert distance(found, expected) == 0


def until_saved(run: Path, child: Child) -> None:
    """Returns once a checkpoint has been written since, or it has ended."""
    before = newest(run)
    while newest(run) == before and not child.wait(0.01):
        pass


def newest(run: Path) -> list[str]:
    return sorted(commit.parent.name for commit in run.glob("checkpoints/*/COMMIT"))


def is_sent(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
