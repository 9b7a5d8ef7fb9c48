"""Settings of all tests: which run in one process, one thread each, and a check that nothing is left behind."""

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from kit import left_behind, sampled

# The time of an example depends on the machine, so that none has a deadline.
settings.register_profile("quick", deadline=None, max_examples=12, derandomize=True)
settings.register_profile("every", deadline=None, max_examples=200)  # scripts/test gives it the seed of the date
settings.register_profile("mutate", settings.get_profile("quick"), phases=[Phase.explicit, Phase.generate])
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
watched = 0.0, 0.0  # the limit of the watchdog, and when it was last started
imported = (0, ""), set[str]()  # what tells whether that is still so, and the modules that are imported
ERRORS = pytest.StashKey[int]()
SLOW = {*(Path(__file__).parent / "slow.txt").read_text().split()}
"""Tests that take a tenth of a second or more for a case, or are very many: they run with --all."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ERRORS] = os.dup(2)  # pytest does not capture it yet


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ends the process, less than a minute later, of a test that its limit does not end, because it is in C code."""
    global watched
    mark = item.get_closest_marker("timeout")
    limit_s, now = float(mark.args[0] if mark else item.config.getini("timeout")), time.monotonic()
    if limit_s != watched[0] or now > watched[1] + 15:  # to start it for every test takes milliseconds where it is busy
        faulthandler.dump_traceback_later(limit_s + 45, exit=True, file=item.config.stash[ERRORS])
        watched = limit_s, now


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the slow tests, and starts slow files first, so that no process is left with one at the end."""
    for item in items:
        if item.nodeid.partition("[")[0].rpartition("tests/")[2] in SLOW:
            item.add_marker(pytest.mark.slow)
    long = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Starts the server of processes, which takes seconds, while the first tests run."""
    gc.collect()
    gc.freeze()  # what is imported by now stays: the collector need not look at it
    shares_out = first and session.config.getoption("numprocesses", None)
    if "kit.forked" in sys.modules and not shares_out and not session.config.option.collectonly:
        from kit import forked

        forked.server()


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test runs in its own directory, so that it names files as a user would, relative to where they are."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session", autouse=True)
def the_commit_is_asked_for_once() -> None:
    """A run notes the commit that its directory is at: for the one that tests start in, git is asked once."""
    from headrace.store import run

    ask, start = run._git_commit, os.getcwd()
    commit = ask()
    run._git_commit = lambda: commit if os.getcwd() == start else ask()


@pytest.fixture(scope="session", autouse=True)
def no_stack_is_noted_for_a_seed() -> None:
    from kit import forked

    forked.seed_what_is_there()


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails a test that leaves a process running, which is ended, or that leaves this one with fewer cores.

    A test begins with one thread. What it has imported from its directory is forgotten.
    """
    global imported
    running, cores = processes.left().keys(), _cores()
    path, base = [*sys.path], str(tmp_path_factory.getbasetemp())
    if imported[0] != (now := _modules()):
        imported = now, {*sys.modules}
    import torch  # here: the process that distributes the tests needs none

    torch.set_num_threads(1)
    yield
    sys.path[:] = path
    if imported[0] != _modules():
        for name in sys.modules.keys() - imported[1]:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(base):
                del sys.modules[name]
    if fewer := _cores() != cores:
        os.sched_setaffinity(0, cores)
    if left := processes.left(left_behind.GONE_S, running):
        left_behind.end(left)
        pytest.fail(f"the test has left processes behind: {left}")
    if fewer:
        pytest.fail(f"the test may run on fewer cores than at its start, {sorted(cores)}")


def _modules() -> tuple[int, str]:
    """What is another one once modules have been imported: their number, and the newest."""
    return len(sys.modules), next(reversed(sys.modules))


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends processes that are left, also those of a test process that was ended by a limit."""
    faulthandler.cancel_dump_traceback_later()
    if first and (left := left_behind.Processes(of_all=True).left(left_behind.GONE_S)):
        left_behind.end(left)
        print(f"the tests have left processes behind: {left}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
