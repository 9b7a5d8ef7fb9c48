"""A Ray cluster for all tests of a session: a plugin, which files of tests name in `pytest_plugins`.

Tests that need Ray are marked `ray`, and `conftest` runs their files in one process, one after the other. The cluster
starts with the first test that asks for it and is stopped after the last one.
"""

import os
import signal
import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import headrace as hr
from headrace.engines.job import Job
from headrace.engines.ray import cluster
from kit import left_behind, ray_cases

SETTINGS = {
    "RAY_prestart_worker_first_driver": "0",  # most of them would never be used
    "SHLVL": "1",  # else the shell that starts a worker reads the user's .bashrc
}

LIMIT_S = 200.0  # of a job on a busy machine
WORKERS = 3  # for which the cluster has room

_there = ExitStack()


@pytest.fixture(scope="session")
def ray_cluster() -> cluster.Cluster:
    """A cluster with room for three workers and their helpers; jobs join it."""
    return _there.enter_context(local_cluster())


@pytest.fixture(scope="session")
def ray_after_a_loss(
    ray_cluster: cluster.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ray_cases.Visits, dict[str, Any], Path]:
    """A job whose worker 1 is lost once: the caller's model, the result of worker 0, their directory of notes."""
    model, at = ray_cases.Visits(37), tmp_path_factory.mktemp("loss")
    options: dict[str, Any] = {"workers": 2, "restarts": 1, "engine": "ray", "timeout_s": LIMIT_S}
    return model, hr.launch(ray_cases.lose_one, model, hr.Synchronous(), str(at), **options), at


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Makes the time limit raise SystemExit: any other exception of a signal handler does not end a wait in Ray."""
    handler = signal.getsignal(signal.SIGALRM)
    if not _needs_ray(item) or not callable(handler):
        return

    def end(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        except pytest.fail.Exception as error:
            raise SystemExit(f"{error}") from error

    signal.signal(signal.SIGALRM, end)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        if nextitem is None or not _needs_ray(nextitem):
            _there.close()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Stops the cluster if the tests ended before the last one that needs it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _there.close()


def _needs_ray(item: pytest.Item) -> bool:
    return item.get_closest_marker("ray") is not None


@contextmanager
def local_cluster() -> Iterator[cluster.Cluster]:
    """A cluster that is stopped again; raises if a file or a process of it is left.

    Its processes start and end while tests run, so they are not marked as processes of one test: they are checked here.
    """
    with ExitStack() as stack:
        stack.enter_context(cluster.environment(SETTINGS))
        with cluster.environment({left_behind.MARK: None}):
            found = stack.enter_context(cluster.joined(Job(print, workers=WORKERS)))
        token = os.environ["RAY_AUTH_TOKEN_PATH"]
        yield found
    assert not found.scratch.exists()
    assert ray_cases.processes(token) == []
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
