"""Processes for tests that are workers of torch.distributed: they are told so by their environment."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed.run
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from headrace.engines import processes
from headrace.workers.shared import Shared

LIMIT_S = 6.0
LOOPBACK = "0100007F"  # 127.0.0.1, as the kernel writes it


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def be_worker(index: int, count: int, port: int, timeout_s: float = LIMIT_S) -> None:
    """What torchrun would have put into the environment."""
    os.environ |= {"RANK": f"{index}", "WORLD_SIZE": f"{count}", "LOCAL_RANK": f"{index}"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "HEADRACE_TIMEOUT_S": f"{timeout_s}"}


def fork_workers() -> None:
    """Workers of a launch are forks of this process, which has one thread and has imported all that they need."""
    processes.START = "fork"


def run_torchrun(options: list[str], function: Callable[..., None], *arguments: Any) -> None:
    """What torchrun does with these options, but that its workers are forks, which call a function."""

    def launch(config: LaunchConfig, entrypoint: str) -> Callable[..., Any]:
        config.start_method = "fork"
        return lambda *_: elastic_launch(config, function)(*arguments)

    torch.distributed.run.elastic_launch = launch
    torch.distributed.run.main([*options, "no script"])


def over_gloo() -> None:
    """As on several hosts."""
    Shared.meet = classmethod(lambda *_: None)  # type: ignore[assignment,method-assign]


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hangs() -> None:
    time.sleep(60)


def listening(pids: list[int]) -> list[str]:
    """Addresses at which processes listen, in hexadecimal as the kernel writes them."""
    sockets = set()
    for pid in pids:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                found.append(fields[1].rpartition(":")[0])
    return found
