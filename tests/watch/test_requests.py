"""What callbacks ask for: rates, frozen parameters, numbers in the report; and the callbacks that do."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small
from kit.small import state as snapshot
from kit.small import stop_and_resume
from torch import Tensor, nn

import headrace as hr
from headrace.workers.here import here

torch.manual_seed(0)
X, Y = torch.randn(200, 6), torch.randint(0, 3, (200,))


def made(**options: Any) -> hr.Trainer:
    model = small.model(norm=True)
    return hr.Trainer(model, hr.CrossEntropy(), small.adam(model), batch_size=20, **options)


def fit(trainer: hr.Trainer, *callbacks: hr.Callback, epochs: int | None = 2, **options: Any) -> hr.Trainer:
    """The trainer, once it has been trained and validated."""
    trainer.fit((X, Y), (X, Y), progress=False, callbacks=callbacks, **{"epochs": epochs, **options})
    return trainer


def changed(before: dict[str, Tensor], now: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], now[name])}


FIRST = {"0.weight", "0.bias"}
ALL = FIRST | {"1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
HEAD = {"3.weight", "3.bias"}


# --- frozen parameters ------------------------------------------------------------------------------------


def changed_in_epochs(trainer: hr.Trainer, *callbacks: hr.Callback, epochs: int) -> list[set[str]]:
    """What each epoch has changed."""
    seen = [snapshot(trainer.model)]
    for info in trainer.steps((X, Y), epochs=epochs, callbacks=callbacks):
        if info.ends_epoch:
            seen.append(snapshot(trainer.model))
    return [changed(*pair) for pair in pairwise(seen)]


def test_frozen_parameters_and_their_statistics_stay_until_all_who_have_frozen_them_thaw_them() -> None:
    found = changed_in_epochs(made(), hr.Freeze("0.*", "1.*", until="2 epochs"), epochs=3)
    assert found == [HEAD, HEAD, HEAD | ALL]
    windows = hr.Freeze("0.*", until="1 epoch"), hr.Freeze("0.*", after="2 epochs")
    found = changed_in_epochs(made(), *windows, epochs=4)
    assert [bool(FIRST & each) for each in found] == [False, True, False, False]
    both = hr.Freeze("0.*", until="1 epoch"), hr.Freeze("0.weight")
    found = changed_in_epochs(made(), *both, epochs=2)
    assert [FIRST & each for each in found] == [set(), {"0.bias"}]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_training_with_frozen_parameters_is_that_of_a_loop_which_takes_their_gradients_away(optimizer: Any) -> None:
    ours, raw = small.model(), small.model()
    trainer = hr.Trainer(ours, hr.CrossEntropy(), optimizer(ours.parameters(), lr=0.1), batch_size=20)
    fit(trainer, hr.Freeze("0.*", after="5 steps", until="15 steps"), epochs=3)
    steps, order, step = optimizer(raw.parameters(), lr=0.1), hr.Order(200, seed=0), 0
    for epoch in range(3):
        for rows in torch.from_numpy(order.indices(epoch, 0, 200)).split(20):
            raw[0].requires_grad_(not 5 <= step < 15)
            steps.zero_grad()
            nn.functional.cross_entropy(raw(X[rows]), Y[rows]).backward()
            steps.step()
            step += 1
    assert not changed(snapshot(ours), snapshot(raw))


def test_what_its_owner_keeps_from_being_trained_stays_so_and_the_rest_is_thawed_at_the_end() -> None:
    trainer = made()
    trainer.model[0].bias.requires_grad_(False)
    fit(trainer, hr.Freeze("0.*"), epochs=1)
    grads = {name: param.requires_grad for name, param in trainer.model.named_parameters()}
    assert [name for name, grad in grads.items() if not grad] == ["0.bias"]
    assert trainer.model[1].training


def test_a_training_with_frozen_parameters_and_rates_that_are_set_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def callbacks() -> list[hr.Callback]:
        return [hr.Freeze("0.*", "1.*", after="5 steps", until="15 steps"), Halving()]

    stop_and_resume(made, [4, 5, 9, 15, 16], tmp_path, (X, Y), (X, Y), callbacks=callbacks, epochs=3)


class SometimesShallow(nn.Module):
    """Leaves layers out of an update at random; those have no gradients then."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.first, self.last = rate, nn.Linear(6, 32), nn.Linear(32, 3)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            if float(torch.rand(())) >= self.rate:
                x = x + torch.tanh(block(x))
        return self.last(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("rate", "frozen", "optimizer"),
    [(0.0, "blocks.1.*", torch.optim.SGD), (0.5, "blocks.2.*", torch.optim.Adam)],
)
def test_a_norm_is_the_same_after_a_resume_whichever_parameters_have_missed_updates(
    rate: float, frozen: str, optimizer: Any, tmp_path: Path
) -> None:
    def make() -> hr.Trainer:
        torch.manual_seed(0)
        model = SometimesShallow(rate)
        made = optimizer(model.parameters(), lr=0.1)
        return hr.Trainer(model, hr.CrossEntropy(), made, batch_size=20, clip_norm=0.05)

    def freezes() -> list[hr.Callback]:
        return [hr.Freeze(frozen, until="8 steps")]

    stop_and_resume(make, range(1, 20), tmp_path, (X, Y), callbacks=freezes, every="1 step", epochs=2)


