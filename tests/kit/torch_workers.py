"""Makes processes of tests workers of torch.distributed, and has them fail in several ways."""

import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch.distributed.run
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from headrace.engines import processes
from headrace.workers.shared import Shared

LIMIT_S = 6.0
SOON_S = 5.0  # within which a worker hears of a loss, or ends, on a machine that has much else to do


def be_worker(index: int, count: int, port: int, timeout_s: float = LIMIT_S) -> None:
    """Sets the environment variables that torchrun would set."""
    os.environ |= {"RANK": f"{index}", "WORLD_SIZE": f"{count}", "LOCAL_RANK": f"{index}"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "HEADRACE_TIMEOUT_S": f"{timeout_s}"}


def fork_workers() -> None:
    """Makes `launch` fork its workers from this process, which has one thread and has imported all that they need."""
    processes.START = "fork"


def run_torchrun(options: list[str], function: Callable[..., None], *arguments: Any) -> None:
    """Does what torchrun does with these options, but forks its workers, which call a function."""

    def launch(config: LaunchConfig, entrypoint: str) -> Callable[..., Any]:
        config.start_method = "fork"
        return lambda *_: elastic_launch(config, function)(*arguments)

    torch.distributed.run.elastic_launch = launch
    torch.distributed.run.main([*options, "no script"])


def over_gloo() -> None:
    """Makes the workers exchange vectors over gloo, as workers of several hosts do."""
    Shared.connect = classmethod(lambda *_: None)  # type: ignore[assignment,method-assign]


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def is_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hangs() -> None:
    time.sleep(60)


def wait_until_gone(pids: Collection[int], limit_s: float = SOON_S) -> None:
    """Returns once all these processes have ended; zombies have."""
    end = time.monotonic() + limit_s
    while left := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < end, f"the processes {left} are still there after {limit_s:g} s"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
