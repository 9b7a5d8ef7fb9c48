"""What an exchange with the center costs, in processes of this machine: beside as many bytes over a bare connection.

Both are made by worker 1, in turns: 4 MB go to a thread of worker 0, and as many come back. The bare connection gives
back what it gets; the center merges, records the rows, and answers with the weights.
"""

from __future__ import annotations

import random
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import torch
from timing import Sample, silence
from torch import Tensor

import headrace as hr
from headrace.workers.center import Center, HostWeights, Leases
from headrace.workers.comm import Comm
from headrace.workers.here import here

BYTES = 4 << 20
CALLS, WARM_UP = 30, 5
RAW, CENTER = "a bare connection", "headrace: exchange"
KEY = b"benchmark"


def measure(repeats: int) -> dict[str, Sample]:
    """Seconds of so many exchanges, in two processes."""
    with silence():
        found = hr.launch(_exchange, repeats, workers=2, engine="processes", timeout_s=60)
    return {name: Sample(seconds) for name, seconds in found.items()}


def _exchange(repeats: int) -> dict[str, list[float]]:
    """In each worker; worker 1 measures, worker 0 serves."""
    comm = here()
    weights = HostWeights({f"layer.{k}": torch.zeros(BYTES // 4 // 8) for k in range(8)})
    center = Center(HostWeights(weights.named), Leases(1 << 40, 1), _merge, comm.count) if comm.leader else None
    client = comm.open_center(center)
    bare = _bare(comm)
    found: dict[str, list[float]] = {RAW: [], CENTER: []}
    if not comm.leader:
        buffer: Any = memoryview(weights.flat.numpy())

        def raw() -> None:
            bare.send_bytes(buffer)
            bare.recv_bytes_into(buffer)

        def exchange() -> None:
            client.call("exchange", {"rows": 0, "used": [], "terms": {}}, weights)

        rivals = {RAW: raw, CENTER: exchange}
        draw = random.Random(0)
        for repeat in range(repeats + 1):
            for name in draw.sample(list(rivals), len(rivals)):
                start = time.perf_counter()
                for _ in range(CALLS if repeat else WARM_UP):
                    rivals[name]()
                if repeat:
                    found[name].append(time.perf_counter() - start)
    client.leave()
    gathered = comm.all_gather(found)
    return {name: list(map(float, seconds)) for name, seconds in gathered[1].items()}


def _merge(center: list[Tensor], worker: list[Tensor]) -> None:
    hr.Elastic(alpha=0.5, take_center=True).merge(center, worker)


def _bare(comm: Comm) -> Connection:
    """A connection between the two workers; a thread of worker 0 gives back what it gets."""
    if not comm.leader:
        return Client(tuple(comm.share()), authkey=KEY)
    listener = Listener(("127.0.0.1", 0), authkey=KEY)
    comm.share(list(listener.address))
    connection = listener.accept()
    threading.Thread(target=_echo, args=(connection,), daemon=True).start()
    return connection


def _echo(connection: Connection) -> None:
    buffer: Any = memoryview(bytearray(BYTES))
    while True:
        try:
            connection.recv_bytes_into(buffer)
            connection.send_bytes(buffer)
        except (OSError, EOFError):
            return