def test_a_freeze_that_ends_earlier_than_before_ends(tmp_path: Path) -> None:
    before = snapshot(fit(made(), hr.Freeze("0.*", until="10 epochs"), run=tmp_path / "run").model)
    assert not FIRST & changed(snapshot(made().model), before)
    after = snapshot(fit(made(), hr.Freeze("0.*", until="2 epochs"), epochs=3, run=tmp_path / "run").model)
    assert changed(before, after) >= FIRST


@pytest.mark.parametrize(
    "options", [{}, {"clip_norm": 0.1}, {"clip_value": 0.1}, {"precision": "fp16"}, {"arena": False}], ids=str
)
def test_all_parameters_of_one_of_several_optimizers_may_be_frozen(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    chain = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    optimizers = {key: torch.optim.SGD(part.parameters(), lr=0.1) for key, part in zip("ab", chain, strict=True)}
    before = snapshot(chain)
    losses = {key: hr.CrossEntropy() for key in "ab"}
    fit(hr.Trainer(chain, losses, optimizers, batch_size=20, **options), hr.Freeze("0.*"), epochs=1)
    assert changed(before, snapshot(chain)) == {"1.weight", "1.bias"}


def test_only_layers_that_measure_rest_while_they_are_frozen() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.norm, self.head = nn.Parameter(torch.ones(1)), nn.BatchNorm1d(6), nn.Linear(6, 3)
            self.modes: set[tuple[bool, bool]] = set()

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.modes.add((self.training, self.norm.training))
            return self.head(self.norm(x) * self.scale)  # type: ignore[no-any-return]

    model = Model()
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=50)
    fit(trainer, hr.Freeze("scale", "norm.*"), epochs=1)
    assert model.modes == {(True, False)}


# --- rates and numbers ------------------------------------------------------------------------------------


class Halving(hr.Callback):
    def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
        info.set_rate(info.rate / 2)


def test_a_rate_that_is_asked_for_is_that_of_the_next_update_and_groups_keep_their_ratios() -> None:
    trainer = fit(made(), Halving(), epochs=3)
    assert trainer.history["rate"] == [2e-2, 1e-2, 5e-3]
    assert trainer.optimizer.param_groups[0]["lr"] == 2.5e-3
    with pytest.raises(hr.ConfigError, match="schedule"):
        fit(made(schedule=hr.Cosine()), Halving())
    model = made().model
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].parameters(), "lr": 0.01}]
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(groups), batch_size=20)
    rates = {1: 0.0, 2: 0.2}
    fit(trainer, hr.Lambda(on_step_end=lambda info: info.step in rates and info.set_rate(rates[info.step])))
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx([0.2, 0.02])


def test_a_row_has_the_rate_of_its_update_whatever_it_is_made_for() -> None:
    trainer = made(schedule=hr.Schedule(lambda optimizer, total: torch.optim.lr_scheduler.StepLR(optimizer, 1)))
    notes = hr.Lambda(on_step_end=lambda info: info.ends_epoch and info.log({"note": 1.0}))
    fit(trainer, notes, epochs=3, log_every="3 epochs")
    assert trainer.history["rate"] == pytest.approx([2e-2, 2e-3, 2e-4])


