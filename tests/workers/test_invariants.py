"""What several workers promise: that they train as one would, or as their strategy says, and go on to the bit."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.sampled import sampled
from kit.torch_workers import with_forks
from kit.worker_trainings import (
    ALIKE,
    BATCH,
    EXACT,
    UPDATES,
    CutError,
    Found,
    Options,
    Share,
    apart,
    run,
    sgd,
    train,
)

import headrace as hr
from headrace.engines.network import Network
from headrace.workers.comm import largest, mean
from headrace.workers.here import here

Make = Callable[[], hr.Strategy]
PLAIN: Options = {"optimizer": lambda model: sgd(model, momentum=0.0)}
METRICS = ["accuracy", "f1", "auroc", "confusion"]


def same(a: Found, b: Found) -> None:
    """Raises unless two trainings were the same to the bit; the second may have gone on from a checkpoint."""
    assert a["history"] == b["history"]
    assert a["losses"][b["resumed"] :] == b["losses"]
    assert all(torch.equal(a["weights"][name], value) for name, value in b["weights"].items())


def in_rounds(workers: int, strategy: hr.Strategy, name: str = "plain", batch: int = BATCH, **options: Any) -> Found:
    """Workers whose batches are together as large as that of one."""
    assert batch % workers == 0
    return run(workers, name, strategy, batch_size=batch // workers, **options)


# --- synchronous workers are one worker -------------------------------------------------------------------


DAILY = ["plain", "all three", "rare", "two optimizers", "sequences", "clipped", "loose", "microbatches"]
"""Those whose updates are put together in a way of their own."""


@pytest.mark.parametrize("name", sampled(ALIKE, keep=DAILY))
def test_any_number_of_workers_trains_as_one_does(name: str) -> None:
    one = run(1, name)
    for workers in (2, 3, 5, 8) if name in ("plain", "all three") else (3, 8):  # the last batch has 7 rows
        several = run(workers, name)
        assert apart(one, several) < EXACT, workers
        assert several["losses"] == pytest.approx(one["losses"], abs=EXACT)
        assert [row["step"] for row in several["history"]] == [row["step"] for row in one["history"]]


def test_other_cases_and_a_batch_per_worker_train_otherwise() -> None:
    """The negative control."""
    one = run(1)
    others = ("class weights", "row weights", "ignored", "all three", "prior", "clipped", "clipped by value", "frozen")
    for other in others:
        assert apart(one, run(1, other)) > 1e-3, other
    assert apart(one, run(3, batch_size=3 * BATCH)) > 1e-4


@pytest.mark.parametrize(
    ("workers", "names"),
    [(5, METRICS[:1]), *(pytest.param(workers, METRICS, marks=pytest.mark.slow) for workers in (2, 20))],
    ids=["5", "2, all metrics", "20, all metrics"],
)
def test_scores_and_predictions_are_those_of_one_worker_in_the_order_of_the_rows(
    workers: int, names: list[str]
) -> None:
    metrics = {**{name: name for name in names}, "share": Share()}
    one = run(1, fit={"val": 17, "predict": 9, "validate_every": "3 steps"}, metrics=metrics)
    several = run(workers, fit={"val": 17, "predict": 9, "validate_every": "3 steps"}, metrics=metrics)
    for mine, theirs in zip([*one["history"], one["scores"]], [*several["history"], several["scores"]], strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            exact = name.rpartition("/")[2] in metrics or "loss" not in name
            assert theirs[name] == (value if exact else pytest.approx(value, abs=EXACT)), name
    assert one["scores"]["val/share"]["rows"] == 9
    assert several["predicted"].shape == (9, 3)
    assert torch.allclose(one["predicted"], several["predicted"], rtol=0, atol=EXACT)


@pytest.mark.parametrize("rows", [1, 2])
def test_there_may_be_more_workers_than_rows(rows: int) -> None:
    one, several = (run(workers, fit={"rows": rows, "val": 1, "predict": 1}) for workers in (1, 5))
    assert apart(one, several) < EXACT
    assert several["predicted"].shape == (1, 3)


def test_predictions_keep_their_form_where_a_worker_has_no_row_of_any_batch() -> None:
    class Named(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {"scores": super().forward(x), "parts": [x, (x.sum(1),)]}

    x = torch.ones(1, 4)
    for found in hr.launch(lambda: hr.here().all_gather(hr.Trainer(Named(4, 3)).predict(x)), workers=3):
        assert [*found] == ["scores", "parts"]
        assert torch.equal(found["parts"][0], x)
        assert found["parts"][1][0].tolist() == [4.0]


def test_what_was_measured_so_far_survives_another_number_of_workers(tmp_path: Path) -> None:
    """After an error in mid-epoch: losses and metrics of the epoch are of all its rows."""
    at: Options = {"run": hr.Run(str(tmp_path / "run"), every="2 steps")}
    metrics = {"accuracy": "accuracy"}
    with pytest.raises(CutError):
        run(5, fit={**at, "cut": 7}, metrics=metrics)
    several, one = run(2, fit=at, metrics=metrics), run(1, metrics=metrics)
    assert several["resumed"] == 6
    for mine, theirs in zip(one["history"], several["history"], strict=True):
        assert theirs == {key: pytest.approx(value, abs=EXACT) for key, value in mine.items()}


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_all_workers_have_measured_survives_another_strategy(workers: int, tmp_path: Path) -> None:
    """Rounds of three workers are cut in mid-epoch: the report of the epoch is of the rows of all of them."""
    at: Options = {"run": hr.Run(str(tmp_path / "run"), every="1 step")}
    metrics = ["confusion"]
    with pytest.raises(CutError):
        in_rounds(3, hr.Periodic("1 step"), fit={**at, "cut": 2}, metrics=metrics)
    found = run(workers, fit={"run": replace(at["run"], override=True)}, metrics=metrics)
    assert found["resumed"] > 0
    counted = [sum(map(sum, row["train/confusion"])) for row in found["history"]]
    assert len(set(counted)) == 1, "every epoch has the same rows"


# --- rounds -----------------------------------------------------------------------------------------------


def test_averaging_after_every_step_by_rows_is_synchronous_for_sgd() -> None:
    one, even = run(1, **PLAIN), {"rows": 36}  # shares of 7 rows are not alike
    for workers in (2, 3, 6):
        assert apart(one, in_rounds(workers, hr.Periodic("1 step"), **PLAIN)) < EXACT
    assert apart(one, in_rounds(6, hr.Periodic("1 step", weights="equal"), **PLAIN)) > 1e-4
    assert apart(run(1, fit=even), in_rounds(3, hr.Periodic("1 step"), fit=even)) < EXACT, "with momentum"
    assert apart(run(1), in_rounds(2, hr.Periodic("1 step"))) > EXACT
    assert apart(run(1, "adam", fit=even), in_rounds(3, hr.Periodic("1 step"), "adam", fit=even)) > 1e-4


@pytest.mark.parametrize("every", ["1 step", "3 steps", "1 epoch", "end"])
def test_averaging_alone_changes_no_bit(every: str) -> None:
    same(run(1, "noisy"), run(1, "noisy", hr.Periodic(every)))


# --- to go on, to the bit ---------------------------------------------------------------------------------


class Mean(hr.Strategy):
    """A strategy of one's own: the mean by rows, every three steps."""

    def begin(self, replica: Any) -> None:
        self.rows, self.start = 0, [tensor.clone() for tensor in replica.tensors]

    def after(self, replica: Any, counters: Any, rows: int, total: int, ends_epoch: bool) -> bool:
        self.rows += rows
        if counters.steps % 3:
            return False
        replica.write(self.consensus(replica))
        largest(self.comm, replica.counts)
        self.begin(replica)
        return True

    def consensus(self, replica: Any) -> list[torch.Tensor]:
        return mean(self.comm, replica.tensors, self.rows)

    def state_dict(self, replica: Any) -> dict[str, Any]:
        return {"start": replica.by_name(self.start)}

    def own_state(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, replica: Any, state: Any, own: Any) -> None:
        self.begin(replica)
        if own is not None:
            self.rows, self.start = own["rows"], replica.joined(state["start"])


