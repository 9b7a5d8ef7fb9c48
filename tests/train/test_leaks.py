"""A long training holds on to nothing: memory, descriptors, threads, processes and files stay what they were."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from kit import trainees
from kit.forked import start, tell

import headrace as hr

BYTES_PER_EPOCH = 1e6 / 100
WARM = 20  # epochs before anything is compared


class Measures(hr.Callback):
    """Tells what the process holds after every epoch; it may hold on to something itself."""

    def __init__(self, leaks: bool) -> None:
        self._leaks, self._held = leaks, list[Any]()

    def on_checkpoint(self, info: hr.Info) -> None:
        if self._leaks:
            self._held += [bytearray(os.urandom(1) * 50_000), open(os.devnull)]  # noqa: SIM115
        me = Path("/proc/self")
        found = {
            "bytes": int((me / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
            "descriptors": len(os.listdir(me / "fd")),
            "threads": len(os.listdir(me / "task")),
            "named": sorted(thread.name for thread in threading.enumerate()),
            "children": (me / "task" / str(os.getpid()) / "children").read_text().split(),
        }
        tell(json.dumps(found))


def train(run: str, epochs: int, leaks: bool) -> None:
    """A training with everything on, of many epochs."""
    rows, val = trainees.Rows(), trainees.Rows(12)
    options = {"every": "1 epoch", "log_every": "1 epoch", "wait": True}
    trainees.fit(trainees.trainer(), run, rows, val=val, epochs=epochs, callbacks=[Measures(leaks)], **options)
    tell("through")


def measured(run: Path, epochs: int, leaks: bool = False) -> list[dict[str, Any]]:
    """What it held after each epoch, from when it was warm."""
    with start(train, run.parent, run, epochs, leaks) as child:
        child.until("through")
        assert child.ending() == 0
    found = [json.loads(line) for line in child.told[:-1]]
    assert len(found) == epochs + 1
    return found[WARM:]


def held(found: list[dict[str, Any]]) -> tuple[bool, bool]:
    """Whether it holds the same things all the time, and the same memory, by least squares.

    The kernel's threads end a little later than Python's, so the least of them counts.
    """
    samples = [{name: sample[name] for name in ("descriptors", "named", "children")} for sample in found]
    threads = [min(sample["threads"] for sample in part) for part in (found[:10], found[-10:])]
    slope = np.polyfit(range(len(found)), [sample["bytes"] for sample in found], 1)[0]
    return all(each == samples[0] for each in samples) and threads[0] == threads[1], bool(slope < BYTES_PER_EPOCH)


def test_a_long_training_holds_on_to_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = measured(run, epochs=200)
    assert held(found) == (True, True), found[:: len(found) - 1]
    assert found[0]["children"] == []
    names = {"run.json", "config.json", "log.txt", "metrics.jsonl", "times.jsonl", "lock", "best", "checkpoints", "tb"}
    assert {path.name for path in run.iterdir()} == names
    assert {path.name for path in (run / "best").iterdir()} == {"model.safetensors", "best.json"}
    assert len(list((run / "checkpoints").iterdir())) in (2, 3), "two are kept, and the best"


def test_a_training_that_does_is_noticed(tmp_path: Path) -> None:
    """The negative control."""
    assert held(measured(tmp_path / "run", 30, leaks=True)) == (False, False)
