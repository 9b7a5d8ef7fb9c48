"""A run: begun, gone on with, finished, made longer, and never mixed up with another."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small
from kit.sampled import each
from kit.small import data, drive, same, saved_weights, state, stop_and_resume

import headrace as hr
from headrace.app.cli import main
from headrace.store.checkpoints import Store

X, Y = DATA = data(20)
VAL, TEST = (X[:7], Y[:7]), (X[5:14], Y[5:14])
network = partial(small.model, norm=True)


def make(seed: int = 0, rate: float = 0.02, **options: Any) -> hr.Trainer:
    """Five batches make an epoch."""
    made = network(seed=seed)
    optimizer = torch.optim.Adam(made.parameters(), lr=rate)
    return small.trainer(made, **{"optimizer": optimizer, "batch_size": 4, **options})


def fit(trainer: hr.Trainer, run: Path | None, *test: Any, **options: Any) -> hr.History:
    return small.fit(trainer, DATA, VAL, *test, run=run, **{"epochs": 2} | options)


def left_at(run: Path, step: int) -> None:
    """A trainer's loop is left after so many steps."""
    drive(make(), DATA, VAL, until=step, run=run)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


# --- what is refused ----------------------------------------------------------------------------------------


def refuses(info: hr.Info) -> None:
    raise ZeroDivisionError


def plateau(optimizer: torch.optim.Optimizer) -> Any:
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1)  # changes the rate at once
    assert warm is not None
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


NOTHING = hr.Schedule(plateau, monitor="val/nothing")
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception]]] = {
    "another word": ({}, {"resume": "never"}, hr.RunError),
    "another setting": ({"clip_norm": 3.0}, {}, hr.CheckpointError),
    "a number that will not come": ({}, {"callbacks": [hr.EarlyStopping("val/nothing", mode="min")]}, hr.ConfigError),
    "no such parameter": ({}, {"callbacks": [hr.Freeze("nothing.*")]}, hr.ConfigError),
    "a plateau of nothing": ({"schedule": NOTHING}, {"override": True}, hr.ConfigError),
    "a callback": ({}, {"callbacks": [hr.Lambda(on_fit_start=refuses)]}, ZeroDivisionError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_before_the_first_update_leaves_everything_as_it_was(what: str, tmp_path: Path) -> None:
    settings, options, error = REFUSED[what]
    fit(make(), tmp_path / "run")
    trainer = make(seed=5, **settings)
    history = fit(trainer, None, epochs=1, validate_every="2 steps") if not settings else None
    if settings:
        trainer.validate(VAL)
    rows, before = list(trainer.history.rows), contents(tmp_path / "run")
    weights, groups = state(trainer.model), state(trainer.optimizer.state_dict()["param_groups"])
    with pytest.raises(error):
        fit(trainer, tmp_path / "run", **{"epochs": 3} | options)
    after = contents(tmp_path / "run")
    log = after.pop("log.txt").decode()
    assert log.startswith(before.pop("log.txt").decode())
    assert log.splitlines()[-1][20:].startswith(f"refused {error.__name__}")
    assert "ended by" not in log
    assert after == before
    assert trainer.history.rows == rows
    assert history is None or trainer.history is history
    if what != "a callback":  # which may look at the model that goes on
        assert same(trainer.model, weights)
    assert same(trainer.optimizer.state_dict()["param_groups"], groups)
    assert main(["report", str(tmp_path / "run")]) == 0
    assert '<p class="status finished">' in (tmp_path / "run" / "report.html").read_text()


# --- how it begins ------------------------------------------------------------------------------------------


def test_a_run_is_gone_on_with_by_another_trainer_or_by_its_own(tmp_path: Path) -> None:
    stop_and_resume(make, [3], tmp_path, DATA, VAL)
    trainer, whole = make(), make()
    fit(trainer, tmp_path / "run", epochs=1)
    assert fit(trainer, tmp_path / "run", epochs=3).rows == fit(whole, None, epochs=3).rows
    assert same(trainer.model, whole.model)


def test_must_refuses_a_run_that_is_not_there_and_never_one_that_is(tmp_path: Path) -> None:
    trainer = make()
    with pytest.raises(hr.RunError, match=r"resume='must'.*nowhere"):
        fit(trainer, tmp_path / "nowhere", resume="must")
    assert os.listdir(tmp_path) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(hr.RunError, match=r"resume='must'.*empty"):
        fit(trainer, tmp_path / "empty", resume="must")
    fit(make(), tmp_path / "run", resume="never")
    before = contents(tmp_path / "run")
    with pytest.raises(hr.RunError, match=r"resume='never', and .* has 3 checkpoints, the last of step 10"):
        fit(trainer, tmp_path / "run", resume="never")
    assert contents(tmp_path / "run").items() - before.items() <= {("log.txt", (tmp_path / "run/log.txt").read_bytes())}
    assert same(trainer.model, network())
    fit(trainer, None)


# --- how it ends --------------------------------------------------------------------------------------------


def test_a_finished_run_trains_nothing_says_so_and_gives_the_whole_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = make(metrics=["accuracy", "confusion"])
    rows = fit(first, tmp_path / "run", TEST).rows
    assert {"train/loss", "val/accuracy", "test/loss", "test/confusion"} <= rows[-1].keys()
    before = contents(tmp_path / "run" / "checkpoints"), (tmp_path / "run" / "metrics.jsonl").read_bytes()
    for _ in range(2):
        second, modes = make(seed=1, metrics=["accuracy", "confusion"]), list[bool]()
        second.model.register_forward_pre_hook(lambda model, _, modes=modes: modes.append(model.training))
        history = fit(second, tmp_path / "run", TEST, progress="plain")
        assert (history.rows, history.stopped) == (rows, "2 epochs reached")
        assert True not in modes
        assert same(second.model, first.model)
        told = capsys.readouterr().err
        assert "going on from step 10" in told
        assert "nothing left to train: 2 epochs reached" in told
    assert (contents(tmp_path / "run" / "checkpoints"), (tmp_path / "run" / "metrics.jsonl").read_bytes()) == before


def test_a_run_that_was_left_at_its_last_step_is_tested_when_it_is_gone_on_with(tmp_path: Path) -> None:
    whole = fit(make(), None, TEST)
    left_at(tmp_path / "run", 10)
    assert fit(make(seed=1), tmp_path / "run", TEST).rows == whole.rows
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 10]
    assert lines[-1]["test/loss"] == whole.last["test/loss"]
    assert "train/loss" not in lines[-1]


@pytest.mark.parametrize(("restore", "schedule"), each([None, False, True], ["by step", "constant"]))
def test_a_run_that_is_made_longer_is_the_run_that_was_long_from_the_start(
    restore: bool | None, schedule: str, tmp_path: Path
) -> None:
    def trainer(seed: int = 0) -> hr.Trainer:
        step = hr.Schedule(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), every="1 step")
        return make(seed, rate=0.3, schedule=None if schedule == "constant" else step)

    def watching() -> list[hr.Callback]:
        return [] if restore is None else [hr.EarlyStopping(patience=50, restore_best=restore)]

    whole, parts = trainer(), [trainer(seed) for seed in range(3)]
    expected = fit(whole, tmp_path / "whole", epochs=7, callbacks=watching(), keep="all")
    for part, epochs in zip(parts, (2, 3, 7), strict=True):
        found = fit(part, tmp_path / "parts", epochs=epochs, callbacks=watching(), keep="all")
        losses = found["val/loss"]
        step = 5 * (1 + losses.index(min(losses))) if restore else 5 * epochs
        assert same(saved_weights(tmp_path / "parts", step), part.model)
    assert found.rows == expected.rows
    assert same(parts[-1].model, whole.model)
    assert same(*(saved_weights(tmp_path / name, 35) for name in ("whole", "parts")))


