"""Where a user may take part: callbacks, a Trainer of one's own, and what may change between two steps."""

import inspect
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit import small
from kit.small import BATCH, ROWS, same
from torch import nn

import headrace as hr

X, Y = DATA = small.data()


HOOKS = {
    "on_fit_start": "fit",
    "on_epoch_start": "epoch",
    "on_step_end": "step",
    "on_macrobatch_end": "macrobatch",
    "on_validation_end": "validated",
    "on_epoch_end": "epoch over",
    "on_error": "error",
    "on_fit_end": "fit over",
}


class Recorder(hr.Callback):
    """Writes down every hook; asks to stop, or raises, where it is told to."""

    def __init__(self, stop_at: str = "", raise_at: str = "", error: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self.given: list[Any] = []
        self._stop_at, self._raise_at, self._error = stop_at, raise_at, error
        for hook, name in HOOKS.items():
            setattr(self, hook, partial(self._note, name))

    def _note(self, hook: str, info: hr.Info, *more: Any) -> None:
        self.calls.append(f"{hook} {info.step}")
        self.given += more
        if self.calls[-1] == self._stop_at:
            info.stop("asked to")
        if self.calls[-1] == self._raise_at:
            raise self._error or KeyError("on purpose")


def test_hooks_are_called_in_a_fixed_order() -> None:
    seen, trainer = Recorder(), small.trainer(macrobatch=2 * BATCH)
    history = trainer.fit(DATA, DATA, DATA, epochs=2, progress=False, callbacks=[seen])
    epoch = ["epoch {}", "step {}", "step {}", "macrobatch {}", "step {}", "step {}", "macrobatch {}"]
    first = [text.format(n) for text, n in zip(epoch, (0, 1, 2, 2, 3, 4, 4), strict=True)]
    second = [text.format(n) for text, n in zip(epoch, (4, 5, 6, 6, 7, 8, 8), strict=True)]
    assert seen.calls == [
        "fit 0",
        *first,
        "validated 4",
        "epoch over 4",
        *second,
        "validated 8",
        "epoch over 8",
        "validated 8",
        "fit over 8",
    ]
    scores, row, *_, test = seen.given
    assert scores.keys() == {"val/loss", "val/loss/cross_entropy"}
    assert test.keys() == {"test/loss", "test/loss/cross_entropy"}
    assert row == history[0]
    assert {"epoch", "step", "samples", "rate", "train/loss", "val/loss"} <= row.keys()


@pytest.mark.parametrize(
    ("at", "steps"), [("fit 0", 0), ("epoch 0", 1), ("step 3", 3), ("macrobatch 2", 2), ("epoch over 4", 4)]
)
def test_a_request_to_stop_ends_the_training_after_the_update_at_hand(at: str, steps: int) -> None:
    seen, trainer = Recorder(stop_at=at), small.trainer(macrobatch=2 * BATCH)
    history = trainer.fit(DATA, DATA, DATA, epochs=3, progress=False, callbacks=[seen])
    assert history.stopped == "asked to"
    assert history.last["step"] == steps
    assert "test/loss" in history.last
    assert steps == 0 or {"train/loss", "val/loss"} <= history.last.keys()
    assert seen.calls[-1] == f"fit over {steps}"
    assert same(trainer.model, small.model()) == (steps == 0)


ERRORS = {
    "fit 0": KeyError("on purpose"),
    "epoch 4": KeyboardInterrupt(),
    "step 3": SystemExit(3),
    "macrobatch 4": KeyError("on purpose"),
    "validated 4": KeyboardInterrupt(),
    "epoch over 4": SystemExit(3),
}


@pytest.mark.parametrize(("at", "error"), ERRORS.items(), ids=ERRORS)
def test_an_exception_reaches_on_error_of_everybody_and_then_the_caller(at: str, error: BaseException) -> None:
    first, failing, last = Recorder(), Recorder(raise_at=at, error=error), Recorder()
    trainer = small.trainer()
    with pytest.raises(type(error)) as caught:
        trainer.fit(DATA, DATA, epochs=3, progress=False, callbacks=[first, failing, last])
    assert caught.value is error
    step = at.split()[-1]
    for seen in (first, failing, last):
        assert seen.calls[-1] == f"error {step}"
        assert seen.given[-1] is error
        assert not any(call.startswith("fit over") for call in seen.calls)
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in trainer.model.parameters())


# --- a Trainer of one's own ------------------------------------------------------------------------------


class Mixup(hr.Trainer):
    """Every row is mixed with the one that comes as far from the end; scores are of half the numbers."""

    def train_step(self, batch: hr.Batch) -> Any:
        x = 0.7 * batch["x"] + 0.3 * batch["x"].flip(0)
        return super().train_step(hr.Batch({"x": x, "y": batch["y"]}))

    def evaluate_step(self, batch: hr.Batch) -> Any:
        return super().evaluate_step(hr.Batch({"x": batch["x"] / 2, "y": batch["y"]}))


def raw_loop(
    model: nn.Module,
    mixed: float = 0.0,
    epochs: int = 2,
    change: Callable[[torch.optim.Optimizer, nn.Module], object] = lambda optimizer, model: None,
) -> nn.Module:
    """The loop by hand, in which something is changed after the third update; the model."""
    optimizer, order, step = small.momentum(model), hr.Order(ROWS, seed=0), 0
    for epoch in range(epochs):
        for rows in torch.from_numpy(order.indices(epoch, 0, ROWS)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model((1 - mixed) * X[rows] + mixed * X[rows].flip(0)), Y[rows]).backward()
            optimizer.step()
            step += 1
            if step == 3:
                change(optimizer, model)
    return model


