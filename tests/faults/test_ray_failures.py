"""Workers on Ray that are killed, stopped or fail, a machine that goes, and a center that dies before it can answer."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.comm.center import Lease, Push, Wait
from headrace.engine import launch
from headrace.errors import ConfigError, WorkerError
from headrace.strategy import Asynchronous, Elastic, Synchronous

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'headrace[ray]'")

from kit import ray_cases  # noqa: E402

from headrace.engine.ray import apart, center, cluster  # noqa: E402
from headrace.engine.ray.center import Kept, _received, _sent_push  # noqa: E402
from headrace.engine.ray.parcel import Place  # noqa: E402

LIMIT_S = 200.0  # of a job on a busy machine
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

# --- a center that begins again, in this process ----------------------------------------------------------


class Worker:
    """Calls a center as `RayCenter` does, and brings counts of what it has leased."""

    def __init__(self, center: Kept, number: int, life: int = 0) -> None:
        self.center, self.number, self.life, self.sequence, self.requests = center, number, life, 0, 0
        self.training = 0
        self.leases: list[Lease] = []

    def call(self, name: str, *said: Any) -> Any:
        return self.center.call(self.number, self.life, self.training, ray_cases.Add(), name, *said)

    def join(self, training: int = 1) -> Any:
        from headrace.comm.wire import pack

        said = {
            "terms": {"rows": ray_cases.ROWS, "lease": ray_cases.LEASE, "end": ray_cases.END},
            "weights": {"seen": torch.zeros(ray_cases.END)},
            "state": None,
            "keeps": False,
            "said": None,
            "training": training,
        }
        found = self.call("join", pack(said).numpy(), ray_cases.Add())
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

    def meet(self, push: Push) -> Any:
        return _received(self.call("meet", _sent_push(push)))

    @property
    def seen(self) -> torch.Tensor:
        return _received(self.call("pull")).vectors["seen"]


def kept(at: Path) -> Kept:
    return Kept(str(at), Place.here())


def test_a_push_that_was_saved_and_not_answered_is_applied_once(tmp_path: Path) -> None:
    worker = Worker(kept(tmp_path), 0)
    worker.join()
    push = worker.push(worker.lease())
    worker.meet(push)
    worker.center._save(at_once=True)
    worker.center = kept(tmp_path)  # the other is dead
    again = worker.meet(push)
    assert (again.taken, again.version, again.samples) == (True, 1, ray_cases.LEASE)
    assert worker.seen.sum() == ray_cases.LEASE


def test_a_push_that_was_lost_with_the_center_is_not_taken_and_its_rows_are_leased_again(tmp_path: Path) -> None:
    worker, other = (Worker(kept(tmp_path), number) for number in (0, 1))
    other.center = worker.center
    worker.join()
    first = worker.lease()
    push = worker.push(first)
    assert worker.meet(push).taken
    other.center = worker.center = kept(tmp_path)
    other.join()
    theirs = other.lease()
    assert (theirs.start, theirs.stop) == (first.start, first.stop), "as if it had never been used"
    assert theirs.id != first.id
    late = worker.meet(push)
    assert (late.taken, late.samples) == (False, 0)
    assert other.meet(other.push(theirs)).taken
    assert torch.equal(worker.seen[: ray_cases.LEASE], torch.ones(ray_cases.LEASE))
    assert worker.seen.sum() == ray_cases.LEASE


def test_a_center_that_begins_again_knows_which_training_it_is_in_and_who(tmp_path: Path) -> None:
    worker, other = (Worker(kept(tmp_path), number) for number in (0, 1))
    other.center = worker.center
    worker.join()
    other.join()
    worker.meet(worker.push(worker.lease()))
    worker.call("leave")
    other.center = worker.center = kept(tmp_path)
    waits = worker.join(training=2)
    assert isinstance(waits, Wait)
    assert (waits.workers, waits.what) == ((1,), "to leave training 1")
    other.call("leave")
    other.center = worker.center = kept(tmp_path)
    worker.join(training=2)
    assert worker.seen.sum() == 0, "it has begun"
    with pytest.raises(WorkerError, match=r"worker 1 is in training 1, and the center.* has begun training 2 without"):
        other.lease()
    assert other.join() is None, "the first one is over"
    other.join(training=2)
    assert other.lease().start == 0


def test_a_center_that_has_no_save_of_a_training_has_nothing_to_say(tmp_path: Path) -> None:
    worker = Worker(kept(tmp_path), 0)
    with pytest.raises(WorkerError, match="nobody has joined the center yet"):
        worker.lease()


def test_what_everybody_has_heard_is_never_lost(tmp_path: Path) -> None:
    """That all rows have been used, and that the training is to stop."""
    worker = Worker(kept(tmp_path), 0)
    worker.join()
    while worker.call("lease", worker.requests + 1) is not None:
        worker.meet(worker.push(worker.lease()))
    worker.center = kept(tmp_path)
    assert torch.equal(worker.seen, torch.ones(ray_cases.END))
    worker.call("ask_to_stop", "enough")
    worker.center = kept(tmp_path)
    assert _received(worker.call("pull")).stop == "enough"


def test_a_worker_that_was_given_up_says_nothing_any_more(tmp_path: Path) -> None:
    worker = Worker(kept(tmp_path), 0)
    worker.join()
    lease = worker.lease()
    worker.center.give_up(0, 0)
    with pytest.raises(WorkerError, match="worker 0 was given up, and another process has taken its place"):
        worker.meet(worker.push(lease))
    successor = Worker(worker.center, 0, life=1)
    successor.join()
    assert successor.lease().start == lease.start
    worker.center.give_up(0, 0)  # late news of the first life does not concern the second
    assert successor.lease().start == lease.stop


def test_a_worker_that_computes_for_long_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is lost the driver knows, which hears the hearts of all."""
    slow = Worker(kept(tmp_path), 0)
    other = Worker(slow.center, 1)
    slow.join()
    other.join()
    lease = slow.lease()
    now = center._now()
    monkeypatch.setattr(center, "_now", lambda: now + 1e6)
    assert other.lease().start == lease.stop
    assert slow.meet(slow.push(lease)).taken


