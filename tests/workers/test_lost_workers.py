"""Workers that fail, are killed, stopped or hang: all others end soon, and say who it was, where, and why."""

import itertools
import re
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.forked import tell
from kit.sampled import sampled
from kit.sockets import free_port
from kit.torch_workers import LATE, PATIENCE_S, TIMEOUT_S, be_worker, over_gloo, steps, times, worker_processes
from torch import Tensor, nn

import headrace as hr
from headrace.errors import WorkerError
from headrace.workers.here import here

COUNT = 3


def trains(index: int, port: int, gloo: bool, bad: int, how: str) -> None:
    """A worker without a `launch`."""
    be_worker(index, COUNT, port, TIMEOUT_S if how in LATE else PATIENCE_S)
    if gloo:
        over_gloo()
    try:
        steps(how, bad)
    except (WorkerError, ValueError) as error:
        here().report_error(error)
        sys.exit(3 if isinstance(error, WorkerError) else 4)


LATE_S = "for more than 3"
LOSSES = [
    ("is_killed", 1, False, -signal.SIGKILL, r"was lost at step [45].*: it was killed, or its machine is"),
    ("is_killed", 0, True, -signal.SIGKILL, r"was lost at step [45].*: it was killed, or its machine is"),
    ("raises", 1, True, 4, r"failed at step 5: ValueError: row 17 is not in the archive$"),
    ("raises", 0, False, 4, r"failed at step 5: ValueError: row 17 is not in the archive$"),
    ("ends", 1, False, 0, r"ended at step 5 \(.*\)(, while worker . still needs it)?"),
    ("ends", 1, True, 0, r"ended at step 5 \(.*\)(, while worker . still needs it)?"),
    ("is_stopped", 0, False, 3, rf"keeps the others waiting since step [45].*{LATE_S} s; nothing has been heard"),
    ("is_stopped", 1, True, 3, rf"keeps the others waiting since step [45].*{LATE_S} s; nothing has been heard"),
    ("hangs", 0, True, 3, rf"keeps the others waiting since step 5 \(reading data\), {LATE_S}"),
    ("hangs_deaf", 1, False, 1, rf"keeps the others waiting since step 5 \(reading data\), {LATE_S}"),
]
_EACH = {("is_killed", 1), ("raises", 1), ("ends", 1), ("is_stopped", 0), ("hangs", 0), ("hangs_deaf", 1)}
DAILY = [case for case in LOSSES if case[:2] in _EACH and case[:3] != ("ends", 1, True)]
"""Each way once, over gloo or not; the others run nightly."""


def together() -> list[Any]:
    """The cases of each test: those of workers who are late wait at the same time."""
    cases = sampled(LOSSES, keep=DAILY)
    late = [case for case in cases if case[0] in LATE]
    alone = [case for case in cases if case[0] not in LATE]
    marks = {False: [pytest.mark.slow], True: []}
    others = [
        pytest.param([case], marks=marks[case[0] == "is_killed"], id=f"{case[0]}-{case[1]}-{case[2]}") for case in alone
    ]
    return [pytest.param(late, marks=pytest.mark.slow, id="late"), *others]


@pytest.mark.parametrize("cases", together())
def test_what_happens_to_one_worker_ends_all_others_who_name_it(
    cases: list[tuple[str, int, bool, int, str]], tmp_path: Path
) -> None:
    """Whoever hangs is disturbed, or ended, after the timeout; whoever was stopped ends when it goes on."""
    with ExitStack() as stack:
        groups = []
        for how, bad, gloo, _, _ in cases:
            children = stack.enter_context(worker_processes(trains, tmp_path, COUNT, free_port(), gloo, bad, how))
            others = [child for k, child in enumerate(children) if k != bad]
            if how in LATE:
                for child in others:
                    child.until("waits")  # the next ones start while these wait
            groups.append((children[bad], others))
        for (how, bad, _, code, text), (worker, others) in zip(cases, groups, strict=True):
            waits_s, lost_s = list[float](), list[float]()
            for child in others:
                says = child.until("lost").split(" ", 1)[1]
                assert re.match(f"worker {bad} {text}", says), says
                assert child.code() == 3, child.output
                waits_s += times(child.told, "waits")
                lost_s += times(child.told, "lost")
            assert how not in LATE or min(lost_s) - min(waits_s) > TIMEOUT_S, "nobody is given up before"
            if how == "is_stopped":
                worker.send(signal.SIGCONT)
            assert worker.code() == code, worker.output
            if how == "hangs_deaf":
                assert worker.output.endswith("This worker ends.\n")


def test_without_a_fault_nobody_says_anything(tmp_path: Path) -> None:
    with worker_processes(trains, tmp_path, COUNT, free_port(), False, -1, "") as children:
        for child in children:
            assert child.ending() == 0, child.output
            assert [line.split()[0] for line in child.told] == ["pid"]
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
    be_worker(index, 2, port)
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
    with worker_processes(steps_by_hand, tmp_path, 2, free_port(), gloo, where, failing) as children:
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
