"""A Ray cluster that tests share: a plugin, which files of tests name in `pytest_plugins`.

All tests that need Ray are marked so, and `conftest` has one process run their files one after the other. The cluster
is there from the first test that asks for it to the last one: other tests find everything as it was.
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
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_prestart_worker_first_driver": "0",  # most of them would never be used
    "SHLVL": "1",  # else the shell that starts a worker reads the user's .bashrc
}

LIMIT_S = 200.0  # of a job on a busy machine

_there = ExitStack()


@pytest.fixture(scope="session")
def ray_cluster() -> cluster.Cluster:
    """A cluster with room for three workers, and for what stands beside them: jobs find it there."""
    return _there.enter_context(local_cluster())


@pytest.fixture(scope="session")
def ray_after_a_loss(
    ray_cluster: cluster.Cluster, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ray_cases.Visits, dict[str, Any], Path]:
    """Of workers in step that begin again once: the caller's model, what worker 0 says, and where they leave notes."""
    model, at = ray_cases.Visits(37), tmp_path_factory.mktemp("loss")
    options: dict[str, Any] = {"workers": 2, "restarts": 1, "engine": "ray", "timeout_s": LIMIT_S}
    return model, hr.launch(ray_cases.lose_one, model, hr.Synchronous(), str(at), **options), at


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Of what a signal's handler raises while a test waits in Ray, only an exit ends the wait: a limit raises one."""
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
    """The tests may have ended before the last one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _there.close()


def _needs_ray(item: pytest.Item) -> bool:
    return item.get_closest_marker("ray") is not None


@contextmanager
def local_cluster(workers: int = 3) -> Iterator[cluster.Cluster]:
    """A cluster of our own; nothing of it is left.

    Its processes come and go while tests run: they are not marked as those of a test, and are looked for here instead.
    """
    with ExitStack() as stack:
        stack.enter_context(cluster.environment(SETTINGS))
        with cluster.environment({left_behind.MARK: None}):
            found = stack.enter_context(cluster.joined(Job(print, workers=workers)))
        token = os.environ["RAY_AUTH_TOKEN_PATH"]
        yield found
    assert not found.scratch.exists()
    assert ray_cases.processes(token) == []
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
