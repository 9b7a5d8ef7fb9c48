"""Updates of `fit` that nobody looks at are made in one go, from a tape, with the weights, numbers and errors of a loop
of steps, and of one without a tape."""

import math
import threading
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from kit import small
from kit.sampled import nightly
from kit.small import data, difference, same, state
from torch import nn

import headrace as hr
from headrace.step.passes import Replay
from headrace.step.tape import tapes
from headrace.step.update import Made

ROWS, BATCH = 400, 8
X, Y = DATA = data(ROWS)


class Counted:
    """How many replays were made in one go with the one before, and how many alone, since code of the user's ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made, self.after = 0, lambda: None
        call: Any = Made.__call__

        def counted(made: Made, batch: hr.Batch) -> Any:
            outcome, again = call(made, batch), hasattr(made, "was_made")
            if isinstance(made._pass, Replay) and outcome is not None:
                self.made += again
                made.was_made = True  # type: ignore[attr-defined]
            self.after()  # type: ignore[no-untyped-call]
            return outcome

        monkeypatch.setattr(Made, "__call__", counted)
        monkeypatch.setattr(tapes, "GAIN", math.inf)  # however busy the machine is
        monkeypatch.setattr(tapes, "SHARE", math.inf)
        monkeypatch.setattr("headrace.train.loop.AT_ONCE_S", math.inf)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def make(normalised: bool = False, **options: Any) -> hr.Trainer:
    model = small.model(norm=normalised, dropout=0.2 * normalised)
    adam = partial(torch.optim.Adam, lr=1e-2)
    return small.trainer(model, **{"loss": nn.CrossEntropyLoss(), "optimizer": adam, "batch_size": BATCH, **options})


def trained(trainer: hr.Trainer, driven: bool, data: Any = DATA, **options: Any) -> Any:
    """Weights and reports of a training."""
    torch.manual_seed(7)
    (small.drive if driven else small.fit)(trainer, data, **{"epochs": 3, **options})
    return state([trainer.model, trainer.history.rows, trainer.skipped])


STEPS = hr.Schedule(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9), every="9 steps")
BY_SAMPLES = {"log_every": "100 samples", "val": DATA, "validate_every": "13 steps"}
IGNORED = Y.clone()
IGNORED[torch.arange(0, ROWS, 5)] = -100
IGNORED[200:216] = -100
IGNORED[300:] = Y[300:]
WEIGHED = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 3.0]))
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {  # of the trainer, of `fit`, and how many at least
    "as it is": ({}, {}, 100),
    "statistics and random numbers": ({"normalised": True}, {}, 100),
    "clipped by norm": ({"clip_norm": 0.1}, {}, 100),
    "clipped by value": ({"clip_value": 0.01}, {}, 100),
    "momentum": ({"optimizer": small.momentum}, {}, 100),
    "an optimizer whose step is torch's": ({"optimizer": torch.optim.Adadelta}, {}, 100),
    "with metrics": ({"metrics": ["accuracy"]}, {}, 100),
    "rates by progress": ({"schedule": hr.Cosine()}, {}, 100),
    "rates by lengths": ({"schedule": {0: 1e-2, "11 steps": 1e-3, "900 samples": 1e-4}}, {}, 100),
    "a scheduler of torch": ({"schedule": STEPS}, {}, 90),
    "in bfloat16": ({"precision": "bf16"}, {}, 100),
    "growing batches": ({"batch_size": {0: 8, "1 epoch": 16}}, {}, 60),
    "small macrobatches": ({"macrobatch": 16}, {}, 60),
    "rows in order": ({"order": "none"}, {}, 100),
    "reported every so many steps": ({}, {"log_every": "7 steps"}, 90),
    "reported every so many samples": ({}, BY_SAMPLES, 90),
    "until a step": ({}, {"epochs": None, "steps": 77}, 50),
    "until a sample": ({}, {"epochs": None, "samples": 777}, 60),
    "with a short last batch": ({"batch_size": 7}, {}, 100),
    "microbatches of two sizes": ({"microbatch": 3, "tape": True}, {}, 0),
    "three microbatches": ({"microbatch": 3, "batch_size": 9, "tape": True}, {}, 0),
    "four microbatches": ({"microbatch": 2, "tape": True}, {}, 0),
    "without a tape": ({"tape": False}, {}, 0),
    "without vectors": ({"arena": False}, {}, 0),
    "two terms": ({"loss": hr.CrossEntropy() + hr.L2Prior(0.1)}, {}, 100),
    "class weights": ({"loss": WEIGHED}, {}, 100),
    "class weights in microbatches": ({"loss": WEIGHED, "microbatch": 3, "tape": True}, {}, 0),
    "smoothed labels": ({"loss": hr.CrossEntropy(label_smoothing=0.1)}, {}, 100),
    "weights of rows": ({"loss": hr.CrossEntropy(weight="w")}, {"data": {"x": X, "y": Y, "w": X[:, 0].abs()}}, 100),
    "ignored labels, some batches of no others": ({"order": "none"}, {"data": (X, IGNORED)}, 100),
    "ignored labels in some macrobatches only": ({"order": "none", "macrobatch": 24}, {"data": (X, IGNORED)}, 40),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_bits_and_reports_are_those_of_a_loop_of_steps(way: str, counted: Counted) -> None:
    """Of one without a tape; and half of them, nightly all, of one with it, too."""
    trainer_options, options, least = WAYS[way]
    torchs = trained(make(**{**trainer_options, "tape": False}), driven=True, **options)
    if list(WAYS).index(way) % 2 == 0 or nightly(way):
        replayed = trained(make(**trainer_options), driven=True, **options)
        assert not (where := difference(replayed, torchs)), where
        assert counted.made == 0, "whoever drives the loop sees every step"
    found = trained(make(**trainer_options), driven=False, **options)
    assert not (where := difference(found, torchs)), where
    assert counted.made >= least if least else counted.made == 0


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
def test_a_loss_that_is_not_finite_is_found_at_its_step(nonfinite: str, normalised: bool, counted: Counted) -> None:
    bad = X.clone()
    bad[333] = torch.nan
    ends = []
    for driven in (True, False):
        trainer = make(normalised, nonfinite=nonfinite, order="none")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if nonfinite == "skip":
                ends.append(trained(trainer, driven, (bad, Y)))
                continue
            with pytest.raises(hr.NonFiniteError) as error:
                trained(trainer, driven, (bad, Y), epochs=9)
        ends.append(state([trainer.model, trainer.history.rows, torch.get_rng_state(), str(error.value)]))
    assert same(*ends)
    assert counted.made > 20


class Watches(hr.Callback):
    """Notes the steps at which it is called."""

    def __init__(self, each_step: bool) -> None:
        self.each_step = each_step
        self.seen: list[int] = []

    def on_step_end(self, info: hr.Info) -> None:
        self.seen.append(info.step)


def test_a_callback_is_called_after_every_update_unless_it_says_otherwise(counted: Counted) -> None:
    every, some = Watches(True), Watches(False)
    trained(make(), False, callbacks=[every])
    assert every.seen == list(range(1, 151))
    assert counted.made == 0
    trained(make(), False, callbacks=[some])
    assert counted.made > 100
    assert some.seen == sorted(set(some.seen))
    assert {50, 100, 150} <= set(some.seen)
    assert len(some.seen) < 50


def test_a_stop_that_is_asked_for_between_two_updates_is_made_there(tmp_path: Any, counted: Counted) -> None:
    expected = trained(make(True), True)
    trainer, asks = make(True), threading.Event()

    def after() -> None:
        if counted.made == 60:
            trainer.preempt()
            asks.set()

    counted.after = after
    with pytest.raises(SystemExit):
        trained(trainer, False, run=tmp_path / "run")
    assert asks.is_set()
    assert counted.made == 60
    assert same(trained(make(True), False, run=tmp_path / "run"), expected)
