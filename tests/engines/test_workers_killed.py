"""Trainings of several workers that are killed at any place: run again, they end as the one that never was."""

import itertools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from kit import trainees
from kit.forked import Child, start, tell
from kit.kill_cases import (
    CENTERED,
    HOOKS,
    SAVING,
    STRATEGIES,
    WITHIN,
    Finished,
    Place,
    Watch,
    check_end,
    ends,
    fit,
    killed,
    undisturbed,
)
from kit.sampled import nightly, sampled
from kit.torch_workers import LATE, PATIENCE_S, WAYS, fork_workers, over_gloo, wait_until_gone

import headrace as hr
from headrace.errors import WorkerError
from headrace.workers.here import here

# --- virtual workers: the process of all of them is killed ----------------------------------------------------

WORKERS = 3
EVERYWHERE = [*itertools.product(STRATEGIES, [*HOOKS, *WITHIN, SAVING])]
ALWAYS = [("synchronous", "meets"), ("periodic", "on_step_end"), ("diloco", SAVING), ("elastic", "meeting")]
ALWAYS.append(("block momentum", "backward"))
"""Each strategy at a place of another kind; nightly, each of them at each place."""


@pytest.mark.parametrize(("name", "what"), sampled(EVERYWHERE, keep=ALWAYS))
def test_a_training_whose_workers_are_killed_ends_as_the_one_that_never_was(
    name: str, what: str, tmp_path: Path
) -> None:
    whole, times = undisturbed(name, WORKERS)
    other = 0 if what == SAVING or (name in CENTERED and what in HOOKS) else 2
    last, middle = times[other][what], (times[0][what] + 1) // 2
    chains = [Place(what, 0, middle), Place(what, 0, 1), Place(what, other, 1)], [Place(what, other, last)]
    for number, places in enumerate(chains):
        run = tmp_path / f"{number}" / "run"
        run.parent.mkdir()
        for place in places:
            killed(run, name, WORKERS, place)
        check_end(name, ends(run, name, WORKERS)[0], whole)


def test_killed_workers_that_did_not_go_on_would_be_noticed() -> None:
    """The negative control: one worker's rows count once too often."""
    whole, _ = undisturbed("periodic", WORKERS)
    assert len(set(whole.digests)) == WORKERS  # each has an optimizer and random numbers of its own
    assert len(whole.rows) > 3
    other, _ = undisturbed("periodic", 2)
    assert other.digests != whole.digests[:2]


# --- processes: one of them is killed, fails, stops or hangs -------------------------------------------------

TIMEOUT_S = 4.0


def work(run: str, name: str, gloo: bool, how: str, place: Place | None) -> list[str]:
    """In a worker. Whoever is started again is left in peace."""
    if gloo:
        over_gloo()
    tell(f"pid {os.getpid()}")

    def act() -> None:
        tell("acts")
        WAYS[how]()

    again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    try:
        found: list[str] = here().all_gather(trainees.digest(fit(run, name, Watch(None if again else place, act))))
    except WorkerError:
        tell("ends by itself")
        raise
    return found


def launches(run: str, name: str, gloo: bool, how: str, place: list[Any] | None, restarts: int) -> None:
    """What a program does that calls `launch`."""
    fork_workers()
    given = (run, name, gloo, how, place and Place(*place))
    timeout_s = TIMEOUT_S if how in LATE else PATIENCE_S
    try:
        found = hr.launch(work, *given, workers=2, engine="processes", restarts=restarts, timeout_s=timeout_s)
    except BaseException as error:
        tell(f"raised {type(error).__name__}: {error}")
        tell(f"children {len(active_children())}")
        raise SystemExit(3) from None
    for digest in found:
        tell(f"digest {digest}")


@contextmanager
def launched(
    run: Path, name: str, how: str = "", place: Place | None = None, *, restarts: int = 0, gloo: bool = False
) -> Iterator[Child]:
    given = (run, name, gloo, how, place and list(place), restarts)
    with start(launches, run.parent, *given) as child:
        yield child


def finished(child: Child, run: Path) -> Finished:
    digests = [child.until("digest") for _ in range(2)]
    assert child.ending() == 0, child.output
    return Finished(digests, (run / "metrics.jsonl").read_text().splitlines())


def shown(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, Place) else str(value)


@pytest.mark.parametrize(
    ("name", "how", "place", "gloo"),
    [
        ("synchronous", "is_killed", Place("before the update", 1, 5), False),
        ("periodic", "raises", Place("meets", 0, 7), False),
        ("periodic", "is_killed", Place("meeting", 1, 7), True),
        *nightly(
            ("synchronous", "is_killed", Place("on_checkpoint", 0, 3), True),
            ("periodic", "is_killed", Place(SAVING, 0, 5), False),
        ),
    ],
    ids=shown,
)
def test_workers_that_start_again_end_as_those_that_were_never_lost(
    name: str, how: str, place: Place, gloo: bool, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with launched(run, name, how, place, restarts=1, gloo=gloo) as child:
        child.until("acts")
        found = finished(child, run)
        assert "headrace: all workers start again (1 of 1)." in child.output
    assert found == undisturbed(name, 2)[0]


@pytest.mark.parametrize(
    ("name", "how", "place", "step"),
    [
        ("periodic", "is_killed", Place("after the update", 1, 6), "[45]"),
        ("synchronous", "is_killed", Place("backward", 0, 6), "[45]"),
        ("synchronous", "raises", Place("on_step_end", 0, 6), "[56]"),
        *nightly(
            ("periodic", "is_stopped", Place("after the update", 0, 5), "[345]"),
            ("synchronous", "hangs", Place("data", 1, 4), r"\d+"),
        ),
    ],
    ids=shown,
)
def test_without_another_start_all_end_say_why_and_can_go_on(
    name: str, how: str, place: Place, step: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with launched(run, name, how, place) as child:
        child.until("ends by itself")
        what = child.until("raised")
        workers = [int(line.removeprefix("pid ")) for line in child.told if line.startswith("pid")]
        assert child.until("children") == "0"
        wait_until_gone(workers)
        assert child.ending() == 3
    assert len(workers) == 2
    worker = f"WorkerError: worker {place.worker} "
    said = {
        "is_killed": rf"was lost at step {step}.*: it was killed \(SIGKILL\)",
        "raises": rf"failed at step {step}: ValueError: row 17 is not in the archive",
        "is_stopped": rf"keeps the others waiting since step {step}.*for more than 4 s; nothing has been heard of it",
        "hangs": rf"keeps the others waiting since step {step} \(.*\), for more than 4 s",
    }
    assert re.match(worker + said[how], what), what
    with launched(run, name) as child:
        assert finished(child, run) == undisturbed(name, 2)[0]
