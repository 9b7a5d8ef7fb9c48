"""Connects a worker with the others as its environment says: the key-value store, and the process group."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from ..errors import ConfigError, WorkerError

Result = TypeVar("Result")

TIMEOUT_S = 600.0
"""How long workers wait for each other, in seconds, if nothing else is said."""
LOOPBACK = "127.0.0.1"
_BACKLOG = 1024  # workers that may knock at the same moment
NETWORKS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the interface at which a worker listens."""
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_HOST = torch.device("cpu")


def join_others(timeout_s: float) -> None:
    """Meets the other workers, and binds this one to its accelerator, if there are any."""
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"a worker among several needs {', '.join(missing)} in its environment. "
            "Start it with torchrun, or with headrace.launch."
        )
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if int(os.environ.get("LOCAL_WORLD_SIZE", "0")) == count or is_loopback(os.environ["MASTER_ADDR"]):
        for network in NETWORKS:
            os.environ.setdefault(network, loopback_interface())
    options: dict[str, Any] = {"backend": backends()}
    if torch.cuda.is_available():
        options["device_id"] = _device(int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(options["device_id"])
    store = attempt_of(_store(rank, timeout_s))
    limit = timedelta(seconds=timeout_s)
    try:
        store.set(f"came/{rank}", "")
        dist.init_process_group(store=store, rank=rank, world_size=count, timeout=limit, **options)
    except RuntimeError as error:
        raise WorkerError(_who_is_missing(store, rank, count, timeout_s, error)) from error


def _who_is_missing(store: Store, rank: int, count: int, timeout_s: float, error: RuntimeError) -> str:
    """Why the workers have not met."""
    late = []
    with suppress(RuntimeError):  # the store is gone too
        late = [k for k in range(count) if not store.check([f"came/{k}"])]
    if not late:
        return f"worker {rank} cannot reach the others, who have come to meet it: {_first_line(error)}"
    names = f"{', '.join(map(str, late[:8]))}{' and others' if len(late) > 8 else ''}"
    return (
        f"worker{'s' * (len(late) > 1)} {names} did not come to meet the others within {timeout_s:g} s: lost, or still "
        "starting. If that may take longer, raise timeout_s."
    )


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0][:300]


def backends() -> str:
    """What carries the vectors of workers: those on the host and, where there are accelerators, those on them."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def joined_group() -> tuple[dist.ProcessGroup, dist.ProcessGroup, float]:
    """The group for vectors on a device, the one for what is on the host, and how many seconds they wait."""
    world = dist.group.WORLD
    assert world is not None
    limit = timedelta(seconds=timeout_of_environment())
    try:
        host = world._get_backend(_HOST)
    except RuntimeError:  # a group of accelerators only
        return world, dist.new_group(backend="gloo", timeout=limit), limit.total_seconds()
    if "HEADRACE_TIMEOUT_S" in os.environ:
        dist.distributed_c10d._set_pg_timeout(limit, world)
    return world, world, host.options._timeout.total_seconds()


def started_by_agent() -> bool:
    """Whether the store is kept by a process that is no worker, as torchrun."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def timeout_of_environment() -> float:
    """Seconds that workers wait for each other."""
    text = os.environ.get("HEADRACE_TIMEOUT_S", str(TIMEOUT_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"HEADRACE_TIMEOUT_S is a number of seconds greater than 0, got {text!r}.")
    return seconds


def _store(rank: int, timeout_s: float) -> Store:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0 and is_loopback(host) and not started_by_agent():  # torch's own would listen to everybody
        try:
            return listen(LOOPBACK, port, timeout_s)
        except OSError as error:
            raise ConfigError(
                f"worker 0 cannot listen at {host}:{port}: {error.strerror}. Set MASTER_PORT to a free port."
            ) from error
    try:
        store: Store = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))[0]
    except RuntimeError as error:
        keeper = "the process that started the workers" if started_by_agent() else "worker 0"
        raise WorkerError(
            f"{keeper} does not answer at {host}:{port} for {timeout_s:g} s: {_first_line(error)}"
        ) from error
    return store


def _device(local: int) -> torch.device:
    count = torch.cuda.device_count()
    if count > 1 and local >= count:
        raise ConfigError(
            f"{os.environ.get('LOCAL_WORLD_SIZE', local + 1)} workers on a machine with {count} accelerators. "
            "Start no more workers than that, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
        )
    return torch.device("cuda", local if count > 1 else 0)  # each may have been given one of its own


# --- the store, a socket of whoever has started the workers -----------------------------------------------


def listen(host: str, port: int, timeout_s: float) -> TCPStore:
    """A store that listens on one address and no other, as torch's own does; port 0: any that is free."""
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((host, port))
        server.listen(_BACKLOG)
        port = server.getsockname()[1]
        return TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=server.detach(),
            use_libuv=_has_libuv(),
        )
    finally:
        server.close()


def connect(host: str, port: int, timeout_s: float) -> TCPStore:
    """Connects to a store of another process; a RuntimeError where none answers in time."""

    def ask() -> TCPStore:
        limit = timedelta(seconds=timeout_s)
        return TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False, use_libuv=_has_libuv())

    return within(timeout_s, ask, f"the store at {host}:{port}")


def within(limit_s: float, call: Callable[[], Result], what: str) -> Result:
    """Calls a function and waits for its result at most so long: torch waits for ever for a store that is stopped."""
    results: list[Result] = []
    failed: list[RuntimeError] = []

    def work() -> None:
        try:
            results.append(call())
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="headrace-ask", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not results:
        raise RuntimeError(f"{what} does not answer for {limit_s:g} s")
    return results[0]


def attempt_of(store: Store, attempt: int | None = None) -> Store:
    """The part of a store that belongs to one start of the workers: a later one finds nothing of an earlier one.

    `None`: the start of this worker.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    number = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if attempt is None else attempt
    return PrefixStore(f"headrace/{number}", store)


def is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _has_libuv() -> bool:
    """Whether torch's stores may use libuv: its builds for Windows come without."""
    return os.name != "nt"


def loopback_interface() -> str:
    """The interface of 127.0.0.1."""
    if os.name == "nt":  # by the name that libuv gives it, which is not that of `if_nameindex`
        return "Loopback Pseudo-Interface 1"
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "lo")
