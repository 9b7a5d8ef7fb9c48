"""What callbacks ask for: rates, frozen parameters, numbers in the report; and the callbacks that do."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small
from kit.sampled import sampled
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


def changed(before: dict[str, Tensor], now: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], now[name])}


ALL = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"}
HEAD = {"3.weight", "3.bias"}


def test_frozen_parameters_and_their_statistics_stay_until_they_are_thawed() -> None:
    trainer = made()
    seen = [snapshot(trainer.model)]
    freeze = hr.Freeze("0.*", "1.*", until="2 epochs")
    for info in trainer.steps((X, Y), epochs=3, callbacks=[freeze]):
        if info.ends_epoch:
            seen.append(snapshot(trainer.model))
    assert changed(seen[0], seen[1]) == HEAD
    assert changed(seen[1], seen[2]) == HEAD
    assert changed(seen[2], seen[3]) == HEAD | ALL


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_training_with_frozen_parameters_is_that_of_a_loop_which_takes_their_gradients_away(optimizer: Any) -> None:
    def model() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))

    ours, raw = model(), model()
    trainer = hr.Trainer(ours, hr.CrossEntropy(), optimizer(ours.parameters(), lr=0.1), batch_size=20)
    freeze = hr.Freeze("0.*", after="5 steps", until="15 steps")
    trainer.fit((X, Y), epochs=3, progress=False, callbacks=[freeze])
    steps, order, step = optimizer(raw.parameters(), lr=0.1), hr.Order(200, seed=0), 0
    for epoch in range(3):
        rows = torch.from_numpy(order.indices(epoch, 0, 200))
        for start in range(0, 200, 20):
            raw[0].requires_grad_(not 5 <= step < 15)
            steps.zero_grad()
            nn.functional.cross_entropy(raw(X[rows[start : start + 20]]), Y[rows[start : start + 20]]).backward()
            steps.step()
            step += 1
    assert not changed(snapshot(ours), snapshot(raw))


def test_what_its_owner_keeps_from_being_trained_stays_so_and_the_rest_is_thawed_at_the_end() -> None:
    trainer = made()
    trainer.model[0].bias.requires_grad_(False)
    trainer.fit((X, Y), epochs=1, progress=False, callbacks=[hr.Freeze("0.*")])
    grads = {name: param.requires_grad for name, param in trainer.model.named_parameters()}
    assert [name for name, grad in grads.items() if not grad] == ["0.bias"]
    assert trainer.model[1].training


def test_a_training_with_frozen_parameters_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def freezes() -> list[hr.Callback]:
        return [hr.Freeze("0.*", "1.*", after="5 steps", until="15 steps")]

    stop_and_resume(made, [4, 5, 9, 15, 16], tmp_path, (X, Y), (X, Y), callbacks=freezes, epochs=3)


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


MISSED = [(rate, frozen) for rate, frozen in ((0.5, ""), (0.0, "blocks.1.*"), (0.5, "blocks.2.*"))]
NORMS = [(*missed, optimizer) for missed in MISSED for optimizer in (torch.optim.SGD, torch.optim.Adam)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "frozen", "optimizer"), sampled(NORMS, keep=[(0.5, "blocks.2.*", torch.optim.Adam)], of=5)
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
        return [hr.Freeze(frozen, until="8 steps")] if frozen else []

    stop_and_resume(make, range(1, 20), tmp_path, (X, Y), callbacks=freezes, every="1 step", epochs=2)


def test_a_name_that_no_parameter_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(hr.ConfigError, match=r"0\.weight"):
        made().fit((X, Y), epochs=1, progress=False, callbacks=[hr.Freeze("0.weigth")])
    with pytest.raises(hr.ConfigError, match="not before"):
        hr.Freeze("0.*", after="3 epochs", until="2 epochs")
    with pytest.raises(hr.ConfigError, match="patterns"):
        hr.Freeze()


class Halving(hr.Callback):
    def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
        info.set_rate(info.rate / 2)


def test_a_rate_that_is_asked_for_is_that_of_the_next_update_and_saved(tmp_path: Path) -> None:
    trainer = made()
    trainer.fit((X, Y), epochs=3, progress=False, callbacks=[Halving()])
    assert trainer.history["rate"] == [2e-2, 1e-2, 5e-3]
    assert trainer.optimizer.param_groups[0]["lr"] == 2.5e-3
    stop_and_resume(made, [10], tmp_path, (X, Y), callbacks=lambda: [Halving()], epochs=3)
    with pytest.raises(hr.ConfigError, match="schedule"):
        made(schedule=hr.Cosine()).fit((X, Y), epochs=2, progress=False, callbacks=[Halving()])


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
    trainer.fit((X, Y), (X, Y), (X, Y), epochs=2, progress=False, callbacks=[telling], run=tmp_path / "run")
    assert trainer.history["own/step"] == [4, 8, 12, 16, 20]
    assert trainer.history["own/epoch"] == [1, 2]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows == telling.heard
    assert [row["step"] for row in rows] == [4, 8, 10, 12, 16, 20, 20]
    assert rows[-1].keys() == {"epoch", "step", "samples", "rate", "test/loss", "test/loss/cross_entropy"}
    times = [json.loads(line) for line in (tmp_path / "run" / "times.jsonl").read_text().splitlines()]
    assert [when["step"] for when in times] == [row["step"] for row in rows]
    assert sorted(when["minutes"] for when in times) == [when["minutes"] for when in times]


def test_reports_are_heard_once_each_however_a_training_is_interrupted(tmp_path: Path) -> None:
    whole, parts = Telling(), Telling()
    made().fit((X, Y), (X, Y), epochs=2, progress=False, callbacks=[whole], run=tmp_path / "whole")
    for stop in (4, 10, 11, 0):
        for info in made().steps((X, Y), (X, Y), epochs=2, callbacks=[parts], run=tmp_path / "parts"):
            if info.step == stop:
                break
    assert parts.heard == whole.heard


def test_a_resumed_run_reports_the_norm_of_an_optimizer_that_is_used_at_every_third_step(tmp_path: Path) -> None:
    def train(steps: int, run: Path | None) -> list[dict[str, Any]]:
        torch.manual_seed(1)
        model = nn.Linear(6, 3)
        often, seldom = torch.optim.SGD([model.weight], 0.1), torch.optim.SGD([model.bias], 0.1)
        losses = {"weight": hr.CrossEntropy(), "bias": hr.CrossEntropy()}
        trainer = hr.Trainer(model, losses, {"weight": often, "bias": (seldom, "3 steps")}, batch_size=20)
        watch = [hr.GradientNorm("1 step")]
        return trainer.fit((X, Y), steps=steps, run=run, progress=False, callbacks=watch).rows

    whole = train(8, None)
    train(4, tmp_path / "run")
    resumed = train(8, tmp_path / "run")
    norms = [{key: value for key, value in row.items() if key.startswith("gradient")} for row in whole]
    assert [len(each) for each in norms] == [1, 1, 2, 2, 2, 2, 2, 2]
    assert norms == [{key: value for key, value in row.items() if key.startswith("gradient")} for row in resumed]


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.01}, {"clip_value": 0.001}, {"microbatch": 7}])
def test_the_norm_of_the_gradients_is_that_before_they_are_clipped(options: dict[str, Any]) -> None:
    model, plain = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    plain.load_state_dict(model.state_dict())
    trainer = hr.Trainer(
        model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.0), batch_size=50, order="none", **options
    )
    x, y = torch.randn(120, 4), torch.randint(2, (120,))
    trainer.fit((x, y), epochs=1, progress=False, callbacks=[hr.GradientNorm("1 step")])
    expected = []
    for part in (slice(0, 50), slice(50, 100), slice(100, 120)):
        plain.zero_grad()
        torch.nn.functional.cross_entropy(plain(x[part]), y[part]).backward()
        expected.append(
            torch.nn.utils.get_total_norm([p.grad for p in plain.parameters() if p.grad is not None]).item()
        )
    assert trainer.history["gradient_norm"] == pytest.approx(expected, rel=1e-5)
    assert not trainer.updates.measures_norm
    assert "gradient_norm" not in trainer.fit((x, y), epochs=1, progress=False).last


def test_the_norm_is_that_of_the_gradients_of_all_workers() -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 2)
        x = torch.randn(120, 4, generator=torch.Generator().manual_seed(1))
        trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=50)
        trainer.fit((x, (x[:, 0] > 0).long()), epochs=2, progress=False, callbacks=[hr.GradientNorm("1 step")])
        return trainer.history["gradient_norm"]

    alone = train()
    assert len(alone) == 6
    assert hr.launch(train, workers=3) == pytest.approx(alone, rel=1e-5)


def test_the_norm_is_measured_for_each_optimizer_and_changes_no_bit() -> None:
    def train(*callbacks: hr.Callback) -> hr.Trainer:
        torch.manual_seed(0)
        first, second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        optimizers = {k: torch.optim.Adam(m.parameters()) for k, m in {"first": first, "second": second}.items()}
        losses = {"first": hr.CrossEntropy(), "second": hr.CrossEntropy()}
        trainer = hr.Trainer(torch.nn.Sequential(first, second), losses, optimizers, batch_size=50)
        x = torch.randn(120, 4)
        trainer.fit((x, (x[:, 0] > 0).long()), epochs=2, progress=False, callbacks=callbacks)
        return trainer

    watched, alone = train(hr.GradientNorm()), train()
    assert watched.history.last.keys() - alone.history.last.keys() == {"gradient_norm/first", "gradient_norm/second"}
    assert len(watched.history["gradient_norm/first"]) == 2
    torch.testing.assert_close(watched.model.state_dict(), alone.model.state_dict(), rtol=0, atol=0)


def test_epochs_and_validations_are_timed() -> None:
    timer, trainer = hr.Timer(), made()
    trainer.fit((X, Y), (X, Y), epochs=3, progress=False, callbacks=[timer])
    assert len(timer.epoch_s) == 3
    assert trainer.history["time/epoch_s"] == timer.epoch_s
    rates = [200 / seconds for seconds in timer.epoch_s]
    assert trainer.history["time/rows_per_s"] == pytest.approx(rates)
    assert all(seconds > 0 for seconds in trainer.history["time/val_s"])


def test_functions_are_called_at_their_hooks() -> None:
    called: list[tuple[str, int]] = []
    own = hr.Lambda(
        on_epoch_end=lambda info, row: called.append(("epoch", info.step)),
        on_fit_end=lambda info: called.append(("fit", info.step)),
    )
    made().fit((X, Y), epochs=2, progress=False, callbacks=[own])
    assert called == [("epoch", 10), ("epoch", 20), ("fit", 20)]
    with pytest.raises(hr.ConfigError, match="on_epoch_end"):
        hr.Lambda(on_epoch_ends=print)
    with pytest.raises(hr.ConfigError, match="function"):
        hr.Lambda(on_epoch_end=3)  # type: ignore[arg-type]


def test_who_is_not_there_any_more_has_no_say_after_a_resume(tmp_path: Path) -> None:
    def fit(epochs: int, *callbacks: hr.Callback) -> hr.Trainer:
        trainer = made()
        trainer.fit((X, Y), (X, Y), epochs=epochs, progress=False, callbacks=callbacks, run=tmp_path / "run")
        return trainer

    first = fit(1, hr.Freeze("0.*"), hr.BestModel("val/loss", restore=True))
    with pytest.warns(UserWarning, match="BestModel that is not there now"):
        rest = fit(3)
    assert rest.history.marked is None
    assert rest.validate((X, Y))["val/loss"] == rest.history["val/loss"][-1]
    assert {"0.weight", "0.bias"} <= changed(snapshot(first.model), snapshot(rest.model))


def test_a_freeze_that_ends_earlier_than_before_ends(tmp_path: Path) -> None:
    def fit(epochs: int, until: str) -> dict[str, Tensor]:
        trainer = made()
        callbacks = [hr.Freeze("0.*", until=until)]
        trainer.fit((X, Y), epochs=epochs, progress=False, callbacks=callbacks, run=tmp_path / "run")
        return snapshot(trainer.model)

    before = fit(2, "10 epochs")
    assert not {"0.weight", "0.bias"} & changed(snapshot(made().model), before)
    assert {"0.weight", "0.bias"} <= changed(before, fit(3, "2 epochs"))


def test_another_number_to_look_at_begins_anew_after_a_resume(tmp_path: Path) -> None:
    def fit(epochs: int, monitor: str) -> hr.Trainer:
        trainer = made(metrics=["accuracy"])
        best = [hr.BestModel(monitor, restore=True)]
        trainer.fit((X, Y), (X, Y), epochs=epochs, progress=False, callbacks=best, run=tmp_path / "run")
        return trainer

    fit(2, "val/loss")
    rest = fit(5, "val/accuracy")
    assert rest.history.marked is not None
    assert rest.history.marked > 20
    later = [row["val/accuracy"] for row in rest.history if row["step"] > 20]
    assert rest.validate((X, Y))["val/accuracy"] == max(later)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_training_that_was_stopped_early_has_nothing_left_to_train(workers: int, tmp_path: Path) -> None:
    def main() -> list[int]:
        trainer = made()
        stopping = hr.EarlyStopping("val/loss", patience=1, min_delta=9.0)
        trainer.fit((X, Y), (X, Y), epochs=9, progress=False, callbacks=[stopping], run=tmp_path / "run")
        return trainer.history["step"]  # type: ignore[no-any-return]

    first = hr.launch(main, workers=workers)
    assert first == hr.launch(main, workers=workers) == hr.launch(main, workers=workers)


@pytest.mark.parametrize(
    "options", [{}, {"clip_norm": 0.1}, {"clip_value": 0.1}, {"precision": "fp16"}, {"arena": False}], ids=str
)
def test_all_parameters_of_one_of_several_optimizers_may_be_frozen(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(3, 3)})

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, x: Tensor) -> Tensor:
            return model["b"](model["a"](x))  # type: ignore[no-any-return]

    chain = Chain()
    optimizers = {key: torch.optim.SGD(model[key].parameters(), lr=0.1) for key in model}
    losses = {key: hr.CrossEntropy() for key in model}
    before = snapshot(chain)
    trainer = hr.Trainer(chain, losses, optimizers, batch_size=20, **options)
    trainer.fit((X, Y), epochs=1, progress=False, callbacks=[hr.Freeze("parts.a.*")])
    assert changed(before, snapshot(chain)) == {"parts.b.weight", "parts.b.bias"}


def test_two_who_freeze_the_same_both_have_to_thaw_it() -> None:
    trainer = made()
    before = snapshot(trainer.model)
    both = [hr.Freeze("0.*", until="1 epoch"), hr.Freeze("0.weight")]
    trainer.fit((X, Y), epochs=2, progress=False, callbacks=both)
    assert changed(before, snapshot(trainer.model)) == (ALL | HEAD) - {"0.weight"}


def test_two_windows_in_which_one_layer_is_frozen_are_both_kept() -> None:
    trainer = made()
    windows = [hr.Freeze("0.*", until="1 epoch"), hr.Freeze("0.*", after="2 epochs")]
    weights = [snapshot(trainer.model)]
    for info in trainer.steps((X, Y), epochs=4, callbacks=windows):
        if info.ends_epoch:
            weights.append(snapshot(trainer.model))
    moved = [bool({"0.weight", "0.bias"} & changed(*pair)) for pair in pairwise(weights)]
    assert moved == [False, True, False, False]


@pytest.mark.parametrize("order", [(True, False), (False, True)])
@pytest.mark.parametrize("resumed", [False, True])
def test_the_best_model_is_restored_if_one_of_two_callbacks_of_a_kind_wants_it(
    order: tuple[bool, ...], resumed: bool, tmp_path: Path
) -> None:
    def fit(epochs: int) -> hr.Trainer:
        trainer = made(schedule={0: 0.01, "2 epochs": 10.0})  # the best is the second epoch
        both = [hr.BestModel(restore=restore) for restore in order]
        trainer.fit((X, Y), (X, Y), epochs=epochs, progress=False, callbacks=both, run=tmp_path / "run")
        return trainer

    if resumed:
        fit(3)
    trainer = fit(5)
    losses = trainer.history["val/loss"]
    assert min(losses) < losses[-1]
    assert trainer.validate((X, Y))["val/loss"] == min(losses)


def test_a_run_that_keeps_fewer_of_the_best_than_before_keeps_those(tmp_path: Path) -> None:
    def fit(epochs: int, k: int) -> list[int]:
        trainer, kept = made(), []
        best = hr.BestModel(k=k)
        for info in trainer.steps((X, Y), (X, Y), epochs=epochs, callbacks=[best], run=tmp_path / "run"):
            kept = info.kept
        return kept

    assert len(fit(3, 3)) == 3
    assert len(fit(4, 1)) == 1


def test_only_layers_that_measure_rest_while_they_are_frozen() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.norm, self.head = nn.Parameter(torch.ones(1)), nn.BatchNorm1d(6), nn.Linear(6, 3)
            self.modes: set[tuple[bool, bool]] = set()

        def forward(self, x: Tensor) -> Tensor:
            self.modes.add((self.training, self.norm.training))
            return self.head(self.norm(x) * self.scale)  # type: ignore[no-any-return]

    model = Model()
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=50)
    trainer.fit((X, Y), epochs=1, progress=False, callbacks=[hr.Freeze("scale", "norm.*")])
    assert model.modes == {(True, False)}


def test_a_rate_of_zero_keeps_the_ratios_of_the_groups() -> None:
    model = made().model
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[3].parameters(), "lr": 0.01}]
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(groups), batch_size=20)
    rates = {1: 0.0, 2: 0.2}
    own = hr.Lambda(on_step_end=lambda info: info.step in rates and info.set_rate(rates[info.step]))
    trainer.fit((X, Y), steps=3, progress=False, callbacks=[own])
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx([0.2, 0.02])


def test_what_is_asked_for_between_updates_is_so_for_the_next() -> None:
    trainer = made()
    for info in trainer.steps((X, Y), steps=4):
        if info.step == 2:
            before = snapshot(trainer.model)
            info.freeze("0.*")
            info.log({"own/number": 7.0})
    assert changed(before, snapshot(trainer.model)) == (ALL | HEAD) - {"0.weight", "0.bias"}
    assert [row["step"] for row in trainer.history if "own/number" in row] == [2]


@pytest.mark.parametrize(
    "numbers", [{"step": 1.0}, {"rate": 1.0}, {"val/loss": -1.0}, {3: 1.0}, {"x": "abc"}, {"": 1.0}], ids=str
)
def test_numbers_that_would_hide_others_are_refused_by_name(numbers: dict[Any, Any]) -> None:
    own = hr.Lambda(on_epoch_end=lambda info, row: info.log(numbers))
    with pytest.raises(hr.ConfigError, match=r"log\(\) takes numbers"):
        made().fit((X, Y), (X, Y), epochs=1, progress=False, callbacks=[own])


@pytest.mark.parametrize("hook", ["on_report", "on_checkpoint", "on_fit_end"])
def test_numbers_that_come_after_the_report_are_refused(hook: str, tmp_path: Path) -> None:
    def log(info: hr.Info, *rest: Any) -> None:
        if info.step:
            info.log({"own/late": 1.0})

    with pytest.raises(hr.ConfigError, match="own/late: the report of this step is complete"):
        made().fit((X, Y), epochs=1, progress=False, callbacks=[hr.Lambda(**{hook: log})], run=tmp_path / "run")


def test_a_number_that_is_logged_can_be_looked_at_and_a_report_within_an_epoch_is() -> None:
    trainer = made()
    own = hr.Lambda(on_validation_end=lambda info, scores: info.log({"val/mine": -scores["val/loss"]}))
    mine, train = hr.BestModel("val/mine", mode="max"), hr.BestModel("train/loss")
    trainer.fit((X, Y), (X, Y), epochs=2, progress=False, callbacks=[own, mine, train], log_every="3 steps")
    assert mine.best == max(trainer.history["val/mine"])
    assert train.best == min(trainer.history["train/loss"])
    assert len(trainer.history["train/loss"]) > 2


def test_numbers_logged_in_the_test_stand_in_its_report(tmp_path: Path) -> None:
    trainer, timer = made(), hr.Timer()
    trainer.fit((X, Y), (X, Y), (X, Y), epochs=1, progress=False, callbacks=[timer], run=tmp_path / "run")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["time/test_s"] == trainer.history.last["time/test_s"] > 0


def test_a_row_has_the_rate_of_its_update_whatever_it_is_made_for() -> None:
    trainer = made(schedule=hr.Schedule(lambda optimizer, total: torch.optim.lr_scheduler.StepLR(optimizer, 1)))
    notes = hr.Lambda(on_step_end=lambda info: info.ends_epoch and info.log({"note": 1.0}))
    trainer.fit((X, Y), epochs=3, progress=False, log_every="3 epochs", callbacks=[notes])
    assert trainer.history["rate"] == pytest.approx([2e-2, 2e-3, 2e-4])


@pytest.mark.parametrize("ask", [lambda info: info.set_rate(0.1), lambda info: info.freeze("0.*")])
def test_a_center_cannot_be_asked_for_changes(ask: Any) -> None:
    def main() -> None:
        trainer = made(strategy=hr.Elastic("2 steps"))
        trainer.fit((X, Y), epochs=1, progress=False, callbacks=[hr.Lambda(on_step_end=ask)])

    with pytest.raises(hr.ConfigError, match="at a center cannot agree on"):
        hr.launch(main, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("who", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_workers_that_are_asked_to_end_within_an_epoch_report_it_once_and_whole(who: int, tmp_path: Path) -> None:
    def main(run: Path | None, ask: int) -> list[dict[str, Any]]:
        trainer = made()
        trainer.batch_size = 4  # updates enough for word to get around within an epoch
        asks = hr.Lambda(on_step_end=lambda info: info.step == ask and here().shard.index == who and trainer.preempt())
        trainer.fit((X, Y), (X, Y), epochs=2, progress=False, callbacks=[asks], run=run)
        return trainer.history.rows

    whole = hr.launch(main, None, 0, workers=2)
    with pytest.raises(SystemExit):
        hr.launch(main, tmp_path / "run", 12, workers=2)
    assert hr.launch(main, tmp_path / "run", 0, workers=2) == whole
