"""Adds up vectors of workers on one host, through memory that they share.

Every worker copies its vector into a place of its own, part by part, sends a signal, and adds up what lies in all
places. The places are few and small, so that what is read has just been written and is still in the processor's cache.

Signals go over a socket between each two workers: a worker that is gone is seen at once, and a signal orders the writes
before it on every processor. Sockets and memory have no names: nothing is left behind, whoever dies how.
"""

import mmap
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from ..data.shard import Shard
from ..errors import WorkerError
from ..store import system
from .comm import Op

PART = 512 * 1024
"""Bytes of a place. Larger parts fall out of the cache, smaller ones cost more signals."""
PLACES = 4
"""Of each worker: the part in place k % 4 is read by all when part k + 4 is written, see `_signal`."""
SPIN_S = 100e-6
"""How long a worker looks again and again before it sleeps: to be woken up takes about as long."""
HALVES = (torch.float16, torch.bfloat16)
_SIGNAL = struct.Struct("<qq")

Exchange = Callable[[str], Sequence[str]]
"""Gives a text to all workers and returns the texts of all, in order; every worker calls it as often."""


class Shared:
    """Adds up vectors with the other workers of this host; made by `connect`.

    All call the same methods with vectors of the same length and type, in the same order. Values are added in the
    order of workers, 16-bit ones as float32 that is rounded once: the sum is the same for all, to the last bit.
    """

    def __init__(self, shard: Shard, memory: Tensor, peers: "Sequence[Peer]", timeout_s: float) -> None:
        self._shard, self._peers, self._timeout_s = shard, peers, timeout_s
        self._memory = memory.view(shard.count, PLACES, PART)
        self._places: dict[tuple[int, torch.dtype], list[Tensor]] = {}
        self._scratch = torch.empty(shard.count.bit_length(), PART, dtype=torch.uint8)  # mapped once, not for each sum
        self._part = 0
        self._spin_s = SPIN_S if shard.count <= system.cores() else 0.0

    @classmethod
    def connect(cls, shard: Shard, exchange: Exchange, timeout_s: float) -> "Shared | None":
        """Joins the others; `None`, on all of them, if they are not on one host or the memory cannot be had."""
        with SameHostPeers(shard, shard.count * PLACES * PART, timeout_s) as peers_here:
            names = exchange(peers_here.name)
            is_here = "" not in names and peers_here.connect(names) and (shard.index > 0 or peers_here.reserve())
            if "" in exchange("yes" if is_here else ""):
                return None
            peers, memory = peers_here.join()
            return cls(shard, memory, peers, timeout_s)

    def all_reduce(self, vector: Tensor, op: Op = "sum") -> None:
        """The vector, on the host, becomes the sum, or the maximum, of those of all workers."""
        flat = vector.detach().view(-1)
        parts = flat.split(PART // flat.element_size())
        if flat.numel() == 0:
            return
        self._put(0, parts[0])
        for number, part in enumerate(parts):
            if number + 1 < len(parts):  # one part ahead, so that nobody waits for a signal on its way
                self._put(number + 1, parts[number + 1])
            self._await(number, part)
            self._combine(number, part, op)
        self._part += len(parts)

    def close(self) -> None:
        """Closes the sockets; workers that still wait for this one raise an error."""
        for peer in self._peers:
            peer.close()
        self._places.clear()
        self._memory = torch.empty(0)

    def _combine(self, number: int, part: Tensor, op: Op) -> None:
        """Adds up what lies in a place."""
        scratch = [vector[: part.numel()] for vector in self._scratch.view(part.dtype)] if op == "tree" else ()
        combine(self._of_all(number, part), part, op, scratch)

    def _of_all(self, number: int, part: Tensor) -> list[Tensor]:
        """What all workers have put into a place."""
        key = (self._part + number) % PLACES, part.dtype
        if key not in self._places:
            self._places[key] = [self._memory[index, key[0]].view(part.dtype) for index in range(self._shard.count)]
        length = part.numel()
        return [place[:length] for place in self._places[key]]

    def _put(self, number: int, part: Tensor) -> None:
        self._of_all(number, part)[self._shard.index].copy_(part)
        self._signal(number, part)

    def _signal(self, number: int, part: Tensor) -> None:
        """All may read.

        Whoever puts part k has received part k - 2 of all others, who have then read all parts to k - 4: the place of
        part k - 4 is free.
        """
        message = self._vote(number, part)
        for peer in self._peers:
            if not peer.send(message):
                raise _lost(peer.index, "has ended, while the others go on")

    def _await(self, number: int, part: Tensor) -> None:
        """Until all have put their part."""
        message, now = self._vote(number, part), time.monotonic()
        for peer in self._peers:
            received = peer.receive(now + self._spin_s, now + self._timeout_s)
            if received is None:
                raise _lost(peer.index, f"has kept the others waiting for {self._timeout_s:g} s")
            if not received:
                raise _lost(peer.index, "has ended, while the others wait for it")
            if received != message:
                raise _lost(peer.index, f"does something else: {_read(received)}; this worker: {_read(message)}")

    def _vote(self, number: int, part: Tensor) -> bytes:
        return _SIGNAL.pack(self._part + number, part.nbytes)


def combine(vectors: Sequence[Tensor], out: Tensor, op: Op, scratch: Sequence[Tensor] = ()) -> None:
    """`out` becomes the sum, or the maximum, in this order; it may be none of the vectors."""
    first, second, *others = vectors
    if op == "tree":
        add_in_tree(vectors, out, scratch)
    elif op == "max":
        torch.maximum(first, second, out=out)
        for other in others:
            torch.maximum(out, other, out=out)
    elif out.dtype in HALVES:
        total = first.float().add_(second)
        for other in others:
            total.add_(other)
        out.copy_(total)
    else:
        torch.add(first, second, out=out)
        for other in others:
            out.add_(other)


def add_in_tree(vectors: Sequence[Tensor], out: Tensor, scratch: Sequence[Tensor]) -> None:
    """`out` becomes the sum of two and two of 2, 4, 8, … vectors, of the sums again two and two, and so on.

    `scratch`: memory for sums, a vector for every level below the first two.
    """
    middle = len(vectors) // 2
    if middle == 1:
        torch.add(*vectors, out=out)
        return
    add_in_tree(vectors[:middle], out, scratch)
    add_in_tree(vectors[middle:], scratch[0], scratch[1:])
    out.add_(scratch[0])


def _lost(index: int, what: str) -> WorkerError:
    return WorkerError(f"worker {index} {what}.")


def _read(message: bytes) -> str:
    part, size = _SIGNAL.unpack(message)
    return f"part {part} of {size} bytes"


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
        with suppress(OSError, AttributeError):
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
            import fcntl  # every system that has the call above has this

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
        channels: dict[int, socket.socket] = {}
        while len(channels) < self._shard.count - 1 - self._shard.index:
            channel, _ = self._listener.accept()
            if _same_user(channel):
                channel.settimeout(self._timeout_s)
                channels[_HELLO.unpack(channel.recv(_HELLO.size))[0]] = channel
            else:
                channel.close()
        return channels


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
