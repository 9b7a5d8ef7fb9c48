"""Carries calls to the center over one connection for each worker, to a thread of worker 0."""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any

from ..data.staging import keep_freed_memory
from ..errors import WorkerError
from .center import PAUSE_S, Body, Center, CenterClient, HostWeights, LocalCenter, Patience
from .join import LOOPBACK, is_loopback

if TYPE_CHECKING:
    from .comm import Comm

_KEY_BYTES = 32
_MOST = 1 << 26  # bytes of a message beside the weights


def open_center(comm: "Comm", center: Center | None, like: HostWeights, timeout_s: float) -> CenterClient:
    """The client of each worker; all workers call it together, and worker 0 gives the center.

    Worker 0 listens on loopback, or on the address by which it reaches MASTER_ADDR where that is another host's. Only
    who knows the key, which goes through the communicator of the workers, is listened to. Messages are JSON and the
    bytes of the weights.
    """
    if center is not None and comm.count == 1:
        return LocalCenter(center, timeout_s)
    keep_freed_memory()
    if center is not None:
        server = CenterServer(center)
        comm.share([*server.address, server.key.hex()])
        return ServingCenter(center, server, timeout_s, comm.attempt)
    host, port, key = comm.share()
    connection: Connection = comm.attempt(
        Client, (host, port), "AF_INET6" if ":" in host else "AF_INET", bytes.fromhex(key)
    )
    connection.send_bytes(str(comm.shard.index).encode())
    return RemoteCenter(connection, timeout_s, comm.attempt)


class CenterServer:
    """Accepts the connections of the other workers, and serves each in a thread."""

    def __init__(self, center: Center) -> None:
        self._center, self.key = center, secrets.token_bytes(_KEY_BYTES)
        host = _own_address()
        family = "AF_INET6" if ":" in host else "AF_INET"
        self._listener = Listener((host, 0), family, backlog=center.count, authkey=self.key)
        self.address: tuple[str, int] = self._listener.address[:2]
        threading.Thread(target=self._accept, name="headrace-center", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        missing = self._center.count - 1
        while missing:
            try:
                connection = self._listener.accept()
                worker = int(connection.recv_bytes(16))
            except AuthenticationError:  # a stranger
                continue
            except (OSError, EOFError, ValueError):
                if self._listener._listener is None:  # type: ignore[attr-defined]
                    return
                continue
            missing -= 1
            serve = threading.Thread(
                target=self._serve, args=(connection, worker), name=f"headrace-center-{worker}", daemon=True
            )
            serve.start()

    def _serve(self, connection: Connection, worker: int) -> None:
        center = self._center
        weights = HostWeights(center.weights.named)
        try:
            while worker not in center.left:
                name, body, has_weights = json.loads(connection.recv_bytes(_MOST))
                if name == "exchange":
                    connection.recv_bytes_into(_buffer(weights))
                try:
                    answer = center.serve(worker, name, body, weights if has_weights else None)
                except Exception as error:
                    connection.send_bytes(json.dumps({"error": f"{error}"}).encode())
                    continue
                connection.send_bytes(json.dumps(answer).encode())
                if has_weights:
                    connection.send_bytes(_buffer(weights))
        except (OSError, EOFError):
            center.lost = worker
        finally:
            connection.close()


class ServingCenter(LocalCenter):
    """The client of worker 0, which serves the others."""

    def __init__(self, center: Center, server: CenterServer, timeout_s: float, attempt: Callable[..., Any]) -> None:
        super().__init__(center, timeout_s, attempt)
        self._server = server

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._server.close()


class RemoteCenter(CenterClient):
    """The client of another worker."""

    def __init__(self, connection: Connection, timeout_s: float, attempt: Callable[..., Any]) -> None:
        self._connection, self._attempt, self._patience = connection, attempt, Patience(timeout_s)

    def call(self, name: str, body: Body | None = None, weights: HostWeights | None = None) -> Body:
        answer: Body = self._attempt(self._call, name, body or {}, weights)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _call(self, name: str, body: Body, weights: HostWeights | None) -> Body:
        connection = self._connection
        connection.send_bytes(json.dumps([name, body, weights is not None]).encode())
        if name == "exchange" and weights is not None:
            connection.send_bytes(_buffer(weights))
        answer: Body = json.loads(connection.recv_bytes(_MOST))
        if weights is not None and "error" not in answer:
            connection.recv_bytes_into(_buffer(weights))
        return answer

    def wait(self, answer: Body) -> None:
        self._patience.check(answer)
        time.sleep(PAUSE_S)

    def close(self) -> None:
        with suppress(OSError):
            self._connection.close()


def _buffer(weights: HostWeights) -> memoryview:
    flat: Any = weights.flat.numpy()
    return memoryview(flat)


def _own_address() -> str:
    """Where the other workers reach this process."""
    master = os.environ.get("MASTER_ADDR", LOOPBACK)
    if is_loopback(master):
        return LOOPBACK
    family, kind, _, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # nothing is sent
        return str(probe.getsockname()[0])
