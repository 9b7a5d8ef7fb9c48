"""Two hosts on a slow link, which is cut in the middle of a round: both sides end and say why, and then go on.

The hosts are network namespaces, which only root can make. This file is also what their workers run.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr
from headrace.errors import WorkerError
from headrace.strategy.periodic import Periodic

TIMEOUT_S = 6.0  # how long a worker waits for the other one, where the link is cut
PATIENCE_S = 60.0  # and where it is not: nobody is late then, however busy the machine is
GONE_S = 10.0  # within which Python has taken itself apart, however busy the machine is
LIMIT_S = 120.0  # of a training, start and end of Python included
EVERY = 8  # updates in a round
PAUSE = 37  # the update after which the link is cut: 5 into a round, 7 after the last checkpoint
SAVED = 30
UPDATES = 64
MISSED = "worker 1", "worker 0|the process that started the workers"  # whom either host hears of no more
RATE = "100mbit"
LINK = "net0"

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(6 * LIMIT_S)]


# --- what a worker does ----------------------------------------------------------------------------------


class Pause(hr.Callback):
    """Says that it has come to an update, and waits for a word, if there is anybody to say it."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self.resumed = 0

    def on_step_end(self, info: hr.Info) -> None:
        self.resumed = info.resumed
        if info.step == PAUSE and (self.at / "said").exists():
            (self.at / "said").write_text(f"{os.getpid()}\n")
            (self.at / f"word-{os.environ['RANK']}").read_text()