def test_a_save_of_the_center_that_is_damaged_is_not_believed(tmp_path: Path) -> None:
    worker = Worker(kept(tmp_path), 0)
    worker.join()
    worker.meet(worker.push(worker.lease()))
    worker.center._save(at_once=True)
    newest = max((tmp_path / "states").glob("step-*"))
    file = newest / "center.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="going on from"):
        worker.center = kept(tmp_path)
    assert worker.seen.sum() == 0, "the one before"


# --- on a cluster -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def there() -> Iterator[cluster.Cluster]:
    with ray_cases.local_cluster() as found:
        yield found


def job(main: Any, *arguments: Any, **options: Any) -> Any:
    return launch(main, *arguments, engine="ray", **{"workers": 2, "timeout_s": LIMIT_S, **options})


def is_whole(found: dict[str, Any]) -> bool:
    """Whether every position has been counted once, and is recorded so."""
    return bool((found["seen"] == 1).all()) and found["samples"] == ray_cases.END


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("fault", "of"),
    [("before", 1), ("after", 1), ("after", 0), ("raise", 1)],
    ids=["before", "after", "leader", "raise"],
)
def test_a_worker_that_is_lost_begins_again_while_the_others_go_on(
    there: Any, tmp_path: Path, fault: str, of: int
) -> None:
    with pytest.warns(UserWarning, match=f"worker {of} of 3 .* It is started again, for the 1. of 1 times"):
        found = job(ray_cases.count, Elastic(), str(tmp_path), fault, of, workers=3, restarts=1)
    assert (tmp_path / "fault").exists(), "the fault has happened"
    assert is_whole(found)
    assert found["every"][of][1] > 0, "the others had gone on meanwhile"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_is_lost_once_too_often_ends_the_others_soon(there: Any, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerError, match=r"worker 1 of 2 was lost at step 2 \(training\): its process \d+ on .* has ended"
    ):
        job(ray_cases.count, Elastic(), str(tmp_path), "after")
    assert (tmp_path / "fault").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_stops_is_replaced_after_the_timeout(there: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"worker 1 of 2 has stopped at step 2 \(training\): nothing .* for 15 s"):
        found = job(ray_cases.count, Elastic(), str(tmp_path), "stop", restarts=1, timeout_s=15.0)
    assert is_whole(found)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [ray_cases.KilledAfterApplying, ray_cases.KilledAfterSaving])