@pytest.fixture
def threads() -> Iterator[int]:
    """How many there are; a test may change it."""
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


def test_a_run_that_goes_on_with_other_threads_says_so_once(tmp_path: Path, threads: int) -> None:
    left_at(tmp_path / "run", 3)
    left_at(tmp_path / "run", 5)  # as before: not a word
    torch.set_num_threads(threads + 1)
    with pytest.warns(UserWarning, match="run was saved with") as told:
        left_at(tmp_path / "run", 7)
    (text,) = [str(each.message) for each in told]
    assert f"with threads {threads} (now {threads + 1}): it goes on, but perhaps not bit for bit" in text
    left_at(tmp_path / "run", 9)  # it was saved with as many


def test_reports_after_the_last_checkpoint_stay_until_the_training_goes_on(tmp_path: Path) -> None:
    def killed(info: hr.Info) -> None:
        if info.step == 4:
            raise KeyError("killed")

    reports = tmp_path / "run" / "metrics.jsonl"
    options: dict[str, Any] = {"epochs": None, "steps": 8, "log_every": "1 step", "every": "9 epochs"}
    for error, hook in (
        (KeyError, hr.Lambda(on_step_end=killed)),
        (ZeroDivisionError, hr.Lambda(on_fit_start=refuses)),
    ):
        with pytest.raises(error):
            fit(make(), tmp_path / "run", callbacks=[hook], **options)
        assert len(reports.read_text().splitlines()) == 3
    fit(make(), tmp_path / "run", **options)
    assert len(reports.read_text().splitlines()) == 8


def test_minutes_count_on_from_where_they_were(tmp_path: Path) -> None:
    fit(make(), tmp_path / "run", epochs=1, minutes=1e6)
    before = [info.counters.minutes for info in make().steps(DATA, VAL, run=tmp_path / "run", epochs=2, minutes=1e6)]
    assert before == sorted(before)
    store = Store(tmp_path / "run" / "checkpoints", None)
    minutes = [store.load(step).documents["trainer.json"]["counters"]["minutes"] for step in store.steps()]
    assert minutes == sorted(minutes)
    assert minutes[1] < before[0]
    history = fit(make(seed=1), tmp_path / "run", minutes=minutes[-1] / 2, epochs=9)
    assert (history.last["step"], history.stopped) == (10, f"{hr.Length(minutes[-1] / 2, 'minutes')} reached")
