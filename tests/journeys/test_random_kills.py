"""A training that is killed again and again, at any moment, and started again until it is through."""

import json
import os
import shutil
import signal
from pathlib import Path
from random import Random

import pytest
import torch
from kit import trainees
from kit.forked import hear, start, tell
from kit.sampled import seeds

import headrace as hr
from headrace.app.cli import main
from headrace.store import rng

KILLS = 4  # of a training, if it does not come to its end before


def at_step(info: hr.Info, stays: int) -> None:
    """Tells each step; after one of them, the training stays there until it is killed."""
    tell(f"step {info.step}")
    if info.step == stays:
        hear()


def train(run: str, forgets: bool = False, stays: int = 0) -> None:
    """In a process of its own: the training, from wherever it is to its end. It may forget its random state."""
    if forgets:
        rng.restore = lambda state, device: None
    trainer = trainees.trainer()
    tell("begins")
    trainees.fit(trainer, run, callbacks=[hr.Lambda(on_step_end=lambda info: at_step(info, stays))])
    tell("digest " + trainees.digest(trainer))


def train_by_steps(run: str, dies: bool) -> None:
    """A schedule, reports and validations that count steps; it may die right after its very first checkpoint."""

    class Dies(hr.Callback):
        def on_epoch_start(self, info: hr.Info) -> None:
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)

    rates = hr.Schedule(lambda o: torch.optim.lr_scheduler.StepLR(o, 3, gamma=0.5), every="1 step")
    trainer = trainees.trainer(schedule=rates)
    trainees.fit(trainer, run, validate_every="3 steps", callbacks=[Dies()], wait=True)
    tell("digest " + trainees.digest(trainer))


def lines(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def killed(run: Path, random: Random) -> bool:
    """Kills the training a moment after one of the next updates, or in its beginning; whether there was one to kill."""
    updates = random.randrange(trainees.STEPS // KILLS)
    with start(train, run.parent, run) as child:
        child.until("begins")
        for _ in range(updates):
            if child.line() is None or child.told[-1].startswith("digest"):
                break
        child.wait(random.choice([0.0, random.uniform(0, 0.005), random.uniform(0, 0.05)]))
        child.kill()
        code = child.ending()
        through = any(line.startswith("digest") for line in child.told)
        assert code == -9 or through
        return not through


SEEDS = seeds(2, nightly=40)


@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:])])
def test_a_training_killed_at_any_moment_ends_as_the_one_that_never_was(seed: int, tmp_path: Path) -> None:
    run, random, kills = tmp_path / "run", Random(seed), 0
    for _ in range(20):
        while kills < KILLS and killed(run, random):
            kills += 1
        if kills:
            break
        shutil.rmtree(run)  # on a busy machine, it has come to its end before the first kill
    assert kills > 0, "no kill came while there was a training"
    assert trainees.finished(run) == trainees.reference()
    assert main(["verify", str(run)]) == 0


def test_a_training_that_forgets_its_random_state_would_be_noticed(tmp_path: Path) -> None:
    """The negative control."""
    run = tmp_path / "run"
    with start(train, tmp_path, run, False, 8) as child:
        while not list(run.glob("checkpoints/step-0*5-*/COMMIT")):
            assert not child.wait(0.001), child.output
        child.kill()
        assert child.ending() == -9
    with start(train, tmp_path, run, True) as child:
        assert child.until("digest") != trainees.reference().digest
        assert child.ending() == 0
    assert "going on from step" in (run / "log.txt").read_text()


def test_a_training_killed_before_its_first_update_begins_as_if_it_had_not_been(tmp_path: Path) -> None:
    found = []
    for name, deaths in (("once", [True, False]), ("never", [False])):
        run = tmp_path / name
        for dies in deaths:
            with start(train_by_steps, tmp_path, run, dies) as child:
                if dies:
                    assert child.ending() == -9
                    assert [path.name for path in run.glob("checkpoints/*")] == ["step-000000000000-000001"]
                else:
                    digest = child.until("digest")
                    assert child.ending() == 0
        found.append((digest, lines(run)))
    assert found[0] == found[1]


def test_the_report_has_every_step_that_was_due_once() -> None:
    """What the others are compared with."""
    rows = [json.loads(line) for line in trainees.reference().rows]
    steps = [row["step"] for row in rows]
    due = [step for step in range(1, trainees.STEPS + 1) if step % 2 == 0 or step % trainees.UPDATES == 0]
    assert sorted(set(steps)) == due
    assert [step for step in steps if steps.count(step) > 1] == [trainees.STEPS] * 2, "the test's scores come apart"
    assert all("train/loss" in row or "test/loss" in row for row in rows)


def train_on_a_mixture(run: str, changes: bool, stays: int = 0) -> None:
    """Rows of two tables, whose shares may change twice within the training."""
    rows = trainees.Rows(60).take(torch.arange(60))
    tables = [hr.ArrayTable({name: x[part] for name, x in rows.fields.items()}) for part in (slice(40), slice(40, 60))]
    weights = {0: [9, 1], "7 steps": [1, 1], "18 steps": [1, 3]} if changes else [9, 1]
    mixture = hr.mix(tables, weights, rows=40, batch_size=trainees.BATCH)
    trainer = trainees.trainer()
    trainees.fit(trainer, run, mixture, callbacks=[hr.Lambda(on_step_end=lambda info: at_step(info, stays))])
    tell("digest " + trainees.digest(trainer))


def digest_of(run: Path, changes: bool = True) -> str:
    with start(train_on_a_mixture, run.parent, run, changes) as child:
        child.until("digest")
        assert child.ending() == 0, child.output
        return child.told[-1]


def test_a_training_on_a_mixture_that_changes_goes_on_after_kills(tmp_path: Path) -> None:
    for step in (3, 6, 9, 17, 22):
        with start(train_on_a_mixture, tmp_path, tmp_path / "killed", True, step) as child:
            child.until(f"step {step}")
            child.kill()
            assert child.ending() == -9
    expected = digest_of(tmp_path / "undisturbed")
    assert digest_of(tmp_path / "killed") == expected
    assert digest_of(tmp_path / "constant", changes=False) != expected, "the control"
