"""Finds the communicator of this worker: of a virtual worker, of a process among others, or of a single worker."""

import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from ..errors import ConfigError
from .comm import Comm, Null
from .join import LOOPBACK


class _Current(threading.local):
    comm: Comm | None = None


_current = _Current()  # of a virtual worker, which is a thread
_of_process: list[Comm] = []  # of all threads of a process that torchrun, or another starter, has made a worker
_STARTERS = {
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    "Open MPI": (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
}
"""Variables of those that start processes without torchrun: number, how many, and the same on this machine."""
_PORT = 20000
"""Workers of SLURM meet at this port, and the number of their job modulo as many above it."""


def here() -> Comm:
    """The communicator of this worker, from launch, torchrun, Ray Train, SLURM, Open MPI, or for a single worker."""
    if (comm := current_comm()) is not None:
        return comm
    starter = "" if "RANK" in os.environ else _take_over(os.environ)
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1 or "RANK" not in os.environ:
        return Null()
    from .torch_comm import TorchComm

    _of_process.append(comm := TorchComm.of_environment())
    if comm.leader and comm.has_joined and "HEADRACE_TIMEOUT_S" not in os.environ:  # else it is no news
        sys.stderr.write(f"headrace: {comm.count} workers, as {starter or _starter(os.environ)} has started them.\n")
    return comm


def _take_over(variables: MutableMapping[str, str]) -> str:
    """Sets torchrun's variables from those of SLURM or Open MPI, if one of them has started several processes."""
    for starter, (rank, count, local, local_count) in _STARTERS.items():
        if not variables.get(rank, "").isdigit() or not variables.get(count, "").isdigit() or int(variables[count]) < 2:
            continue
        address = variables.get("MASTER_ADDR") or _first_host(variables)
        if not address:
            raise ConfigError(
                f"{starter} has started {variables[count]} of these processes on several machines, and they do not "
                "know where to meet. Set MASTER_ADDR to the host of process 0."
            )
        job = variables.get("SLURM_JOB_ID", "0")
        variables.update(
            {
                "RANK": variables[rank],
                "WORLD_SIZE": variables[count],
                "LOCAL_RANK": variables.get(local, "0"),
                "LOCAL_WORLD_SIZE": variables.get(local_count, "0"),
                "MASTER_ADDR": address,
                "MASTER_PORT": variables.get("MASTER_PORT") or str(_PORT + int(job if job.isdigit() else 0) % _PORT),
            }
        )
        return starter
    return ""


def _first_host(variables: Mapping[str, str]) -> str:
    """The host of process 0: this one where all processes are on it, or the first that SLURM lists; "" if unknown."""
    if variables.get("OMPI_COMM_WORLD_LOCAL_SIZE", "") == variables.get("OMPI_COMM_WORLD_SIZE", "-"):
        return LOOPBACK
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    if variables.get("SLURM_STEP_NUM_NODES", variables.get("SLURM_JOB_NUM_NODES")) == "1":
        return LOOPBACK
    return re.sub(r"^([^\[,]*)\[(\w+).*$", r"\1\2", nodes).partition(",")[0]  # "node[03-05,7],b" → "node03"


def _starter(variables: Mapping[str, str]) -> str:
    ray = sys.modules.get("ray")
    if "TORCHELASTIC_RUN_ID" in variables:
        return "torchrun"
    return "Ray Train" if ray is not None and ray.is_initialized() else "the environment (RANK, WORLD_SIZE)"


def current_comm() -> Comm | None:
    """The communicator of this worker, if one has been made."""
    return _current.comm or (_of_process[-1] if _of_process else None)


@contextmanager
def use_comm(comm: Comm) -> Iterator[None]:
    """For a while, `here` returns this communicator in this thread."""
    before, _current.comm = _current.comm, comm
    try:
        yield
    finally:
        _current.comm = before
