"""Where workers that Ray Train has placed meet: a process group, at an address of the cluster and no other."""

import os
import socket
from datetime import timedelta
from typing import Any

import ray
import torch.distributed as dist
from ray.train.backend import BackendConfig
from ray.train.torch import TorchConfig
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ...workers.join import NETWORKS, backends
from ...workers.store import loopback_interface


class Meeting(TorchConfig):  # type: ignore[misc]
    """Ray's own settings for torch, whose store would listen to every network of its machine."""

    @property
    def backend_cls(self) -> Any:
        return _Backend


_RaysOwn: Any = TorchConfig().backend_cls


class _Backend(_RaysOwn):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        host, port, descriptor = worker_group.execute_single(0, _listen)
        options = backend_config.backend, host, port, backend_config.timeout_s
        count = len(worker_group)
        joining = [
            worker_group.execute_single_async(k, _join, *options, descriptor if k == 0 else None) for k in range(count)
        ]
        ray.get(joining)

    def on_shutdown(self, worker_group: Any, backend_config: BackendConfig) -> None:
        """Nothing: the processes end, and whoever has failed would only be waited for."""


def _listen() -> tuple[str, int, int]:
    """In worker 0: a door for the others, at the address by which the cluster knows its machine."""
    host = ray.util.get_node_ip_address()
    door = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    return host, door.getsockname()[1], door.detach()


def _join(backend: str | None, host: str, port: int, timeout_s: float, door: int | None) -> None:
    """In a worker: the environment that torchrun would give, and the process group."""
    own = ray.train.get_context()
    os.environ.update(
        RANK=str(own.get_world_rank()),
        WORLD_SIZE=str(own.get_world_size()),
        LOCAL_RANK=str(own.get_local_rank()),
        LOCAL_WORLD_SIZE=str(own.get_local_world_size()),
        NODE_RANK=str(own.get_node_rank()),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
    )
    if host.startswith("127."):
        os.environ.update(dict.fromkeys(NETWORKS, loopback_interface()))
    if own.get_world_size() == 1:
        return
    limit = timedelta(seconds=timeout_s)
    if door is None:
        store = TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    else:
        store = TCPStore(host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=door)
    dist.init_process_group(
        backend or backends(), store=store, rank=own.get_world_rank(), world_size=own.get_world_size(), timeout=limit
    )
