"""Workers that are processes of this machine: started, watched, started again, and always ended."""

import os
import pickle
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.forked import Child, start, tell
from kit.torch_workers import LOOPBACK, fork_workers, free_port, hangs, is_killed, is_stopped, listening, run_torchrun
from torch import nn

from headrace.engines import processes
from headrace.engines.agent import GRACE_S
from headrace.engines.job import Job, Result
from headrace.engines.processes import run
from headrace.engines.rendezvous import host_of
from headrace.errors import ConfigError, DataError, WorkerError
from headrace.workers.here import here

TIMEOUT_S = 3.0
SOON_S = 5.0

# --- what workers do ---------------------------------------------------------------------------------------


def nothing() -> None:
    pass


def looks_around(model: nn.Linear, word: str) -> dict[str, Any]:
    """Trains a little, and says what it was given."""
    comm = here()
    drawn = [torch.rand(()).item(), float(np.random.rand()), random.random()]
    with torch.no_grad():
        model.weight.add_(comm.shard.index)  # its own: nobody else sees that
    comm.broadcast(model.weight.data)
    return {
        "word": word,
        "workers": comm.all_gather(comm.shard.index),
        "drawn": comm.all_gather(drawn),
        "threads": [os.environ["OMP_NUM_THREADS"], torch.get_num_threads()],
        "tensor": torch.arange(3),
    }


def steps(at: str, how: str) -> str:
    """Steps as a training makes them; something happens at step 5 in worker 1, for which the others wait."""
    comm = here()
    tell(f"pid {os.getpid()}")
    try:
        for step in range(30):
            comm.at(step, "reading data")
            if step == 5:
                comm.gather(None)
                if comm.shard.index == 1:
                    tell(f"acts {time.monotonic()} {os.getpid()}")
                    WAYS[how]()
                else:
                    tell(f"waits {time.monotonic()}")
            comm.at(step, "reducing")
            comm.all_reduce(torch.ones(1000))
    except WorkerError:
        tell(f"ends {time.monotonic()}")
        raise
    return "done"


def raises() -> None:
    raise ValueError("row 17 is not in the archive")


def raises_ours() -> None:
    raise DataError("row 17 has no target.")


def raises_once() -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("a bad start")


def hangs_deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    hangs()


def exits() -> None:
    sys.exit(7)


def leaves() -> None:
    os._exit(0)


def leaves_badly() -> None:
    os._exit(7)


WAYS = {
    way.__name__: way
    for way in (
        nothing,
        raises,
        raises_ours,
        raises_once,
        is_killed,
        is_stopped,
        hangs,
        hangs_deaf,
        exits,
        leaves,
        leaves_badly,
    )
}

# --- the process that starts them --------------------------------------------------------------------------


def launches(function: str, workers: int, at: str, how: str, restarts: int = 0) -> None:
    """What a program does that calls `launch`; it says how that has ended, and whether everything is as before."""
    fork_workers()
    main = globals()[function]
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)]
    environment = dict(os.environ)
    job = Job(main, (at, how), workers=workers, restarts=restarts, timeout_s=TIMEOUT_S)
    try:
        tell(f"result {run(job).value}")
    except BaseException as error:
        tell(f"raised {time.monotonic()} {type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", []):
            tell("note " + note.replace("\n", " | "))
        tell(f"children {len(active_children())}")
        raise SystemExit(3) from None
    finally:
        after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)]
        assert after == before
        assert dict(os.environ) == environment


@contextmanager
def launched(at: Path, how: str, workers: int = 2, restarts: int = 0, main: str = "steps") -> Iterator[Child]:
    with start(launches, at, main, workers, at, how, restarts) as child:
        yield child


def pids(child: Child, count: int) -> list[int]:
    """The workers, once all have said who they are."""
    return [int(child.until("pid")) for _ in range(count)]


def are_gone(workers: list[int], limit_s: float = SOON_S) -> None:
    end = time.monotonic() + limit_s
    while any(Path(f"/proc/{pid}/stat").exists() and " Z " not in _stat(pid) for pid in workers):
        assert time.monotonic() < end, f"of {workers} somebody is left"
        time.sleep(0.01)


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return " Z "