STRATEGIES: dict[str, Make] = {
    "synchronous": hr.Synchronous,
    "periodic": lambda: hr.Periodic("3 steps"),
    "periodic, epochs": hr.Periodic,
    "periodic, once": lambda: hr.Periodic("end"),
    "periodic, outer": lambda: hr.Periodic("2 steps", outer=lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9)),
    "block momentum": lambda: hr.BlockMomentum("3 steps", nesterov=True),
    "block momentum, kept": lambda: hr.BlockMomentum("2 steps", reset_inner=False),
    "DiLoCo": lambda: hr.DiLoCo("3 steps"),
    "elastic": lambda: hr.Elastic("3 steps"),
    "elastic, taking": lambda: hr.Elastic("3 steps", alpha=0.5, take_center=True),
    "elastic, epochs": lambda: hr.Elastic("1 epoch"),
    "of one's own": Mean,
}
UNEVEN: Options = {"rows_per_s": 100.0, "speeds": {1: 0.6}, "bandwidth": "1 Mbit"}


def noisy(name: str, workers: int, **fit: Any) -> Found:
    """With dropout, buffers, metrics and validations in mid-epoch."""
    batch = BATCH if name == "synchronous" else BATCH // workers
    fit = {"val": 9, "validate_every": "3 steps", "log_every": "2 steps", **fit}
    network, metrics = Network(**UNEVEN), {"accuracy": "accuracy"}
    return run(workers, "noisy", STRATEGIES[name](), fit=fit, network=network, metrics=metrics, batch_size=batch)


