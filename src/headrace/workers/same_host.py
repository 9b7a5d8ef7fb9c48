"""Connects workers on one host: a socket between each two of them, and memory that all share.

Everything they have in common is handed from one to the other: sockets and memory without a name. Nothing is left
behind, whoever dies how.
"""

import fcntl
import mmap
import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from ..data.source import Shard

MESSAGE_BYTES = 64
"""More than any message has."""
_HELLO = struct.Struct("<q")


class Peer:
    """Another worker: a socket to it, and its process."""

    def __init__(self, index: int, channel: socket.socket) -> None:
        self.index, self.channel = index, channel
        channel.setblocking(False)
        self._watched = select.poll()
        self._watched.register(channel, select.POLLIN)
        self._process = _process_of(channel)
        if self._process is not None:  # processes that it has forked may hold its end of the socket open
            self._watched.register(self._process, select.POLLIN)

    def send(self, message: bytes) -> bool:
        """Sends a message, for which there is always room; whether the worker is there to receive it."""
        try:
            self.channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self, spin_until: float, until: float) -> bytes | None:
        """Its next message, empty once it has ended; `None` if there is none in time."""
        ended = False
        while True:
            try:
                return self.channel.recv(MESSAGE_BYTES)
            except BlockingIOError:
                if ended:  # and no message of before is left
                    return b""
            except ConnectionResetError:
                return b""
            now = time.monotonic()
            if now > spin_until:
                if now > until:
                    return None
                ready = self._watched.poll(1000 * (until - now))
                ended = any(descriptor == self._process for descriptor, _ in ready)

    def close(self) -> None:
        self.channel.close()
        if self._process is not None:
            os.close(self._process)
            self._process = None


class SameHostPeers:
    """Connects workers: each listens, connects to those before it, and worker 0 hands out the memory."""

    def __init__(self, shard: Shard, size: int, timeout_s: float) -> None:
        self._shard, self._size, self._timeout_s = shard, size, timeout_s
        self._connected: list[socket.socket] = []
        self._descriptor = -1
        self._listener: socket.socket | None = None
        self.name = ""
        """The address at which this worker listens; empty where the system has no such sockets."""
        if sys.platform.startswith("linux"):
            with suppress(OSError):
                self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                name = f"headrace-{secrets.token_hex(16)}"
                self._listener.bind(f"\0{name}")
                self._listener.listen(shard.count)
                self.name = name

    def __enter__(self) -> "SameHostPeers":
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._connected):
            if one is not None:
                one.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def connect(self, names: Sequence[str]) -> bool:
        """Connects to the workers before this one; whether they can be reached, which they cannot on another host."""
        try:
            for name in names[: self._shard.index]:
                self._connected.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                self._connected[-1].settimeout(self._timeout_s)
                self._connected[-1].connect(f"\0{name}")
                self._connected[-1].send(_HELLO.pack(self._shard.index))
        except OSError:
            return False
        return all(_same_user(one) for one in self._connected)

    def reserve(self) -> bool:
        """Takes the memory, so that writing to it cannot fail later; whether there is enough."""
        try:
            self._descriptor = os.memfd_create("headrace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.posix_fallocate(self._descriptor, 0, self._size)
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        except (OSError, AttributeError):
            return False
        return True

    def join(self) -> tuple[list[Peer], Tensor]:
        """The others, and the memory, once all have reached those before them."""
        before = dict(enumerate(self._connected))
        after = self._accept()
        self._connected = []
        channels = before | after
        if self._shard.index == 0:
            for channel in channels.values():
                socket.send_fds(channel, [b"memory"], [self._descriptor])
        else:
            _, (self._descriptor,), *_ = socket.recv_fds(channels[0], 16, 1)
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        memory = torch.frombuffer(mmap.mmap(self._descriptor, self._size, flags=flags), dtype=torch.uint8)
        return [Peer(index, channel) for index, channel in sorted(channels.items())], memory

    def _accept(self) -> dict[int, socket.socket]:
        """Accepts connections from the workers after this one; other users' are refused."""
        assert self._listener is not None
        self._listener.settimeout(self._timeout_s)
        found: dict[int, socket.socket] = {}
        while len(found) < self._shard.count - 1 - self._shard.index:
            channel, _ = self._listener.accept()
            if _same_user(channel):
                channel.settimeout(self._timeout_s)
                found[_HELLO.unpack(channel.recv(_HELLO.size))[0]] = channel
            else:
                channel.close()
        return found


def _credentials(channel: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    process, user, _ = struct.unpack("3i", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return process, user


def _same_user(channel: socket.socket) -> bool:
    return _credentials(channel)[1] == os.geteuid()


def _process_of(channel: socket.socket) -> int | None:
    """A descriptor that is readable once the process has ended; `None` where there is none, as for one in another
    container."""
    try:
        return os.pidfd_open(_credentials(channel)[0])
    except (OSError, AttributeError):
        return None
