"""Numbers that are not finite on one worker only: what all share stays sound, and all do the same about it."""

import copy
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.small import same, state
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


class Seen:
    """What has become of each worker: the states after its updates, and at last; its error; what it has skipped."""

    def __init__(self) -> None:
        self.states: dict[int, list[Any]] = {k: [] for k in EVERYBODY}
        self.at_last: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self.skipped: dict[int, int] = {}
        self.rows: list[dict[str, Any]] = []

    def __deepcopy__(self, memo: Any) -> "Seen":
        return self  # the workers write into the test's own


def work(seen: Seen, strategy: hr.Strategy, value: float, row: int, fit: Any, kept: list[int], settings: Any) -> None:
    x, number = X.clone(), here().shard.index
    x[row, 1] = value
    model = Looks()
    trainer = hr.Trainer(
        model,
        hr.CrossEntropy(),
        torch.optim.Adam(model.parameters(), lr=0.02),
        strategy=strategy,
        batch_size=BATCH if strategy.joint else SHARE,
        order="none",
        **settings,
    )
    note = hr.Lambda(on_step_end=lambda info: seen.states[number].append(state(info.trainer)))
    try:
        history = trainer.fit((x[kept], Y[kept]), callbacks=[note], **{"epochs": 1, "progress": False} | fit)
        if here().leader:
            seen.rows = history.rows
    except BaseException as error:
        seen.errors[number] = error
        raise
    finally:
        seen.at_last[number], seen.skipped[number] = state(trainer), trainer.skipped


def train(strategy: hr.Strategy, value: float, row: int = BAD, fit: Any = None, kept: Any = None, **more: Any) -> Seen:
    seen = Seen()
    rows = [*range(ROWS)] if kept is None else kept
    hr.launch(work, seen, copy.deepcopy(strategy), value, row, fit or {}, rows, more, workers=WORKERS)
    return seen


def fails(strategy: hr.Strategy, value: float, match: str, fit: Any = None) -> Seen:
    seen = Seen()
    with pytest.raises(hr.NonFiniteError, match=match):
        hr.launch(work, seen, copy.deepcopy(strategy), value, BAD, fit or {}, [*range(ROWS)], {}, workers=WORKERS)
    assert seen.errors.keys() == set(EVERYBODY)
    return seen


def is_finite(found: Any) -> bool:
    if isinstance(found, dict | list):
        return all(map(is_finite, found.values() if isinstance(found, dict) else found))
    return not isinstance(found, Tensor) or bool(found.isfinite().all())


def weights(found: Any) -> dict[str, Tensor]:
    """Without what a worker measures of its own rows."""
    return {name: tensor for name, tensor in found["model"].items() if "norm" not in name}


CAUSES = {"a NaN in the data": (NAN, "cross_entropy' is nan"), "a buffer alone": (1e25, "buffer")}
STRATEGIES = {
    "synchronous": hr.Synchronous(),
    "periodic": hr.Periodic("5 steps"),
    "diloco": hr.DiLoCo("5 steps"),
    "block momentum": hr.BlockMomentum("5 steps"),
}


@pytest.mark.parametrize("strategy", ["synchronous", "periodic"])
@pytest.mark.parametrize("cause", CAUSES)
def test_all_end_by_the_error_which_leaves_nothing_behind(cause: str, strategy: str) -> None:
    value, told = CAUSES[cause]
    seen, joint = fails(STRATEGIES[strategy], value, rf"step {BAD_STEP} .*{told}"), strategy == "synchronous"
    assert joint or isinstance(seen.errors[BAD_WORKER], hr.NonFiniteError)
    for worker in EVERYBODY:
        assert is_finite(seen.at_last[worker])
        assert re.search(rf"step {BAD_STEP} .*{told}", str(seen.errors[worker]))
        if joint or worker == BAD_WORKER:
            assert len(seen.states[worker]) == BAD_STEP - 1
            assert same(seen.at_last[worker], seen.states[worker][-1])
        else:
            assert isinstance(seen.errors[worker], WorkerError)
            assert str(seen.errors[worker]).startswith(f"worker {BAD_WORKER} ")
        assert not joint or same(weights(seen.at_last[0]), weights(seen.at_last[worker]))


@pytest.mark.parametrize("strategy", [*STRATEGIES])
@pytest.mark.parametrize("cause", CAUSES)
def test_those_who_made_the_update_skip_it_and_all_agree_in_the_end(cause: str, strategy: str) -> None:
    seen, joint = train(STRATEGIES[strategy], CAUSES[cause][0], nonfinite="skip"), strategy == "synchronous"
    assert seen.skipped == {worker: int(joint or worker == BAD_WORKER) for worker in EVERYBODY}
    for worker in EVERYBODY:
        states = seen.states[worker]
        assert len(states) == ROWS // BATCH
        assert is_finite(states)
        for k in range(1, len(states)):
            skipped = k == BAD_STEP - 1 and (joint or worker == BAD_WORKER)
            assert same(weights(states[k - 1]), weights(states[k])) == skipped
        assert same(weights(states[-1]), weights(seen.states[0][-1]))
    if joint:
        left = [k for k in range(ROWS) if k not in range(BATCH * (BAD_STEP - 1), BATCH * BAD_STEP)]
        without = train(hr.Synchronous(), 0.5, kept=left)
        assert all(same(seen.states[worker][-1], without.states[worker][-1]) for worker in EVERYBODY)
        assert math.isclose(seen.rows[-1]["train/loss"], without.rows[-1]["train/loss"], rel_tol=1e-6)


@pytest.mark.parametrize("strategy", [hr.Synchronous(), hr.Periodic("2 steps")], ids=["synchronous", "periodic"])
def test_the_last_checkpoint_is_sound_and_the_training_goes_on_with_other_data(
    strategy: hr.Strategy, tmp_path: Path
) -> None:
    fit = {"run": hr.Run(tmp_path / "run", every="1 step")}
    fails(strategy, NAN, "cross_entropy' is nan", fit)
    resumed = train(strategy, 0.5, fit={"run": replace(fit["run"], override=True)})  # corrected data are other data
    whole = train(strategy, 0.5)
    assert len(resumed.states[0]) == len(whole.states[0]) - BAD_STEP + 1
    assert is_finite(resumed.states[0])


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
