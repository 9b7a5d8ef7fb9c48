"""Two hosts on a slow link, which is cut in the middle of a round: both sides end and say why, and then go on.

The hosts are network namespaces, which only root can make.
"""

import ctypes
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.forked import Child, hear, start, tell
from kit.torch_workers import PATIENCE_S, run_torchrun
from torch import nn

import headrace as hr
from headrace.errors import WorkerError
from headrace.workers.rounds import Periodic

TIMEOUT_S = 10.0  # how long a worker waits for the other one, where the link is cut
LIMIT_S = 300  # of a training, start and end of Python included
EVERY = 8  # updates in a round
PAUSE = 37  # the update after which the link is cut: 5 into a round, 7 after the last checkpoint
SAVED = 30
UPDATES = 64
MISSED = "worker 1", "worker 0|the process that started the workers"  # whom either host hears of no more
RATE = "100mbit"
LINK = "net0"
CLONE_NEWNET = 0x40000000

pytestmark = [pytest.mark.slow, pytest.mark.root]


# --- what a worker does ----------------------------------------------------------------------------------


class Pause(hr.Callback):
    """Says that it has come to an update, and waits for a word, if there is anybody to say it."""

    def __init__(self, pauses: bool) -> None:
        self.pauses = pauses
        self.resumed = 0

    def on_step_end(self, info: hr.Info) -> None:
        self.resumed = info.resumed
        if info.step == PAUSE and self.pauses:
            tell(f"pid {os.getpid()}")
            hear()


def train(at: Path, pauses: bool) -> None:
    """A training as a user would write it, and what came of it."""
    signal.alarm(LIMIT_S)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 1), nn.Flatten(0))
    x = torch.randn(1024, 20, generator=torch.Generator().manual_seed(1))
    rows = hr.ArrayTable({"x": x, "y": x.square().sum(1).sqrt()}, block=64)
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    rounds, pause = Periodic(f"{EVERY} steps"), Pause(pauses)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=16, order="blocks", strategy=rounds)
    try:
        trainer.fit(rows, epochs=2, run=hr.Run(at / "run", every="10 steps"), callbacks=[pause], progress=False)
    except WorkerError as error:
        (at / f"failed-{os.environ['RANK']}").write_text(str(error))
        raise
    found = {"resumed": pause.resumed, "weights": [value.tolist() for value in model.state_dict().values()]}
    (at / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


# --- the hosts -------------------------------------------------------------------------------------------


def launches(name: str, options: list[str], variables: dict[str, str], at: str, pauses: bool) -> None:
    """What torchrun does on one host."""
    with open(f"/run/netns/{name}") as namespace:
        assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()
    os.environ |= variables
    run_torchrun([*options, "--master_port=29500"], train, Path(at), pauses)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=400).stdout


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
            subprocess.run(["ip", "netns", "exec", name, *slow], check=True, capture_output=True, timeout=400)

    def both(self, at: Path, timeout_s: float, pauses: bool) -> list[AbstractContextManager[Child]]:
        """The same command on either host, but for its number: a worker on each; a run that is there goes on."""
        options = ["--nnodes=2", "--nproc_per_node=1", "--master_addr=10.77.0.1"]
        variables = {"HEADRACE_TIMEOUT_S": f"{timeout_s:g}", "GLOO_SOCKET_IFNAME": LINK}
        return [
            start(launches, at, name, [*options, f"--node_rank={k}"], variables, at, pauses)
            for k, name in enumerate(self.names)
        ]

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

    def remove(self) -> None:
        for name in self.names:
            ip("netns", "delete", name)


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
def on_both(hosts: Hosts, at: Path, timeout_s: float = PATIENCE_S, pauses: bool = False) -> Iterator[list[Child]]:
    with ExitStack() as stack:
        yield [stack.enter_context(command) for command in hosts.both(at, timeout_s, pauses)]


def ended(processes: list[int], limit_s: float) -> bool:
    """Whether all of these processes end within so long."""
    end = time.monotonic() + limit_s
    left = set(processes)
    while left and (ready := select.select(list(left), [], [], max(0.0, end - time.monotonic()))[0]):
        left -= set(ready)
    for process in processes:
        os.close(process)
    return not left


def printed(commands: list[Child]) -> str:
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
    options = ["--nnodes=1", "--nproc_per_node=2", "--master_addr=127.0.0.1"]
    variables = {"HEADRACE_TIMEOUT_S": f"{PATIENCE_S:g}"}
    with start(launches, tmp_path, hosts.names[0], options, variables, tmp_path, False) as command:
        assert command.ending() == 0, command.output
    assert results(tmp_path, resumed=0) == uncut
    assert hosts.sent() - before < 10_000, "one host needs no link"


def test_a_cut_link_ends_both_sides_and_the_run_goes_on_when_it_is_back(
    hosts: Hosts, uncut: Any, tmp_path: Path
) -> None:
    with on_both(hosts, tmp_path, TIMEOUT_S, pauses=True) as commands:
        workers = [os.pidfd_open(int(command.until("pid"))) for command in commands]
        hosts.link("down")
        try:
            for command in commands:
                command.say("go")
            assert ended(workers, LIMIT_S), printed(commands)
            codes = [command.ending() for command in commands]
            assert hosts.processes() == [], "nobody is left"
        finally:
            hosts.link("up")
        assert 0 not in codes
        for k, missed in enumerate(MISSED):
            said = (tmp_path / f"failed-{k}").read_text()
            assert re.match(f"({missed}) ", said), said

    with on_both(hosts, tmp_path) as commands:
        assert [command.ending() for command in commands] == [0, 0], printed(commands)
    assert results(tmp_path, resumed=SAVED) == uncut
