"""Sums through shared memory: exact, the same everywhere, and soon over when a worker is."""

import ctypes
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path

import pytest
import torch
from kit.forked import Child, hear, start, tell
from torch import Tensor
from torch.distributed import FileStore

from headrace.data.shard import Shard
from headrace.errors import WorkerError
from headrace.workers.comm import Op
from headrace.workers.shared import PART, Shared

SOON_S = 5.0
TIMEOUT_S = 3.0  # of all that workers do together, their meeting too
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)


class Words:
    """Says words to all, through a file."""

    def __init__(self, at: str, shard: Shard) -> None:
        self._store, self._shard, self._round = FileStore(f"{at}/words", shard.count), shard, 0
        self.heard: list[str] = []

    def __call__(self, word: str) -> list[str]:
        self._round += 1
        self._store.set(f"{self._round}/{self._shard.index}", word)
        found = [self._store.get(f"{self._round}/{index}").decode() for index in range(self._shard.count)]
        self.heard += found
        return found


def met(at: str, index: int, count: int, timeout_s: float = 10.0) -> Shared:
    shard = Shard(index, count)
    shared = Shared.connect(shard, Words(at, shard), timeout_s)
    assert shared is not None
    return shared


@contextmanager
def workers(function: object, at: Path, count: int, *arguments: object) -> Iterator[list[Child]]:
    """Processes that each call `function(at, index, count, ...)`."""
    with ExitStack() as stack:
        yield [stack.enter_context(start(function, at, at, index, count, *arguments)) for index in range(count)]


def of_worker(index: int, size: int, dtype: torch.dtype) -> Tensor:
    """What a worker has to give: any other worker knows it too."""
    generator = torch.Generator().manual_seed(1000 * size + index)
    return (1000 * torch.randn(size, generator=generator, dtype=torch.float64)).to(dtype)


def expected(vectors: list[Tensor], op: Op) -> Tensor:
    """One after the other, 16-bit ones in 32 bits; in a tree, two and two."""
    if op == "tree" and len(vectors) > 1:
        half = len(vectors) // 2
        return expected(vectors[:half], op) + expected(vectors[half:], op)
    if op == "max":
        return reduce(torch.maximum, vectors)
    wide = torch.float32 if vectors[0].dtype in (torch.bfloat16, torch.float16) else vectors[0].dtype
    total = vectors[0].to(wide)
    for vector in vectors[1:]:
        total = total + vector.to(wide)
    return total.to(vectors[0].dtype)


def sums(at: str, index: int, count: int) -> None:
    shared = met(at, index, count)
    for dtype in DTYPES:
        part = PART // dtype.itemsize
        for size in (0, 1, 7, part, part + 1, *([part - 1, 9 * part + 5] if dtype is torch.float32 else [])):
            vectors = [of_worker(worker, size, dtype) for worker in range(count)]
            for op in ("sum", "max", *(["tree"] if count in (2, 4) else [])):
                vector = vectors[index].clone()
                shared.all_reduce(vector, op)
                assert torch.equal(vector, expected(vectors, op)), (dtype, size, op)
    tell("exact")


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_a_sum_is_that_of_the_vectors_in_the_order_of_workers_to_the_last_bit(tmp_path: Path, count: int) -> None:
    with workers(sums, tmp_path, count) as children:
        assert [child.ending() for child in children] == [0] * count, children[0].output
    assert all(child.told == ["exact"] for child in children)


def test_another_order_would_be_noticed() -> None:
    vectors = [of_worker(index, 1000, torch.float32) for index in range(3)]
    assert not torch.equal(expected(vectors, "sum"), expected(vectors[::-1], "sum"))
    halves = [of_worker(index, 1000, torch.bfloat16) for index in range(3)]
    assert not torch.equal(expected(halves, "sum"), halves[0] + halves[1] + halves[2])


