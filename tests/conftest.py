"""Settings of all tests: their order, time limits, one thread each, and a check that no process is left running."""

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from kit import left_behind, sampled
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# The time of an example depends on the machine, so that none has a deadline.
settings.register_profile("quick", deadline=None, max_examples=12, derandomize=True)
settings.register_profile("every", deadline=None, max_examples=200)  # scripts/test gives it the seed of the date
settings.load_profile("every" if sampled.EVERY in os.environ else "quick")

DEFAULT: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}
for number, handler in DEFAULT.items():  # `nohup`, and `&` in a script, make child processes ignore them
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

left_behind.mark()
processes = left_behind.Processes()
first = "PYTEST_XDIST_WORKER" not in os.environ  # this process distributes the tests, or runs them itself

GRACE_S = 30.0  # time that a test has to end by itself after its limit
watched = 0.0, 0.0  # the limit of the running watchdog, and when it started
ERRORS = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ERRORS] = os.dup(2)  # pytest does not capture it yet


# --- order and distribution ----------------------------------------------------------------------------


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Runs all tests of a file in one process, and all files that use Ray in the same one: there is one cluster."""

    def _split_scope(self, nodeid: str) -> str:
        path: str = super()._split_scope(nodeid)
        return "ray" if _is_of_ray(Path(path)) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts slow files first, so that no process is left with one at the end."""
    long = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (not _is_of_ray(item.path), item.path not in long))


def _is_of_ray(path: Path) -> bool:
    return "ray" in path.stem.split("_")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the server of processes, which takes seconds, while the first tests run."""
    gc.collect()
    gc.freeze()  # what is imported by now stays: the collector need not look at it
    shares_out = first and session.config.getoption("numprocesses", None)
    if "kit.forked" in sys.modules and not shares_out and not session.config.option.collectonly:
        from kit import forked

        forked.server()


# --- where a test runs ------------------------------------------------------------------------------------


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in its own directory, so that it names files as a user would, relative to where they are."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- limits -----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Ends the process of a test that its limit does not end, because it is in C code or catches what is raised."""
    global watched
    mark = item.get_closest_marker("timeout")
    limit_s, now = float(mark.args[0] if mark else item.config.getini("timeout")), time.monotonic()
    if (
        watched[0] != limit_s or now - watched[1] > GRACE_S / 2
    ):  # restarting the watchdog for every test would take long
        faulthandler.dump_traceback_later(limit_s + 1.5 * GRACE_S, exit=True, file=item.config.stash[ERRORS])
        watched = limit_s, now
    try:
        return (yield)
    finally:
        if nextitem is None:
            faulthandler.cancel_dump_traceback_later()


# --- nothing is left behind ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """Fails a test that leaves a process running, and ends that process."""
    before = processes.left().keys()
    yield
    if left := processes.left(left_behind.GONE_S, before):
        left_behind.end(left)
        pytest.fail(f"the test has left processes behind: {left}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends processes that are left, also those of a test process that was ended by a limit."""
    if first and (left := left_behind.Processes(of_all=True).left(left_behind.GONE_S)):
        left_behind.end(left)
        print(f"the tests have left processes behind: {left}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def all_cores() -> Iterator[None]:
    """Fails a test that leaves this process bound to fewer cores, as virtual workers are while they run."""
    allowed = _cores()
    yield
    if (left := _cores()) != allowed:
        os.sched_setaffinity(0, allowed)
        pytest.fail(f"the test may run on the cores {sorted(left)} alone, from {sorted(allowed)} at its start")


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.fixture(autouse=True)
def no_recipe_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forgets the modules that a test has imported from its directory, and restores the import path."""
    path, before, base = list(sys.path), set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(base):
            del sys.modules[name]
