"""Workers that fail, are killed, stopped or hang: all others end soon, and say who it was, where, and why."""

import ctypes
import itertools
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from kit.forked import Child, start, tell
from kit.sampled import sampled
from kit.sockets import free_port
from kit.torch_workers import be_worker, hangs, is_killed, is_stopped, over_gloo
from torch import Tensor, nn

import headrace as hr
from headrace.errors import WorkerError
from headrace.workers.here import here

TIMEOUT_S = 4.0
SOON_S = 5.0
COUNT = 3
STEPS = 30

# --- what happens in worker `bad` at step 5 ----------------------------------------------------------------


def raises() -> None:
    raise ValueError("row 17 is not in the archive")


def hangs_deaf() -> None:
    """In a call that no signal interrupts: it locks what it has locked."""
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


def leaves() -> None:
    sys.exit(0)


WAYS = {way.__name__: way for way in (raises, is_killed, is_stopped, hangs, hangs_deaf, leaves)}


def trains(index: int, port: int, gloo: bool, bad: int, how: str) -> None:
    """Steps as a training makes them."""
    be_worker(index, COUNT, port, TIMEOUT_S)
    if gloo:
        over_gloo()
    comm = here()
    try:
        for step in range(STEPS):
            comm.at(step, "reading data")
            if step == 5 and how:
                comm.gather(None)
                tell(f"{'acts' if index == bad else 'waits'} {time.monotonic()}")
                if index == bad:
                    WAYS[how]()
            comm.at(step, "reducing")
            comm.all_reduce(torch.ones(1000))
    except WorkerError as error:
        tell(f"lost {time.monotonic()} {error}")
        comm.report_error(error)
        sys.exit(3)
    except ValueError as error:
        comm.report_error(error)
        sys.exit(4)


class Ended:
    """How long after the fault each of the others had ended, what it said of it, and how long they had waited."""

    def __init__(self, children: list[Child], bad: int) -> None:
        acts_s = float(children[bad].until("acts"))
        self.says: dict[int, str] = {}
        self.after_s: dict[int, float] = {}
        self._told: list[str] = []
        for index, child in enumerate(children):
            if index != bad:
                self.says[index] = child.until("lost").split(" ", 1)[1]
                assert child.code() == 3, child.output
                self.after_s[index] = time.monotonic() - acts_s
                self._told += child.told

    @property
    def waited_s(self) -> float:
        """From where the first of them began to wait to where the first of them gave up."""
        return min(self._times("lost")) - min(self._times("waits"))

    def _times(self, what: str) -> list[float]:
        return [float(line.split()[1]) for line in self._told if line.startswith(what)]


@contextmanager
def training(at: Path, gloo: bool, bad: int, how: str) -> Iterator[list[Child]]:
    port = free_port()
    with ExitStack() as stack:
        yield [stack.enter_context(start(trains, at, k, port, gloo, bad, how)) for k in range(COUNT)]


EVERY = pytest.mark.parametrize(
    ("gloo", "bad"),
    [
        pytest.param(False, 0, id="one-host-0"),
        pytest.param(True, 1, id="several-hosts-1"),
        pytest.param(False, 1, id="one-host-1", marks=pytest.mark.slow),
        pytest.param(True, 0, id="several-hosts-0", marks=pytest.mark.slow),
    ],
)


@pytest.mark.slow
@EVERY
def test_an_error_ends_all_others_which_name_worker_step_and_cause(tmp_path: Path, gloo: bool, bad: int) -> None:
    with training(tmp_path, gloo, bad, "raises") as children:
        ended = Ended(children, bad)
        assert children[bad].code() == 4
    told = f"worker {bad} failed at step 5: ValueError: row 17 is not in the archive"
    assert set(ended.says.values()) == {told}
    assert max(ended.after_s.values()) < SOON_S


@EVERY
def test_a_killed_worker_ends_all_others(tmp_path: Path, gloo: bool, bad: int) -> None:
    with training(tmp_path, gloo, bad, "is_killed") as children:
        ended = Ended(children, bad)
        assert children[bad].code() == -signal.SIGKILL
    for says in ended.says.values():
        assert re.match(rf"worker {bad} was lost at step [45].*: it was killed, or its machine is gone\.$", says), says
    assert max(ended.after_s.values()) < SOON_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gloo", "bad"),
    [
        pytest.param(True, 1, id="several-hosts-1"),
        pytest.param(False, 0, id="one-host-0", marks=pytest.mark.slow),
        pytest.param(False, 1, id="one-host-1", marks=pytest.mark.slow),
        pytest.param(True, 0, id="several-hosts-0", marks=pytest.mark.slow),
    ],
)
def test_a_stopped_worker_or_a_hung_source_ends_all_after_the_timeout_and_is_named(
    tmp_path: Path, gloo: bool, bad: int
) -> None:
    """Two trainings, so that the timeout is waited for once: a worker of one is stopped, another of the other hangs."""
    (tmp_path / "other").mkdir()
    with (
        training(tmp_path, gloo, bad, "is_stopped") as children,
        training(tmp_path / "other", not gloo, 1 - bad, "hangs") as others,
    ):
        hung, stopped = Ended(others, 1 - bad), Ended(children, bad)
        own = others[1 - bad].until("lost").split(" ", 1)[1]  # it is disturbed, and ends as the others do
        assert others[1 - bad].code() == 3
        children[bad].send(signal.SIGCONT)  # and whoever was stopped ends when it goes on
        assert children[bad].code() == 3
    for says in stopped.says.values():
        assert re.match(
            rf"worker {bad} keeps the others waiting since step [45].*nothing has been heard of it", says
        ), says
    told = f"worker {1 - bad} keeps the others waiting since step 5 (reading data), for more than {TIMEOUT_S:g} s. "
    assert {own, *hung.says.values()} == {f"{told}If it may take longer, raise timeout_s."}
    for ended in (hung, stopped):
        assert ended.waited_s > TIMEOUT_S
        assert max(ended.after_s.values()) < TIMEOUT_S + SOON_S


