"""Workers on Ray that are killed, stopped or fail, a machine that goes, and a center that dies before it can answer."""

import json
import os
import pickle
import re
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from kit import forked, ray_cases
from kit.sampled import sampled

import headrace as hr
from headrace.engines.ray import cluster
from headrace.workers.center import Lease, LeaseTerms, NothingYet, Push
from headrace.workers.comm import Null

if TYPE_CHECKING:
    from headrace.engines.ray.center import CenterActor

pytest_plugins = ["kit.ray_cluster"]
pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'headrace[ray]'"),
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

LIMIT_S = 200.0  # of a job on a busy machine
SILENT_S = 20.0  # after which a worker is given up that has stopped

# --- a center that begins again, in this process ----------------------------------------------------------


class Worker:
    """Calls a center as `RayCenter` does, and brings counts of what it has leased."""

    def __init__(self, center: "CenterActor", number: int, life: int = 0) -> None:
        self.center, self.number, self.life, self.sequence, self.requests = center, number, life, 0, 0
        self.training = 0
        self.leases: list[Lease] = []

    def call(self, name: str, *said: Any) -> Any:
        from headrace.engines.ray.center import read, write

        return read(self.center.call(self.number, self.life, self.training, ray_cases.Add(), name, write(said)))

    def join(self, training: int = 1) -> Any:
        terms, weights = LeaseTerms(ray_cases.ROWS, ray_cases.LEASE, ray_cases.END), torch.zeros(ray_cases.END)
        found = self.call("join", ray_cases.Add(), terms, {"seen": weights}, None, None, training)
        self.training, self.sequence = training, 0
        return found

    def lease(self) -> Lease:
        self.requests += 1
        found = self.call("lease", self.requests)
        assert isinstance(found, Lease)
        return found

    def push(self, lease: Lease, base: int = 0) -> Push:
        self.sequence += 1
        seen = torch.zeros(ray_cases.END)
        seen[lease.start : lease.stop] = 1
        done = [(lease.id, lease.start, lease.stop)]
        return Push(self.sequence, base, {"seen": seen}, lease.stop - lease.start, done)

    def exchange(self, push: Push) -> Any:
        return self.call("exchange", push)

    def pull(self) -> Any:
        return self.call("pull")

    @property
    def seen(self) -> torch.Tensor:
        return self.pull().vectors["seen"]


def kept(at: Path) -> "CenterActor":
    from headrace.engines.ray.center import CenterActor
    from headrace.engines.worker import ProgramPlace

    return CenterActor(str(at), ProgramPlace.here())


def test_a_push_that_was_saved_and_not_answered_is_applied_once(tmp_path: Path) -> None:
    worker = Worker(kept(tmp_path), 0)
    worker.join()
    push = worker.push(worker.lease())
    worker.exchange(push)
    worker.center._save(at_once=True)
    worker.center = kept(tmp_path)  # the other is dead
    again = worker.exchange(push)
    assert (again.taken, again.version, again.samples) == (True, 1, ray_cases.LEASE)
    assert worker.seen.sum() == ray_cases.LEASE


def test_a_push_that_was_lost_with_the_center_is_not_taken_and_its_rows_are_leased_again(tmp_path: Path) -> None:
    worker, other = (Worker(kept(tmp_path), number) for number in (0, 1))
    other.center = worker.center
    worker.join()
    first = worker.lease()
    push = worker.push(first)
    assert worker.exchange(push).taken
    other.center = worker.center = kept(tmp_path)
    other.join()
    theirs = other.lease()
    assert (theirs.start, theirs.stop) == (first.start, first.stop), "as if it had never been used"
    assert theirs.id != first.id
    late = worker.exchange(push)
    assert (late.taken, late.samples) == (False, 0)
    assert other.exchange(other.push(theirs)).taken
    assert torch.equal(worker.seen[: ray_cases.LEASE], torch.ones(ray_cases.LEASE))
    assert worker.seen.sum() == ray_cases.LEASE


