"""A training that is stopped anywhere and goes on in another process: the same bits as if it had never been stopped."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import resume_harness
from kit.resume_cases import CASES
from kit.resume_harness import Record, Stop, cleared, differences, in_process, stopped_and_resumed, uninterrupted
from kit.resume_parts import STEPS

PER_EPOCH = STEPS // 3
EVERY = range(STEPS + 1)
EDGES = [0, 1, PER_EPOCH - 1, PER_EPOCH, PER_EPOCH + 1, STEPS - 1, STEPS]
SPLIT = [k for k in range(STEPS) if (k + 1) % PER_EPOCH]  # steps before one that has two microbatches
MAIN = ["table", "source that ends", "source that goes on"]
MORE = [*MAIN, "several optimizers", "fp16", "reports within epochs", "draws in a callback"]
QUICK = [
    "table read by a thread",
    "several optimizers",
    "fp16",
    "nadam",
    "groups",
    "skipping",
    "objective with parameters",
    "draws in a callback",
    "reports within epochs",
    "milestones",
    "plateau",
]

Reference = Callable[[str], Record]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The training that is never stopped."""
    found: dict[str, Record] = {}

    def of(name: str) -> Record:
        if name not in found:
            found[name] = uninterrupted(name, tmp_path_factory.mktemp("reference") / "run")
            assert [event[0] for event in found[name]["events"] if event[1] == "step"] == list(range(1, STEPS + 1))
        return found[name]

    return of


def slow(*arguments: object) -> object:
    return pytest.param(*arguments, marks=pytest.mark.slow)


STOPS = [("table", k) if k in (*EDGES, 4, 14) else slow("table", k) for k in EVERY]
STOPS += [(name, k) if k in (0, PER_EPOCH, 13, STEPS) else slow(name, k) for name in MAIN[1:] for k in EVERY]
STOPS += [slow(name, k) for name in MORE[3:] for k in EVERY]
FAILS = [("table", 13), ("source that ends", 0), ("objective with parameters", STEPS - 2)]
FAILS += [slow(name, k) for name in (*MAIN, "objective with parameters") for k in SPLIT if (name, k) not in FAILS]
ASKS = [("table", 20), ("table", STEPS), ("source that ends", 13)]
ASKS += [slow(name, k) for name in ("table", "source that ends") for k in EVERY[1:] if (name, k) not in ASKS]
CUTS = [("table", PER_EPOCH), ("reports within epochs", 12), ("reports within epochs", STEPS)]
CUTS += [slow("reports within epochs", k) for k in EVERY[3::3] if k not in (12, STEPS)]
CUTS += [slow("draws in a callback", k) for k in (PER_EPOCH, STEPS)]


@pytest.mark.parametrize(("name", "k"), STOPS)
def test_a_training_that_was_left_after_any_step_goes_on_bit_for_bit(
    name: str, k: int, tmp_path: Path, reference: Reference
) -> None:
    assert differences(stopped_and_resumed(name, tmp_path / "run", Stop(k)), reference(name)) == {}


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in CASES if name not in MAIN])
def test_every_kind_of_training_goes_on_bit_for_bit_twice(name: str, tmp_path: Path, reference: Reference) -> None:
    found = stopped_and_resumed(name, tmp_path / "run", Stop(4), Stop(2 * PER_EPOCH))
    assert differences(found, reference(name)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_training_that_is_left_after_every_single_step_ends_the_same(
    name: str, tmp_path: Path, reference: Reference
) -> None:
    found = stopped_and_resumed(name, tmp_path / "run", *map(Stop, EVERY))
    assert differences(found, reference(name)) == {}


@pytest.mark.parametrize(("name", "k"), ASKS)
def test_a_training_that_was_asked_to_end_goes_on_bit_for_bit(
    name: str, k: int, tmp_path: Path, reference: Reference
) -> None:
    found = stopped_and_resumed(name, tmp_path / "run", Stop(k, "preempt"))
    assert differences(found, reference(name)) == {}


@pytest.mark.parametrize(("name", "k"), CUTS)
def test_a_validation_that_was_cut_short_is_made_again_and_leaves_no_trace(
    name: str, k: int, tmp_path: Path, reference: Reference
) -> None:
    found = stopped_and_resumed(name, tmp_path / "run", Stop(k, "validating"))
    assert differences(found, reference(name)) == {}


def test_all_ways_of_stopping_one_after_the_other(tmp_path: Path, reference: Reference) -> None:
    kinds = ["break", "error", "preempt", "break", "preempt"]
    stops = [Stop(k, kinds[n % len(kinds)]) for n, k in enumerate(SPLIT[3::3])]
    found = stopped_and_resumed("reports within epochs", tmp_path / "run", *stops)
    assert differences(found, reference("reports within epochs")) == {}


@pytest.mark.slow
def test_an_interpreter_of_its_own_goes_on_bit_for_bit(tmp_path: Path, reference: Reference) -> None:
    """Not a fork: nothing is known there but the files."""
    in_process("source that goes on", tmp_path / "run", Stop(13))
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from kit.resume_harness import run\n"
        "print(json.dumps(run('source that goes on', Path(sys.argv[2]))))"
    )
    arguments = [sys.executable, "-c", program, str(Path(resume_harness.__file__).parents[1]), str(tmp_path / "run")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert differences(json.loads(done.stdout), reference("source that goes on")) == {}


@pytest.mark.parametrize("name", ["table", "source that ends", "draws in a callback"])
def test_another_seed_is_noticed(name: str, tmp_path: Path, reference: Reference) -> None:
    """The control: the comparison is not blind."""
    other = in_process(name, tmp_path / "run", None, seed=1)
    assert {"weights", "optimizers", "random", "history", "metrics.jsonl", "tensors", "events"} <= set(
        differences(other, reference(name))
    )


def test_a_training_that_begins_again_is_noticed(tmp_path: Path, reference: Reference) -> None:
    """The control: what was stopped does go on, it does not start anew."""
    in_process("table", tmp_path / "run", Stop(13))
    log = (tmp_path / "run" / "events.jsonl").read_text()
    cleared(tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").write_text(log)
    assert "events" in differences(in_process("table", tmp_path / "run", None), reference("table"))
