"""What all tests share: one thread, so that they do not fight over cores, and signals that do what they usually do."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("any machine", deadline=None)  # how long an example takes is the machine's affair
settings.load_profile("any machine")

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
for number, handler in USUAL.items():  # `nohup`, and `&` in a script, ignore them for all processes that follow
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


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