def acted(child: Child) -> tuple[float, int]:
    """When something has happened at step 5, and to whom."""
    when, pid = child.until("acts").split()
    return float(when), int(pid)


def times(child: Child, what: str) -> list[float]:
    """When workers did something, as far as they have said so."""
    return [float(line.split()[1]) for line in child.told if line.startswith(what)]


def raised(child: Child) -> tuple[float, str, list[str]]:
    """When, what, and the notes."""
    when, what = child.until("raised").split(" ", 1)
    notes = []
    while (line := child.line()) is not None and line.startswith("note"):
        notes.append(line)
    assert line == "children 0"
    return float(when), what, notes


# --- well ------------------------------------------------------------------------------------------------


def are_called(workers: int) -> None:
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    found = run(Job(looks_around, (model, "hello"), workers=workers, timeout_s=20.0))
    value = found.value
    assert value["word"] == "hello"
    assert value["workers"] == list(range(workers))
    assert len({drawn[0] for drawn in value["drawn"]}) == workers
    assert value["drawn"][0] == _drawn_by(0)  # so that a rerun repeats
    assert value["threads"] == [os.environ["OMP_NUM_THREADS"], int(os.environ["OMP_NUM_THREADS"])]
    assert torch.equal(value["tensor"], torch.arange(3))
    assert torch.equal(model.weight, before)  # nothing is shared
    assert torch.equal(found.weights[0]["weight"], before)
    assert list(found.weights[0]) == ["weight", "bias"]


def calls_forks() -> None:
    fork_workers()
    are_called(2)


@pytest.mark.takes_turns
def test_workers_are_called_and_worker_0_s_value_and_weights_come_back(tmp_path: Path) -> None:
    with start(calls_forks, tmp_path) as child:
        assert child.ending() == 0, child.output


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_workers_that_no_test_has_prepared_are_called_just_so(workers: int) -> None:
    """Each is an interpreter of its own, which imports what it needs; all other tests fork them."""
    are_called(workers)


def _drawn_by(worker: int) -> list[float]:
    with torch.random.fork_rng():
        torch.manual_seed(worker)
        first = torch.rand(()).item()
    return [first, float(np.random.RandomState(worker).rand()), random.Random(worker).random()]


SCRIPT = """
import torch
from headrace.comm import here

comm = here()
total = torch.full((3,), 1.0 + comm.shard.index)
comm.all_reduce(total)
assert total.tolist() == [3.0, 3.0, 3.0], total
if comm.leader:
    print("total", total.tolist(), comm.all_gather("x"))
else:
    comm.all_gather("x")
"""


ONE_HOST = ["--standalone", "--nproc-per-node=2"]


def runs_script(script: str) -> None:
    runpy.run_path(script)


def runs_torchrun(script: str) -> None:
    run_torchrun(ONE_HOST, runs_script, script)


@pytest.mark.takes_turns
def test_a_plain_script_works_as_torchrun_starts_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with start(runs_torchrun, tmp_path, tmp_path / "train.py") as child:
        assert child.ending() == 0, child.output
    assert child.output == "total [3.0, 3.0, 3.0] ['x', 'x']\n"


