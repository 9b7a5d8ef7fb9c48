"""Workers that speak through torch.distributed: values and sums arrive as they were given, the same on all."""

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from kit.forked import Child
from kit.sockets import free_port, listening
from kit.torch_workers import be_worker, over_gloo, worker_processes
from torch import Tensor

from headrace.errors import CheckpointError, ConfigError, WorkerError
from headrace.workers.here import here
from headrace.workers.join import backends, join_others, timeout_of_environment
from headrace.workers.torch_comm import TorchComm
from headrace.workers.wire import pack, unpack


def all_end_well(children: list[Child]) -> None:
    for child in children:
        assert child.ending() == 0, child.output
        assert child.output == ""


# --- values ----------------------------------------------------------------------------------------------

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool),
)


def value_of(worker: int) -> dict[Any, Any]:
    """Everything that values may hold, different for each worker."""
    draw = torch.Generator().manual_seed(worker)
    numbers = 3 * torch.rand(3 + worker, 4, generator=draw)
    return {
        "plain": [None, True, worker, -(2**70), 0.1 * worker, float("inf"), "γ", {}, []],
        "of every type": {str(dtype): numbers.to(dtype) for dtype in DTYPES},
        "in columns": numbers.t(),
        "single": torch.tensor(1.5 + worker),
        "empty": torch.empty(0, 7, dtype=torch.bool),
        "array": np.arange(worker, worker + 3, dtype=np.int16),
        "tuple": (1, (numbers, "two")),
        worker: "a number as a key",
    }


