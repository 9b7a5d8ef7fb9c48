"""What a meeting with the center on a Ray cluster costs: beside the bare call of an actor, with as many bytes.

Both are made by the same worker, in turns: vectors go there, and as many come back. The bare actor gives back what it
gets; the center applies what it gets, remembers the rows it comes from, and answers with its weights.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from timing import Sample, silence

import headrace as hr
from headrace.workers.center import LeaseTerms, Push
from headrace.workers.here import here

BYTES = 4 << 20
CALLS, WARM_UP = 30, 5
RAW, CENTER = "ray: a bare call", "headrace: push and pull"


def measure(repeats: int) -> dict[str, Sample]:
    """Seconds of so many exchanges, in a cluster of our own on this machine."""
    with silence():
        found = hr.launch(_exchange, hr.Elastic(every="1 step"), repeats, workers=2, engine="ray", timeout_s=60)
    return {name: Sample(seconds) for name, seconds in found.items()}


def _exchange(strategy: hr.Elastic, repeats: int) -> dict[str, list[float]]:
    """In each worker; the first one measures."""
    comm = here()
    if not comm.leader:
        return {}
    strategy.join(comm)
    rivals: Mapping[str, Callable[[], None]] = {RAW: _raw(), CENTER: _center(strategy, comm.center)}
    for exchange in rivals.values():
        for _ in range(WARM_UP):
            exchange()
    found: dict[str, list[float]] = {name: [] for name in rivals}
    draw = random.Random(0)
    for _ in range(repeats):
        for name in draw.sample(list(rivals), len(rivals)):
            start = time.perf_counter()
            for _ in range(CALLS):
                rivals[name]()
            found[name].append(time.perf_counter() - start)
    comm.center.leave()
    return found


def _raw() -> Callable[[], None]:
    import ray

    class Echo:  # in here, so that its process needs nothing of this module
        def call(self, vector: Any) -> Any:
            return vector

    actor, vector = ray.remote(num_cpus=0)(Echo).remote(), torch.zeros(BYTES // 4).numpy()

    def exchange() -> None:
        ray.get(actor.call.remote(vector))

    return exchange


def _center(strategy: hr.Elastic, center: Any) -> Callable[[], None]:
    weights = {f"layer.{k}": torch.zeros(BYTES // 4 // 8) for k in range(8)}
    version = center.join(strategy.rule, LeaseTerms(rows=1 << 40, lease=1 << 40), weights).version
    sequence = 0

    def exchange() -> None:
        nonlocal version, sequence
        sequence += 1
        version = center.exchange(Push(sequence, version, weights, rows=0)).version

    return exchange
