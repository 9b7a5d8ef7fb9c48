"""Joins the Ray cluster that is there, or starts a private one on this machine."""

import logging
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ...errors import ConfigError, RunError
from ..job import Job
from ..worker import environment
from .guard import guarding

OLDEST = (2, 54)
"""Before it, a page in the user's browser can delete jobs (CVE-2026-27482), and tokens are new in 2.52."""
INSTALL = 'pip install "headrace[ray]"'
_NICENESS = "RAY_worker_niceness"
START_S = 120.0
"""How long workers may take at least to be placed and to start, however little time others give them later."""
_LONG = 24  # a path of this length leaves room for Ray's, which ends with the name of a socket: 107 bytes at most


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster in use."""

    scratch: Path
    """A private directory on the driver's machine, gone afterwards."""
    gpus: bool
    """Whether every worker has an accelerator."""


def load(name: str = "ray") -> Any:
    """A module of Ray, if one is installed that can be used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the settings and libraries of others
            ray, found = import_module("ray"), import_module(name)
    except ImportError as error:
        raise ConfigError(f"engine='ray' needs Ray ({error}). {INSTALL}", argument="engine") from None
    if tuple(int(number) for number in re.findall(r"\d+", ray.__version__)[:2]) < OLDEST:
        raise ConfigError(f"Ray {ray.__version__} has known holes: {OLDEST[0]}.{OLDEST[1]} is needed. {INSTALL}")
    return found


@contextmanager
def joined(job: Job) -> Iterator[Cluster]:
    """The cluster that this process is in, that `RAY_ADDRESS` names, or one that is started and ended here."""
    with ExitStack() as stack:
        own_handlers = stack.enter_context(_handlers_kept())
        scratch = stack.enter_context(_scratch())
        known = sys.modules.get("ray")
        address = job.address or os.environ.get("RAY_ADDRESS", "")
        if known is not None and known.is_initialized():
            gpus = _fits(load(), job)
        elif address not in ("", "local"):
            ray = load()
            _connect(ray, address)
            stack.callback(ray.shutdown)
            gpus = _fits(ray, job)
        else:
            stack.enter_context(_own(job, scratch))
            gpus = _gpus(job) > 0
        own_handlers()
        yield Cluster(scratch, gpus)


# --- a cluster that is there ------------------------------------------------------------------------------


def _connect(ray: Any, address: str) -> None:
    try:
        ray.init(address=address, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"there is no Ray cluster at {address!r} that this process may join: {first} "
            "Start one there, or unset RAY_ADDRESS to have one on this machine."
        ) from None


def _fits(ray: Any, job: Job) -> bool:
    """Whether workers have accelerators; what the cluster cannot have at all is refused."""
    if job.devices is not None:
        raise ConfigError(
            "devices= is not for a Ray cluster that is there already: Ray places workers. Leave it out.",
            argument="devices",
        )
    nodes = sum(node["Alive"] for node in ray.nodes())
    if nodes < job.nodes:
        raise ConfigError(
            f"nodes={job.nodes} were asked for, and the Ray cluster has {nodes}. Start more of them.", argument="nodes"
        )
    there = ray.cluster_resources()
    gpus = 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else int(there.get("GPU", 0))
    if 0 < gpus < job.workers:
        raise ConfigError(_too_few(job, gpus))
    if there.get("CPU", 0) < job.workers:
        warnings.warn(
            f"{job.workers} workers need a CPU each, and the Ray cluster has {there.get('CPU', 0):g}. "
            f"Waiting for more of them, {job.timeout_s:g} s at most.",
            stacklevel=2,
        )
    return gpus > 0


# --- one of our own ---------------------------------------------------------------------------------------


@contextmanager
def _own(job: Job, scratch: Path) -> Iterator[None]:
    """A cluster that only this machine can reach, and only with its token."""
    if job.nodes > 1:
        raise ConfigError(
            f"nodes={job.nodes} need a Ray cluster that is there: set RAY_ADDRESS, or call ray.init first."
        )
    token = scratch / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    settings: dict[str, str | None] = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": None,
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its sense on any system: addresses of this machine are loopback's
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray's 15 would let anything else on this machine go first: on a busy one workers would stand still.
        _NICENESS: os.environ.get(_NICENESS, "0"),
    }
    if job.devices is not None:
        settings["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, job.devices))
    with ExitStack() as stack:
        stack.enter_context(guarding(str(token), scratch))
        stack.callback(_read_again)
        stack.enter_context(environment(settings))
        ray = load()
        stack.enter_context(_token_known())
        stack.enter_context(_loopback(ray))
        stack.callback(ray.shutdown)
        _start(ray, job, scratch)
        yield


def _start(ray: Any, job: Job, scratch: Path) -> None:
    try:
        ray.init(
            address="local",
            num_cpus=job.workers + 1,  # workers need one each, however few there are
            num_gpus=_gpus(job),
            include_dashboard=False,
            logging_level=logging.WARNING,
            _temp_dir=str(scratch / "ray"),
        )
    except (OSError, RuntimeError, ray.exceptions.RayError) as error:
        first = str(error).strip().partition("\n")[0]
        raise RunError(f"Ray could not be started on this machine: {first}") from error


def _gpus(job: Job) -> int:
    """How many accelerators workers have together, on this machine."""
    count = torch.cuda.device_count() if job.devices is None else len(job.devices)
    if 0 < count < job.workers:
        raise ConfigError(_too_few(job, count))
    return count


def _too_few(job: Job, count: int) -> str:
    return (
        f"workers={job.workers} have {count} accelerators, and need one each. "
        f"Give workers={count}, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
    )


@contextmanager
def _token_known() -> Iterator[None]:
    """Ray reads how to authenticate once, when it is imported, and keeps a token that it has read."""
    _read_again()
    try:
        yield
    finally:
        os.environ["RAY_AUTH_MODE"] = "disabled"  # before the token goes: Ray's threads abort if it is missed
        _read_again()


def _read_again() -> None:
    if "ray" not in sys.modules:
        return
    raylet = import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _loopback(ray: Any) -> Iterator[None]:
    """Ray looks once, when it is imported, whether it may listen to a network."""
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


# --- what is put back afterwards --------------------------------------------------------------------------


@contextmanager
def _scratch() -> Iterator[Path]:
    within = tempfile.gettempdir()
    path = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp" if len(within) > _LONG and os.path.isdir("/tmp") else within))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _handlers_kept() -> Iterator[Callable[[], None]]:
    """Ray takes SIGTERM for itself, for good. What is given puts the caller's handler back at once.

    Where nobody handles it, the program then ends by it all the same, but tidily.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before, ended = signal.getsignal(signal.SIGTERM), []

    def end(number: int, _: FrameType | None) -> None:
        ended.append(number)
        raise SystemExit(128 + number)

    try:
        yield lambda: _handle(signal.SIGTERM, end if before == signal.SIG_DFL else before)
    except SystemExit:
        if ended:  # within a call of Ray's the status is lost
            raise SystemExit(128 + ended[0]) from None
        raise
    finally:
        _handle(signal.SIGTERM, before)


def _handle(number: signal.Signals, handler: Any) -> None:
    signal.signal(number, handler)
