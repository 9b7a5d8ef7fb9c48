"""Memory that runs out on one of several workers: it tries again by itself, but not once the others count on it."""

import copy
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.worker_trainings import EXACT, Found, apart, columns, make
from torch import Tensor

import headrace as hr
from headrace.arena.arena import Arena
from headrace.step import update
from headrace.workers.here import here

BAD, FAILS = 1, 3  # the worker that runs out of memory, and its update
SAYS = "CUDA out of memory. Tried to allocate 2.00 GiB."


class Short(hr.Synchronous):
    """Runs out of memory when gradients are added up: before the others hear of them, or after."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place, self.calls = place, 0

    def reduce(self, arena: Arena, reached: Sequence[bool], numbers: Tensor) -> tuple[Sequence[bool], Tensor]:
        self.calls += 1
        self.runs_out("before the sums")
        found = super().reduce(arena, reached, numbers)
        self.runs_out("after the sums")
        return found

    def runs_out(self, place: str) -> None:
        if place == self.place and self.calls == FAILS and self.comm.shard.index == BAD:
            raise torch.OutOfMemoryError(SAYS)


class Seen(hr.Callback):
    """The weights after the last update."""

    def on_step_end(self, info: hr.Info) -> None:
        self.weights = copy.deepcopy(info.trainer.model.state_dict())


def fits(strategy: Short, at: Path, microbatch: Any) -> None:
    """In a worker: what it ends by, how often it has added up, whether its weights are those of its last update."""
    trainer = make("plain", strategy, microbatch=microbatch, clip_norm=1.0)
    seen = Seen()
    try:
        trainer.fit(columns(), epochs=2, progress=False, callbacks=[seen])
    except hr.HeadraceError as error:
        now = trainer.model.state_dict()
        kept = all(torch.equal(now[name], value) for name, value in seen.weights.items())
        found = [type(error).__name__, str(error), strategy.calls, kept]
        (at / f"{here().shard.index}").write_text(json.dumps(found))
        raise


@pytest.mark.parametrize("microbatch", ["auto", None])
@pytest.mark.parametrize("place", ["before the sums", "after the sums", "when clipped"])
def test_memory_that_runs_out_once_gradients_are_added_up_ends_all_workers(
    place: str, microbatch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, clipped = vars(update)["clip"], list[int]()

    def clip(*arguments: Any) -> None:
        clipped.append(here().shard.index)
        if place == "when clipped" and here().shard.index == BAD and clipped.count(BAD) == FAILS:
            raise torch.OutOfMemoryError(SAYS)
        plain(*arguments)

    monkeypatch.setattr(update, "clip", clip)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(hr.OutOfMemoryError) as raised:
            hr.launch(fits, Short(place), tmp_path, microbatch, workers=3)
    text = str(raised.value)
    assert f"step {FAILS} (rate 0.3, 4 rows" in text
    assert f"memory ran out once workers had begun to add up their gradients ({SAYS})" in text
    assert "go on from the last checkpoint, with a smaller batch_size, or with more memory" in text
    assert not [warning for warning in caught if "memory ran out" in str(warning.message)]
    found = [json.loads((tmp_path / f"{worker}").read_text()) for worker in range(3)]
    assert [kind for kind, *_ in found] == ["WorkerError", "OutOfMemoryError", "WorkerError"]
    assert all(text in said for _, said, *_ in found)
    assert found[BAD][2] == FAILS  # it has not added up again
    assert found[BAD][3]  # and its weights are as they were


def trains(fits: int | None) -> Found:
    """In a worker: the bad one holds no more than so many rows at once."""
    trainer = make("plain", microbatch="auto")
    sizes: list[int] = []

    def look(_: Any, inputs: tuple[Tensor]) -> None:
        if fits is not None and len(inputs[0]) > fits and here().shard.index == BAD:
            raise torch.OutOfMemoryError(SAYS)
        sizes.append(len(inputs[0]))

    trainer.model.register_forward_pre_hook(look)
    trainer.fit(columns(), epochs=2, progress=False)
    every = here().all_gather(sizes)
    return {"weights": copy.deepcopy(trainer.model.state_dict()), "sizes": every}


def test_a_worker_whose_memory_does_not_hold_its_rows_tries_again_by_itself() -> None:
    expected = hr.launch(trains, None, workers=3)
    with pytest.warns(UserWarning, match=r"memory ran out with 4 rows at once: going on with microbatch=2\."):
        found = hr.launch(trains, 2, workers=3)
    assert set(found["sizes"][BAD]) == {2}
    assert found["sizes"][0] == expected["sizes"][0]
    assert apart(found, expected) < EXACT