@pytest.mark.slow
@pytest.mark.parametrize("gloo", [False, True], ids=["one-host", "several-hosts"])
def test_a_worker_that_nothing_interrupts_is_ended(tmp_path: Path, gloo: bool) -> None:
    with training(tmp_path, gloo, 1, "hangs_deaf") as children:
        Ended(children, 1)
        assert children[1].code() == 1
        ended_s = time.monotonic()
        assert "headrace: worker 1 keeps the others waiting since step 5" in children[1].output
        assert children[1].output.endswith("This worker ends.\n")
    assert ended_s - float(children[1].told[0].removeprefix("acts ")) < TIMEOUT_S + 2 * SOON_S


@pytest.mark.slow
@pytest.mark.parametrize(
    "gloo", [pytest.param(False, id="one-host"), pytest.param(True, id="several-hosts", marks=pytest.mark.slow)]
)
def test_a_program_that_is_over_while_others_need_it_is_named(tmp_path: Path, gloo: bool) -> None:
    with training(tmp_path, gloo, 1, "leaves") as children:
        ended = Ended(children, 1)
    for index, says in ended.says.items():
        assert re.match(rf"worker 1 ended at step 5 \(.*\), while worker {index} still|worker 1 ended at", says), says
    assert max(ended.after_s.values()) < SOON_S


def test_without_a_fault_nobody_says_anything(tmp_path: Path) -> None:
    with training(tmp_path, False, -1, "") as children:
        for child in children:
            assert child.ending() == 0, child.output
            assert child.told == []
            assert child.output == ""


# --- an update by hand that fails, and a program that goes on ------------------------------------------------


class Fails(nn.Module):
    """Large enough that gradients travel in parts; an error of the backward pass comes when some have travelled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 1024), nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
        self.last = nn.Linear(1024, 2)
        self.where = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "forward":
            raise KeyError("on purpose")
        x = self.first(x)
        if self.where == "backward":
            x.register_hook(self.fail)
        return self.last(self.rest(x))  # type: ignore[no-any-return]

    def fail(self, gradient: Tensor) -> None:
        raise KeyError("on purpose")


def steps_on(index: int, where: str, failing: tuple[int, ...]) -> list[str]:
    """Four updates by hand, the third of which fails on some of the workers; what the errors say."""
    torch.manual_seed(0)
    model, said = Fails(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = hr.Trainer(model, hr.MSE(), optimizer, strategy=hr.Synchronous())
    for step in range(4):
        model.where = where if step == 2 and index in failing else ""
        x = torch.full((4, 4), float("nan") if step == 2 and where == "nan" else 1.0 + step + index)
        try:
            trainer.step((x, torch.ones(4, 2)))
        except (KeyError, hr.HeadraceError) as error:
            said.append(f"{step} {error}")
    return [*said, f"{model.first.weight.double().sum().item()}"]


def steps_by_hand(index: int, port: int, gloo: bool, where: str, failing: tuple[int, ...]) -> None:
    be_worker(index, 2, port, TIMEOUT_S)
    if gloo:
        over_gloo()
    for line in steps_on(index, where, failing):
        tell(line)


FAILED = "worker {} failed in an update that the workers make together (KeyError: 'on purpose')."


FAILING = [("backward", (1,), True), ("forward", (1,), False)]
ALL = [*itertools.product(("backward", "forward"), ((0, 1), (1,)), (False, True))]


@pytest.mark.parametrize(("where", "failing", "gloo"), sampled(ALL, keep=FAILING, of=6), ids=str)
def test_a_worker_that_has_failed_in_a_common_update_makes_no_more_of_them(
    tmp_path: Path, where: str, failing: tuple[int, ...], gloo: bool
) -> None:
    port = free_port()
    with ExitStack() as stack:
        children = [stack.enter_context(start(steps_by_hand, tmp_path, k, port, gloo, where, failing)) for k in (0, 1)]
        for index, child in enumerate(children):
            if index in failing:
                assert child.until("2") == "'on purpose'"
                assert child.until("3").startswith(FAILED.format(index))
            else:
                assert child.until("2") == "worker 1 failed at step 2: KeyError: 'on purpose'"
            assert child.code() == 0, child.output


@pytest.mark.parametrize("failing", [(0, 1), (1,)], ids=str)
def test_so_does_a_virtual_one(failing: tuple[int, ...]) -> None:
    said: dict[int, list[str]] = {}

    def main() -> None:
        said[here().shard.index] = steps_on(here().shard.index, "backward", failing)

    if failing == (1,):
        with pytest.raises(KeyError, match="on purpose"):
            hr.launch(main, workers=2)
        return
    hr.launch(main, workers=2)
    for index in failing:
        assert said[index][1].startswith("3 " + FAILED.format(index))


def test_workers_who_all_find_a_loss_that_is_not_finite_go_on_together() -> None:
    said: dict[int, list[str]] = {}

    def main() -> None:
        said[here().shard.index] = steps_on(here().shard.index, "nan", ())

    hr.launch(main, workers=2)
    assert all(len(lines) == 2 and lines[0].startswith("2 step 3 ") for lines in said.values())
    assert said[0][1] == said[1][1]
