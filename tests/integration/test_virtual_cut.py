"""A cut through the time of virtual workers: what begins there once more ends as what was never cut."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from kit.sampled import sampled

from headrace.comm import here
from headrace.comm.center import Lease, Push, Terms, Vectors, Wait
from headrace.comm.sim import SimComm
from headrace.engine import Network, launch

EPOCH, LEASE, SIZE, PART = 96, 6, 40, 2


@dataclass(frozen=True)
class Late:
    """What is late counts less: the order in which workers come decides about the result."""

    def meet(self, center: Vectors, push: Push, staleness: int) -> Vectors | None:
        center["w"].mul_(0.9).add_(push.vectors["w"] / (1 + staleness))
        return center


class Worker:
    """Leases rows, learns from them in parts with a little noise, and brings what it has learnt to the center."""

    def __init__(self, log: list[Any], cut_at: int | None, saved: dict[str, Any] | None, kept: dict[str, Any]) -> None:
        comm = here()
        assert isinstance(comm, SimComm)
        self.comm, self.center, self.log, self.cut_at, self.kept = comm, comm.center, log, cut_at, kept
        self.updates = self.sequence = self.version = self.start = self.at = self.stop = self.lease = 0
        self.x, self.ended = torch.zeros(SIZE), False
        self.comm.record(self.own)
        own = saved["owns"][comm.shard.index] if saved else None
        if saved:
            saved["owns"][comm.shard.index] = None  # who dies later begins with nothing
        if saved and comm.leader:
            comm.resume(saved["world"])
        state = saved["center"] if saved and comm.leader else None
        reply = self.center.join(Late(), Terms(EPOCH, LEASE, EPOCH), {"w": torch.zeros(SIZE)}, state, bool(own))
        if own is None:
            self.version, self.x = reply.version, reply.vectors["w"]
        else:
            torch.set_rng_state(own.pop("noise"))
            vars(self).update(own)

    def own(self) -> dict[str, Any]:
        names = ("updates", "sequence", "version", "start", "at", "stop", "lease", "ended")
        noise = torch.get_rng_state()
        return {name: getattr(self, name) for name in names} | {"x": self.x.clone(), "noise": noise}

    def save(self) -> None:
        def done(owns: list[Any], world: Any) -> None:
            owns[0] = self.own()
            self.kept.update(owns=owns, world=world, center=self.center.state_dict())

        self.comm.cut(done)

    def work(self) -> list[Any]:
        while not self.ended:
            if self.at < self.stop:
                rows = min(PART, self.stop - self.at)
                self.at += rows
                self.updates += 1
                self.x = self.x + 0.1 * torch.randn(SIZE) + self.at
                self.comm.worked(rows)
                if self.comm.leader and self.updates == self.cut_at:
                    self.save()
            elif self.lease:
                self.meet()
            elif not self.begin():
                self.ended = True
        self.center.leave()
        return [*self.x.tolist(), self.comm.now(), self.updates, self.sequence]

    def begin(self) -> bool:
        while isinstance(lease := self.center.lease(), Wait):
            self.center.wait(lease)
        if isinstance(lease, Lease):
            self.lease, self.start, self.at, self.stop = lease.id + 1, lease.start, lease.start, lease.stop
        return lease is not None

    def meet(self) -> None:
        done = [(self.lease - 1, self.start, self.stop)]
        push = Push(self.sequence + 1, self.version, {"w": self.x}, self.stop - self.start, done)
        reply = self.center.meet(push)
        self.log.append((self.comm.shard.index, self.comm.now(), reply.version, reply.taken))
        self.sequence, self.version, self.x, self.lease = self.sequence + 1, reply.version, reply.vectors["w"], 0


def train(
    workers: int, network: Network, cut_at: int | None = None, saved: dict[str, Any] | None = None
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """What worker 0 ends with and every worker's end; who met when; what was saved."""
    log: list[Any] = []
    kept: dict[str, Any] = {}

    def main() -> list[Any]:
        worker = Worker(log, cut_at, saved, kept)
        ends = worker.work()
        found: list[Any] = worker.comm.all_gather(ends)
        return found

    return launch(main, workers=workers, network=network), log, kept


CLUSTERS = {
    "alike": Network(bandwidth="1 Mbit", latency="1 ms", rows_per_s=10),
    "uneven": Network(bandwidth="1 Mbit", latency="20 ms", rows_per_s=10, speeds={0: 1.3, 1: 0.4}),
    "slow link": Network(bandwidth="2 kbit", latency="5 ms", rows_per_s=10, speeds={1: 2.1}),
    "deaths": Network(bandwidth="20 kbit", latency="1 ms", rows_per_s=10, failures={1: "1.9 s"}, restart="0.4 s"),
    "stragglers": Network(bandwidth="20 kbit", latency="1 ms", rows_per_s=10, stragglers={0: (0.4, 3), 1: (0.4, 5)}),
}


CUT = [("alike", 1), *itertools.product(CLUSTERS, (2, 3))]


@pytest.mark.parametrize(("name", "workers"), sampled(CUT, keep=[("deaths", 3)], of=4))
def test_what_is_cut_at_any_update_and_goes_on_ends_with_the_same_bits(name: str, workers: int) -> None:
    network = CLUSTERS[name]
    ends, log, _ = train(workers, network)
    updates = ends[0][-2]
    assert updates > 3
    for cut_at in range(1, updates + 1):
        same_ends, same_log, saved = train(workers, network, cut_at)
        assert (same_ends, same_log) == (ends, log), "who saves changes nothing"
        assert saved["owns"][0]["updates"] == cut_at
        new_ends, new_log, _ = train(workers, network, saved=saved)
        assert new_log == log[len(log) - len(new_log) :]
        assert new_ends == ends, cut_at
        assert len(new_log) < len(log) or cut_at <= LEASE // PART


def test_without_the_times_of_the_cut_it_would_end_otherwise() -> None:
    network = CLUSTERS["slow link"]
    ends, _, _ = train(3, network)
    _, _, saved = train(3, network, 7)
    saved["world"]["clocks_s"] = [0.0, 0.0, 0.0]
    new_ends, _, _ = train(3, network, saved=saved)
    assert new_ends != ends