def test_what_is_asked_for_between_updates_is_so_for_the_next() -> None:
    trainer = made()
    for info in trainer.steps((X, Y), steps=4):
        if info.step == 2:
            before = snapshot(trainer.model)
            info.freeze("0.*")
            info.log({"own/number": 7.0})
    assert changed(before, snapshot(trainer.model)) == (ALL | HEAD) - FIRST
    assert [row["step"] for row in trainer.history if "own/number" in row] == [2]


class Telling(hr.Callback):
    """Adds numbers at several hooks, and hears what is reported."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []

    def on_step_end(self, info: hr.Info) -> None:
        if info.step % 4 == 0:
            info.log({"own/step": info.step})

    def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
        info.log({"own/epoch": torch.tensor(info.epoch)})  # type: ignore[dict-item]

    def on_report(self, info: hr.Info, row: dict[str, Any]) -> None:
        self.heard.append(dict(row))


def test_numbers_that_are_logged_stand_in_the_report_once(tmp_path: Path) -> None:
    trainer, telling = made(), Telling()
    trainer.fit((X, Y), (X, Y), (X, Y), epochs=2, progress=False, callbacks=[telling, hr.Timer()], run=tmp_path)
    assert trainer.history["own/step"] == [4, 8, 12, 16, 20]
    assert trainer.history["own/epoch"] == [1, 2]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == telling.heard
    assert [row["step"] for row in rows] == [4, 8, 10, 12, 16, 20, 20]
    counters = {"epoch", "step", "samples", "rate"}
    assert rows[-1].keys() == {*counters, "test/loss", "test/loss/cross_entropy", "time/test_s"}
    times = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert [when["step"] for when in times] == [row["step"] for row in rows]
    assert sorted(when["minutes"] for when in times) == [when["minutes"] for when in times]


def test_reports_are_heard_once_each_however_a_training_is_interrupted(tmp_path: Path) -> None:
    whole, parts = Telling(), Telling()
    fit(made(), whole, run=tmp_path / "whole")
    for stop in (4, 10, 11, 0):
        for info in made().steps((X, Y), (X, Y), epochs=2, callbacks=[parts], run=tmp_path / "parts"):
            if info.step == stop:
                break
    assert parts.heard == whole.heard


@pytest.mark.parametrize("who", [1, 0])
def test_workers_that_are_asked_to_end_within_an_epoch_report_it_once_and_whole(who: int, tmp_path: Path) -> None:
    def main(run: Path | None, ask: int) -> list[dict[str, Any]]:
        trainer = made()
        trainer.batch_size = 4  # updates enough for word to get around within an epoch
        asks = hr.Lambda(
            on_step_end=lambda info: trainer.preempt() if (info.step, here().shard.index) == (ask, who) else None
        )
        return fit(trainer, asks, run=run).history.rows

    whole = hr.launch(main, None, 0, workers=2)
    with pytest.raises(SystemExit):
        hr.launch(main, tmp_path / "run", 12, workers=2)
    assert hr.launch(main, tmp_path / "run", 0, workers=2) == whole


# --- who asks ---------------------------------------------------------------------------------------------


def test_who_is_not_there_any_more_has_no_say_after_a_resume(tmp_path: Path) -> None:
    first = fit(made(), hr.Freeze("0.*"), hr.BestModel("val/loss", restore=True), epochs=1, run=tmp_path / "run")
    with pytest.warns(UserWarning, match="BestModel that is not there now"):
        rest = fit(made(), epochs=3, run=tmp_path / "run")
    assert rest.history.marked is None
    assert rest.validate((X, Y))["val/loss"] == rest.history["val/loss"][-1]
    assert changed(snapshot(first.model), snapshot(rest.model)) >= FIRST


def test_another_number_to_look_at_begins_anew_after_a_resume(tmp_path: Path) -> None:
    def best_by(monitor: str, epochs: int) -> hr.Trainer:
        trainer = made(metrics=["accuracy"])
        return fit(trainer, hr.BestModel(monitor, restore=True), epochs=epochs, run=tmp_path / "run")

    best_by("val/loss", 2)
    rest = best_by("val/accuracy", 5)
    assert rest.history.marked is not None
    assert rest.history.marked > 20
    later = [row["val/accuracy"] for row in rest.history if row["step"] > 20]
    assert rest.validate((X, Y))["val/accuracy"] == max(later)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_training_that_was_stopped_early_has_nothing_left_to_train(workers: int, tmp_path: Path) -> None:
    def main() -> list[int]:
        stopping = hr.EarlyStopping("val/loss", patience=1, min_delta=9.0)
        return fit(made(), stopping, epochs=9, run=tmp_path / "run").history["step"]  # type: ignore[no-any-return]

    first = hr.launch(main, workers=workers)
    assert first == hr.launch(main, workers=workers) == hr.launch(main, workers=workers)


# --- the norm of gradients --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.01}, {"clip_value": 0.001}, {"microbatch": 7}])
def test_the_norm_of_the_gradients_is_that_before_they_are_clipped(options: dict[str, Any]) -> None:
    model, plain = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=80, order="none", **options)
    fit(trainer, hr.GradientNorm("1 step"), epochs=1)
    expected = []
    for x, y in zip(X.split(80), Y.split(80), strict=True):
        plain.zero_grad()
        torch.nn.functional.cross_entropy(plain(x), y).backward()
        grads = [p.grad for p in plain.parameters() if p.grad is not None]
        expected.append(torch.nn.utils.get_total_norm(grads).item())
    assert trainer.history["gradient_norm"] == pytest.approx(expected, rel=1e-5)
    assert not trainer.updates.measures_norm
    assert "gradient_norm" not in fit(trainer, epochs=1).history.last


def test_the_norm_is_that_of_the_gradients_of_all_workers() -> None:
    def train() -> list[float]:
        return fit(small.trainer(batch_size=20), hr.GradientNorm("5 steps")).history["gradient_norm"]  # type: ignore[no-any-return]

    alone = train()
    assert len(alone) == 4
    assert hr.launch(train, workers=3) == pytest.approx(alone, rel=1e-4)


def test_the_norm_is_measured_for_each_optimizer_also_after_a_resume_and_changes_no_bit(tmp_path: Path) -> None:
    def train(steps: int, run: Path | None, *callbacks: hr.Callback) -> hr.Trainer:
        torch.manual_seed(1)
        model = nn.Linear(6, 3)
        often, seldom = torch.optim.SGD([model.weight], 0.1), torch.optim.SGD([model.bias], 0.1)
        losses = {"weight": hr.CrossEntropy(), "bias": hr.CrossEntropy()}
        trainer = hr.Trainer(model, losses, {"weight": often, "bias": (seldom, "3 steps")}, batch_size=20)
        return fit(trainer, *callbacks, steps=steps, epochs=None, run=run)

    watch = hr.GradientNorm("1 step")
    whole = train(8, None, watch)
    train(4, tmp_path / "run", watch)
    resumed = train(8, tmp_path / "run", watch)
    norms = [[row.get(f"gradient_norm/{key}") for key in ("weight", "bias")] for row in whole.history]
    assert [len([each for each in pair if each]) for pair in norms] == [1, 1, 2, 2, 2, 2, 2, 2]
    assert norms == [[row.get(f"gradient_norm/{key}") for key in ("weight", "bias")] for row in resumed.history]
    assert small.same(whole.model, train(8, None).model)


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_the_best_model_is_restored_if_one_of_two_callbacks_of_a_kind_wants_it(
    order: tuple[bool, ...], tmp_path: Path
) -> None:
    for epochs in (3, 5):
        trainer = made(schedule={0: 0.01, "2 epochs": 10.0})  # the best is the second epoch
        fit(trainer, *(hr.BestModel(restore=restore) for restore in order), epochs=epochs, run=tmp_path / "run")
    losses = trainer.history["val/loss"]
    assert min(losses) < losses[-1]
    assert trainer.validate((X, Y))["val/loss"] == min(losses)