def test_a_center_that_begins_again_knows_which_training_it_is_in_and_who(tmp_path: Path) -> None:
    worker, other = (Worker(kept(tmp_path), number) for number in (0, 1))
    other.center = worker.center
    worker.join()
    other.join()
    worker.exchange(worker.push(worker.lease()))
    worker.call("leave")
    other.center = worker.center = kept(tmp_path)
    waits = worker.join(training=2)
    assert isinstance(waits, NothingYet)
    assert (waits.workers, waits.what) == ((1,), "to leave training 1")
    other.call("leave")
    other.center = worker.center = kept(tmp_path)
    worker.join(training=2)
    assert worker.seen.sum() == 0, "it has begun"
    with pytest.raises(
        hr.WorkerError, match=r"worker 1 is in training 1, and the center.* has begun training 2 without"
    ):
        other.lease()
    assert other.join() is None, "the first one is over"
    other.join(training=2)
    assert other.lease().start == 0
    other.center = worker.center = kept(tmp_path)
    assert other.join() is None, "it is over still"


def test_no_wait_at_the_center_lasts_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.engines.ray import center

    monkeypatch.setattr(center, "START_S", 0.0)
    seen, why = center.RayCenter(None, 1, 0, timeout_s=0.0), NothingYet((0,), "to begin training 2")
    seen.wait(why)
    with pytest.raises(hr.WorkerError, match="worker 1 has waited at the center for worker 0 to begin training 2, of"):
        seen.wait(why)


def test_a_center_that_has_no_save_of_a_training_has_nothing_to_say(tmp_path: Path) -> None:
    worker = Worker(kept(tmp_path), 0)
    with pytest.raises(hr.WorkerError, match="nobody has joined the center yet"):
        worker.lease()


def test_what_everybody_has_heard_is_never_lost(tmp_path: Path) -> None:
    """That all rows have been used, and that the training is to stop."""
    worker = Worker(kept(tmp_path), 0)
    worker.join()
    while worker.call("lease", worker.requests + 1) is not None:
        worker.exchange(worker.push(worker.lease()))
    worker.center = kept(tmp_path)
    assert torch.equal(worker.seen, torch.ones(ray_cases.END))
    worker.call("ask_to_stop", "enough")
    worker.center = kept(tmp_path)
    assert worker.pull().stop == "enough"


def test_a_worker_that_was_given_up_says_nothing_any_more(tmp_path: Path) -> None:
    worker = Worker(kept(tmp_path), 0)
    worker.join()
    lease = worker.lease()
    worker.center.give_up(0, 0)
    with pytest.raises(hr.WorkerError, match="worker 0 was given up, and another process has taken its place"):
        worker.exchange(worker.push(lease))
    successor = Worker(worker.center, 0, life=1)
    successor.join()
    assert successor.lease().start == lease.start
    worker.center.give_up(0, 0)  # late news of the first life does not concern the second
    assert successor.lease().start == lease.stop


