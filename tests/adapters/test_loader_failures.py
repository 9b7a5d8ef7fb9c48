"""Worker processes of a DataLoader that fail: they raise, are killed, leave, hang, or break the memory they read."""

import contextlib
import mmap
import multiprocessing
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import trainees
from kit.forked import start, tell
from kit.sampled import sampled
from kit.small import in_run
from torch.utils.data import DataLoader, Dataset, get_worker_info

import headrace as hr
from headrace.adapters.iterables import LoaderSource

ROWS, SIZE, UPDATES, EPOCHS = 38, 2, 19, 2
STATUS = 77
HANGS_S = 2  # after which a worker that hangs is given up, or one that is slow: that is the same failure
TELLS_S = 60  # the same where it is to come to the row at which it hangs, also on a busy machine
LOOKS_S = 0.5

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it


@pytest.fixture(autouse=True)
def torch_looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch waits for a worker that is gone, or that does not end: 5 s otherwise."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", LOOKS_S)


class Failing(Dataset[Any]):
    """Rows that know their numbers; a worker process that is asked for one of them fails, in a way of its own."""

    def __init__(self, how: str = "", at: int = -1) -> None:
        self.how, self.at = how, at

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        if i == self.at and get_worker_info() is not None:
            WAYS[self.how]()
        return torch.sin(torch.arange(1, 6) * 0.7 * i), i % 2, i


def raises() -> None:
    raise KeyError("row 17 is not in the archive")


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leaves() -> None:
    os._exit(STATUS)


def leaves_quietly() -> None:
    os._exit(0)


def hangs() -> None:
    threading.Event().wait()


def hangs_and_tells() -> None:
    tell("hangs")
    hangs()


def breaks() -> None:
    """Reads memory that is mapped to a file which has become shorter."""
    with tempfile.TemporaryFile() as file:
        file.truncate(2 * mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE)
        file.truncate(mmap.PAGESIZE)
        _ = memory[-1]


WAYS: dict[str, Callable[[], None]] = {
    "raises": raises,
    "is killed": is_killed,
    "leaves": leaves,
    "leaves quietly": leaves_quietly,
    "hangs": hangs,
    "hangs and tells": hangs_and_tells,
    "breaks": breaks,
}
MESSAGES = {
    "raises": r"KeyError: .*row 17 is not in the archive",
    "is killed": r"exited unexpectedly",
    "leaves": r"exited unexpectedly",
    "leaves quietly": r"exited unexpectedly",
    "hangs": rf"DataLoader timed out after {HANGS_S} seconds",
    "breaks": r"exited unexpectedly",
}


class Seen(hr.Callback):
    """Which rows each update has been made of; those of a step that is made again replace the first."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}
        self._now: list[int] = []

    def on_step_end(self, info: hr.Info) -> None:
        self.rows[info.step] = self._now

    def forward(self, module: torch.nn.Module, given: Any) -> None:
        self._now = given[1].tolist()


class Net(torch.nn.Module):
    """Dropout and noise, and the numbers of the rows beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            trainees.Noise(), torch.nn.Linear(5, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)
        )

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def loader(how: str, at: int, kind: str) -> Any:
    """The loader, whose order comes from torch's generator as it stands."""
    timeout_s = {"hangs": HANGS_S, "hangs and tells": TELLS_S}.get(how, 0)
    data, options = Failing(how, at), dict[str, Any](shuffle=True, num_workers=2, timeout=timeout_s)
    if kind == "stateful":
        stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
        return stateful(data, batch_size=SIZE, **options)
    return DataLoader(data, SIZE, **options)


def train(run: Path | str | None, seen: Seen, how: str = "", at: int = -1, kind: str = "plain") -> str:
    """The training, from where its run is; a hash of all that it has come to."""
    trainees.seed()
    model = Net()
    model.register_forward_pre_hook(seen.forward)
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters(), lr=0.01))
    source = LoaderSource(loader(how, at, kind), names=("x", "y", "i"), streams=STREAMS)
    options = {"every": "3 steps", "callbacks": [seen], "progress": False, "wait": True}
    trainer.fit(source, epochs=EPOCHS, **in_run(run, **options))
    return trainees.digest(trainer)


STREAMS = [hr.Stream("x", (5,)), hr.Stream("y", (), "int64"), hr.Stream("i", (), "int64")]
QUICK = ("is killed", 17, "plain")
WHERE = [(17, "plain"), (3, "plain"), (30, "plain"), (17, "stateful")]
CORE = [("raises", 17, "stateful"), ("leaves quietly", 3, "plain"), ("hangs", 17, "plain"), ("breaks", 30, "plain")]
"""Each way once; that a worker leaves with a status is, to the loader, as if it was killed."""
OTHERS = [case for how in MESSAGES for where in WHERE if (case := (how, *where)) != QUICK]


