"""A training that is stopped anywhere and goes on in another process: the same bits as if it had never been stopped."""

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import resume_harness
from kit.resume_harness import (
    Record,
    Stop,
    differences,
    differences_in_one_process,
    in_process,
    stopped_and_resumed,
    uninterrupted,
)
from kit.sampled import sampled
from kit.trainings import CASES, STEPS

pytestmark = pytest.mark.slow
PER_EPOCH = STEPS // 3
EVERY = range(STEPS + 1)
SPLIT = [k for k in range(STEPS) if (k + 1) % PER_EPOCH]  # steps before one that has two microbatches
OBJECTIVE, REPORTS, DRAWS = "objective with parameters", "reports within epochs", "draws in a callback"
MAIN = ["table", "source that ends", "source that goes on"]


STOPS = [(name, k, "break") for name in [*MAIN, "several optimizers", "fp16", REPORTS, DRAWS] for k in EVERY]
STOPS += [(name, k, "error") for name in [*MAIN, OBJECTIVE] for k in SPLIT]
STOPS += [(name, k, "preempt") for name in MAIN[:2] for k in EVERY[1:]]
STOPS += [("table", PER_EPOCH, "validating"), *[(DRAWS, k, "validating") for k in (PER_EPOCH, STEPS)]]
STOPS += [(REPORTS, k, "validating") for k in EVERY[3::3]]
STOPS_KEPT = [("table", 13, "break"), ("source that goes on", PER_EPOCH, "break"), (REPORTS, 12, "validating")]
STEPWISE = sampled(CASES, keep=["table"], of=16)
ALIKE = {
    "radam",
    "adamax",
    "adagrad",
    "adadelta",
    "rmsprop",
    "rprop",
    "asgd",
    "milestones",
    "restarts",
    "cyclic",
    "function",
}
"""Optimizers and schedulers whose state is as that of others, to a checkpoint: these go on twice in the night only."""
OTHERS = [name for name in CASES if name not in {*MAIN, *STEPWISE}]
TWICE = sampled(OTHERS, keep=[name for name in OTHERS if name not in ALIKE])

Reference = Callable[[str], Record]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The training that is never stopped."""
    resume_harness.warm_up()  # here, where it counts for no test
    found: dict[str, Record] = {}

    def of(name: str) -> Record:
        if name not in found:
            found[name] = uninterrupted(name, tmp_path_factory.mktemp("reference") / "run")
            assert [event[0] for event in found[name]["events"] if event[1] == "step"] == list(range(1, STEPS + 1))
        return found[name]

    return of


@pytest.mark.parametrize(("name", "k", "kind"), sampled(STOPS, keep=STOPS_KEPT, of=48))
def test_a_training_that_was_stopped_at_any_step_in_any_way_goes_on_bit_for_bit(
    name: str, k: int, kind: str, tmp_path: Path, reference: Reference
) -> None:
    """A validation that was cut short is made again."""
    assert differences(stopped_and_resumed(name, tmp_path / "run", Stop(k, kind)), reference(name)) == {}


@pytest.mark.parametrize("name", TWICE)
def test_every_kind_of_training_goes_on_bit_for_bit_twice(name: str, tmp_path: Path) -> None:
    assert differences_in_one_process(name, tmp_path / "run", Stop(4), Stop(2 * PER_EPOCH)) == {}


@pytest.mark.parametrize("name", STEPWISE)
def test_a_training_that_is_left_after_every_single_step_ends_the_same(name: str, tmp_path: Path) -> None:
    assert differences_in_one_process(name, tmp_path / "run", *map(Stop, EVERY)) == {}


def test_all_ways_of_stopping_one_after_the_other(tmp_path: Path, reference: Reference) -> None:
    kinds = ["break", "error", "preempt", "break", "preempt"]
    stops = [Stop(k, kinds[n % len(kinds)]) for n, k in enumerate(SPLIT[3::3])]
    assert differences(stopped_and_resumed(REPORTS, tmp_path / "run", *stops), reference(REPORTS)) == {}


def test_an_interpreter_of_its_own_goes_on_bit_for_bit(tmp_path: Path, reference: Reference) -> None:
    """Not a fork: nothing is known there but the files."""
    in_process("source that goes on", tmp_path / "run", Stop(13))
    program = (
        "import pickle, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from kit.resume_harness import run\n"
        "pickle.dump(run('source that goes on', Path(sys.argv[2])), sys.stdout.buffer)"
    )
    arguments = [sys.executable, "-c", program, str(Path(resume_harness.__file__).parents[1]), str(tmp_path / "run")]
    done = subprocess.run(arguments, capture_output=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert differences(pickle.loads(done.stdout), reference("source that goes on")) == {}


@pytest.mark.parametrize("name", [DRAWS, "table", "source that ends"])
def test_another_seed_is_noticed(name: str, tmp_path: Path, reference: Reference) -> None:
    """The control: the comparison is not blind."""
    other = in_process(name, tmp_path / "run", None, seed=1)
    assert {"weights", "optimizers", "random", "history", "metrics.jsonl", "tensors", "events"} <= set(
        differences(other, reference(name))
    )


def test_a_training_that_begins_again_is_noticed(tmp_path: Path, reference: Reference) -> None:
    """The control: what was stopped does go on, it does not start anew."""
    in_process("table", tmp_path / "run", Stop(13))
    shutil.rmtree(tmp_path / "run" / "run")
    assert "events" in differences(in_process("table", tmp_path / "run", None), reference("table"))
