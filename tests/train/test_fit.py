"""What `fit` and `validate` promise: how long, what is reported and when, and that looking changes nothing."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from kit.small import BATCH, ROWS, Parts, adam, data, fit, model, momentum, same, state, trainer
from torch import Tensor

import headrace as hr

X, Y = DATA = data()  # batches of 16, 16, 16 and 2
VAL = X[:33] + 0.1, Y[:33]

LIMITS = [
    ({"epochs": 10}, 40, "10 epochs"),
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
    history = fit(trainer(), **limits)
    assert history.last["step"] == steps
    assert history.last["epoch"] == steps // 4
    assert history.last["samples"] == ROWS * (steps // 4) + BATCH * (steps % 4)
    assert why in history.stopped


def test_every_row_of_the_history_has_its_counters_and_scores() -> None:
    made = trainer(
        loss=hr.CrossEntropy() + hr.L2Prior(0.01), eval_loss=hr.CrossEntropy(name="plain"), metrics=["accuracy", "f1"]
    )
    history = fit(made, DATA, VAL, VAL, epochs=3)
    train = {"train/loss", "train/loss/cross_entropy", "train/loss/l2_prior", "train/accuracy", "train/f1"}
    val = {"val/loss", "val/loss/plain", "val/accuracy", "val/f1"}
    rows = [{"epoch", "step", "samples", "rate"} | train | val] * 3
    rows[-1] = rows[-1] | {key.replace("val", "test") for key in val}
    assert [set(row) for row in history] == rows
    counters = [history[name] for name in ("epoch", "step", "samples", "rate")]
    assert counters == [[1, 2, 3], [4, 8, 12], [ROWS, 2 * ROWS, 3 * ROWS], [0.1] * 3]
    assert history.last["test/accuracy"] == history.last["val/accuracy"]
    assert all(isinstance(value, float | int) for row in history for value in row.values())
    assert fit(trainer(batch_size=1000), DATA)["samples"] == [ROWS, 2 * ROWS], "one short batch"


def test_the_training_loss_is_the_mean_over_rows_of_the_losses_before_each_update() -> None:
    made = trainer(loss=hr.CrossEntropy() + hr.L2Prior(0.5), metrics=["accuracy"], order="none")
    raw = model()
    optimizer = momentum(raw)
    total, right, priors = 0.0, 0, 0.0
    for x, y in zip(X.split(BATCH), Y.split(BATCH), strict=True):
        optimizer.zero_grad()
        out = raw(x)
        loss, prior = F.cross_entropy(out, y), 0.5 * sum(p.square().sum() for p in raw.parameters() if p.dim() > 1)
        (loss + 0.5 * prior).backward()
        optimizer.step()
        total, right = total + float(loss.detach()) * len(x), right + int((out.argmax(1) == y).sum())
        priors += float(torch.as_tensor(prior).detach())
    row = fit(made, epochs=1).last
    assert row["train/loss/cross_entropy"] == pytest.approx(total / ROWS, rel=1e-5)
    assert row["train/loss/l2_prior"] == pytest.approx(0.5 * priors / 4, rel=1e-5)
    assert row["train/loss"] == pytest.approx(total / ROWS + 0.5 * priors / 4, rel=1e-5)
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
    history = fit(trainer(), DATA, VAL, **{"epochs": 3} | options)
    assert [row["step"] for row in history if "train/loss" in row] == logged
    assert [row["step"] for row in history if "val/loss" in row] == validated
    assert history["step"] == sorted(set(history["step"]))


def test_a_report_covers_the_updates_since_the_last_one() -> None:
    each = fit(trainer(), epochs=1, log_every="1 step")["train/loss"]
    pairs = fit(trainer(), epochs=1, log_every="2 steps")["train/loss"]
    assert pairs == pytest.approx([(each[0] + each[1]) / 2, (each[2] * 16 + each[3] * 2) / 18])


def test_looking_changes_nothing() -> None:
    def trained(*val: Any, **options: Any) -> Any:
        made = trainer(model(norm=True, dropout=0.2), metrics=["accuracy"])
        torch.manual_seed(5)
        fit(made, DATA, *val, epochs=3, **options)
        return made, state([made, torch.get_rng_state()])

    (_, alone), (made, beside) = trained(), trained(VAL, VAL, validate_every="1 step")
    assert same(alone, beside)
    made.model[1].eval()
    modes = [m.training for m in made.model.modules()]
    scores = made.validate(VAL)
    assert made.test(VAL) == {key.replace("val/", "test/"): value for key, value in scores.items()}
    made.predict(X)
    assert same([made, torch.get_rng_state()], alone)
    assert [m.training for m in made.model.modules()] == modes
    assert all(p.grad is None for p in made.model.parameters())


def test_validate_scores_every_row_once_whatever_the_batches_up_to_a_limit() -> None:
    made = trainer(model(norm=True), loss=hr.CrossEntropy() + hr.L2Prior(9.0), metrics=["accuracy"])
    with torch.no_grad():
        out = made.model.eval()(VAL[0])
    made.model.train()
    loss, right = float(F.cross_entropy(out, VAL[1])), float((out.argmax(1) == VAL[1]).float().mean())
    for size in (1, 7, 33, 1000, None):
        expected = {"val/loss": loss, "val/loss/cross_entropy": loss, "val/accuracy": right}
        assert made.validate(VAL, batch_size=size) == pytest.approx(expected, rel=1e-5)
    assert made.validate(VAL, name="held")["held/loss"] == pytest.approx(loss)
    for limit, rows in ((1, 16), (16, 16), (17, 32), (1000, 50)):  # it stops after the batch that reaches the limit
        assert made.validate(DATA, limit=limit) == pytest.approx(made.validate((X[:rows], Y[:rows])))


def test_validation_that_fails_leaves_the_source_where_it_stood() -> None:
    passes = iter([False, True])

    def fails(self: Any, x: Tensor) -> Any:
        if next(passes):
            raise RuntimeError("on purpose")
        return self.inner(x)

    source = hr.Reader(hr.ArrayTable({"x": X, "y": Y}), "none")
    before = source.state_dict()
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer(Parts(fails, inner=model()), macrobatch=BATCH).validate(source)
    assert source.state_dict() == before


def test_fits_one_after_the_other_on_a_reader_are_one_training() -> None:
    table = hr.ArrayTable({"x": X, "y": Y})

    def trained(data: Any, fits: int, seed: int = 2) -> tuple[Tensor, Any]:
        seen = list[Tensor]()
        made = trainer(seed=seed)
        made.model.register_forward_pre_hook(lambda model, x: seen.extend([x[0]] if model.training else []))
        for _ in range(fits):
            fit(made, data, table, epochs=3 // fits)
        return torch.cat(seen), state(made)

    order, weights = once = trained(table, 1)
    assert same(once, trained(hr.Reader(table, seed=2), 3))
    assert not same(order[:ROWS], order[ROWS : 2 * ROWS])
    assert same(trained(table, 3)[0], order[:ROWS].repeat(3, 1)), "of a table each begins with epoch 0"
    assert same(once, trained(table, 1))
    assert not same(weights, trained(table, 1, seed=1)[1])


@pytest.mark.parametrize("change", ["epoch", "fit"])
def test_a_torch_scheduler_stepped_by_hand_sets_the_rate(change: str) -> None:
    made = trainer()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(made.optimizer, gamma=0.5)
    rates: list[float] = []
    for _ in range(3 if change == "fit" else 1):
        for info in made.steps(DATA, epochs=1 if change == "fit" else 3):
            if info.ends_epoch:
                rates.append(info.rate)
                scheduler.step()
    assert rates == [0.1, 0.05, 0.025]
    assert scheduler.get_last_lr() == [pytest.approx(0.0125)]


@pytest.mark.parametrize("number", [np.float32, np.float64, np.int64])
def test_numbers_of_numpy_are_numbers(number: Any) -> None:
    def rows(one: Any, three: Any) -> list[dict[str, Any]]:
        numbers = {"clip_norm": one, "clip_value": one, "batch_size": three, "microbatch": three}
        made = trainer(**numbers, optimizer=adam, schedule=hr.Cosine(warmup=one, floor=one))
        made.clip_norm = one
        return fit(made, DATA, DATA, epochs=three, callbacks=[hr.EarlyStopping(patience=three)]).rows

    assert rows(number(1), np.int64(3)) == rows(1.0, 3)
    assert trainer(clip_norm=number(1)).clip_norm == 1
