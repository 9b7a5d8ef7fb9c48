"""Sums through shared memory: exact, the same everywhere, and soon over when a worker is."""

import ctypes
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.forked import Child, hear, start, tell
from kit.torch_workers import PATIENCE_S, TIMEOUT_S
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]

from headrace.data.shard import Shard
from headrace.errors import WorkerError
from headrace.workers.comm import Op
from headrace.workers.shared import PART, Shared

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)


class Words:
    """Gives words to all, through a file."""

    def __init__(self, at: str, shard: Shard) -> None:
        self._store, self._shard, self._round = FileStore(f"{at}/words", shard.count), shard, 0
        self.heard: list[str] = []

    def __call__(self, word: str) -> list[str]:
        self._round += 1
        self._store.set(f"{self._round}/{self._shard.index}", word)
        found = [self._store.get(f"{self._round}/{index}").decode() for index in range(self._shard.count)]
        self.heard += found
        return found


def met(at: str, index: int, count: int, timeout_s: float = PATIENCE_S) -> Shared:
    shard = Shard(index, count)
    shared = Shared.connect(shard, Words(at, shard), timeout_s)
    assert shared is not None
    return shared


@contextmanager
def workers(function: Any, at: Path, count: int, *arguments: object) -> Iterator[list[Child]]:
    """Processes that each call `function(at, index, count, ...)`."""
    with ExitStack() as stack:
        yield [stack.enter_context(start(function, at, at, index, count, *arguments)) for index in range(count)]


def all_end_well(function: object, at: Path, count: int, *arguments: object) -> None:
    with workers(function, at, count, *arguments) as children:
        assert [child.ending() for child in children] == [0] * count, children[0].output


# --- sums -----------------------------------------------------------------------------------------------------


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
    """Of all types and sizes; then many at once: whoever is fast must not write where others still read."""
    shared = met(at, index, count)
    for dtype in DTYPES:
        part = PART // dtype.itemsize
        for size in (0, 1, 7, part, part + 1, *([part - 1, 9 * part + 5] if dtype is torch.float32 else [])):
            vectors = [of_worker(worker, size, dtype) for worker in range(count)]
            for op in list[Any](["sum", "max", *(["tree"] if count == 4 else [])]):
                vector = vectors[index].clone()
                shared.all_reduce(vector, op)
                assert torch.equal(vector, expected(vectors, op)), (dtype, size, op)
    draw = torch.Generator().manual_seed(0)
    for _ in range(200):
        size = int(torch.randint(1, PART, (), generator=draw)) if torch.rand((), generator=draw) < 0.3 else 33
        vector = torch.full((size,), float(index + 1))
        shared.all_reduce(vector)
        assert vector.min() == vector.max() == count * (count + 1) / 2


@pytest.mark.parametrize("count", [3, 4])
def test_a_sum_is_that_of_the_vectors_in_the_order_of_workers_to_the_last_bit(tmp_path: Path, count: int) -> None:
    all_end_well(sums, tmp_path, count)


def test_another_order_would_be_noticed() -> None:
    vectors = [of_worker(index, 1000, torch.float32) for index in range(3)]
    assert not torch.equal(expected(vectors, "sum"), expected(vectors[::-1], "sum"))
    halves = [of_worker(index, 1000, torch.bfloat16) for index in range(3)]
    assert not torch.equal(expected(halves, "sum"), halves[0] + halves[1] + halves[2])


def sums_of_other_sizes(at: str, index: int, count: int) -> None:
    with pytest.raises(WorkerError, match=r"worker \d does something else: part 0 of (4|8) bytes") as caught:
        met(at, index, count).all_reduce(torch.zeros(1 + index))
    assert f"this worker: part 0 of {4 + 4 * index} bytes" in str(caught.value)


def test_workers_that_disagree_are_told(tmp_path: Path) -> None:
    with workers(sums_of_other_sizes, tmp_path, 2) as children:
        codes = [child.ending() for child in children]
    assert 0 in codes, children[0].output  # the other one may have found that it is alone by then


# --- workers that are lost ------------------------------------------------------------------------------------


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
        tell(f"lost {error}")


@pytest.mark.parametrize(("size", "heir"), [(10, False), (2 * PART, True)])
def test_a_worker_that_is_killed_is_soon_an_error_for_all_others(tmp_path: Path, size: int, heir: bool) -> None:
    with workers(sums_for_ever, tmp_path, 3, PATIENCE_S, size, heir) as children:
        for child in children:
            child.until("begins")
        os.kill(children[1].pid, signal.SIGKILL)
        for child in (children[0], children[2]):
            what = child.until("lost")
            assert what.startswith("worker 1 has ended") or what.startswith("worker 0 has ended")  # which heard first


def test_a_worker_that_is_stopped_is_an_error_after_the_timeout(tmp_path: Path) -> None:
    with workers(sums_for_ever, tmp_path, 2, TIMEOUT_S, 10, False) as children:
        for child in children:
            child.until("begins")
        children[1].send(signal.SIGSTOP)
        assert children[0].until("lost") == "worker 1 has kept the others waiting for 3 s."
        children[1].send(signal.SIGCONT)


# --- how they meet --------------------------------------------------------------------------------------------


def leaves_nothing(at: str, index: int, count: int) -> None:
    shard = Shard(index, count)
    words = Words(at, shard)
    words("first")
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        shared = Shared.connect(shard, words, PATIENCE_S)
        assert shared is not None
        assert "/dev/shm/" not in Path("/proc/self/maps").read_text()
        shared.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    for name in words.heard[count : 2 * count]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller, pytest.raises(ConnectionRefusedError):
            caller.connect(f"\0{name}")
    words("last")


def test_a_meeting_leaves_no_descriptor_and_neither_memory_nor_sockets_with_a_name(tmp_path: Path) -> None:
    all_end_well(leaves_nothing, tmp_path, 3)


def without_shared_memory(at: str, index: int, count: int, why: str) -> None:
    if index == 0 and why == "no room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    if index == 1 and why == "another host":
        assert ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0, os.strerror(ctypes.get_errno())
    shard = Shard(index, count)
    assert Shared.connect(shard, Words(at, shard), PATIENCE_S) is None


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces, and other users' processes, need root")


@pytest.mark.parametrize("why", ["no room", pytest.param("another host", marks=[pytest.mark.root, needs_root])])
def test_where_one_worker_cannot_have_it_there_is_no_shared_memory_for_anybody(tmp_path: Path, why: str) -> None:
    all_end_well(without_shared_memory, tmp_path, 3, why)


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

    shared = Shared.connect(shard, exchange, PATIENCE_S)
    assert shared is not None
    shared.all_reduce(vector := torch.ones(3))
    tell(str(vector.tolist()))


@pytest.mark.root
@needs_root
def test_another_user_s_process_is_not_let_in(tmp_path: Path) -> None:
    with workers(with_a_stranger, tmp_path, 2) as children:
        children[1].until("called")
        children[1].say("go on")
        for child in children:
            child.until("[2.0, 2.0, 2.0]")