@pytest.mark.slow
def test_a_plain_script_works_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", *ONE_HOST]
    ended = subprocess.run([*torchrun, script], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "total [3.0, 3.0, 3.0] ['x', 'x']\n"
    assert "Traceback" not in ended.stderr
    assert "destroy_process_group" not in ended.stderr


@pytest.mark.takes_turns
def test_workers_start_again_after_a_failure(tmp_path: Path) -> None:
    with launched(tmp_path, "raises_once", restarts=2) as child:
        assert child.until("result") == "done"
        assert child.ending() == 0
    assert len([line for line in child.told if line.startswith("pid")]) == 4
    assert child.output.splitlines() == [
        "headrace: worker 1 failed at step 5: ValueError: a bad start",
        "headrace: all workers start again (1 of 2).",
    ]


def waits(at: str, how: str) -> None:
    here().all_reduce(torch.ones(1))
    tell(f"pid {os.getpid()}")
    while not (Path(at) / "go").exists():
        time.sleep(0.01)


@pytest.mark.takes_turns
def test_nobody_but_this_machine_is_listened_to(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="waits") as child:
        workers = pids(child, 2)
        found = listening([child.pid, *workers])
        assert len(found) >= 3  # the store, and gloo's
        assert set(found) == {LOOPBACK}
        (tmp_path / "go").touch()
        assert child.ending() == 0, child.output


# --- failures --------------------------------------------------------------------------------------------


@pytest.mark.takes_turns
def test_an_error_of_a_worker_is_the_caller_s_with_worker_step_and_traceback(tmp_path: Path) -> None:
    with launched(tmp_path, "raises", workers=3) as child:
        workers, (acts_s, _) = pids(child, 3), acted(child)
        when_s, what, notes = raised(child)
        are_gone(workers)
    assert what == "WorkerError: worker 1 failed at step 5: ValueError: row 17 is not in the archive"
    assert len(notes) == 1
    assert notes[0].startswith("note worker 1 says: | Traceback")
    assert "in raises |" in notes[0]
    assert when_s - acts_s < SOON_S


@pytest.mark.takes_turns
def test_an_error_of_our_own_keeps_its_class_and_is_not_tried_again(tmp_path: Path) -> None:
    with launched(tmp_path, "raises_ours", restarts=2) as child:
        workers = pids(child, 2)
        _, what, notes = raised(child)
        are_gone(workers)
    assert what == "DataError: row 17 has no target."
    assert notes[0].startswith("note worker 1, at step 5, says: | Traceback")
    assert child.output == ""  # no second start


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("is_killed", r"worker 1 was lost at step [45].*: it was killed \(SIGKILL\), as the system does when"),
        ("leaves", r"worker 1 ended with exit status 0 at step [45].*, and did not say why\."),
        pytest.param(
            "leaves_badly",
            r"worker 1 ended with exit status 7 at step [45].*, and did not say why\.",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["killed", "leaves", "leaves badly"],
)
def test_a_lost_worker_is_named_and_all_end(tmp_path: Path, how: str, said: str) -> None:
    with launched(tmp_path, how, workers=3) as child:
        workers, (acts_s, _) = pids(child, 3), acted(child)
        when_s, what, _ = raised(child)
        are_gone(workers)
    assert re.match(f"WorkerError: {said}", what), what
    assert when_s - acts_s < SOON_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("is_stopped", r"worker 1 keeps the others waiting since step [45].*for more than 3 s; nothing has"),
        ("hangs_deaf", r"worker 1 keeps the others waiting since step 5 \(reading data\), for more than 3"),
    ],
    ids=["stopped", "hangs"],
)
def test_a_late_worker_is_named_and_all_end_after_the_timeout(tmp_path: Path, how: str, said: str) -> None:
    graces_s = 2 * GRACE_S  # that the late one has then: to end by itself, and once it is asked to
    with launched(tmp_path, how, workers=3) as child:
        workers, (acts_s, late) = pids(child, 3), acted(child)
        are_gone([pid for pid in workers if pid != late], acts_s + TIMEOUT_S + SOON_S - time.monotonic())
        when_s, what, _ = raised(child)
        are_gone(workers)
        waits_s, ends_s = min(times(child, "waits")), min(times(child, "ends"))
    assert re.match(f"WorkerError: {said}", what), what
    assert ends_s - waits_s > TIMEOUT_S, "nobody is given up before"
    assert graces_s < SOON_S
    assert when_s - ends_s < graces_s + SOON_S


def never_comes(at: str, how: str) -> None:
    tell(f"pid {os.getpid()}")
    if os.environ["RANK"] == "1":
        is_stopped()
    here()


@pytest.mark.slow
def test_a_worker_that_does_not_come_is_named(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="never_comes") as child:
        workers = pids(child, 2)
        what = raised(child)[1]
        are_gone(workers)
    assert what == (
        f"WorkerError: worker 1 did not come to meet the others within {TIMEOUT_S:g} s: lost, or still starting. "
        "If that may take longer, raise timeout_s."
    )


@pytest.mark.slow
def test_an_exit_is_an_exit(tmp_path: Path) -> None:
    with launched(tmp_path, "exits", restarts=1) as child:
        assert raised(child)[1] == "SystemExit: 7"