def same(one: Any, other: Any) -> bool:
    """The same types, the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        as_bytes = [value.contiguous().view(-1).view(torch.uint8) for value in (one, other)]
        return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(*as_bytes)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def test_a_value_comes_out_of_its_bytes_as_it_went_in() -> None:
    assert same(unpack(pack(value_of(2))), value_of(2))
    for value in list[Any]([None, [], 0, "", torch.tensor(2.0), torch.empty(0)]):
        assert same(unpack(pack(value)), value)


@pytest.mark.parametrize("bad", [object(), lambda: 0, {"x": torch.ones(2, 2).to_sparse()}], ids=type)
def test_what_cannot_be_sent_is_refused(bad: Any) -> None:
    with pytest.raises(CheckpointError, match="cannot be"):
        pack(bad)


def values_go_around(index: int, count: int, port: int) -> None:
    be_worker(index, count, port)
    comm = here()
    assert isinstance(comm, TorchComm)
    assert comm is here()
    assert (comm.shard.index, comm.count, comm.leader) == (index, count, index == 0)
    mine, every = value_of(index), [value_of(worker) for worker in range(count)]
    gathered = comm.gather(mine)
    assert same(gathered, every if index == 0 else None)
    assert same(comm.all_gather(mine), every)
    assert same(comm.share(mine if index == 0 else None), value_of(0))
    assert same(comm.hand_out(every if index == 0 else None), mine)
    assert comm.share("short" if index == 0 else None) == "short"
    large = comm.share(torch.arange(1_000_000.0) if index == 0 else None)
    assert torch.equal(large, torch.arange(1_000_000.0))
    comm.close()
    comm.close()
    assert not dist.is_initialized()


def test_values_arrive_as_they_were_given(tmp_path: Path) -> None:
    with worker_processes(values_go_around, tmp_path, 3, 3, free_port()) as children:
        all_end_well(children)


# --- vectors ---------------------------------------------------------------------------------------------


def vector_of(worker: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    draw = torch.Generator().manual_seed(1000 * size + worker)
    return (10 * torch.randn(size, generator=draw)).to(dtype)


def vectors_are_summed(index: int, count: int, port: int, gloo: bool) -> None:
    be_worker(index, count, port)
    if gloo:
        over_gloo()
    comm = here()
    assert comm.overlaps is gloo
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64):
        for size in (0, 1, 2, 7, 1000, 300_001):
            own = [vector_of(worker, size, dtype) for worker in range(count)]
            exact = torch.stack(own).double()
            comm.all_reduce(total := own[index].clone())
            few = 1e-2 if dtype.itemsize == 2 else 1e-4
            torch.testing.assert_close(total.double(), exact.sum(0), atol=20 * few, rtol=few)
            comm.all_reduce(most := own[index].clone(), "max")
            assert torch.equal(most.double(), exact.max(0).values)
            one, two = own[index].clone(), own[index].clone()
            waits = [comm.start(one), comm.start(two, "max")]
            for wait in waits:
                wait()
            assert torch.equal(one, total)
            assert torch.equal(two, most)
            for found in comm.all_gather(total):  # to the last bit
                assert same(found, total)
            comm.broadcast(first := own[index].clone())
            assert same(first, own[0])


@pytest.mark.parametrize(
    ("count", "gloo"),
    [pytest.param(2, False, id="2-one-host"), pytest.param(3, True, id="3-several-hosts")],
)
def test_sums_are_the_same_on_all_workers_to_the_last_bit(tmp_path: Path, count: int, gloo: bool) -> None:
    with worker_processes(vectors_are_summed, tmp_path, count, count, free_port(), gloo) as children:
        all_end_well(children)


def test_sums_in_another_order_have_other_bits() -> None:
    own = [vector_of(worker, 1000) for worker in range(3)]
    assert not torch.equal(own[0] + own[1] + own[2], own[2] + own[1] + own[0])


# --- joining ---------------------------------------------------------------------------------------------


def test_a_listener_for_everybody_would_be_seen() -> None:
    with socket.create_server(("0.0.0.0", 0)):
        assert listening([os.getpid()]).count("00000000") == 1


def in_a_group_that_is_there(index: int, count: int, port: int) -> None:
    be_worker(index, count, port)
    del os.environ["HEADRACE_TIMEOUT_S"]
    dist.init_process_group("gloo")
    comm = here()
    assert comm.all_gather(index) == list(range(count))
    comm.all_reduce(ones := torch.ones(3))
    assert ones.tolist() == [count] * 3
    comm.close()
    dist.all_reduce(ones)  # who has made the group ends it
    assert ones.tolist() == [count**2] * 3
    dist.destroy_process_group()


def test_a_group_that_the_program_has_made_is_used_and_left_alone(tmp_path: Path) -> None:
    with worker_processes(in_a_group_that_is_there, tmp_path, 2, 2, free_port()) as children:
        all_end_well(children)


def in_a_group_of_accelerators(index: int, count: int, port: int, one_host: bool) -> None:
    be_worker(index, count, port)
    if not one_host:
        over_gloo()
    dist.init_process_group("cuda:gloo")  # as "nccl": it carries nothing that is on the host
    world = dist.group.WORLD
    assert world is not None
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        world.allreduce([torch.ones(1)])
    comm = here()
    assert isinstance(comm, TorchComm)
    comm.all_reduce(total := torch.full((3,), 1.0 + index))
    comm.all_reduce(most := torch.tensor([index, -index]), "max")
    comm.start(begun := torch.full((2,), 1.0 + index))()
    comm.broadcast(first := torch.full((2,), 7.0 + index))
    assert (total.tolist(), most.tolist(), begun.tolist(), first.tolist()) == ([3] * 3, [1, 0], [3] * 2, [7] * 2)
    assert comm.all_gather(index) == list(range(count))
    assert comm.share("said" if comm.leader else None) == "said"
    assert comm._group(torch.empty(1, device="meta")) is world
    comm.close()
    dist.destroy_process_group()


@pytest.mark.parametrize("one_host", [True, False], ids=["one-host", "several-hosts"])
def test_a_group_of_accelerators_is_not_asked_to_carry_what_is_on_the_host(tmp_path: Path, one_host: bool) -> None:
    with worker_processes(in_a_group_of_accelerators, tmp_path, 2, 2, free_port(), one_host) as children:
        for child in children:
            assert child.ending() == 0, child.output  # torch warns of what such a group is without


def test_without_an_address_one_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(ConfigError, match=r"MASTER_ADDR in its environment\. Start it with torchrun"):
        join_others(1.0)


def test_a_port_that_is_taken_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(ConfigError, match=rf"localhost:{port}: Address already in use\. Set MASTER_PORT to a free"):
            join_others(1.0)


@pytest.mark.parametrize("bad", ["", "soon", "0", "-1", "nan", "inf"])
def test_a_timeout_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("HEADRACE_TIMEOUT_S", bad)
    with pytest.raises(ConfigError, match="HEADRACE_TIMEOUT_S is a number of seconds greater than 0"):
        timeout_of_environment()


@pytest.mark.parametrize(("gpus", "expected"), [(True, "cpu:gloo,cuda:nccl"), (False, "gloo")])
def test_vectors_on_gpus_go_over_nccl_and_those_on_the_host_over_gloo(
    gpus: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    assert backends() == expected


class Full:
    """A network that has no memory left."""

    def allreduce(self, *_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")


def runs_out_of_memory(index: int, count: int, port: int) -> None:
    be_worker(index, count, port)
    over_gloo()
    comm = here()
    assert isinstance(comm, TorchComm)
    if index == 1:
        values, comm._values = comm._values, Full()  # type: ignore[assignment]
        with pytest.raises(torch.OutOfMemoryError) as caught:
            comm.all_reduce(torch.ones(1))
        comm.report_error(caught.value)
        comm._values = values
    else:
        with pytest.raises(WorkerError, match=r"worker 1 failed at step 0: OutOfMemoryError: CUDA out of memory\."):
            comm.all_reduce(torch.ones(1))
    comm.close()


def test_memory_that_runs_out_within_a_sum_is_no_loss_of_a_worker(tmp_path: Path) -> None:
    with worker_processes(runs_out_of_memory, tmp_path, 2, 2, free_port()) as children:
        all_end_well(children)