def train(at: Path) -> None:
    """A training as a user would write it, and what came of it."""
    signal.alarm(int(LIMIT_S))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 1), nn.Flatten(0))
    x = torch.randn(1024, 20, generator=torch.Generator().manual_seed(1))
    rows = hr.ArrayTable({"x": x, "y": x.square().sum(1).sqrt()}, block=64)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    rounds, pause = Periodic(f"{EVERY} steps"), Pause(at)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=16, order="blocks", strategy=rounds)
    try:
        trainer.fit(rows, epochs=2, run=at / "run", checkpoint_every="10 steps", callbacks=[pause], progress=False)
    except WorkerError:
        (at / f"failed-{os.environ['RANK']}").write_text(str(time.monotonic()))  # a clock that both hosts share
        raise
    found = {"resumed": pause.resumed, "weights": [value.tolist() for value in model.state_dict().values()]}
    (at / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


# --- the hosts -------------------------------------------------------------------------------------------


class Command:
    """`torchrun` on one host, with all that it starts."""

    def __init__(self, line: list[str], output: Path, timeout_s: float = PATIENCE_S) -> None:
        self._output = output
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HEADRACE_TIMEOUT_S": f"{timeout_s:g}"}
        with open(output, "wb") as printed:
            self._process = subprocess.Popen(
                line, env=environment, stdout=printed, stderr=printed, stdin=subprocess.DEVNULL
            )
        self._ended = os.pidfd_open(self._process.pid)

    def fileno(self) -> int:
        """What is readable once it has ended."""
        return self._ended

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def ending(self, limit_s: float = LIMIT_S) -> int:
        """Its exit status."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still at work after {limit_s:g} s:\n{self.output}") from None

    def close(self) -> None:
        self._process.wait(LIMIT_S)
        os.close(self._ended)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20).stdout


class Hosts:
    """Two hosts and a link between them."""

    def __init__(self, names: tuple[str, str]) -> None:
        self.names = names
        ip("link", "add", LINK, "netns", names[0], "type", "veth", "peer", "name", LINK, "netns", names[1])
        for k, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.77.0.{k + 1}/24", "dev", LINK)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", LINK, "up")
            slow = ["tc", "qdisc", "add", "dev", LINK, "root", "tbf", "rate", RATE, "burst", "64kb", "latency", "100ms"]
            subprocess.run(["ip", "netns", "exec", name, *slow], check=True, capture_output=True, timeout=20)

    def torchrun(self, k: int, at: Path, timeout_s: float) -> Command:
        """The same command as on the other host, but for the number of this one."""
        place = [f"--node_rank={k}", "--nnodes=2", "--nproc_per_node=1", "--master_addr=10.77.0.1"]
        inside = ["ip", "netns", "exec", self.names[k], "env", f"GLOO_SOCKET_IFNAME={LINK}"]
        return Command([*inside, *torchrun(*place), str(at)], at / f"output-{k}", timeout_s)

    def link(self, state: str) -> None:
        """The cable is pulled out, or put back: `down` and `up`."""
        ip("-n", self.names[1], "link", "set", LINK, state)

    def sent(self) -> int:
        """The bytes that the second host has sent over the link."""
        (found,) = json.loads(ip("-n", self.names[1], "-s", "-j", "link", "show", LINK))
        return int(found["stats64"]["tx"]["bytes"])

    def processes(self) -> list[int]:
        """Whatever runs on either host."""
        return [int(pid) for name in self.names for pid in ip("netns", "pids", name).split()]

    def clear(self) -> None:
        """Ends whatever runs on either host."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        self.clear()
        for name in self.names:
            ip("netns", "delete", name)


def torchrun(*options: str) -> list[str]:
    """Ended by force at the limit, should the test itself be gone by then."""
    return [
        *("timeout", "--signal=KILL", f"{LIMIT_S:g}", sys.executable, "-m", "torch.distributed.run"),
        *options,
        "--master_port=29500",
        __file__,
    ]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0:
        pytest.skip("two hosts are two network namespaces, which need root")
    names = f"hr-{os.getpid()}-a", f"hr-{os.getpid()}-b"
    try:
        for name in names:
            ip("netns", "add", name)
        made = Hosts(names)
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            with suppress(OSError, subprocess.CalledProcessError):
                ip("netns", "delete", name)
        said = getattr(error, "stderr", None) or error
        pytest.skip(f"no network namespaces with a slow link between them can be made here: {said}")
    try:
        yield made
    finally:
        made.remove()


@contextmanager
def on_both(hosts: Hosts, at: Path, timeout_s: float = PATIENCE_S) -> Iterator[list[Command]]:
    """The training with a worker on either host; a run that is there goes on."""
    with running(hosts, [hosts.torchrun(k, at, timeout_s) for k in range(2)]) as commands:
        yield commands


@contextmanager
def running(hosts: Hosts, commands: list[Command]) -> Iterator[list[Command]]:
    try:
        yield commands
    finally:
        hosts.clear()
        for command in commands:
            command.close()


def workers_at(lines: int, commands: list[Command]) -> list[int]:
    """The workers' processes, once both have said that they are there."""
    said = b""
    while said.count(b"\n") < 2:
        ready, _, _ = select.select([lines, *commands], [], [], LIMIT_S)
        assert ready == [lines], printed(commands)
        said += os.read(lines, 100)
    return [os.pidfd_open(int(pid)) for pid in said.split()]


def ended(processes: list[int], limit_s: float) -> bool:
    """Whether all of these processes end within so long."""
    end = time.monotonic() + limit_s
    left = set(processes)
    while left and (ready := select.select(list(left), [], [], max(0.0, end - time.monotonic()))[0]):
        left -= set(ready)
    for process in processes:
        os.close(process)
    return not left


def printed(commands: list[Command]) -> str:
    return "\n".join(command.output for command in commands)


def results(at: Path, resumed: int) -> Any:
    """The weights that both workers ended with."""
    first, second = (json.loads((at / f"{k}.json").read_text()) for k in range(2))
    assert first == second
    assert first["resumed"] == resumed
    return first["weights"]


@pytest.fixture(scope="module")
def uncut(hosts: Hosts, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The weights after a training on two hosts whose link is never cut."""
    at, before = tmp_path_factory.mktemp("uncut"), hosts.sent()
    with on_both(hosts, at) as commands:
        assert [command.ending() for command in commands] == [0, 0], printed(commands)
    agreed = UPDATES // EVERY * 4 * (20 * 200 + 200 + 200 + 1)
    assert hosts.sent() - before > agreed, "what they agree on goes over the link"
    return results(at, resumed=0)


# --- the tests -------------------------------------------------------------------------------------------


def test_two_hosts_make_the_model_that_two_workers_on_one_host_make(hosts: Hosts, uncut: Any, tmp_path: Path) -> None:
    before = hosts.sent()
    inside = ["ip", "netns", "exec", hosts.names[0]]
    place = ["--nnodes=1", "--nproc_per_node=2", "--master_addr=127.0.0.1"]
    command = Command([*inside, *torchrun(*place), str(tmp_path)], tmp_path / "output")
    with running(hosts, [command]):
        assert command.ending() == 0, command.output
    assert results(tmp_path, resumed=0) == uncut
    assert hosts.sent() - before < 10_000, "one host needs no link"


def test_a_cut_link_ends_both_sides_and_the_run_goes_on_when_it_is_back(
    hosts: Hosts, uncut: Any, tmp_path: Path
) -> None:
    pipes = [tmp_path / name for name in ("said", "word-0", "word-1")]
    for pipe in pipes:
        os.mkfifo(pipe)
    said = os.open(pipes[0], os.O_RDWR)
    with os.fdopen(said), on_both(hosts, tmp_path, TIMEOUT_S) as commands:
        workers = workers_at(said, commands)
        hosts.link("down")
        try:
            cut_s = time.monotonic()
            for pipe in pipes[1:]:
                pipe.write_text("go\n")
            assert ended(workers, TIMEOUT_S + 5 + GONE_S), printed(commands)
            codes = [command.ending() for command in commands]
            assert hosts.processes() == [], "nobody is left"
        finally:
            hosts.link("up")
        assert 0 not in codes
        waited = [float((tmp_path / f"failed-{k}").read_text()) - cut_s for k in range(2)]
        assert max(waited) < TIMEOUT_S + 5, waited
        for command, missed in zip(commands, MISSED, strict=True):
            assert re.search(f"WorkerError: ({missed}) ", command.output), command.output

    for pipe in pipes:
        pipe.unlink()
    with on_both(hosts, tmp_path) as commands:
        assert [command.ending() for command in commands] == [0, 0], printed(commands)
    assert results(tmp_path, resumed=SAVED) == uncut


if __name__ == "__main__":
    train(Path(sys.argv[1]))
