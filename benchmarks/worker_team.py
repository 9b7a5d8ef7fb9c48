"""Workers for benchmarks: processes of one thread each that torch.distributed brings together, on one host or on two.

`run` starts them, gives each the same job, and returns what worker 0 found. Each ends at a hard limit, and with the
process that has started it. Two hosts are two network namespaces, joined by a link of a given rate. They have no
names: they are gone with the processes in them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

SCRIPT = Path(__file__).parent / "worker_rivals.py"
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
ADDRESSES = ("10.203.0.1", "10.203.0.2")
DEVICE = "bench0"
WARNINGS = "ignore"


@dataclass(frozen=True)
class Link:
    """What joins two hosts, in both directions."""

    mbit: int

    @staticmethod
    def missing() -> str | None:
        """Why there can be no such link here, or None."""
        if os.geteuid() != 0:
            return "network namespaces need root"
        absent = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
        return f"there is no {' and no '.join(absent)} here" if absent else None


def run(job: dict[str, Any], workers: int = 2, link: Link | None = None, limit_s: float = 240.0) -> Any:
    """Has the workers do a job; what worker 0 returns of it."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        found = Path(scratch) / "found.json"
        given = json.dumps(job | {"out": str(found), "far": link is not None})
        store = None if link else dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = 29500 if store is None else store.port
        team = [stack.enter_context(_started(index, workers, port, given, link)) for index in range(workers)]
        if link is not None:
            _join(team, link)
        _wait(team, time.monotonic() + limit_s)
        return json.loads(found.read_text())


@contextlib.contextmanager
def _started(index: int, count: int, port: int, job: str, link: Link | None) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": WARNINGS,
        "RANK": str(index),
        "LOCAL_RANK": str(0 if link else index),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(1 if link else count),
        "MASTER_ADDR": ADDRESSES[0] if link else "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": DEVICE if link else "lo",
    }
    if link is None:
        environment["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is here, at a port that was free
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), job],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _wait(team: Sequence[subprocess.Popen[str]], until: float) -> None:
    """Until all have ended well; the first one that has not is an error that says what it printed."""
    printed: dict[int, str] = {}

    def read(index: int) -> None:
        printed[index] = team[index].stdout.read()  # type: ignore[union-attr]

    readers = [threading.Thread(target=read, args=(index,), daemon=True) for index in range(len(team))]
    for reader in readers:
        reader.start()
    while any(process.poll() is None for process in team) and not any(process.poll() for process in team):
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    late = [index for index, process in enumerate(team) if process.poll() is None]
    failed = [index for index, process in enumerate(team) if process.poll()]
    if not late and not failed:
        return
    for process in team:
        process.kill()
    for reader in readers:
        reader.join(5.0)
    index = (failed or late)[0]
    what = f"failed with {team[index].poll()}" if failed else "was not done in time"
    raise RuntimeError(f"worker {index} of a benchmark {what}:\n{printed.get(index, '')[-4000:]}")


def _join(team: Sequence[subprocess.Popen[str]], link: Link) -> None:
    """A cable between the two hosts, once both are there."""
    for process in team:
        assert process.stdout is not None
        if (line := process.stdout.readline()) != "apart\n":
            raise RuntimeError(f"a host for a benchmark could not be made:\n{line}{process.stdout.read()}")
    ends = [f"hr{os.getpid()}{side}" for side in "ab"]
    _do("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
    for end, address, process in zip(ends, ADDRESSES, team, strict=True):
        _do("ip", "link", "set", end, "netns", str(process.pid))
        assert process.stdin is not None
        process.stdin.write(f"{end} {address} {link.mbit}\n")
        process.stdin.flush()


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=10)


# --- in a worker ------------------------------------------------------------------------------------------


def move_apart() -> None:
    """This worker's host becomes another one, and is joined to the others' once these are there too."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK) != 0:
        raise OSError(ctypes.get_errno(), "no new network namespace")
    print("apart", flush=True)
    end, address, mbit = sys.stdin.readline().split()
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "set", end, "name", DEVICE)
    _do("ip", "address", "add", f"{address}/24", "dev", DEVICE)
    _do("tc", "qdisc", "add", "dev", DEVICE, "root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms")
    _do("ip", "link", "set", DEVICE, "up")


def end_with_parent() -> None:
    """This process ends as soon as the one that has started it does, however that may happen."""

    def watch() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
