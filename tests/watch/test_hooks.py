"""Where a user may take part: callbacks, a Trainer of one's own, and what may change between two steps."""

import inspect
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit import small
from kit.sampled import sampled
from kit.small import BATCH, ROWS, same
from torch import Tensor, nn

import headrace as hr

X, Y = DATA = small.data()


def raw_loop(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int) -> Any:
    """The loop by hand; whoever iterates may change things between two updates."""
    order, step = hr.Order(ROWS, seed=0), 0
    for epoch in range(epochs):
        for rows in torch.from_numpy(order.indices(epoch, 0, ROWS)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(X[rows]), Y[rows]).backward()
            optimizer.step()
            step += 1
            yield step


class Recorder(hr.Callback):
    """Writes down every hook; asks to stop, or raises, where it is told to."""

    def __init__(self, stop_at: str = "", raise_at: str = "", error: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self.given: list[Any] = []
        self._stop_at, self._raise_at, self._error = stop_at, raise_at, error

    def _note(self, hook: str, info: hr.Info, *more: Any) -> None:
        self.calls.append(f"{hook} {info.step}")
        self.given += more
        if self.calls[-1] == self._stop_at:
            info.stop("asked to")
        if self.calls[-1] == self._raise_at:
            raise self._error or KeyError("on purpose")

    def on_fit_start(self, info: hr.Info) -> None:
        self._note("fit", info)

    def on_epoch_start(self, info: hr.Info) -> None:
        self._note("epoch", info)

    def on_step_end(self, info: hr.Info) -> None:
        self._note("step", info)

    def on_macrobatch_end(self, info: hr.Info) -> None:
        self._note("macrobatch", info)

    def on_validation_end(self, info: hr.Info, scores: dict[str, Any]) -> None:
        self._note("validated", info, dict(scores))

    def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
        self._note("epoch over", info, dict(row))

    def on_error(self, info: hr.Info, error: BaseException) -> None:
        self._note("error", info, error)

    def on_fit_end(self, info: hr.Info) -> None:
        self._note("fit over", info)


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


def test_several_callbacks_are_called_in_the_order_given_and_see_the_model_in_training() -> None:
    calls: list[tuple[str, bool]] = []

    class Named(hr.Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_step_end(self, info: hr.Info) -> None:
            calls.append((self.name, info.trainer.model.training))

    small.trainer().fit(DATA, steps=2, progress=False, callbacks=[Named("a"), Named("b")])
    assert calls == [("a", True), ("b", True)] * 2


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


ERRORS = [KeyError("on purpose"), KeyboardInterrupt(), SystemExit(3)]


PLACES = ["fit 0", "epoch 4", "step 3", "macrobatch 4", "validated 4", "epoch over 4"]


@pytest.mark.parametrize(
    ("at", "error"),
    sampled(product(PLACES, ERRORS), keep=[*zip(PLACES, ERRORS * 2, strict=True)], of=4),
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
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


def test_an_error_of_the_data_reaches_on_error_too() -> None:
    seen = Recorder()
    with pytest.raises(hr.DataError):
        small.trainer().fit((X, Y + 1), epochs=1, progress=False, callbacks=[seen])
    assert seen.calls == ["fit 0", "epoch 0", "error 0"]


class Mixup(hr.Trainer):
    """Every row is mixed with the one that comes as far from the end."""

    def train_step(self, batch: hr.Batch) -> Any:
        x = 0.7 * batch["x"] + 0.3 * batch["x"].flip(0)
        return super().train_step(hr.Batch({"x": x, "y": batch["y"]}))


def test_a_train_step_may_change_the_batch_and_call_the_original() -> None:
    trainer, raw = small.trainer(kind=Mixup), small.model()
    optimizer = small.momentum(raw)
    history = trainer.fit(DATA, epochs=2, progress=False)
    for epoch in range(2):
        for rows in torch.from_numpy(hr.Order(ROWS, seed=0).indices(epoch, 0, ROWS)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(raw(0.7 * X[rows] + 0.3 * X[rows].flip(0)), Y[rows]).backward()
            optimizer.step()
    assert same(trainer.model, raw)
    assert history["train/loss"][1] < history["train/loss"][0]


class Own(hr.Trainer):
    """An update that is wholly its own."""

    def train_step(self, batch: hr.Batch) -> dict[str, Tensor]:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch["x"]), batch["y"])
        loss.backward()
        self.optimizer.step()
        return {"total_loss": loss, "own": loss}


def test_a_train_step_may_be_an_update_of_its_own() -> None:
    trainer, raw = small.trainer(kind=Own, arena=False), small.model()
    history = trainer.fit(DATA, DATA, epochs=3, progress=False)
    list(raw_loop(raw, small.momentum(raw), epochs=3))
    assert {"train/loss", "train/loss/own", "val/loss"} <= history.last.keys()
    assert not same(trainer.model, small.model())
    assert same(trainer.model, raw)


def test_an_own_train_step_serves_step_as_well() -> None:
    trainer = small.trainer(kind=Own, arena=False)
    losses = [float(trainer.step(DATA)["own"]) for _ in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("result", [None, 3.0, torch.tensor(1.0)])
def test_a_train_step_that_returns_something_else_is_told_so(result: Any) -> None:
    class Returns(hr.Trainer):
        def train_step(self, batch: hr.Batch) -> Any:
            return result

    with pytest.raises(hr.ConfigError, match=f"train_step.*{type(result).__name__}"):
        small.trainer(kind=Returns).fit(DATA, epochs=1, progress=False)


def test_an_evaluate_step_may_change_the_batch() -> None:
    class Halved(hr.Trainer):
        def evaluate_step(self, batch: hr.Batch) -> Any:
            return super().evaluate_step(hr.Batch({"x": batch["x"] / 2, "y": batch["y"]}))

    expected = small.trainer(metrics=["accuracy"]).validate((X / 2, Y))
    assert small.trainer(kind=Halved, metrics=["accuracy"]).validate(DATA) == pytest.approx(expected)


def test_an_evaluate_step_may_return_losses_by_name() -> None:
    class Named(hr.Trainer):
        def evaluate_step(self, batch: hr.Batch) -> Any:
            return {"rows": torch.tensor(float(batch.rows))}

    assert small.trainer(kind=Named).validate((X[:32], Y[:32]))["val/loss/rows"] == 16.0


def change_rate(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["lr"] = 0.01


def change_momentum(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["momentum"] = 0.5


def change_decay(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1


def freeze(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    model[0].requires_grad_(False)


def write(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    with torch.no_grad():
        model[0].weight.mul_(0.5)


@pytest.mark.parametrize("change", [change_rate, change_momentum, change_decay, freeze, write])
def test_what_is_changed_between_two_steps_takes_effect_in_the_next(change: Any) -> None:
    trainer, raw, still = small.trainer(), small.model(), small.model()
    optimizer = small.momentum(raw)
    for info in trainer.steps(DATA, epochs=2):
        if info.step == 3:
            change(trainer.optimizer, trainer.model)
    for step in raw_loop(raw, optimizer, epochs=2):
        if step == 3:
            change(optimizer, raw)
    assert same(trainer.model, raw)
    list(raw_loop(still, small.momentum(still), epochs=2))
    assert not same(trainer.model, still)
    assert change is not change_rate or info.rate == 0.01


LIVE: dict[str, Any] = {"clip_norm": 0.01, "clip_value": 0.001, "microbatch": 3}


@pytest.mark.parametrize("name", LIVE)
def test_a_setting_that_is_changed_between_two_steps_holds_from_the_next_one_on(name: str) -> None:
    changed, before, after = small.trainer(), small.trainer(), small.trainer(**{name: LIVE[name]})
    for info in changed.steps(DATA, epochs=1):
        if info.step == 1:
            setattr(changed, name, LIVE[name])
    for info in before.steps(DATA, epochs=1):
        if info.step == 1:
            break
    after.model.load_state_dict(before.model.state_dict())
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    order = hr.Order(len(X), seed=0).indices(0, 0, len(X))
    for start in range(BATCH, len(X), BATCH):
        rows = torch.from_numpy(order[start : start + BATCH])
        after.step((X[rows], Y[rows]))
    after.release()
    assert same(changed.model, after.model)
    assert getattr(changed, name) == LIVE[name]
    unchanged = small.trainer()
    unchanged.fit(DATA, epochs=1, progress=False)
    assert not same(changed.model, unchanged.model)


def test_settings_that_were_changed_within_a_training_go_on_with_its_run(tmp_path: Path) -> None:
    def train(run: Path | None, until: int) -> hr.Trainer:
        trainer = small.trainer(clip_norm=1.0)
        for info in trainer.steps(DATA, epochs=2, run=run):
            if info.step == 2:
                trainer.clip_norm, trainer.clip_value, trainer.microbatch = None, 0.001, 3
            if info.step == until:
                break
        return trainer

    train(tmp_path / "run", 3)
    rest, whole = train(tmp_path / "run", 10**6), train(None, 10**6)
    assert same(rest.model, whole.model)
    assert (rest.clip_norm, rest.clip_value, rest.microbatch) == (None, 0.001, 3)


def test_a_setting_that_is_changed_between_two_trainings_is_one_of_the_next_run(tmp_path: Path) -> None:
    trainer = small.trainer()
    trainer.batch_size, trainer.seed, trainer.schedule = 7, 3, hr.Linear()
    trainer.clip_norm, trainer.metrics = 0.5, ["accuracy"]
    other = small.trainer(batch_size=7, seed=3, schedule=hr.Linear(), clip_norm=0.5, metrics=["accuracy"])
    rows = trainer.fit(DATA, epochs=2, progress=False, run=tmp_path / "run").rows
    assert rows == other.fit(DATA, epochs=2, progress=False).rows
    assert same(trainer.model, other.model)
    other.fit(DATA, epochs=2, progress=False, run=tmp_path / "run")
    with pytest.raises(hr.CheckpointError, match="batch_size: 7 in the run, 4 now"):
        small.trainer(batch_size=4).fit(DATA, epochs=2, progress=False, run=tmp_path / "run")


@pytest.mark.parametrize(
    "name",
    [
        *["model", "loss", "optimizer", "precision", "strategy", "device", "inputs", "target", "compile", "nonfinite"],
        *["eval_loss", "arena", "objectives", "optimizers", "eval_objectives"],
    ],
)
def test_what_a_trainer_is_made_with_cannot_be_changed(name: str) -> None:
    with pytest.raises(hr.ConfigError, match=f"{name} is what a trainer is made with"):
        setattr(small.trainer(), name, None)


def test_every_argument_of_a_trainer_can_be_changed_or_is_refused() -> None:
    trainer = small.trainer()
    for name in inspect.signature(hr.Trainer).parameters:
        before = vars(trainer).copy()
        try:
            setattr(trainer, name, getattr(trainer, name, None))
        except hr.ConfigError:
            continue
        assert vars(trainer).keys() == before.keys(), name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("clip_norm", -1.0),
        ("clip_value", "1"),
        ("microbatch", 0),
        ("schedule", 3),
        ("metrics", "no"),
    ],
)
def test_a_value_that_nothing_could_work_with_is_refused_and_the_old_one_stays(name: str, value: Any) -> None:
    trainer = small.trainer()
    before = getattr(trainer, name)
    with pytest.raises(hr.ConfigError):
        setattr(trainer, name, value)
    assert getattr(trainer, name) is before


@pytest.mark.parametrize(
    "name", ["batch_size", "schedule", "metrics", "seed", "order", "macrobatch", "deterministic", "augment"]
)
def test_what_holds_for_a_whole_training_cannot_be_changed_within_one(name: str) -> None:
    trainer = small.trainer()
    for info in trainer.steps(DATA, epochs=1):
        if info.step == 2:
            with pytest.raises(hr.ConfigError, match=f"{name} cannot be changed while a training is under way"):
                setattr(trainer, name, getattr(trainer, name))
    setattr(trainer, name, getattr(trainer, name))


def test_the_coefficient_of_a_prior_may_be_changed_between_two_steps() -> None:
    prior = hr.L2Prior(0.5)
    trainer, raw = small.trainer(loss=hr.CrossEntropy() + prior), small.model()
    optimizer = small.momentum(raw)
    totals = []
    for coefficient in (0.5, 0.0, 0.2):
        prior.coefficient = coefficient
        losses = trainer.step(DATA)
        totals.append(float(losses["total_loss"] - losses["cross_entropy"]) - float(losses["l2_prior"]))
        optimizer.zero_grad()
        weights = torch.cat([p.flatten() for p in raw.parameters() if p.dim() > 1])
        (F.cross_entropy(raw(X), Y) + coefficient * 0.5 * weights @ weights).backward()
        optimizer.step()
    trainer.release()
    torch.testing.assert_close(trainer.model.state_dict(), raw.state_dict())
    assert totals == pytest.approx([0.0] * 3, abs=1e-6)