def test_a_center_that_is_killed_before_it_answers_applies_nothing_twice(
    there: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Kept]
) -> None:
    ray.cloudpickle.register_pickle_by_value(ray_cases)  # its process begins before it knows where our modules are
    monkeypatch.setattr(apart, "Kept", kind)
    try:
        found = job(ray_cases.count, Elastic())
    finally:
        ray.cloudpickle.unregister_pickle_by_value(ray_cases)
    assert is_whole(found)
    assert found["status"]["repeated" if kind.saves else "lost"] >= 1, (
        "it was killed: what it had not answered came again"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("own", ConfigError, r"(?m)^worker 1 cannot have this\.$"),
        ("theirs", WorkerError, r"(?m)^worker 1 of 2 failed: ZeroDivisionError: in the user's code\.$"),
        ("exit", WorkerError, r"(?m)^worker 1 of 2 failed: SystemExit: 3\.$"),
        ("killed", WorkerError, r"worker 1 .*was lost.* at step 7 \(training\)"),
        ("stopped", WorkerError, r"worker 1 .*(keeps the others waiting since|has stopped at) step 7 \(training\)"),
    ],
)
def test_the_first_failure_of_workers_in_step_is_told_in_a_sentence(
    there: Any, kind: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as failed:
        job(ray_cases.fail, kind, timeout_s=12.0 if kind == "stopped" else LIMIT_S)
    assert type(failed.value) is error
    assert str(failed.value).count("\n") == 0
    notes = "".join(getattr(failed.value, "__notes__", []))
    assert ("ray_cases.py" in notes) == (kind in ("own", "theirs", "exit")), "where it was raised, and nothing of Ray's"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_in_step_are_all_started_again_as_often_as_asked(there: Any, tmp_path: Path) -> None:
    assert job(ray_cases.fail_until, 1, str(tmp_path), restarts=1) == [2, 2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_in_step_are_not_started_again_more_often(there: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"worker 1 .*was lost"):
        job(ray_cases.fail_until, 2, str(tmp_path), restarts=1)
    assert (tmp_path / "begun-0").read_text() == ".."


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_that_turn_out_to_need_a_center_get_one(there: Any) -> None:
    assert is_whole(job(ray_cases.count)), "nothing among the arguments says so"


# --- trainings --------------------------------------------------------------------------------------------


def asynchronous() -> Asynchronous:
    return Asynchronous(every="2 steps", staleness=1000, down_weight=False, lease=16)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("of", [0, 1])
def test_every_row_is_trained_with_once_an_epoch_though_a_worker_is_lost(there: Any, tmp_path: Path, of: int) -> None:
    model, killed = ray_cases.Visits(211), (of, 3, str(tmp_path))
    with pytest.warns(UserWarning, match=f"worker {of} of 2 was lost .* It is started again"):
        found = job(ray_cases.visit, model, asynchronous(), 3, str(tmp_path / "run"), killed, restarts=1)
    assert torch.equal(model.seen, torch.full((211,), 3.0))
    assert found["samples"] == 633


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_row_is_trained_with_once_an_epoch_though_the_center_is_lost(
    there: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.cloudpickle.register_pickle_by_value(ray_cases)
    monkeypatch.setattr(apart, "Kept", ray_cases.KilledAfterApplying)
    model = ray_cases.Visits(211)
    try:
        found = job(ray_cases.visit, model, asynchronous(), 3)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(ray_cases)
    assert found["status"]["lost"] >= 1, "what was applied and not answered came again"
    assert torch.equal(model.seen, torch.full((211,), 3.0))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_fails_while_it_trains_at_a_center_comes_back_into_the_same_training(
    there: Any, tmp_path: Path
) -> None:
    model, fails = ray_cases.Visits(211), (1, 3, str(tmp_path))
    with pytest.warns(UserWarning, match="worker 1 of 2 failed: ZeroDivisionError.* It is started again"):
        found = job(ray_cases.visit, model, asynchronous(), 3, None, fails, "raises", restarts=1)
    assert torch.equal(model.seen, torch.full((211,), 3.0))
    assert found["samples"] == 633


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_next_training_begins_though_the_center_is_lost_between_the_two(
    there: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray.cloudpickle.register_pickle_by_value(ray_cases)
    monkeypatch.setattr(apart, "Kept", ray_cases.KilledAfterTheFirst)
    models = [ray_cases.Visits(211), ray_cases.Visits(211)]
    try:
        found = job(ray_cases.visit_twice, *models, asynchronous(), 3)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(ray_cases)
    for model in models:
        assert torch.equal(model.seen, torch.full((211,), 3.0)), "every row once an epoch"
    assert [each["samples"] for each in found] == [633, 633]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_in_step_go_on_from_the_last_checkpoint(there: Any, tmp_path: Path) -> None:
    model, killed = ray_cases.Visits(37), (1, 8, str(tmp_path))  # in the second of three epochs
    job(ray_cases.visit, model, Synchronous(), 3, str(tmp_path / "run"), killed, restarts=1)
    assert (tmp_path / "fault").exists()
    assert torch.equal(model.seen, torch.full((37,), 3.0))


# --- more than one machine --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_workers_of_a_machine_that_goes_begin_again_on_another(tmp_path: Path) -> None:
    with script("ray_cases.lose_a_machine", tmp_path) as program:
        assert program.wait(timeout=2 * LIMIT_S) == 0, (tmp_path / "printed").read_text()
    found = json.loads((tmp_path / "found").read_text())
    assert found["whole"]
    assert re.search(r"worker \d of 2 was lost at step \d.* It is started again, for the 1\.", found["warned"])


@contextmanager
def script(function: str, at: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that calls a function with a directory, where it prints; none of its processes is there afterwards."""
    file = at / "script.py"
    file.write_text(SCRIPT.format(path=[str(Path(ray_cases.__file__).parents[1])], function=function, at=str(at)))
    mark = f"HEADRACE_TEST={at}"
    with (at / "printed").open("w") as printed:
        environment = os.environ | {"HEADRACE_TEST": str(at)}
        program = subprocess.Popen([sys.executable, str(file)], env=environment, stdout=printed, stderr=printed)
    try:
        yield program
        end = time.monotonic() + 20.0
        while ray_cases.processes(mark) and time.monotonic() < end:
            time.sleep(0.05)
        assert ray_cases.processes(mark) == []
    finally:
        program.kill()
        program.wait()
        for process in ray_cases.processes(mark):
            os.kill(process, signal.SIGKILL)


SCRIPT = """
import sys; sys.path[:0] = {path!r}
from kit import ray_cases
if __name__ == "__main__":
    {function}({at!r})
"""


# --- what is left behind ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, -2)])
def test_nothing_is_left_when_the_program_is_ended(tmp_path: Path, number: int, code: int) -> None:
    with script("ray_cases.launch_and_wait", tmp_path) as program:
        end = time.monotonic() + LIMIT_S
        while not (tmp_path / "seen").exists() and time.monotonic() < end and program.poll() is None:
            time.sleep(0.05)
        assert (tmp_path / "seen").exists(), (tmp_path / "printed").read_text()
        program.send_signal(number)
        assert program.wait(timeout=LIMIT_S) == code, (tmp_path / "printed").read_text()
    assert not Path((tmp_path / "scratch").read_text()).exists()