@cache
def undisturbed(kind: str = "plain") -> tuple[str, dict[int, list[int]]]:
    """What a training comes to with which nothing is wrong, and the rows of its updates."""
    seen = Seen()
    return train(None, seen, kind=kind), seen.rows


@pytest.mark.parametrize(
    ("how", "at", "kind"),
    [QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in sampled(OTHERS, keep=CORE))],
)
def test_a_worker_that_fails_is_named_and_no_row_is_lost(
    how: str, at: int, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen, (expected, rows) = Seen(), undisturbed(kind)
    with pytest.raises(hr.SourceError, match=MESSAGES[how]) as caught:
        train(tmp_path / "run", seen, how, at, kind)
    found = re.search(r"Loader of Failing \(x, y, i\) failed after (\d+) batches of epoch 0", str(caught.value))
    assert found is not None
    assert int(found[1]) == len(seen.rows) < UPDATES
    for child in multiprocessing.active_children():
        child.join(400)  # one that was ended may still be there
    assert multiprocessing.active_children() == []

    assert train(tmp_path / "run", seen, kind=kind) == expected
    assert seen.rows == rows
    for epoch in range(EPOCHS):
        its = [row for step in range(UPDATES) for row in seen.rows[epoch * UPDATES + step + 1]]
        assert sorted(its) == list(range(ROWS))


def test_a_source_that_has_failed_can_be_asked_again() -> None:
    torch.manual_seed(0)
    source = LoaderSource(loader("", -1, "plain"), names=("x", "y", "i"))
    expected = [batch["i"].tolist() for batch in hr.Feed(source)]
    torch.manual_seed(0)
    source = LoaderSource(loader("raises", expected[9][0], "plain"), names=("x", "y", "i"), streams=STREAMS)
    found = [source.next_batch(1)["i"].tolist() for _ in range(9)]
    with pytest.raises(hr.SourceError, match="failed after 9 batches"):
        source.next_batch(1)
    source._data.dataset.at = -1  # type: ignore[attr-defined]
    found += [source.next_batch(1)["i"].tolist() for _ in range(UPDATES - 9)]
    assert found == expected


def train_in_a_process(run: str, how: str, at: int) -> None:
    """The training, in which nothing ends a wait but somebody who asks."""
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = LOOKS_S
    tell("digest " + train(run, Telling(), how, at))


class Telling(Seen):
    def on_step_end(self, info: hr.Info) -> None:
        tell(f"step {info.step}")


@pytest.mark.parametrize("group", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_signal_is_heard_while_a_worker_hangs(group: bool, tmp_path: Path) -> None:
    """When the loader gives up; at once if it goes to the whole group, so that the workers are gone."""
    with start(train_in_a_process, tmp_path, tmp_path / "run", "hangs and tells", 17) as child:
        trainees.told(child, "hangs")
        if group:
            os.killpg(child.pid, signal.SIGTERM)
        else:
            child.send(signal.SIGTERM)
        assert child.ending() == trainees.PREEMPTED
    steps = [line for line in child.told if line.startswith("step")]
    assert steps
    assert trainees.last_step(tmp_path / "run") == len(steps)
    with start(train_in_a_process, tmp_path, tmp_path / "run", "", -1) as child:
        resumed = child.until("digest")
    assert resumed == undisturbed()[0]


def test_ctrl_c_ends_a_wait_at_once(tmp_path: Path) -> None:
    with start(wait_for_a_batch, tmp_path) as child:
        child.until("hangs")
        child.send(signal.SIGINT)
        assert child.ending() == -signal.SIGINT
    assert "KeyboardInterrupt" in child.output


def wait_for_a_batch() -> None:
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = LOOKS_S
    source = LoaderSource(loader("hangs and tells", 17, "plain"), names=("x", "y", "i"), streams=STREAMS)
    for _ in hr.Feed(source):
        pass


class Noisy(torch.utils.data.IterableDataset[Any]):
    """Draws random numbers, and does not say how many samples it has."""

    def __iter__(self) -> Any:
        for _ in range(12):
            yield torch.randn(6), torch.tensor(1)


@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers_that_are_drawn_one_batch_ahead_are_warned_of(workers: int) -> None:
    source = hr.LoaderSource(torch.utils.data.DataLoader(Noisy(), 4, num_workers=workers))
    with pytest.warns(UserWarning, match="one batch ahead") if not workers else contextlib.nullcontext():
        batches = [source.next_batch(4) for _ in range(3)]
    assert [batch.ends_epoch for batch in batches] == [False, False, True]
