"""What all tests share: one thread, signals that do what they usually do, limits, and nothing that stays behind."""

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from kit import left_behind, sampled
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

settings.register_profile("quick", deadline=None, max_examples=12)  # how long one takes is the machine's affair
settings.register_profile("every", deadline=None, max_examples=200)
settings.load_profile("every" if sampled.EVERY in os.environ else "quick")

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
for number, handler in USUAL.items():  # `nohup`, and `&` in a script, ignore them for all processes that follow
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

left_behind.mark()
processes = left_behind.Processes()
first = "PYTEST_XDIST_WORKER" not in os.environ  # the process that shares the tests out, or runs them itself

BUDGET_S = 3.0  # of a test of the quick tier
GRACE_S = 30.0  # for a test that is over its limit to end by itself
watched = 0.0, 0.0  # the limit that is watched, and since when
OVER = Path(__file__).parents[1] / "build" / "over-budget.txt"
ERRORS = pytest.StashKey[int]()
ALONE = "HEADRACE_TESTS_ALONE"
"""The variable that says that nothing else runs."""


def pytest_report_header() -> str:
    return sampled.told()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ERRORS] = os.dup(2)  # nothing is captured here yet
    if first and ALONE not in os.environ:
        OVER.unlink(missing_ok=True)


# --- in which order, and where ----------------------------------------------------------------------------


class ByFile(LoadFileScheduling):
    """Gives all tests of a file to one process; also those of all files that start Ray, which has room for one."""

    def _split_scope(self, nodeid: str) -> str:
        path: str = super()._split_scope(nodeid)
        return "ray" if _is_of_ray(Path(path)) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long begin first; of the tests that take turns, some are among the quick ones today."""
    for item in items:
        if item.get_closest_marker("takes_turns") and not sampled.has_its_turn(item.nodeid, of=3):
            item.add_marker(pytest.mark.slow)
    long = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: (not _is_of_ray(item.path), item.path not in long))


def _is_of_ray(path: Path) -> bool:
    return "ray" in path.stem.split("_")


def pytest_collection_finish(session: pytest.Session) -> None:
    """The process that others are forked from takes seconds to begin: it does so while other tests run."""
    gc.collect()
    gc.freeze()  # what is here by now stays: nobody need look through it again and again
    shares_out = first and session.config.getoption("numprocesses", None)
    if "kit.forked" in sys.modules and not shares_out and not session.config.option.collectonly:
        from kit import forked

        forked.server()
        if ALONE in os.environ:
            forked.wait_for_server()


# --- limits -----------------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A test that its limit does not end, because it stands in C code or swallows what is raised, ends its process."""
    global watched
    mark = item.get_closest_marker("timeout")
    limit_s, now = float(mark.args[0] if mark else item.config.getini("timeout")), time.monotonic()
    if watched[0] != limit_s or now - watched[1] > GRACE_S / 2:  # to begin anew takes long, for every test
        faulthandler.dump_traceback_later(limit_s + 1.5 * GRACE_S, exit=True, file=item.config.stash[ERRORS])
        watched = limit_s, now
    try:
        return (yield)
    finally:
        if nextitem is None:
            faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A test of the quick tier that is over its budget is noted; where it runs alone, it fails."""
    began = time.monotonic() - _waited_s()
    yield
    if (took := time.monotonic() - _waited_s() - began) <= BUDGET_S or item.get_closest_marker("slow") is not None:
        return
    if ALONE in os.environ:
        pytest.fail(
            f"the test passes, but takes {took:.1f} s, and one of the quick tier may take {BUDGET_S:g} s: train less, "
            "start its processes with kit.forked, share what tests of the file prepare, or mark it slow"
        )
    OVER.parent.mkdir(exist_ok=True)
    with OVER.open("a") as file:
        file.write(f"{item.nodeid}\n")


def _waited_s() -> float:
    """How long a test has waited for the server that others will find ready."""
    return float(getattr(sys.modules.get("kit.forked"), "waited_s", 0.0))


# --- nothing stays ----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_process_stays() -> Iterator[None]:
    """What a test has started ends with it, at the latest."""
    before = processes.left().keys()
    yield
    if left := processes.left(left_behind.GONE_S, before):
        left_behind.end(left)
        pytest.fail(f"the test has left processes behind: {left}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Whoever ran the tests may have been ended by a limit: what that has left behind ends here."""
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
    """Virtual workers run on one core in turns; whoever called them may run on all again."""
    allowed = _cores()
    yield
    if (left := _cores()) != allowed:
        os.sched_setaffinity(0, allowed)
        pytest.fail(f"the test may run on the cores {sorted(left)} alone, from {sorted(allowed)} at its start")


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.fixture(autouse=True)
def no_recipe_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A recipe is imported, and the directory that it lies in may be imported from: for one test, not for the next."""
    path, before, room = list(sys.path), set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(room):
            del sys.modules[name]