def test_a_step_of_ones_own_may_change_the_batch_and_call_the_original() -> None:
    trainer = small.trainer(kind=Mixup, metrics=["accuracy"])
    expected = small.trainer(metrics=["accuracy"]).validate((X / 2, Y))
    assert trainer.validate(DATA) == pytest.approx(expected)
    trainer.fit(DATA, epochs=2, progress=False)
    assert same(trainer.model, raw_loop(small.model(), mixed=0.3))


@pytest.mark.parametrize("result", [None, 3.0, torch.tensor(1.0)])
def test_a_train_step_that_returns_something_else_is_told_so(result: Any) -> None:
    class Returns(hr.Trainer):
        def train_step(self, batch: hr.Batch) -> Any:
            return result

    with pytest.raises(hr.ConfigError, match=f"train_step.*{type(result).__name__}"):
        small.trainer(kind=Returns).fit(DATA, epochs=1, progress=False)


# --- what may change -------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[torch.optim.Optimizer, Any], object]] = {
    "rate": lambda optimizer, model: optimizer.param_groups[0].update(lr=0.01),
    "momentum": lambda optimizer, model: optimizer.param_groups[0].update(momentum=0.5),
    "decay": lambda optimizer, model: optimizer.param_groups[0].update(weight_decay=0.1),
    "frozen": lambda optimizer, model: model[0].requires_grad_(False),
    "weights": lambda optimizer, model: model[0].weight.data.mul_(0.5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_changed_between_two_steps_takes_effect_in_the_next(change: Any) -> None:
    trainer = small.trainer()
    for info in trainer.steps(DATA, epochs=2):
        if info.step == 3:
            change(trainer.optimizer, trainer.model)
    assert same(trainer.model, raw_loop(small.model(), change=change))
    assert not same(trainer.model, raw_loop(small.model()))
    assert info.rate == trainer.optimizer.param_groups[0]["lr"]


def test_settings_that_were_changed_within_a_training_hold_from_then_on_and_go_on_with_its_run(tmp_path: Path) -> None:
    def train(run: Path | None, until: int, change: bool = True) -> hr.Trainer:
        trainer = small.trainer(clip_norm=1.0)
        for info in trainer.steps(DATA, epochs=2, run=run):
            if info.step == 2 and change:
                trainer.clip_norm, trainer.clip_value, trainer.microbatch = None, 0.001, 3
            if info.step == until:
                break
        return trainer

    train(tmp_path / "run", 3)
    rest, whole = train(tmp_path / "run", 10**6), train(None, 10**6)
    assert same(rest.model, whole.model)
    assert (rest.clip_norm, rest.clip_value, rest.microbatch) == (None, 0.001, 3)
    before = train(None, 2, change=False)
    by_steps = small.trainer(clip_value=0.001, microbatch=3)
    by_steps.model.load_state_dict(before.model.state_dict())
    by_steps.optimizer.load_state_dict(before.optimizer.state_dict())
    order = hr.Order(ROWS, seed=0)
    for rows in [*torch.from_numpy(order.indices(0, 0, ROWS)).split(BATCH)][2:]:
        by_steps.step((X[rows], Y[rows]))
    by_steps.release()
    assert same(by_steps.model, train(None, 4).model)


def test_a_setting_that_is_changed_between_two_trainings_is_one_of_the_next_run(tmp_path: Path) -> None:
    trainer = small.trainer()
    trainer.batch_size, trainer.seed, trainer.schedule = 7, 3, hr.Linear()
    trainer.clip_norm, trainer.metrics = 0.5, ["accuracy"]
    other = small.trainer(batch_size=7, seed=3, schedule=hr.Linear(), clip_norm=0.5, metrics=["accuracy"])
    rows = trainer.fit(DATA, epochs=2, progress=False, run=tmp_path / "run").rows
    assert rows == other.fit(DATA, epochs=2, progress=False).rows
    assert same(trainer.model, other.model)
    with pytest.raises(hr.CheckpointError, match="batch_size: 7 in the run, 4 now"):
        small.trainer(batch_size=4).fit(DATA, epochs=2, progress=False, run=tmp_path / "run")


MADE_WITH = "model loss optimizer precision strategy device inputs target compile nonfinite eval_loss arena objectives"
OF_A_TRAINING = "batch_size schedule metrics seed order macrobatch deterministic augment"
BAD = {"batch_size": 0, "clip_norm": -1.0, "clip_value": "1", "microbatch": 0, "schedule": 3, "metrics": "no"}


def test_what_cannot_be_changed_now_or_at_all_or_to_this_is_refused() -> None:
    trainer = small.trainer()
    for name in MADE_WITH.split():
        with pytest.raises(hr.ConfigError, match=f"{name} is what a trainer is made with"):
            setattr(trainer, name, None)
    for name, value in BAD.items():
        before = getattr(trainer, name)
        with pytest.raises(hr.ConfigError):
            setattr(trainer, name, value)
        assert getattr(trainer, name) is before
    for info in trainer.steps(DATA, epochs=1):
        if info.step == 2:
            for name in OF_A_TRAINING.split():
                with pytest.raises(hr.ConfigError, match=f"{name} cannot be changed while a training is under way"):
                    setattr(trainer, name, getattr(trainer, name))
    for name in inspect.signature(hr.Trainer).parameters:
        attributes = vars(trainer).keys()
        with suppress(hr.ConfigError):
            setattr(trainer, name, getattr(trainer, name, None))
        assert vars(trainer).keys() == attributes, name
