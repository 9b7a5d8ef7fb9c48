"""Finds the communicator of this worker: a virtual one, one that torchrun has started, or a worker alone."""

import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .comm import Comm, Null


class _Current(threading.local):
    comm: Comm | None = None


_current = _Current()


def here() -> Comm:
    """The communicator of this worker."""
    if _current.comm is not None:
        return _current.comm
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        from .torch_comm import TorchComm

        _current.comm = TorchComm.of_environment()
        return _current.comm
    _warn_of_tasks(os.environ)
    return Null()


def _warn_of_tasks(variables: Mapping[str, str]) -> None:
    """Warns if SLURM or MPI has started several processes, which would train one model each."""
    number = variables.get("SLURM_PROCID", "0")
    slurm = variables.get("SLURM_STEP_NUM_TASKS") or ("1" if number == "0" else variables.get("SLURM_NTASKS", "1"))
    for starter, tasks in (("SLURM", slurm), ("Open MPI", variables.get("OMPI_COMM_WORLD_SIZE", "1"))):
        if tasks.isdigit() and int(tasks) > 1:
            warnings.warn(
                f"{starter} has started {tasks} of these processes, and each of them is a worker alone: they train "
                f"{tasks} models, not one. Start one process on each node, which starts the workers: srun "
                "--ntasks-per-node 1 torchrun ... train.py.",
                stacklevel=2,
            )


def current_comm() -> Comm | None:
    """The communicator of this worker, if one has been made."""
    return _current.comm


@contextmanager
def use_comm(comm: Comm) -> Iterator[None]:
    """For a while, `here` returns this communicator in this thread."""
    before, _current.comm = _current.comm, comm
    try:
        yield
    finally:
        _current.comm = before
