"""Where workers of Ray Train meet: what carries their vectors, and who may listen."""

import os
import socket
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.distributed as dist

from headrace.workers.store import loopback_interface

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'headrace[ray]'"),
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

LIMIT_S = 9.0


class Place:
    """What Ray says to worker 0 of 2."""

    def get_world_rank(self) -> int:
        return 0

    get_local_rank = get_node_rank = get_world_rank

    def get_world_size(self) -> int:
        return 2

    get_local_world_size = get_world_size


@pytest.mark.slow
def test_vectors_on_gpus_go_over_nccl_and_those_on_the_host_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.train

    from headrace.engines.ray import meeting

    made: dict[str, Any] = {}
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **others: made.update(others, backend=backend))
    monkeypatch.setattr(ray.train, "get_context", Place)
    for gpus, asked, expected in (
        (True, None, "cpu:gloo,cuda:nccl"),
        (False, None, "gloo"),
        (True, "gloo", "gloo"),
    ):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpus=gpus: gpus)
        monkeypatch.setattr(os, "environ", dict(os.environ))
        door = socket.create_server(("127.0.0.1", 0))
        port = door.getsockname()[1]
        meeting._join(asked, "127.0.0.1", port, LIMIT_S, door.detach())
        assert made["backend"] == expected
        assert (made["rank"], made["world_size"], made["timeout"].total_seconds()) == (0, 2, LIMIT_S)
        assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")] == ["0", "2", f"{port}"]
        assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == loopback_interface()