def exits_well(at: str, how: str) -> None:
    here().all_reduce(torch.ones(1))
    sys.exit()


@pytest.mark.takes_turns
def test_an_exit_without_a_fault_is_one_too(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="exits_well") as child:
        assert raised(child)[1] == "SystemExit: 0"


def goes_on(at: str, how: str) -> str:
    """Worker 1 returns, and a thread of its own does not."""
    comm = here()
    comm.all_reduce(torch.ones(1))
    tell(f"pid {os.getpid()}")
    if comm.shard.index == 1:
        threading.Thread(target=hangs).start()
    return "done"


@pytest.mark.slow
def test_a_worker_that_has_returned_and_does_not_end_is_ended(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="goes_on") as child:
        workers = pids(child, 2)
        assert child.until("result") == "done"
        assert child.ending() == 0
        are_gone(workers)
    assert child.output == (
        f"headrace: worker 1 of this node returned {TIMEOUT_S:g} s ago and did not end, as when a thread goes on: "
        "ended now.\n"
    )


def returns_a_lock(at: str, how: str) -> Any:
    return threading.Lock()


@pytest.mark.slow
def test_a_value_that_cannot_be_sent_back_is_said_to_be_so(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="returns_a_lock") as child:
        what = raised(child)[1]
    assert what.startswith("ConfigError: what main returned, a lock, cannot be sent back: TypeError: cannot pickle")


# --- the process that has started them ---------------------------------------------------------------------


def listens(at: str, how: str) -> None:
    """Counts what it hears before it ends."""
    heard: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: heard.append(number))
    comm = here()
    comm.all_reduce(torch.ones(1))
    tell(f"pid {os.getpid()}")
    while not heard:
        time.sleep(0.01)
    tell("asked")
    while how == "deaf":
        time.sleep(0.01)
    time.sleep(0.3)  # for what should not come
    tell(f"heard {heard}")
    comm.all_reduce(torch.ones(1))  # as a last checkpoint needs all
    sys.exit(128 + heard[0])


