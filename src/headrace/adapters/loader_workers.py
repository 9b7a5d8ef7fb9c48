"""The worker processes of a DataLoader: what is said when they fail, and where."""

from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

from torch._C import _remove_worker_pids

EXIT_S = 1.0  # that a worker process takes to end once it has closed its connections


def noticed_when_awaited(current: Any) -> Iterator[Any]:
    """A pass over data, in which a death is noticed where a batch is awaited: torch would raise in whatever is done."""
    if getattr(current, "_worker_pids_set", False):
        _remove_worker_pids(id(current))
        current._worker_pids_set = False
    found: Iterator[Any] = current
    return found


def failure_of(error: Exception, current: Any) -> str:
    """Says why a pass has failed: a worker that ends closes its connections first, and torch may look too soon."""
    states = zip(getattr(current, "_workers", ()), getattr(current, "_workers_status", ()), strict=False)
    workers = {each.sentinel: each for each, in_use in states if in_use and isinstance(error, OSError | EOFError)}
    gone = [workers[end] for end in wait([*workers], EXIT_S if workers else 0)]
    for worker in gone:
        worker.join(EXIT_S)  # otherwise it may have no exit code yet
    if gone:
        said = "; ".join(f"{worker.pid}, exit code {worker.exitcode}" for worker in gone)
        return f"a DataLoader worker exited unexpectedly (process {said})"
    return f"{type(error).__name__}: {error}"
