"""Losses far above those before them are noted, left out, or gone back from; also by trainings that are killed."""

import signal
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.forked import hear, start, tell
from kit.recorded import EPOCHS, ROWS, columns, make
from kit.recorded import POISONED_LATE as POISONED
from kit.sampled import sampled
from kit.small import same

import headrace as hr
from headrace.errors import ConfigError

ACTIONS = ("note", "skip", "rewind")
KINDS = ["noisy", "momentum", "microbatches", "parts", "without a tape", "growing batches"]
pytestmark = [
    pytest.mark.filterwarnings("ignore:the model has:UserWarning"),
    pytest.mark.filterwarnings("ignore:SpikeGuard:UserWarning"),
]


def fit(
    path: Path | None,
    action: str,
    data: Any = None,
    kind: str = "noisy",
    every: str = "7 steps",
    callbacks: Sequence[hr.Callback] = (),
    **options: Any,
) -> tuple[hr.Trainer, hr.SpikeGuard]:
    trainer, guard = make(kind), hr.SpikeGuard(factor=2, window=6, action=action)
    run = None if path is None else hr.Run(path, every=every, keep="all")
    settings = {"epochs": EPOCHS, "progress": False, "callbacks": [guard, *callbacks], "run": run, **options}
    trainer.fit(columns(POISONED) if data is None else data, **settings)
    return trainer, guard


def uses(run: Path) -> list[int]:
    return [step for step in hr.Record(run).when(POISONED) if step > 6]


@pytest.mark.parametrize("kind", sampled(KINDS[:6], keep=["noisy", "parts", "growing batches"]))
def test_a_spike_is_noted_and_nothing_else_changes(kind: str, tmp_path: Path) -> None:
    trainer, guard = fit(tmp_path / "run", "note", kind=kind)
    plain = make(kind)
    plain.fit(columns(POISONED), epochs=EPOCHS, progress=False)
    assert same(trainer, plain)
    steps = [step for step, _, _ in guard.spikes]
    assert steps
    assert set(steps) <= set(hr.Record(tmp_path / "run").when(POISONED))
    record = hr.Record(tmp_path / "run")
    assert record.spikes == guard.spikes
    again = hr.SpikeGuard(factor=2, window=6)
    found = record.why(steps[-1], make(kind), columns(POISONED), callbacks=[again])
    assert found.exact, "the noted loss came out again, though no report is of this update alone"
    assert POISONED in found.worst


def test_nothing_is_noted_where_nothing_rises(tmp_path: Path) -> None:
    _, guard = fit(None, "skip", columns())
    assert guard.spikes == []


@pytest.mark.parametrize("kind", sampled([*KINDS[:5], "metrics"], keep=["noisy", "parts", "microbatches"]))
def test_an_update_that_is_left_out_is_as_if_its_rows_had_no_weight(kind: str, tmp_path: Path) -> None:
    trainer, guard = fit(tmp_path / "run", "skip", kind=kind)
    (skipped,) = [step for step, _, _ in guard.spikes][:1]
    assert skipped in uses(tmp_path / "run")
    record = hr.Record(tmp_path / "run")
    before = record.at(skipped - 1, make(kind), columns(POISONED), callbacks=[hr.SpikeGuard(2, 6, "skip")])
    after = record.at(skipped, make(kind), columns(POISONED), callbacks=[hr.SpikeGuard(2, 6, "skip")])
    assert same(before, after), "weights, buffers and moments are as they were"
    assert all(torch.isfinite(tensor).all() for tensor in trainer.model.state_dict().values())


@pytest.mark.parametrize(
    "kind", sampled(["plain", *KINDS[1:4], "root mean square", KINDS[5]], keep=["plain", "parts", "microbatches"])
)
def test_going_back_ends_as_a_training_from_the_checkpoint_without_the_rows(kind: str, tmp_path: Path) -> None:
    trainer, guard = fit(tmp_path / "run", "rewind", kind=kind)
    record = hr.Record(tmp_path / "run")
    step = guard.spikes[0][0]
    assert len(guard.spikes) == 1, "the row comes again in later epochs, and does not count there"
    assert guard.rows == sorted(record.rows(step))
    assert POISONED in guard.rows
    fork = record.fork(tmp_path / "b", record.before(step - 1))
    weights = torch.ones(ROWS)
    weights[guard.rows] = 0
    data = columns(POISONED) | {"w": weights}
    other = make(kind)
    kept = hr.Run(fork.path, resume="must", override=True)
    with pytest.warns(UserWarning, match="a callback SpikeGuard"):
        other.fit(data, epochs=EPOCHS, progress=False, run=kept)
    assert same(trainer, other)
    with_row, _ = fit(None, "note", kind=kind)
    assert not same(trainer, with_row), "the control"


def train_and_tell(run: str, action: str) -> None:
    """In a process of its own: waits after some steps until it is killed."""
    warnings.simplefilter("ignore")

    def stop(info: hr.Info) -> None:
        if info.step in (9, 17, 25) and not (mark := Path(run + f".{info.step}")).exists():
            mark.touch()
            tell(f"step {info.step}")
            hear()

    fit(Path(run), action, every="3 steps", callbacks=[hr.Lambda(on_step_end=stop)])


@pytest.mark.parametrize("action", ACTIONS)
def test_a_training_that_is_killed_decides_the_same(action: str, tmp_path: Path) -> None:
    undisturbed, guard = fit(tmp_path / "calm", action, every="3 steps")
    assert guard.spikes
    run = tmp_path / "run"
    for step in (9, 17, 25):
        with start(train_and_tell, tmp_path, run, action) as child:
            child.until(f"step {step}")
            child.kill()
            assert child.ending() == -signal.SIGKILL
    with start(train_and_tell, tmp_path, run, action) as child:
        assert child.ending() == 0, child.output
    record, found = hr.Record(run), make("noisy")
    assert record.spikes == guard.spikes
    record.at(record.steps, found, columns(POISONED), callbacks=[hr.SpikeGuard(2, 6, action)])
    assert same(found, undisturbed)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"factor": 1}, "factor= is a number above 1"),
        ({"factor": True}, "factor= is a number above 1"),
        ({"window": 1}, "window= is a number of updates"),
        ({"action": "stop"}, "Choose one of: note, rewind, skip"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        hr.SpikeGuard(**settings)


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    guard = hr.SpikeGuard(action="rewind")
    with pytest.raises(ConfigError, match="weight='w'"):
        make("plain", loss=hr.CrossEntropy()).fit(columns(), epochs=1, progress=False, callbacks=[guard])
    batches = [{name: column[k : k + 24] for name, column in columns().items()} for k in range(0, ROWS, 24)]
    with pytest.raises(ConfigError, match="train on a table"):
        make("plain", batch_size=None).fit(batches, epochs=1, progress=False, callbacks=[guard])
    fit(tmp_path / "run", "note", steps=8, epochs=None)
    settings: dict[str, Any] = {"callbacks": [hr.SpikeGuard(window=9)], "run": tmp_path / "run", "progress": False}
    with pytest.raises(hr.CheckpointError, match=r"window=6\), and here it is 9"):
        make("noisy").fit(columns(POISONED), epochs=EPOCHS, **settings)
