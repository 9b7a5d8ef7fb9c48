"""Trainings that are killed while their trackers write, and go on: each number is there once, and none is lost."""

import importlib
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from kit import event_files, forked, trainees
from kit.cli_parts import headrace
from kit.fault_harness import Kill
from kit.forked import start, tell
from kit.sampled import EVERY

import headrace as hr
from headrace.store import disk
from headrace.watch.files import LogFile
from headrace.watch.tensorboard import TensorBoard
from headrace.watch.trackers import MLflow, WandB

FILES = ("log.txt", "tb")
NEVER = -1
KILLED = str(-signal.SIGKILL)
KILLS = 60 if EVERY in os.environ else 4
AFTER = 17  # the step after which a training is killed; reports of 16 came after its last checkpoint, of 15


class KillOfTrackers(Kill):
    """Counts the operations on the files of trackers only."""

    def __call__(self, operation: str, call: Any, *arguments: Any) -> Any:
        path = Path(arguments[0])
        mine = path.name in FILES or path.parent.name in FILES
        return super().__call__(operation, call, *arguments) if mine else perform(operation, call, *arguments)


perform = disk.perform
Records = Callable[[str], tuple[Path, list[str]]]


class Dies(hr.Callback):
    """Ends the process, as a power switch would, after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def train(run: str, at: int, when: str) -> None:
    """In a process of its own: the training, which is killed at an operation on a tracker's file."""
    global perform
    perform, disk.perform = disk.perform, KillOfTrackers(at=at, when=when)
    trainees.fit(trainees.trainer(), run, callbacks=[LogFile(), TensorBoard()], log_every="1 step")
    tell("operations " + json.dumps(disk.perform.operations))


class Whole(NamedTuple):
    """What a training leaves that nobody disturbs."""

    operations: list[str]
    rows: str
    curves: event_files.Curves


def left(run: Path, operations: list[str]) -> Whole:
    return Whole(operations, (run / "metrics.jsonl").read_text(), event_files.raw_curves(run / "tb"))


@cache
def whole() -> Whole:
    with TemporaryDirectory() as at:
        run = Path(at) / "run"
        with start(train, run.parent, run, NEVER, "") as child:
            operations = json.loads(child.until("operations"))
            assert child.ending() == 0
        found = left(run, operations)
        assert found.curves == event_files.wanted(run)
        assert operations.count("write") > 30
        return found


def test_trackers_that_are_killed_while_they_write_have_every_number_once(tmp_path: Path) -> None:
    random, killed, run, runs = Random(3), 0, tmp_path / "run0", 0
    while killed < KILLS:
        at = random.randrange(len(whole().operations))
        halves = ["half"] if whole().operations[at] == "write" else []
        with start(train, tmp_path, run, at, random.choice(["before", "after", *halves])) as child:
            ended = child.ending() == 0
            killed += not ended
        if ended or killed == KILLS:
            with start(train, tmp_path, run, NEVER, "") as child:
                assert child.ending() == 0, child.output
            found = left(run, whole().operations)
            assert found == whole()
            assert event_files.shown(event_files.accumulator(run / "tb")) == whole().curves
            runs += 1
            run = tmp_path / f"run{runs}"


def test_the_log_of_a_killed_training_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start(train, tmp_path, run, 30, "before") as child:
        assert child.ending() == -signal.SIGKILL
    before = (run / "log.txt").read_text()
    with start(train, tmp_path, run, NEVER, "") as child:
        assert child.ending() == 0, child.output
    after = (run / "log.txt").read_text()
    assert after.startswith(before)
    assert [after.count(words) for words in ("started\n", "going on from step", "ended: ")] == [1, 1, 1]


# --- records that other programs keep ---------------------------------------------------------------------


OWN = {"width": 64}
"""Hyperparameters of a user's own."""


