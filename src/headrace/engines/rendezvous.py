"""Where the workers of a launch meet: at a store that listens on this machine alone, or on one interface."""

import fcntl
import socket
import struct
import sys
import time
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

from ..errors import ConfigError
from ..workers.store import address, connect, is_loopback, listen
from .job import Job

_NAME = "headrace"
_SIOCGIFADDR = 0x8915
_MORE_S = 30.0  # that nodes wait for each other, as one may only have ended a worker that kept all waiting
_ASK_S = 1.0  # that a look whether the first node is there may take
_ANSWER_S = 10.0  # within which a store answers


def rendezvous(job: Job, host: str) -> RendezvousHandler:
    """How the nodes of a job find each other; this one listens at `host`."""
    if job.nodes == 1:
        return OneNode(host, job.timeout_s)
    if job.address is None or job.interface is None:
        raise ConfigError(
            f"nodes={job.nodes} need address=, where they meet, as in '10.0.0.1:29500', and interface=, the network "
            f"they use, as in 'eth0'; got address={job.address!r}, interface={job.interface!r}."
        )
    store = _meeting_place(job.address, job.timeout_s)
    found: ManyNodes = ManyNodes.from_backend(
        _NAME,
        store,
        C10dRendezvousBackend(store, _NAME),
        min_nodes=job.nodes,
        max_nodes=job.nodes,
        local_addr=host,
        timeout=RendezvousTimeout(join=timedelta(seconds=job.timeout_s + _MORE_S)),
    )
    found.timeout_s = job.timeout_s
    return found


def host_of(interface: str | None) -> str:
    """The address to listen at: an interface's, this machine's own without one."""
    if interface is None:
        return "127.0.0.1"
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            host = socket.inet_ntoa(fcntl.ioctl(one, _SIOCGIFADDR, request)[20:24])
        except OSError:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise ConfigError(
                f"interface={interface!r} has no IPv4 address on this machine, which has {names}."
            ) from None
    if not is_loopback(host):
        sys.stderr.write(
            f"headrace: listening at {host} ({interface}), UNAUTHENTICATED AND UNENCRYPTED: "
            "for private networks only. Whoever can reach this address can change the run.\n"
        )
    return host


class OneNode(RendezvousHandler):
    """A node that meets nobody: only its workers have to find each other, anew at each start."""

    def __init__(self, host: str, timeout_s: float) -> None:
        self._host, self._timeout_s = host, timeout_s
        self._store: TCPStore | None = None

    def get_backend(self) -> str:
        return _NAME

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        self._store = listen(self._host, 0, self._timeout_s)
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(self._host, self._store.port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return _NAME

    def shutdown(self) -> bool:
        self._store = None
        return True


class ManyNodes(DynamicRendezvousHandler):
    """Torch's own, but that the workers' store listens at one address only, and is a new one at each start."""

    timeout_s = 0.0

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        self._earlier = self._shared_tcp_store_server  # others may still read there why they are to start again
        self._bootstrap_store_info = self._shared_tcp_store_server = None
        return super().next_rendezvous()

    def _create_tcp_store_server(self, master_addr: str, master_port: int) -> TCPStore:
        return listen(master_addr, master_port, self.timeout_s)


def _meeting_place(text: str, timeout_s: float) -> Store:
    """The store that all nodes know: the node that has the address keeps it."""
    host, port = address(text)
    try:
        return listen(host, port, timeout_s)
    except socket.gaierror as error:
        raise ConfigError(f"address={text!r}: {error.strerror}.") from None
    except OSError:
        pass  # another node has the address, or is there already
    until = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, port), timeout=_ASK_S).close()
            break
        except OSError as error:
            if time.monotonic() > until:
                raise ConfigError(
                    f"nobody answers at address={text!r} ({error.strerror or error}) for {timeout_s:g} s. "
                    "Start the same launch on the machine that has this address."
                ) from None
            time.sleep(_ASK_S / 4)
    try:
        return connect(host, port, min(timeout_s, _ANSWER_S))
    except RuntimeError:
        raise ConfigError(
            f"the port at address={text!r} is taken by another program. Choose another port, the same on all nodes."
        ) from None