def test_a_worker_that_computes_for_long_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver knows who is lost: it reads the status of all."""
    from headrace.engines.ray import center

    slow = Worker(kept(tmp_path), 0)
    other = Worker(slow.center, 1)
    slow.join()
    other.join()
    lease = slow.lease()
    monkeypatch.setattr(center, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 1e6))
    assert other.lease().start == lease.stop
    assert slow.exchange(slow.push(lease)).taken


def test_a_save_of_the_center_that_is_damaged_is_not_believed(tmp_path: Path) -> None:
    worker = Worker(kept(tmp_path), 0)
    worker.join()
    worker.exchange(worker.push(worker.lease()))
    worker.center._save(at_once=True)
    newest = max((tmp_path / "states").glob("step-*"))
    file = newest / "center.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="going on from"):
        worker.center = kept(tmp_path)
    assert worker.seen.sum() == 0, "the one before"


# --- what workers end by, in this process -----------------------------------------------------------------


def end_by(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (hr.ConfigError("worker 1 cannot have this."), "worker 1 cannot have this."),
        (ZeroDivisionError("in the user's code"), "worker 1 failed at step 0: ZeroDivisionError: in the user's code"),
        (SystemExit(3), "worker 1 failed at step 0: SystemExit: 3"),
        (KeyboardInterrupt(), "worker 1 failed at step 0: KeyboardInterrupt"),
    ],
    ids=["own", "theirs", "exit", "interrupt"],
)
def test_what_a_worker_ends_by_is_told_in_a_sentence_and_where_it_was_raised_in_a_note(
    error: BaseException, told: str
) -> None:
    from ray import cloudpickle

    from headrace.engines.ray.driver import Failure, cause, run_worker
    from headrace.engines.worker import ProgramPlace

    reports = []
    for worker, raised in enumerate([hr.WorkerError("worker 0 has waited for the others"), error]):
        packed = cloudpickle.dumps((end_by, (raised,))), ProgramPlace.here()
        with torch.random.fork_rng([]), pytest.raises(Failure) as failed:
            run_worker(packed, worker, Null)
        reports.append(pickle.loads(pickle.dumps(failed.value)).report)  # as it comes from a worker
    found = cause(reports)
    assert found is not None
    assert type(found) is (hr.ConfigError if isinstance(error, hr.ConfigError) else hr.WorkerError)
    assert str(found) == told
    assert "test_ray_failures.py" in "".join(found.__notes__)


# --- on a cluster -----------------------------------------------------------------------------------------


def job(main: Any, *arguments: Any, **options: Any) -> Any:
    return hr.launch(main, *arguments, engine="ray", **{"workers": 2, "timeout_s": LIMIT_S, **options})


def is_whole(found: dict[str, Any]) -> bool:
    """Whether every position has been counted once, and is recorded so."""
    return bool((found["seen"] == 1).all()) and found["samples"] == ray_cases.END


def begun(at: Path, workers: int) -> list[int]:
    """How often each worker has begun."""
    return [len((at / f"begun-{worker}").read_text()) for worker in range(workers)]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_worker_that_is_lost_and_one_that_stops_begin_again_while_the_others_go_on(
    ray_cluster: Any, tmp_path: Path
) -> None:
    lost = r"worker 0 of 3 was lost at step 2 \(training\): its process \d+ on .* has ended.* for the 1. of 1 times"
    stopped = rf"worker 1 of 3 has stopped at step 2 \(training\): nothing .* for {SILENT_S:g} s. It is started again"
    faults = {0: "lost", 1: "stops"}
    with pytest.warns(UserWarning, match=lost), pytest.warns(UserWarning, match=stopped):
        options = {"workers": 3, "restarts": 1, "timeout_s": SILENT_S}
        found = job(ray_cases.count, hr.Elastic(), str(tmp_path), faults, **options)
    assert is_whole(found)
    assert begun(tmp_path, 3) == [2, 2, 1]
    for worker in faults:
        assert found["every"][worker][1] > 0, "what had been counted before was there"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_in_step_are_started_again_as_often_as_asked_and_each_failure_is_told_in_a_sentence(
    ray_cluster: cluster.Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ["own", "stops", "lost"]
    with pytest.raises(hr.WorkerError, match=r"worker 1 .*was lost.* at step 7 \(training\)") as failed:
        job(ray_cases.fail, str(tmp_path), kinds, restarts=2, timeout_s=SILENT_S)
    assert begun(tmp_path, 2) == [3, 3]
    assert str(failed.value).count("\n") == 0
    assert not getattr(failed.value, "__notes__", []), "nothing of Ray's"
    printed = capsys.readouterr().err
    for said in (
        r"headrace: worker 1 cannot have this\. All are started again, for the 1\. of 2 times\.",
        r"headrace: worker 1 .*(keeps the others waiting since|has stopped).* started again, for the 2\. of 2 times\.",
    ):
        assert re.search(said, printed), said


# --- trainings --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_row_is_trained_with_once_an_epoch_though_a_worker_is_lost_and_another_fails(
    ray_cluster: Any, tmp_path: Path
) -> None:
    model, run, faults = ray_cases.Visits(211), str(tmp_path / "run"), {0: "lost", 1: "fails"}
    lost, failed = (
        f"worker {told}.* It is started again" for told in ("0 of 3 was lost", r"1 failed at step \d+: ZeroDiv")
    )
    with pytest.warns(UserWarning, match=lost), pytest.warns(UserWarning, match=failed):
        arguments = model, ray_cases.asynchronous(), 3, run, str(tmp_path), faults
        found = job(ray_cases.visit, *arguments, workers=3, restarts=1)
    assert torch.equal(model.seen, torch.full((211,), 3.0))
    assert found["samples"] == 633
    assert begun(tmp_path, 3) == [2, 2, 1], "they came back into the same training, while the other went on"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_in_step_all_begin_again_and_go_on_from_the_last_checkpoint(ray_after_a_loss: Any) -> None:
    model, found, at = ray_after_a_loss
    assert begun(at, 2) == [2, 2]
    assert (at / "fault-1").exists()
    assert torch.equal(model.seen, torch.full((37,), 3.0))
    assert found["samples"] == 3 * 37


# --- a center that is lost --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def though_it_was_killed(
    ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ray_cases.Visits, dict[str, Any], dict[str, Any]]:
    """What comes of two trainings at a center that is killed four times: the caller's model, and what worker 0 says."""
    from headrace.engines.ray import driver

    model, at = ray_cases.Visits(211), tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "CenterActor", ray_cases.killed(at))
        counted, trained = job(ray_cases.count_and_train, model, ray_cases.asynchronous())
    assert {file.name for file in at.iterdir()} == {"applied in 1", "saved", "between", "applied in 2"}
    return model, counted, trained


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_center_that_is_killed_before_it_answers_applies_nothing_twice(though_it_was_killed: Any) -> None:
    _, found, _ = though_it_was_killed
    assert is_whole(found)
    assert found["status"]["lost"] >= 1, "what was applied and not answered came again"
    assert found["status"]["repeated"] >= 1, "what was saved and not answered came again"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_next_training_begins_though_the_center_is_lost_between_the_two_and_in_it(
    though_it_was_killed: Any,
) -> None:
    model, _, found = though_it_was_killed
    assert found["samples"] == 633
    assert found["status"]["lost"] >= 1, "what was applied and not answered came again"
    assert torch.equal(model.seen, torch.full((211,), 3.0)), "every row once an epoch"


