"""What `fit` and `validate` promise: how long, what is reported and when, and that looking changes nothing."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from kit.small import BATCH, ROWS, data, fit, momentum, same, state
from kit.small import model as plain
from kit.small import trainer as make
from torch import Tensor, nn

import headrace as hr

X, Y = DATA = data()  # batches of 16, 16, 16 and 2
VAL = X[:33] + 0.1, Y[:33]


def network() -> nn.Sequential:
    return plain(norm=True, dropout=0.2)


LIMITS = [
    ({"epochs": 10}, 40, "10 epochs"),
    ({"epochs": 3}, 12, "3 epochs"),
    ({"epochs": 1}, 4, "1 epoch"),
    ({"steps": 7}, 7, "7 steps"),
    ({"samples": 50}, 4, "50 samples"),
    ({"samples": 51}, 5, "51 samples"),
    ({"minutes": 1e-9}, 1, "minutes"),
    ({"epochs": 2, "steps": 100}, 8, "2 epochs"),
    ({"epochs": 2, "steps": 3, "minutes": 60}, 3, "3 steps"),
]


@pytest.mark.parametrize(("limits", "steps", "why"), LIMITS)
def test_the_first_limit_reached_ends_the_training(limits: dict[str, Any], steps: int, why: str) -> None:
    history = fit(make(), **limits)
    assert history.last["step"] == steps
    assert history.last["epoch"] == steps // 4
    assert history.last["samples"] == ROWS * (steps // 4) + BATCH * (steps % 4)
    assert why in history.stopped


def test_every_row_of_the_history_has_its_counters_and_scores() -> None:
    trainer = make(loss=hr.CrossEntropy() + hr.L2Prior(0.01), metrics=["accuracy", "f1"])
    history = fit(trainer, DATA, VAL, VAL, epochs=3)
    train = {"train/loss", "train/loss/cross_entropy", "train/loss/l2_prior", "train/accuracy", "train/f1"}
    val = {"val/loss", "val/loss/cross_entropy", "val/accuracy", "val/f1"}
    rows = [{"epoch", "step", "samples", "rate"} | train | val] * 3
    rows[-1] = rows[-1] | {key.replace("val", "test") for key in val}
    assert [set(row) for row in history] == rows
    assert history["epoch"] == [1, 2, 3]
    assert history["step"] == [4, 8, 12]
    assert history["samples"] == [ROWS, 2 * ROWS, 3 * ROWS]
    assert history["rate"] == [0.1] * 3
    assert history.last["test/accuracy"] == history.last["val/accuracy"]
    assert all(isinstance(value, float | int) for row in history for value in row.values())


def test_the_training_loss_is_the_mean_over_rows_of_the_losses_before_each_update() -> None:
    trainer = make(loss=hr.CrossEntropy() + hr.L2Prior(0.5), metrics=["accuracy"], order="none")
    raw = plain()
    optimizer = momentum(raw)
    total, right, priors = 0.0, 0, []
    for start in range(0, ROWS, BATCH):
        x, y = X[start : start + BATCH], Y[start : start + BATCH]
        optimizer.zero_grad()
        out = raw(x)
        loss, prior = F.cross_entropy(out, y), 0.5 * sum(p.square().sum() for p in raw.parameters() if p.dim() > 1)
        (loss + 0.5 * prior).backward()
        optimizer.step()
        total, right, priors = (
            total + float(loss.detach()) * len(x),
            right + int((out.argmax(1) == y).sum()),
            [*priors, prior.detach()],
        )
    row = fit(trainer, epochs=1).last
    assert row["train/loss/cross_entropy"] == pytest.approx(total / ROWS, rel=1e-5)
    assert row["train/loss/l2_prior"] == pytest.approx(0.5 * float(sum(priors)) / 4, rel=1e-5)
    assert row["train/loss"] == pytest.approx(row["train/loss/cross_entropy"] + row["train/loss/l2_prior"])
    assert row["train/loss"] == pytest.approx(total / ROWS + 0.5 * float(sum(priors)) / 4, rel=1e-5)
    assert row["train/accuracy"] == pytest.approx(right / ROWS)


@pytest.mark.parametrize(
    ("options", "logged", "validated"),
    [
        ({"validate_every": "3 steps"}, [4, 8, 12], [3, 6, 9, 12]),
        ({"validate_every": "2 epochs", "epochs": 4}, [4, 8, 12, 16], [8, 16]),
        ({"validate_every": "2 epochs"}, [4, 8, 12], [8, 12]),
        ({"log_every": "5 steps"}, [5, 10, 12], [4, 8, 12]),
        ({"log_every": "100 samples", "validate_every": "1 step", "epochs": 2}, [8], list(range(1, 9))),
        ({"log_every": hr.Length(6, "steps"), "validate_every": "12 steps"}, [6, 12], [12]),
    ],
)
def test_scores_and_reports_come_when_they_are_due_and_at_the_end(
    options: dict[str, Any], logged: list[int], validated: list[int]
) -> None:
    history = fit(make(), DATA, VAL, **{"epochs": 3} | options)
    assert [row["step"] for row in history if "train/loss" in row] == logged
    assert [row["step"] for row in history if "val/loss" in row] == validated
    assert history["step"] == sorted(set(history["step"]))


def test_a_report_covers_the_updates_since_the_last_one() -> None:
    each = fit(make(), epochs=1, log_every="1 step")["train/loss"]
    pairs = fit(make(), epochs=1, log_every="2 steps")["train/loss"]
    assert pairs[0] == pytest.approx((each[0] + each[1]) / 2)
    assert pairs[1] == pytest.approx((each[2] * 16 + each[3] * 2) / 18)


def test_validation_during_a_training_changes_nothing_of_it() -> None:
    def trained(*val: Any, **options: Any) -> Any:
        trainer = make(network(), metrics=["accuracy"])
        torch.manual_seed(5)
        fit(trainer, DATA, *val, epochs=3, **options)
        return state([trainer, torch.get_rng_state()])

    alone = trained()
    assert same(trained(VAL, VAL, validate_every="1 step"), alone)


def test_validation_leaves_weights_buffers_modes_and_random_state_alone() -> None:
    trainer = make(network(), metrics=["accuracy"])
    trainer.model[1].eval()
    before, random, modes = state(trainer), torch.get_rng_state(), [m.training for m in trainer.model.modules()]
    scores = trainer.validate(VAL)
    assert trainer.test(VAL) == {key.replace("val/", "test/"): value for key, value in scores.items()}
    trainer.predict(X)
    assert same(trainer, before)
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in trainer.model.modules()] == modes
    assert all(p.grad is None for p in trainer.model.parameters())


def test_validate_scores_every_row_once_whatever_the_batches() -> None:
    trainer = make(network(), loss=hr.CrossEntropy() + hr.L2Prior(9.0), metrics=["accuracy"])
    trainer.model.eval()
    with torch.no_grad():
        out = trainer.model(VAL[0])
    trainer.model.train()
    for size in (1, 7, 33, 1000, None):
        scores = trainer.validate(VAL, batch_size=size)
        assert scores.keys() == {"val/loss", "val/loss/cross_entropy", "val/accuracy"}
        assert scores["val/loss"] == pytest.approx(float(F.cross_entropy(out, VAL[1])), rel=1e-5)
        assert scores["val/accuracy"] == pytest.approx(float((out.argmax(1) == VAL[1]).float().mean()))
    assert trainer.validate(VAL, name="held")["held/loss"] == pytest.approx(scores["val/loss"])


def test_validate_with_a_limit_stops_after_the_batch_that_reaches_it() -> None:
    trainer = make()
    for limit, rows in ((1, 16), (16, 16), (17, 32), (1000, 50)):
        scores = trainer.validate(DATA, limit=limit)
        assert scores == pytest.approx(trainer.validate((X[:rows], Y[:rows])))


def test_validation_that_fails_leaves_the_source_where_it_stood() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.left = plain(), 2

        def forward(self, x: Tensor) -> Tensor:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("on purpose")
            return self.inner(x)

    source = hr.Reader(hr.ArrayTable({"x": X, "y": Y}), "none")
    trainer = make(Fails(), macrobatch=BATCH)
    before = source.state_dict()
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.validate(source)
    assert source.state_dict() == before


def test_a_second_fit_goes_on_with_the_weights_and_the_momentum_of_the_first() -> None:
    trainer, raw = make(), plain()
    optimizer = momentum(raw)
    histories = [fit(trainer, epochs=2), fit(trainer, epochs=1)]
    order = hr.Order(ROWS, seed=0)
    for epoch in (0, 1, 0):
        for rows in torch.from_numpy(order.indices(epoch, 0, ROWS)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(raw(X[rows]), Y[rows]).backward()
            optimizer.step()
    assert [h.last["step"] for h in histories] == [8, 4]
    assert same(trainer.model, raw)


def test_fits_one_after_the_other_on_a_reader_are_one_training() -> None:
    table = hr.ArrayTable({"x": torch.arange(10.0)[:, None], "y": torch.arange(10.0)})

    def trained(data: Any, fits: int) -> tuple[list[float], list[Tensor]]:
        torch.manual_seed(0)
        seen: list[float] = []
        model = nn.Sequential(nn.Linear(1, 1), nn.Flatten(0))
        model.register_forward_pre_hook(lambda model, x: seen.extend(x[0].flatten().tolist() if model.training else []))
        optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)
        trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=4, seed=2)
        for _ in range(fits):
            trainer.fit(data, table, epochs=3 // fits, progress=False)
        return seen, [*model.state_dict().values()]

    order, weights = trained(table, 1)
    again, same = trained(hr.Reader(table, seed=2), 3)
    assert again == order
    assert all(map(torch.equal, same, weights))
    assert order[:10] != order[10:20]
    assert trained(table, 3)[0] == order[:10] * 3  # of a table each begins with epoch 0


def test_the_seed_decides_the_order_and_nothing_else_is_random() -> None:
    models = []
    for seed in (0, 0, 1):
        trainer = make(seed=seed)
        fit(trainer, epochs=2)
        models.append(state(trainer.model))
    assert same(models[0], models[1])
    assert not same(models[0], models[2])


@pytest.mark.slow  # which takes seconds to import
def test_any_torchmetrics_object_is_a_metric() -> None:
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

    metrics = {"mine": MulticlassAccuracy(3, average="micro"), "f1": MulticlassF1Score(3)}
    ours = make(metrics=metrics)
    history = fit(ours, DATA, VAL, epochs=2)
    named = fit(make(metrics=["accuracy", "f1"]), DATA, VAL, epochs=2)
    for part in ("train", "val"):
        assert history[f"{part}/mine"] == pytest.approx(named[f"{part}/accuracy"])
        assert history[f"{part}/f1"] == pytest.approx(named[f"{part}/f1"])
    assert metrics["mine"].update_count == 0


def test_an_object_with_update_compute_and_reset_is_a_metric() -> None:
    class Rows:
        def __init__(self) -> None:
            self.rows = 0

        def update(self, outputs: Tensor, target: Tensor) -> None:
            assert outputs.shape == (len(target), 3)
            self.rows += len(target)

        def compute(self) -> int:
            return self.rows

        def reset(self) -> None:
            self.rows = 0

    history = fit(make(metrics=Rows()), DATA, VAL, epochs=2)
    assert history["train/rows"] == [50, 50]
    assert history["val/rows"] == [33, 33]


def test_eval_loss_scores_validations_and_not_the_training() -> None:
    history = fit(make(eval_loss=hr.CrossEntropy(name="plain"), loss=hr.Focal()), DATA, VAL, VAL, epochs=1)
    assert {key for key in history.last if "loss/" in key} == {"train/loss/focal", "val/loss/plain", "test/loss/plain"}


@pytest.mark.parametrize("change", ["epoch", "fit"])
def test_a_torch_scheduler_stepped_by_hand_sets_the_rate(change: str) -> None:
    trainer = make()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, gamma=0.5)
    rates: list[float] = []
    if change == "fit":
        for _ in range(3):
            rates += fit(trainer, epochs=1)["rate"]
            scheduler.step()
    else:
        for info in trainer.steps(DATA, epochs=3):
            if info.ends_epoch:
                rates.append(info.rate)
                scheduler.step()
    assert rates == [0.1, 0.05, 0.025]
    assert scheduler.get_last_lr() == [pytest.approx(0.0125)]


def test_data_given_in_any_form_are_the_same_data() -> None:
    def trained(data: Any) -> Any:
        trainer = make()
        fit(trainer, data)
        return state(trainer)

    expected = trained(DATA)
    table = hr.ArrayTable({"x": X, "y": Y})
    for form in ((X.numpy(), Y.numpy()), {"x": X, "y": Y.numpy()}, table, hr.Reader(table, "full", seed=0)):
        assert same(trained(form), expected)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1)])
def test_a_column_and_a_vector_mean_the_same_and_are_never_broadcast(shape: tuple[int, ...]) -> None:
    trainer, y = make(nn.Linear(6, 1), loss=hr.MSE(), order="none"), X[:, 0].reshape(shape)
    with torch.no_grad():
        expected = float((trainer.model(X[:BATCH]).squeeze(1) - X[:BATCH, 0]).square().mean())
    info = next(iter(trainer.steps((X, y), epochs=1)))
    assert info.losses["mse"] == pytest.approx(expected, rel=1e-6)


def test_a_batch_larger_than_the_data_is_one_short_batch() -> None:
    history = fit(make(batch_size=1000), DATA, VAL)
    assert history["step"] == [1, 2]
    assert history.last["samples"] == 2 * ROWS


def test_the_class_of_an_optimizer_makes_one_of_the_parameters() -> None:
    trainer = make(optimizer=torch.optim.AdamW)
    assert isinstance(trainer.optimizer, torch.optim.AdamW)
    assert trainer.optimizer.param_groups[0]["params"] == list(trainer.model.parameters())


@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    def rows(one: Any, three: Any) -> list[dict[str, Any]]:
        numbers = {"clip_norm": one, "clip_value": one, "batch_size": three, "microbatch": three}
        trainer = make(**numbers, schedule=hr.Cosine(warmup=one, floor=one))
        trainer.clip_norm = one
        return fit(trainer, DATA, DATA, epochs=three, callbacks=[hr.EarlyStopping(patience=three)]).rows

    assert rows(number(1), np.int64(3)) == rows(1.0, 3)
    assert make(clip_norm=number(1)).clip_norm == 1
