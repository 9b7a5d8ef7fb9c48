"""How workers call the center: over one connection for each, to a thread of worker 0, which calls it directly."""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

from ..data.staging import keep_freed_memory
from ..errors import WorkerError
from .center import Body, Center, HostWeights
from .join import LOOPBACK, is_loopback

if TYPE_CHECKING:
    from .comm import Comm

PAUSE_S = 0.02
"""How long a worker waits before it asks once more."""
_KEY_BYTES = 32
_MOST = 1 << 26  # bytes of a message beside the weights


class CenterClient:
    """Calls the center for one worker: over a connection, or directly in worker 0, which has the center."""

    def __init__(
        self,
        comm: "Comm",
        center: Center | None = None,
        connection: Connection | None = None,
    ) -> None:
        self._comm, self._center, self._connection = comm, center, connection
        self._exchanges, self._since_s = -1, 0.0

    def call(self, name: str, body: Body | None = None, weights: HostWeights | None = None) -> Body:
        """The answer of `Center.serve`; the weights become those that the center gives back."""
        answer: Body = self._comm.attempt(self._call, name, body or {}, weights)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def _call(self, name: str, body: Body, weights: HostWeights | None) -> Body:
        center, connection = self._center, self._connection
        if center is not None:
            if center.lost is not None and name != "leave":
                raise ConnectionError(f"worker {center.lost} has closed its connection with the center")
            return center.serve(0, name, body, weights)
        assert connection is not None
        connection.send_bytes(json.dumps([name, body, weights is not None]).encode())
        if name == "exchange" and weights is not None:
            connection.send_bytes(weights.memory)
        answer: Body = json.loads(connection.recv_bytes(_MOST))
        if weights is not None and "error" not in answer:
            connection.recv_bytes_into(weights.memory)
        return answer

    def wait(self, answer: Body) -> None:
        """Returns after this answer, that no rows are free, when some may be; raises if no worker exchanges any more.

        That is, when none has for as long as workers wait for each other.
        """
        now_s, limit_s = time.monotonic(), self._comm.timeout_s
        if answer["exchanges"] != self._exchanges:
            self._exchanges, self._since_s = answer["exchanges"], now_s
        elif now_s - self._since_s > limit_s:
            raise WorkerError(
                f"all rows that are left are with other workers, of which none has come to the center for "
                f"{limit_s:g} s. If they may take longer, raise timeout_s."
            )
        time.sleep(PAUSE_S)

    def leave(self) -> None:
        """This worker calls no more. Worker 0 returns once all others have left too."""
        try:
            self.call("leave")
            while self._center is not None and len(self._center.gone) < self._center.count:
                self.call("pull")
                time.sleep(PAUSE_S)
        finally:
            if self._connection is not None:
                with suppress(OSError):
                    self._connection.close()

    # --- for workers that take turns, which a checkpoint holds as they are -----------------------------------

    def begin(self, state: Callable[[], Any], clock: Mapping[str, Any]) -> None:
        """Before the first update: `state` gives that of this worker while it waits here; `clock` is a saved one."""

    def restore_clock(self) -> None:
        """Sets the virtual time of all workers to the one that `begin` was given; each calls it before it trains."""

    def clock(self) -> Body:
        """The virtual time of all workers."""
        return {}

    def gather_states(self, own: Any) -> list[Any]:
        """The states to save, beginning with worker 0's `own`: of all workers if they take turns, else this one."""
        return [own]


def open_center(comm: "Comm", center: Center | None) -> CenterClient:
    """The client of each worker; all workers call it together, and worker 0 gives the center.

    Worker 0 listens on loopback, or on the address by which it reaches MASTER_ADDR where that is another host's. Only
    who knows the key, which goes through the communicator of the workers, is listened to. Messages are JSON and the
    bytes of the weights.
    """
    if center is not None and comm.count == 1:
        return CenterClient(comm, center)
    keep_freed_memory()
    if center is not None:
        key, host = secrets.token_bytes(_KEY_BYTES), _own_address()
        server = socket.create_server((host, 0), family=getattr(socket, _family(host)), backlog=center.count)
        try:
            comm.share([*server.getsockname()[:2], key.hex()])
        except BaseException:
            server.close()
            raise
        arguments = center, server, key, time.monotonic() + comm.timeout_s
        threading.Thread(target=_accept, args=arguments, name="headrace-center", daemon=True).start()
        return CenterClient(comm, center)
    host, port, shared = comm.share()
    connection: Connection = comm.attempt(Client, (host, port), _family(host), bytes.fromhex(shared))
    connection.send_bytes(str(comm.shard.index).encode())
    return CenterClient(comm, connection=connection)


def _accept(center: Center, server: socket.socket, key: bytes, until_s: float) -> None:
    """Accepts connections until all other workers have come, or until a time; a thread serves each of them."""
    server.settimeout(PAUSE_S)
    with server:
        while len(center.came) < center.count - 1 and time.monotonic() < until_s:
            try:
                channel, _ = server.accept()
            except OSError as error:
                if not isinstance(error, TimeoutError):  # nothing is free for the connection: perhaps soon
                    time.sleep(PAUSE_S)
                continue
            channel.setblocking(True)
            arguments = center, Connection(channel.detach()), key
            threading.Thread(target=_serve, args=arguments, name="headrace-center", daemon=True).start()


def _serve(center: Center, connection: Connection, key: bytes) -> None:
    """Answers the calls of one worker until it leaves; a stranger, who does not know the key, is not answered."""
    try:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        worker = int(connection.recv_bytes(16))
    except (AuthenticationError, OSError, EOFError, ValueError):
        connection.close()
        return
    center.came.add(worker)
    weights = HostWeights(center.weights.named)
    try:
        while worker not in center.gone:
            name, body, has_weights = json.loads(connection.recv_bytes(_MOST))
            if name == "exchange":
                connection.recv_bytes_into(weights.memory)
            try:
                answer = center.serve(worker, name, body, weights if has_weights else None)
            except Exception as error:
                answer = {"error": str(error)}
            connection.send_bytes(json.dumps(answer).encode())
            if has_weights and "error" not in answer:
                connection.send_bytes(weights.memory)
    except (OSError, EOFError):
        center.lost = worker
    finally:
        connection.close()


def _family(host: str) -> str:
    return "AF_INET6" if ":" in host else "AF_INET"


def _own_address() -> str:
    """Where the other workers reach this process."""
    master = os.environ.get("MASTER_ADDR", LOOPBACK)
    if is_loopback(master):
        return LOOPBACK
    family, kind, _, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # nothing is sent
        return str(probe.getsockname()[0])