# --- programs with a cluster of their own -----------------------------------------------------------------


def lose_a_machine(at: str) -> None:
    forked.tell(json.dumps(ray_cases.lose_a_machine(at)))


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_workers_of_a_machine_that_goes_begin_again_on_another(tmp_path: Path) -> None:
    with forked.start(lose_a_machine, tmp_path, tmp_path, limit_s=2 * LIMIT_S) as program:
        found = json.loads(program.until("", limit_s=2 * LIMIT_S))
        assert program.code(LIMIT_S) == 0, program.output
    assert found["whole"]
    assert re.search(r"worker \d of 2 was lost at step \d.* It is started again, for the 1\.", found["warned"])


def launch_and_wait(at: str, mark: str, centered: bool) -> None:
    os.environ["HEADRACE_TEST"] = mark
    arguments = [at, *[hr.Elastic()] * centered]
    hr.launch(ray_cases.wait_to_be_seen, *arguments, workers=2, engine="ray")


ENDINGS = [
    pytest.param(signal.SIGKILL, -9, True, id="killed"),
    pytest.param(signal.SIGTERM, 143, True, id="terminated"),
    pytest.param(signal.SIGINT, -2, False, id="interrupted"),
]


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(("number", "code", "centered"), sampled(ENDINGS, keep=("killed",), of=2))
def test_nothing_is_left_when_the_program_is_ended(tmp_path: Path, number: int, code: int, centered: bool) -> None:
    mark = str(tmp_path)
    with forked.start(launch_and_wait, tmp_path, tmp_path, mark, centered, limit_s=2 * LIMIT_S) as program:
        assert ray_cases.wait_until((tmp_path / "seen").exists, LIMIT_S), program.output
        assert ray_cases.processes(mark)
        program.send(number)
        assert program.code(LIMIT_S) == code, program.output
    assert ray_cases.wait_until(lambda: not ray_cases.processes(mark)), "the processes of its cluster end"
    assert not Path((tmp_path / "scratch").read_text()).exists()