def cut_and_resumed(name: str, workers: int, step: int, at: Path) -> None:
    """Raises unless a training that an error has ended after this step goes on as if nothing had been."""
    whole = noisy(name, workers, run=hr.Run(f"{at}-undisturbed", every="1000 steps"))
    saved: Options = {"run": hr.Run(str(at), every=f"{step} steps")}
    with pytest.raises(CutError):
        noisy(name, workers, cut=step + 1, **saved)
    resumed = noisy(name, workers, **saved)
    assert resumed["resumed"] == step
    same(whole, resumed)


@pytest.mark.parametrize(
    "name", sampled(STRATEGIES, keep=["DiLoCo", "block momentum, kept", "elastic", "of one's own"], of=6)
)
def test_what_has_stopped_in_mid_round_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    cut_and_resumed(name, 2, 5 if "elastic" not in name else 4, tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "workers"), sampled(itertools.product(STRATEGIES, (2, 3)), keep=[("elastic, taking", 2), ("periodic", 2)])
)
def test_what_has_stopped_after_any_step_goes_on_to_the_bit(name: str, workers: int, tmp_path: Path) -> None:
    for step in range(1, len(noisy(name, workers)["losses"])):
        cut_and_resumed(name, workers, step, tmp_path / str(step))


@pytest.mark.parametrize("name", ["DiLoCo", "elastic"])
def test_the_same_training_twice_is_the_same_with_checkpoints_too_and_other_workers_make_another(
    name: str, tmp_path: Path
) -> None:
    whole = noisy(name, 2)
    same(whole, noisy(name, 2))
    same(whole, noisy(name, 2, run=hr.Run(str(tmp_path / "run"), every="2 steps")))
    assert apart(whole, noisy(name, 3)) > 1e-6


def test_a_strategy_of_ones_own_has_the_bits_of_the_one_that_does_the_same() -> None:
    one, other = noisy("of one's own", 3), noisy("periodic", 3)
    assert one["history"] == other["history"]
    assert apart(one, other) == 0.0


# --- the same on real workers -----------------------------------------------------------------------------

ROUNDS: Options = {"batch_size": BATCH // 2}
SUBSET: dict[str, tuple[str, hr.Strategy | None, Options, Options]] = {
    "synchronous": ("all three", None, {"val": 9}, {}),
    "scored": ("plain", None, {"val": 9, "predict": 3}, {"metrics": {"share": Share()}}),
    "every step": ("adam", hr.Periodic("1 step"), {}, ROUNDS),
    "whole": ("noisy", hr.DiLoCo("3 steps"), {"steps": 2 * UPDATES}, ROUNDS),
    "cut": ("noisy", hr.DiLoCo("3 steps"), {"steps": 4}, ROUNDS),
    "resumed": ("noisy", hr.DiLoCo("3 steps"), {"steps": 2 * UPDATES}, ROUNDS),
}


def subset(at: str) -> dict[str, Found]:
    """In a worker of any engine: a few trainings, one after another."""
    in_run = {"run": f"{at}-{here().count}"}
    return {
        what: train(name, copy.deepcopy(strategy), fit | (in_run if what in ("cut", "resumed") else {}), dict(settings))
        for what, (name, strategy, fit, settings) in SUBSET.items()
    }


def two_processes(at: str) -> None:
    torch.save(hr.launch(subset, f"{at}/run", workers=2, engine="processes"), f"{at}/found")


def test_two_processes_keep_the_same_promises(tmp_path: Path) -> None:
    with_forks(two_processes, tmp_path, tmp_path)
    found = torch.load(tmp_path / "found", weights_only=False)
    one, virtual = (hr.launch(subset, str(tmp_path / name), workers=k) for name, k in (("one", 1), ("two", 2)))
    for name in SUBSET:
        assert apart(virtual[name], found[name]) < 1e-6, name
        assert found[name]["losses"] == pytest.approx(virtual[name]["losses"], abs=1e-6)
    for name in ("synchronous", "scored"):
        assert apart(one[name], found[name]) < EXACT, name
    assert torch.allclose(one["scored"]["predicted"], found["scored"]["predicted"], rtol=0, atol=EXACT)
    assert found["scored"]["scores"]["val/share"] == one["scored"]["scores"]["val/share"]
    assert found["resumed"]["resumed"] == 4
    assert found["whole"]["losses"][4:] == found["resumed"]["losses"]
    assert apart(found["whole"], found["resumed"]) == 0.0