def in_turn(package: str, at: str) -> None:
    """Imports a package, which takes seconds, and trains in forks of this process; tells how each of them has ended."""
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    os.environ |= {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
    importlib.import_module(package)
    once = train_with_mlflow if package == "mlflow" else train_with_wandb
    for work in [*(partial(once, at, step) for step in (4, AFTER, NEVER)), partial(train_in_ways, at, package)]:
        child = os.fork()
        if not child:
            forked.end_after(work)
        tell(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """What trainings with a package leave in a directory, and what they have told: made once for all tests."""

    @cache
    def of(package: str) -> tuple[Path, list[str]]:
        at = tmp_path_factory.mktemp(package)
        with start(in_turn, at, package, at) as child:
            assert child.ending() == 0, child.output
            ended = [line.removeprefix("ended ") for line in child.told if line.startswith("ended")]
            assert ended == [KILLED, KILLED, "0", "0"], child.output
            return at, child.told

    return of


def train_with_mlflow(at: str, step: int) -> None:
    """The training, killed after a step, and then what MLflow has."""
    os.chdir(at)  # where MLflow keeps files
    where = f"sqlite:///{at}/mlflow.db"
    trainer = trainees.trainer(metrics={"right@1": trainees.Right()})
    trainees.fit(trainer, f"{at}/run", callbacks=[MLflow("digits", where, params=OWN), LogFile(), Dies(step)])
    from mlflow import MlflowClient

    client = MlflowClient(where)
    (found,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])  # type: ignore[union-attr]
    histories = {key: client.get_metric_history(found.info.run_id, key) for key in found.data.metrics}
    curves = {key: [(metric.step, metric.value) for metric in history] for key, history in histories.items()}
    tell("told " + json.dumps([found.info.run_name, found.info.status, found.data.params, curves]))


def train_with_wandb(at: str, step: int) -> None:
    """The training, killed after a step."""
    record = WandB("digits", mode="offline", dir=at, params=OWN)
    trainees.fit(trainees.trainer(), f"{at}/run", callbacks=[record, Dies(step)])


def recorded(at: Path) -> tuple[event_files.Curves, dict[str, float], dict[str, Any]]:
    """The history, the summary and the config that the last of W&B's files holds, which is the one to be sent."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    curves: event_files.Curves = {}
    summary: dict[str, float] = {}
    config: dict[str, Any] = {}
    for path in sorted(at.glob("wandb/offline-run-*/*.wandb"))[-1:]:
        for record in map(Record.FromString, event_files.wandb_records(path)):
            for item in record.history.item:
                key = item.key or "/".join(item.nested_key)
                curves.setdefault(key, []).append((record.history.step.num, json.loads(item.value_json)))
            for item in record.summary.update:
                summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
            for item in record.run.config.update:
                config[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    return curves, summary, config


class Ends(hr.Callback):
    """Ends the training in one of the ways in which trainings end early."""

    def __init__(self, way: str) -> None:
        self._way = way

    def on_step_end(self, info: hr.Info) -> None:
        if info.step == 5 and self._way == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif info.step == 5 and self._way == "fails":
            raise ValueError("on purpose")


WAYS = {"through": "finished", "SIGTERM": "interrupted", "left": "interrupted", "fails": "failed"}


def train_in_ways(at: str, package: str) -> None:
    """Trainings that end in different ways, and what their records say of it."""
    os.chdir(at)
    where, mlflow = f"sqlite:///{at}/ways.db", package == "mlflow"
    for way in WAYS:
        record: Any = MLflow("ways", where) if mlflow else WandB("ways", mode="offline", dir=f"{at}/ways")
        given: dict[str, Any] = {"run": f"{at}/{way}", "callbacks": [record, Ends(way)], "epochs": 2}
        with suppress(ValueError, SystemExit):
            for info in trainees.trainer().steps(trainees.Rows(), **given):
                if way == "left" and info.step == 5:
                    break
        tell(f"way {way}: {_status(where, record.id) if mlflow else record.id}")


def _status(where: str, name: str) -> str:
    from mlflow import MlflowClient

    return str(MlflowClient(where).get_run(name).info.status)


def _exit_code(at: Path, name: str) -> str:
    """The exit code that W&B's file has, once the process is gone that writes it."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    (path,) = at.glob(f"wandb/offline-run-*-{name}/*.wandb")
    (code,) = (r.exit.exit_code for r in map(Record.FromString, event_files.wandb_records(path)) if r.HasField("exit"))
    return str(code)


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("wandb", {"finished": "0", "interrupted": "255", "failed": "1"}),
        ("mlflow", {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}),
    ],
)
def test_a_record_says_how_a_training_ended_as_the_report_does(
    package: str, words: dict[str, str], records: Records
) -> None:
    at, lines = records(package)
    told = dict(line.removeprefix("way ").split(": ") for line in lines if line.startswith("way "))
    found = told if package == "mlflow" else {way: _exit_code(at / "ways", name) for way, name in told.items()}
    assert found == {way: words[state] for way, state in WAYS.items()}
    for way, state in WAYS.items():
        assert headrace("report", at / way, "--json") == 0
        assert f'class="status {state}"' in (at / way / "report.html").read_text()


def reported(run: Path) -> event_files.Curves:
    """Every number that the run has reported, and the epoch, as it was reported."""
    curves: event_files.Curves = {}
    for row in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for key, value in row.items():
            if not curves.get(key) or curves[key][-1][0] < row["step"]:
                curves.setdefault(key, []).append((row["step"], value))
    return {key: points for key, points in curves.items() if key not in ("step", "samples")}


def test_mlflow_has_every_number_once_in_one_run(records: Records) -> None:
    at, lines = records("mlflow")
    (told,) = [line.removeprefix("told ") for line in lines if line.startswith("told ")]
    name, status, params, curves = json.loads(told)
    assert (name, status) == ("run", "FINISHED")
    assert (params["optimizer.kind"], params["batch_size"], params["width"]) == ("Adam", "4", "64")
    wanted = {key.replace("@", "_"): points for key, points in reported(at / "run").items() if key != "epoch"}
    assert {key: [tuple(point) for point in points] for key, points in curves.items()} == wanted


def test_wandb_has_every_number_once_in_one_run(records: Records) -> None:
    at, _ = records("wandb")
    curves, summary, config = recorded(at)
    wanted = reported(at / "run")
    tested = {key: wanted.pop(key)[0][1] for key in list(wanted) if key.startswith("test/")}
    assert {key: points for key, points in curves.items() if not key.startswith("_")} == wanted
    assert tested == {key: value for key, value in summary.items() if key.startswith("test/")}
    assert (config["optimizer.kind"], config["limits.epochs"], config["width"]) == ("Adam", 3, 64)
    assert len({path.name for path in at.glob("wandb/offline-run-*/*.wandb")}) == 1, "one id"
