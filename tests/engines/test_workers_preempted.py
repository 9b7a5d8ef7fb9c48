"""Workers that are asked to end, one of them or all: they save the same step and end soon, and can go on."""

import itertools
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest
from kit import trainees
from kit.forked import Child, start, tell
from kit.kill_cases import (
    CENTERED,
    EPOCHS,
    ROWS,
    SAVING,
    SHARE,
    STRATEGIES,
    UNEVEN,
    Finished,
    Place,
    Watch,
    check_end,
    fit,
    undisturbed,
)
from kit.sampled import sampled, seeds
from kit.sockets import free_port
from kit.torch_workers import be_worker

import headrace as hr
from headrace.step.signals import Signals
from headrace.workers.here import here

PREEMPTED = trainees.PREEMPTED

# --- processes, as torchrun starts them ---------------------------------------------------------------------


def work(index: int, port: int, run: str, name: str, place: list[Any] | None) -> None:
    """One of two workers, which waits for a signal, or a word, at a place."""
    be_worker(index, 2, port)
    tell_requests()
    watch = Watch(Place(*place) if place else None, trainees.until_signal)
    tell("begins")
    try:
        trained = fit(run, name, watch)
    finally:
        tell(f"saved {watch.saved}")
    tell("digest " + trainees.digest(trained))


def tell_requests() -> None:
    """The test hears of a first request once the training has: a second signal before that would be the same one."""
    note = Signals._handle

    def heard(self: Signals, number: int, frame: FrameType | None) -> None:
        note(self, number, frame)
        tell("asked")

    Signals._handle = heard  # type: ignore[method-assign]


@contextmanager
def training(run: Path, name: str, places: list[Place | None]) -> Iterator[list[Child]]:
    port = free_port()
    with ExitStack() as stack:
        yield [
            stack.enter_context(start(work, run.parent, k, port, run, name, place and list(place)))
            for k, place in enumerate(places)
        ]


def finished(run: Path, name: str) -> Finished:
    with training(run, name, [None, None]) as children:
        digests = [child.until("digest") for child in children]
        assert [child.ending() for child in children] == [0, 0]
    return Finished(digests, (run / "metrics.jsonl").read_text().splitlines())


def end_preempted(children: list[Child]) -> list[int]:
    """The steps that they have saved, once they have ended as they should."""
    saved = [int(child.until("saved")) for child in children]
    assert [child.ending() for child in children] == [PREEMPTED] * len(children), [child.output for child in children]
    return saved


WHERE = {"first step": ("forward", 1), "data": ("data", 3), "backward": ("backward", 6), "validation": ("scoring", 2)}
WHERE |= {"checkpoint": ("on_checkpoint", 3), "save": (SAVING, 9)}
CASES = [*itertools.product(("synchronous", "periodic"), WHERE, ((0,), (1,), (0, 1)))]
CORE = [("periodic", "save", (1,)), ("synchronous", "backward", (0,)), ("synchronous", "validation", (0, 1))]


@pytest.mark.parametrize(("name", "where", "who"), sampled(CASES, keep=CORE, of=32), ids=str)
def test_whoever_is_asked_all_save_the_same_step_end_and_can_go_on(
    name: str, where: str, who: tuple[int, ...], tmp_path: Path
) -> None:
    run, (what, time_) = tmp_path / "run", WHERE[where]
    holders = [0] if where == "save" else who  # worker 0 alone saves
    with training(run, name, [Place(what, k, time_) if k in holders else None for k in (0, 1)]) as children:
        there = {k: children[k].until("there") for k in holders}
        for k in who:
            children[k].send(signal.SIGTERM)
        for k in holders:
            if "another" in there[k] or k not in who:
                children[k].say("go on")
        saved = end_preempted(children)
    assert saved == [trainees.last_step(run)] * 2
    assert finished(run, name) == undisturbed(name, 2)[0]


