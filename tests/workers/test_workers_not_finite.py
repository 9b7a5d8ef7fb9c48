"""Numbers that are not finite on one worker only: what all share stays sound, and all do the same about it."""

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.errors import WorkerError
from headrace.workers.here import here

WORKERS, ROWS = 3, 60
BATCH, SHARE = 12, 4  # of all workers, of one
BAD_STEP, BAD_WORKER = 3, 1
NAN = float("nan")
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(dim=1)
BAD = BATCH * (BAD_STEP - 1) + SHARE * BAD_WORKER + 1  # a row of that worker's share of that step
EVERYBODY = range(WORKERS)

State = dict[str, Any]


class Looks(nn.Module):
    """Measures what passes, and lets nothing of it through that is large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.norm(x)
        found: Tensor = self.layers(torch.tanh(x))
        return found


class Before(hr.Callback):
    """Notes the state of the trainer after every update."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def on_step_end(self, info: hr.Info) -> None:
        self.states.append(state(info.trainer))


def state(trainer: hr.Trainer) -> State:
    return copy.deepcopy({"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()["state"]})


class Seen:
    """What has become of each worker."""

    def __init__(self) -> None:
        self.states: dict[int, list[State]] = {}
        self.at_last: dict[int, State] = {}
        self.errors: dict[int, BaseException] = {}
        self.skipped: dict[int, int] = {}
        self.rows: list[dict[str, Any]] = []

    def __deepcopy__(self, memo: Any) -> "Seen":
        return self  # the workers write into the test's own


def work(
    seen: Seen, strategy: hr.Strategy, value: float, row: int, fit: dict[str, Any], settings: dict[str, Any]
) -> None:
    comm, model = here(), Looks()
    x = X.clone()
    x[row, 1] = value
    left_out = range(BATCH * (BAD_STEP - 1), BATCH * BAD_STEP) if settings.pop("left_out", False) else ()
    kept = [k for k in range(ROWS) if k not in left_out]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    size = BATCH if strategy.joint else SHARE
    trainer = hr.Trainer(
        model, hr.CrossEntropy(), optimizer, strategy=strategy, batch_size=size, order="none", **settings
    )
    before, number = Before(), comm.shard.index
    try:
        history = trainer.fit((x[kept], Y[kept]), callbacks=[before], **{"epochs": 1, "progress": False} | fit)
    except BaseException as error:
        seen.errors[number] = error
        raise
    else:
        if comm.leader:
            seen.rows = history.rows
    finally:
        seen.states[number], seen.at_last[number] = before.states, state(trainer)
        seen.skipped[number] = trainer.skipped


def train(strategy: hr.Strategy, value: float, row: int = BAD, fit: Any = None, **settings: Any) -> Seen:
    seen = Seen()
    hr.launch(work, seen, strategy, value, row, fit or {}, settings, workers=WORKERS)
    return seen


def fails(strategy: hr.Strategy, value: float, match: str, fit: Any = None) -> Seen:
    seen = Seen()
    with pytest.raises((hr.NonFiniteError, WorkerError)) as caught:
        hr.launch(work, seen, strategy, value, BAD, fit or {}, {}, workers=WORKERS)
    assert isinstance(caught.value, hr.NonFiniteError), caught.value
    assert re.search(match, str(caught.value)), caught.value
    assert seen.errors.keys() == set(EVERYBODY)
    return seen


def same(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0)


def is_finite(found: State) -> bool:
    tensors = [*found["model"].values(), *(t for s in found["optimizer"].values() for t in s.values())]
    return all(bool(torch.as_tensor(tensor).isfinite().all()) for tensor in tensors)


CAUSES = {"a NaN in the data": (NAN, "cross_entropy' is nan"), "a buffer alone": (1e25, "buffer")}


# --- updates that all make together --------------------------------------------------------------------------


@pytest.mark.parametrize("cause", CAUSES)
def test_all_stop_at_the_same_step_and_nothing_of_it_stays_on_any_worker(cause: str) -> None:
    value, told = CAUSES[cause]
    seen = fails(hr.Synchronous(), value, rf"step {BAD_STEP} .*{told}")
    for worker in EVERYBODY:
        assert re.search(rf"step {BAD_STEP} .*{told}", str(seen.errors[worker]))  # its own, or worker 0's
        assert len(seen.states[worker]) == BAD_STEP - 1
        same(seen.at_last[worker], seen.states[worker][-1])
        assert is_finite(seen.at_last[worker])
    for worker in EVERYBODY:
        for name, weight in seen.at_last[0]["model"].items():
            assert "running" in name or torch.equal(weight, seen.at_last[worker]["model"][name])


@pytest.mark.parametrize("cause", CAUSES)
def test_all_skip_the_same_update_count_it_and_go_on_as_if_it_had_never_been(cause: str) -> None:
    seen = train(hr.Synchronous(), CAUSES[cause][0], nonfinite="skip")
    assert seen.skipped == dict.fromkeys(EVERYBODY, 1)
    for worker in EVERYBODY:
        states = seen.states[worker]
        assert len(states) == ROWS // BATCH
        same(states[BAD_STEP - 1], states[BAD_STEP - 2])
        for earlier, later in [(0, 1), (2, 3), (3, 4)]:
            assert not torch.equal(*(states[k]["model"]["layers.0.weight"] for k in (earlier, later)))
        assert all(map(is_finite, states))
        same(states[-1]["optimizer"], seen.states[0][-1]["optimizer"])
    without = train(hr.Synchronous(), 0.5, left_out=True)
    for worker in EVERYBODY:
        same(seen.states[worker][-1], without.states[worker][-1])
    assert math.isclose(seen.rows[-1]["train/loss"], without.rows[-1]["train/loss"], rel_tol=1e-6)


def test_a_row_of_another_worker_s_has_the_same_effect() -> None:
    """What one worker finds is as good as what any other finds."""
    found = [train(hr.Synchronous(), NAN, BAD + SHARE * k, nonfinite="skip").at_last[0] for k in (-1, 0, 1)]
    weights = [{n: t for n, t in state["model"].items() if "norm" not in n} for state in found]
    same(weights[0], weights[1])
    same(weights[0], weights[2])


def test_without_a_bad_row_nothing_is_skipped() -> None:
    """The negative control."""
    seen = train(hr.Synchronous(), 0.5, nonfinite="skip")
    assert seen.skipped == dict.fromkeys(EVERYBODY, 0)
    assert not torch.equal(*(seen.states[0][k]["model"]["layers.0.weight"] for k in (1, 2)))


# --- updates of every worker's own ---------------------------------------------------------------------------

ROUNDS = [lambda: hr.Periodic("5 steps"), lambda: hr.DiLoCo("5 steps"), lambda: hr.BlockMomentum("5 steps")]


@pytest.mark.parametrize("cause", CAUSES)
def test_one_worker_s_error_ends_all_and_its_own_weights_are_as_before_the_step(cause: str) -> None:
    value, told = CAUSES[cause]
    seen = fails(hr.Periodic("5 steps"), value, rf"step {BAD_STEP} .*{told}")
    assert isinstance(seen.errors[BAD_WORKER], hr.NonFiniteError)
    assert all(is_finite(seen.at_last[worker]) for worker in EVERYBODY)
    same(seen.at_last[BAD_WORKER], seen.states[BAD_WORKER][-1])
    assert len(seen.states[BAD_WORKER]) == BAD_STEP - 1
    for worker in set(EVERYBODY) - {BAD_WORKER}:
        assert re.search(rf"worker {BAD_WORKER} .*step {BAD_STEP} .*{told}", str(seen.errors[worker]))


@pytest.mark.slow
@pytest.mark.parametrize("make", ROUNDS, ids=["periodic", "diloco", "block momentum"])
@pytest.mark.parametrize("cause", CAUSES)
def test_one_worker_skips_its_own_update_only_and_all_agree_in_the_end(cause: str, make: Any) -> None:
    seen = train(make(), CAUSES[cause][0], nonfinite="skip")
    assert seen.skipped == {worker: int(worker == BAD_WORKER) for worker in EVERYBODY}
    for worker in EVERYBODY:
        states = seen.states[worker]
        assert len(states) == ROWS // BATCH
        assert all(map(is_finite, states))
        before, after = (states[k]["model"] for k in (BAD_STEP - 2, BAD_STEP - 1))
        assert torch.equal(before["layers.0.weight"], after["layers.0.weight"]) == (worker == BAD_WORKER)
        same(states[-1]["model"], seen.states[0][-1]["model"])  # the round has ended


# --- in a run -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [hr.Synchronous(), hr.Periodic("2 steps")], ids=["synchronous", "periodic"])
def test_the_last_checkpoint_is_sound_and_the_training_goes_on_with_other_data(
    strategy: hr.Strategy, tmp_path: Path
) -> None:
    fit = {"run": hr.Run(tmp_path / "run", every="1 step")}
    fails(copy.deepcopy(strategy), NAN, "cross_entropy' is nan", fit)
    resumed = train(
        copy.deepcopy(strategy), 0.5, fit={"run": replace(fit["run"], override=True)}
    )  # corrected data are other data
    whole = train(copy.deepcopy(strategy), 0.5)
    assert len(resumed.states[0]) == len(whole.states[0]) - BAD_STEP + 1
    assert all(map(is_finite, resumed.states[0]))


def test_the_error_names_the_worker_whose_loss_is_not_finite() -> None:
    def train(bad: list[int]) -> None:
        x = X.clone()
        x[[BATCH + SHARE * worker for worker in bad]] = NAN
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=BATCH, order="none")
        trainer.fit((x, Y), epochs=1, progress=False)

    with pytest.raises(hr.NonFiniteError, match=r"step 2 .*the loss term 'cross_entropy' is nan on worker 1\."):
        hr.launch(train, [1], workers=WORKERS)
    with pytest.raises(hr.NonFiniteError, match=r"is nan on workers 0, 2\."):
        hr.launch(train, [0, 2], workers=WORKERS)
    with pytest.raises(hr.NonFiniteError, match=r"is nan\. The weights"):
        hr.launch(train, [1])


def test_batch_normalisation_of_a_worker_s_single_row_is_told_as_that() -> None:
    def train(rows: int) -> None:
        model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=BATCH)
        trainer.fit((X[:rows], Y[:rows]), epochs=1, progress=False)

    with pytest.raises(
        hr.DataError, match=r"this batch, or the part of it in a microbatch or on a worker, has a single row"
    ):
        hr.launch(train, BATCH + 2, workers=2)
