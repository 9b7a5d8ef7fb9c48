"""The addresses at which processes listen, and ports that nobody uses."""

import os
import socket
from collections.abc import Iterable
from pathlib import Path

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""The addresses of this machine that no other reaches, of IPv4 and IPv6, as `listening` gives them."""
_LISTENS = "0A"


_RESERVED: list[socket.socket] = []
"""Bound and not listening, until this process ends: the system gives their ports to nobody who does not name them."""


def free_port() -> int:
    """A port of loopback for a server that names it, with SO_REUSEADDR; nobody gets it who asks for any port."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    _RESERVED.append(one)
    return int(one.getsockname()[1])


def listening(pids: Iterable[int]) -> list[str]:
    """The addresses at which processes listen, one for each socket, in hexadecimal as the kernel writes them."""
    sockets = set().union(*map(_sockets, pids))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, address, _, state, *_, inode = line.split()[:10]
            if state == _LISTENS and inode in sockets:
                found.append(address.rpartition(":")[0])
    return found


def _sockets(pid: int) -> set[str]:
    """The numbers of the sockets that a process has open."""
    found = set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = os.readlink(path)
        except OSError:
            continue  # it has been closed, or is another user's
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found