@pytest.mark.parametrize("name", ["synchronous", "periodic"])
def test_workers_may_be_asked_at_any_moment(name: str, tmp_path: Path) -> None:
    random, inside, number = Random(len(name)), 0, 0
    while inside < len(seeds(1, nightly=8)):
        number += 1
        assert number <= 40, "requests come after its end"
        run, who = tmp_path / f"{number}" / "run", random.choice([[0], [1], [0, 1]])
        run.parent.mkdir()
        with training(run, name, [None, None]) as children:
            for child in children:
                child.until("begins")
            while not list(run.glob("checkpoints/step-*")) and not children[0].wait(0.001):
                pass  # it hears from its first checkpoint on
            children[0].wait(random.uniform(0, 0.2))
            for k in who:
                with suppress(ProcessLookupError):  # it may have ended meanwhile
                    children[k].send(signal.SIGTERM)
            codes = [child.ending() for child in children]
            if codes == [PREEMPTED] * 2:
                inside += 1
                saved = [line for child in children for line in child.told if line.startswith("saved")]
                assert saved == [f"saved {trainees.last_step(run)}"] * 2
            else:  # it had come to its end, and signals do again what they always do
                assert all(code in (0, PREEMPTED, -signal.SIGTERM) for code in codes), children[0].output
                assert trainees.last_step(run) == ROWS * EPOCHS // (2 * SHARE)
        assert finished(run, name) == undisturbed(name, 2)[0]


def test_a_second_request_ends_a_worker_at_once_and_the_others_soon(tmp_path: Path) -> None:
    with training(tmp_path / "run", "synchronous", [None, Place("data", 1, 1)]) as children:
        children[1].until("there, another thread")
        children[1].send(signal.SIGTERM)
        children[1].until("asked")
        assert not children[1].wait(0.2), "a first request waits for the others"
        children[1].send(signal.SIGTERM)
        assert children[1].ending() == -signal.SIGTERM
        assert children[0].ending() == 1
        assert "worker 1 was lost" in children[0].output
    assert finished(tmp_path / "run", "synchronous") == undisturbed("synchronous", 2)[0]


# --- virtual workers: the one process is asked ----------------------------------------------------------------


def work_virtually(run: str, name: str, place: Place | None) -> list[str]:
    watch = Watch(place, trainees.until_signal)
    try:
        trained = fit(run, name, watch)
    finally:
        tell(f"saved {watch.saved}")
    found: list[str] = here().all_gather(trainees.digest(trained))
    return found


def train_virtually(run: str, name: str, place: list[Any] | None) -> None:
    network = UNEVEN if name in CENTERED else None
    for digest in hr.launch(work_virtually, run, name, place and Place(*place), workers=3, network=network):
        tell(f"digest {digest}")


VIRTUALLY = [*itertools.product(STRATEGIES, WHERE)]


@pytest.mark.parametrize(
    ("name", "where"), sampled(VIRTUALLY, keep=[("elastic", "backward"), ("periodic", "save")], of=28)
)
def test_virtual_workers_end_together_and_go_on(name: str, where: str, tmp_path: Path) -> None:
    run, (what, time_) = tmp_path / "run", WHERE[where]
    with start(train_virtually, tmp_path, run, name, [what, 0, time_]) as child:
        there = child.until("there")
        child.send(signal.SIGTERM)
        if "another" in there:
            child.say("go on")
        saved = [int(child.until("saved")) for _ in range(1 if name in CENTERED else 3)]
        assert child.ending() == PREEMPTED, child.output
    if name not in CENTERED:
        assert saved == [trainees.last_step(run)] * 3
    with start(train_virtually, tmp_path, run, name, None) as child:
        digests = [child.until("digest") for _ in range(3)]
        assert child.ending() == 0, child.output
    check_end(name, Finished(digests, (run / "metrics.jsonl").read_text().splitlines()), undisturbed(name, 3)[0])


def test_a_second_request_ends_virtual_workers_at_once(tmp_path: Path) -> None:
    with start(train_virtually, tmp_path, tmp_path / "run", "periodic", ["data", 0, 1]) as child:
        child.until("there, another thread")
        child.send(signal.SIGTERM)
        while not child.wait(0.1):
            with suppress(ProcessLookupError):  # it has ended just now
                child.send(signal.SIGTERM)
        assert child.code() == -signal.SIGTERM