def sums_without_rest(at: str, index: int, count: int) -> None:
    """Sizes drawn by all alike, one after the other: whoever is fast must not write where others still read."""
    shared, draw = met(at, index, count), torch.Generator().manual_seed(0)
    for _ in range(200):
        size = int(torch.randint(1, 4 * PART // 4, (), generator=draw)) if torch.rand((), generator=draw) < 0.3 else 33
        vector = torch.full((size,), float(index + 1))
        shared.all_reduce(vector)
        assert vector.min() == vector.max() == count * (count + 1) / 2
    tell("exact")


@pytest.mark.parametrize("count", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_sums_that_follow_each_other_at_once_do_not_disturb_each_other(tmp_path: Path, count: int) -> None:
    with workers(sums_without_rest, tmp_path, count) as children:
        assert [child.ending() for child in children] == [0] * count, children[0].output


def sums_for_ever(at: str, index: int, count: int, timeout_s: float, size: int, heir: bool) -> None:
    shared = met(at, index, count, timeout_s)
    if heir and index == 1 and not os.fork():
        signal.pause()  # holds the sockets of the process that it was forked from, as a loader's worker does
    vector = torch.zeros(size)
    shared.all_reduce(vector)
    tell("begins")
    try:
        while True:
            shared.all_reduce(vector)
    except WorkerError as error:
        tell(f"lost {time.monotonic()} {error}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "heir"),
    [
        pytest.param(10, False, id="small-alone"),
        pytest.param(2 * PART, True, id="large-with-a-child"),
        pytest.param(10, True, id="small-with-a-child", marks=pytest.mark.slow),
        pytest.param(2 * PART, False, id="large-alone", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_is_killed_is_soon_an_error_for_all_others(tmp_path: Path, size: int, heir: bool) -> None:
    with workers(sums_for_ever, tmp_path, 3, 20.0, size, heir) as children:
        for child in children:
            child.until("begins")
        killed = time.monotonic()
        os.kill(children[1].pid, signal.SIGKILL)
        for child in (children[0], children[2]):
            when, what = child.until("lost").split(" ", 1)
            assert float(when) - killed < SOON_S
            assert what.startswith("worker 1 has ended") or what.startswith("worker 0 has ended")  # which heard first


@pytest.mark.slow
def test_a_worker_that_is_stopped_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    with workers(sums_for_ever, tmp_path, 2, TIMEOUT_S, 10, False) as children:
        for child in children:
            child.until("begins")
        children[1].send(signal.SIGSTOP)
        stopped = time.monotonic()
        when, what = children[0].until("lost").split(" ", 1)
        assert what == "worker 1 has kept the others waiting for 3 s."
        assert float(when) - stopped < TIMEOUT_S + SOON_S
        children[1].send(signal.SIGCONT)


def sums_of_other_sizes(at: str, index: int, count: int) -> None:
    with pytest.raises(WorkerError, match=r"worker \d does something else: part 0 of (4|8) bytes") as caught:
        met(at, index, count).all_reduce(torch.zeros(1 + index))
    assert f"this worker: part 0 of {4 + 4 * index} bytes" in str(caught.value)


def test_workers_that_disagree_are_told(tmp_path: Path) -> None:
    with workers(sums_of_other_sizes, tmp_path, 2) as children:
        codes = [child.ending() for child in children]
    assert 0 in codes, children[0].output  # the other one may have found that it is alone by then


def leaves_nothing(at: str, index: int, count: int) -> None:
    before = set(os.listdir("/dev/shm"))
    shard = Shard(index, count)
    words = Words(at, shard)
    assert Shared.connect(shard, words, 10.0) is not None
    words("met")
    assert set(os.listdir("/dev/shm")) == before
    for name in words.heard[:count]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller, pytest.raises(ConnectionRefusedError):
            caller.connect(f"\0{name}")


def test_neither_the_memory_nor_the_sockets_have_a_name_that_could_be_left(tmp_path: Path) -> None:
    with workers(leaves_nothing, tmp_path, 2) as children:
        assert [child.ending() for child in children] == [0, 0], children[0].output


def descriptors_of_meetings(at: str, index: int, count: int) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    shard = Shard(index, count)
    words = Words(at, shard)
    words("first")
    before = held()
    for _ in range(3):
        shared = Shared.connect(shard, words, 10.0)
        assert shared is not None
        shared.close()
    assert held() == before


def test_a_meeting_that_is_over_holds_no_descriptor(tmp_path: Path) -> None:
    with workers(descriptors_of_meetings, tmp_path, 3) as children:
        assert [child.ending() for child in children] == [0, 0, 0], children[0].output


def without_room(at: str, index: int, count: int, limited: int) -> None:
    if index == limited:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    shard = Shard(index, count)
    tell(str(Shared.connect(shard, Words(at, shard), 10.0)))


def test_without_room_for_it_there_is_no_shared_memory_for_anybody(tmp_path: Path) -> None:
    with workers(without_room, tmp_path, 3, 0) as children:
        assert [child.ending() for child in children] == [0, 0, 0], children[0].output
    assert all(child.told == ["None"] for child in children)


def from_another_network(at: str, index: int, count: int) -> None:
    if index == 1:
        assert ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())
    shard = Shard(index, count)
    tell(str(Shared.connect(shard, Words(at, shard), 10.0)))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_workers_on_different_hosts_have_no_shared_memory(tmp_path: Path) -> None:
    with workers(from_another_network, tmp_path, 3) as children:
        assert [child.ending() for child in children] == [0, 0, 0], children[0].output
    assert all(child.told == ["None"] for child in children)


def with_a_stranger(at: str, index: int, count: int) -> None:
    shard = Shard(index, count)
    words = Words(at, shard)

    def exchange(word: str) -> list[str]:
        heard = words(word)
        if index == 1 and len(words.heard) == count and not os.fork():
            os.setuid(65534)
            caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            caller.connect(f"\0{heard[0]}")
            caller.send(bytes(8))
            tell("called")
            signal.pause()
        elif index == 1 and len(words.heard) == count:
            assert hear() == "go on"
        return heard

    shared = Shared.connect(shard, exchange, 10.0)
    assert shared is not None
    shared.all_reduce(vector := torch.ones(3))
    tell(str(vector.tolist()))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs root")
def test_another_user_s_process_is_not_let_in(tmp_path: Path) -> None:
    with workers(with_a_stranger, tmp_path, 2) as children:
        children[1].until("called")
        children[1].say("go on")
        for child in children:
            child.until("[2.0, 2.0, 2.0]")