@pytest.mark.takes_turns
@pytest.mark.parametrize(
    ("number", "what"),
    [
        (signal.SIGINT, "KeyboardInterrupt"),
        (signal.SIGTERM, "SystemExit: 143"),
        pytest.param(signal.SIGUSR1, "SystemExit: 143", marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_passed_on_once_and_workers_end_by_themselves(tmp_path: Path, number: int, what: str) -> None:
    with launched(tmp_path, "", main="listens") as child:
        workers = pids(child, 2)
        os.killpg(child.pid, number)  # as a terminal does
        for _ in workers:
            assert child.until("heard") == f"[{int(number)}]"
        assert raised(child)[1].startswith(what)
        are_gone(workers)


@pytest.mark.takes_turns
def test_a_second_ctrl_c_waits_for_nobody(tmp_path: Path) -> None:
    with launched(tmp_path, "deaf", main="listens") as child:
        workers = pids(child, 2)
        child.send(signal.SIGINT)
        for _ in workers:
            child.until("asked")  # the first one has been heard, and passed on
        asked_s = time.monotonic()
        child.send(signal.SIGINT)
        when_s, what, _ = raised(child)
        are_gone(workers)
    assert what.startswith("KeyboardInterrupt")
    assert when_s - asked_s < SOON_S


@pytest.mark.slow
def test_workers_do_not_outlive_the_process_that_has_started_them(tmp_path: Path) -> None:
    with launched(tmp_path, "", main="waits") as child:
        workers = pids(child, 2)
        child.send(signal.SIGKILL)
        are_gone(workers)


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("main", [lambda: 0, threading.Lock().acquire])
def test_a_function_that_cannot_be_sent_is_refused(main: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError, match="Define main at the top level of a module"):
        run(Job(main, workers=2))


def test_a_function_of_a_session_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nothing, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ConfigError, match=r"is in no file that workers could read\. Put it into a module"):
        run(Job(nothing, workers=2))


def test_there_are_no_more_workers_than_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"devices=\[0, 1\], on a machine with 0 accelerators"):
        run(Job(nothing, workers=2, devices=[0, 1]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(ConfigError, match=r"5 workers on a machine with 4 accelerators.*pass devices=\[\]"):
        run(Job(nothing, workers=5))
    with pytest.raises(ConfigError, match=r"3 workers for 2 devices: \[0, 3\]"):
        run(Job(nothing, workers=3, devices=[0, 3]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert processes._devices(Job(nothing, devices=[3, 0]), 2) == ["7", "4"]
    assert processes._devices(Job(nothing, devices=[]), 9) == []


def test_several_nodes_need_an_address_and_an_interface() -> None:
    with pytest.raises(ConfigError, match=r"nodes=2 need address=.*and interface=.*got address=None, interface=None"):
        run(Job(nothing, workers=2, nodes=2))
    with pytest.raises(ConfigError, match=r"interface='nowhere0' has no IPv4 address on this machine, which has .*lo"):
        run(Job(nothing, workers=2, nodes=2, address="127.0.0.1:1", interface="nowhere0"))
    with pytest.raises(ConfigError, match=r"an address is a host and a port, like '10\.0\.0\.1:29500', got '127"):
        run(Job(nothing, workers=2, nodes=2, address="127.0.0.1", interface="lo"))


@pytest.mark.slow
def test_an_address_that_nobody_answers_at_is_named() -> None:
    port = free_port()
    job = Job(nothing, workers=2, nodes=2, address=f"192.0.2.1:{port}", interface="lo", timeout_s=0.5)
    with pytest.raises(
        ConfigError, match=rf"nobody answers at address='192\.0\.2\.1:{port}'.*Start the same launch on"
    ):
        run(job)


@pytest.mark.slow
def test_a_port_that_another_program_has_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(
            ConfigError, match=rf"address='{address}' is taken by another program\. Choose another port"
        ):
            run(Job(nothing, workers=2, nodes=2, address=address, interface="lo", timeout_s=1.0))


def test_a_network_that_others_can_reach_is_said_to_be_open(capsys: pytest.CaptureFixture[str]) -> None:
    assert host_of(None) == host_of("lo") == "127.0.0.1"
    assert capsys.readouterr().err == ""
    for _, name in socket.if_nameindex():
        with suppress(ConfigError):  # one that has no address
            if not host_of(name).startswith("127."):
                break
    else:
        pytest.skip("there is no network here but that of this machine")
    assert "UNAUTHENTICATED AND UNENCRYPTED: for private networks only" in capsys.readouterr().err


def test_what_comes_back_is_what_was_returned() -> None:
    packed = processes.unpack((pickle.dumps({1, 2}), _bytes([{"w": torch.ones(2)}, {}])))
    assert isinstance(packed, Result)
    assert packed.value == {1, 2}
    assert packed.weights[0]["w"].tolist() == [1, 1]


def _bytes(weights: Any) -> bytes:
    from headrace.workers.wire import pack

    return pack(weights).numpy().tobytes()


# --- several nodes ---------------------------------------------------------------------------------------


def is_a_node(address: str, how: str) -> None:
    fork_workers()
    job = Job(meets, (how,), workers=4, nodes=2, restarts=1, address=address, interface="lo", timeout_s=10.0)
    tell(f"result {run(job).value}")


def meets(how: str) -> list[Any]:
    comm = here()
    comm.all_reduce(total := torch.tensor([float(comm.shard.index)]))
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if how == "fails" and first and comm.shard.index == 3:
        raise ValueError("a bad start")
    comm.all_reduce(total)
    return [comm.all_gather(os.environ["GROUP_RANK"]), total.item()]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["well", pytest.param("fails", marks=pytest.mark.slow)])
def test_nodes_meet_at_an_address_and_start_again_together(tmp_path: Path, how: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        nodes = [stack.enter_context(start(is_a_node, tmp_path, address, how)) for _ in range(2)]
        for node in nodes:
            assert node.until("result") == "[['0', '0', '1', '1'], 24.0]"
            assert node.ending() == 0, node.output
        again = "headrace: all workers start again (1 of 1)."
        assert [again in node.output for node in nodes] == [how == "fails"] * 2
