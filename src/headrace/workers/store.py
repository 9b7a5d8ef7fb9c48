"""The key-value store that workers meet in: a socket of whoever has started them."""

import os
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar
from urllib.parse import urlsplit

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ..errors import ConfigError

Result = TypeVar("Result")

LOOPBACK = "127.0.0.1"
_BACKLOG = 1024  # workers that may knock at the same moment


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
        )
    finally:
        server.close()


def connect(host: str, port: int, timeout_s: float) -> TCPStore:
    """A store that somebody else keeps; a RuntimeError where none answers in time."""

    def ask() -> TCPStore:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)

    return within(timeout_s, ask, f"the store at {host}:{port}")


def within(limit_s: float, call: Callable[[], Result], what: str) -> Result:
    """What a call gives. Torch waits for ever for an answer of a store that is stopped, or is none."""
    found: list[Result] = []
    failed: list[RuntimeError] = []

    def work() -> None:
        try:
            found.append(call())
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="headrace-ask", daemon=True)
    thread.start()
    thread.join(limit_s)
    if failed:
        raise failed[0]
    if not found:
        raise RuntimeError(f"{what} does not answer for {limit_s:g} s")
    return found[0]


def attempt_of(store: Store, attempt: int | None = None) -> Store:
    """The part of a store that belongs to one start of the workers: a later one finds nothing of an earlier one.

    `None`: the start of this worker.
    """
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    number = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if attempt is None else attempt
    return PrefixStore(f"headrace/{number}", store)


def address(text: str) -> tuple[str, int]:
    """Host and port of "10.0.0.1:29500"."""
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or text.count(":") != 1:
        raise ConfigError(f"an address is a host and a port, like '10.0.0.1:29500', got {text!r}.")
    return host, port


def is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def loopback_interface() -> str:
    """The interface of 127.0.0.1."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), "lo")
