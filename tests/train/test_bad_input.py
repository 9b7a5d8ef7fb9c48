"""Data that cannot work are refused before the first update, by an error that says where; nothing has changed then."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from kit.sampled import sampled
from torch import Tensor, nn

import headrace as hr

ROWS, BATCH = 40, 16
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(ROWS) % 3
PAIRS = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(2))
GOOD = (X, Y)
GOOD_NUMBERS = (X, PAIRS)


def classifier() -> hr.Trainer:
    """A trainer with a past: momentum in the optimizer, statistics in a buffer, one module put in eval mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    trainer = hr.Trainer(model, hr.CrossEntropy(), momentum(model), batch_size=BATCH, order="none")
    trainer.fit(GOOD, steps=2, progress=False)
    model[2].eval()
    return trainer


def regressor(outputs: int = 2, loss: Any = None) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))
    return hr.Trainer(model, loss or hr.MSE(), momentum(model), batch_size=BATCH, order="none")


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def snapshot(trainer: hr.Trainer) -> tuple[Any, ...]:
    weights = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    states = [[v.clone() for v in s.values()] for o in trainer.optimizers.values() for s in o.state.values()]
    return weights, states, [m.training for m in trainer.model.modules()]


def ordinary(model: nn.Module) -> bool:
    """Every parameter is alone in its memory, and has no gradient."""
    return all(p.untyped_storage().nbytes() == p.nbytes and p.grad is None for p in model.parameters())


def refused(trainer: hr.Trainer, attempt: Callable[[], Any], kind: type[Exception], *facts: str, good: Any) -> None:
    """The attempt ends with this error and these facts, changes nothing, and good data train afterwards."""
    builtin = ArithmeticError if kind is hr.NonFiniteError else ValueError
    before = snapshot(trainer)
    with pytest.raises(kind) as caught:
        attempt()
    assert type(caught.value) is kind
    assert isinstance(caught.value, builtin)
    assert isinstance(caught.value, hr.HeadraceError)
    message = str(caught.value)
    assert [fact for fact in facts if fact not in message] == [], message
    torch.testing.assert_close(snapshot(trainer), before, rtol=0, atol=0, equal_nan=True)
    assert ordinary(trainer.model)
    history = trainer.fit(good, epochs=1, progress=False)
    assert history.last["step"] == 3
    assert not torch.equal(trainer.model[0].weight, before[0]["0.weight"])


def with_label(row: int, label: int) -> tuple[Tensor, Tensor]:
    y = Y.clone()
    y[row] = label
    return X, y


def with_number(rows: Tensor, row: int, number: float) -> Tensor:
    rows = rows.clone()
    rows[row, 1] = number
    return rows


BAD_CLASSES: dict[str, tuple[Any, list[str]]] = {
    "no rows": ((X[:0], Y[:0]), ["no rows"]),
    "more x than y": ((X, Y[:30]), ["'x' has 40", "'y' has 30"]),
    "more y than x": ((X[:7], Y), ["'x' has 7", "'y' has 40"]),
    "label too large": (with_label(7, 3), ["'y'", "row 7", "label 3", "3 outputs", "0 to 2"]),
    "label negative": (with_label(33, -1), ["'y'", "row 33", "label -1", "ignore_index"]),
    "label -100 unasked": (with_label(5, -100), ["'y'", "row 5", "label -100"]),
    "labels as floats": ((X, Y.float()), ["'y'", "[]", "[3]", "int64"]),
    "labels in a column": ((X, Y[:, None]), ["'y'", "[1]", "[3]"]),
    "double x": ((X.double(), Y), ["x: float64[4]", "'0'", "float32"]),
    "wide x": ((torch.randn(ROWS, 5), Y), ["x: float32[5]", "'0'", "in_features=4"]),
    "flat x": ((torch.randn(ROWS), Y), ["x: float32[]", "'0'", "in_features=4"]),
    "no target": (X, ["'y'", "target="]),
    "another target": ({"x": X, "label": Y}, ["'y'", "label"]),
    "a number": ({"x": X, "y": Y, "z": torch.tensor(3.0)}, ["'z'", "single number"]),
    "text": ((np.array(["a"] * ROWS), Y), ["'x'", "<U1"]),
    "three arrays": ((X, X, Y), ["3 arrays", "(x, y)"]),
    "a path to nowhere": (3.5, ["float", "(x, y)"]),
    "one stream too many": ({"x": X, "z": X, "y": Y}, ["z: float32[4]", "inputs="]),
}


@pytest.mark.parametrize("name", BAD_CLASSES)
def test_bad_training_data_are_refused_before_the_first_update(name: str) -> None:
    data, facts = BAD_CLASSES[name]
    kind = hr.ConfigError if name in ("no target", "another target") else hr.DataError
    trainer = classifier()
    refused(trainer, lambda: trainer.fit(data, epochs=1, progress=False), kind, *facts, good=GOOD)


BAD_VAL: dict[str, tuple[Any, list[str]]] = {
    "no rows": ((X[:0], Y[:0]), ["no rows"]),
    "label too large": (with_label(7, 3), ["'y'", "row 7", "label 3", "3 outputs"]),
    "label negative": (with_label(39, -1), ["'y'", "row 39", "label -1"]),
    "no target": (X, ["'y'"]),
    "another name": ({"x": X, "label": Y}, ["'y'", "label"]),
    "double x": ((X.double(), Y), ["x: float64[4]", "x: float32[4]"]),
    "int32 y": ((X, Y.int()), ["y: int32[]", "y: int64[]"]),
    "wide x": ((torch.randn(ROWS, 5), Y), ["x: float32[5]", "x: float32[4]"]),
    "one stream too many": ({"x": X, "z": X, "y": Y}, ["'z'"]),
}


@pytest.mark.parametrize(
    ("name", "which"),
    sampled(product(BAD_VAL, ["val", "test"]), keep=[*product(BAD_VAL, ["val"])], of=3),
)
def test_bad_validation_data_are_refused_before_the_first_update(name: str, which: str) -> None:
    data, facts = BAD_VAL[name]
    trainer = classifier()
    attempt = lambda: trainer.fit(GOOD, **{which: data}, epochs=1, progress=False)  # noqa: E731
    refused(trainer, attempt, hr.DataError, which, *facts, good=GOOD)


BAD_NUMBERS: dict[str, tuple[Any, list[str]]] = {
    "double y": ((X, PAIRS.double()), ["mse", "'y'", "float64", "float32"]),
    "whole y": ((X, torch.ones(ROWS, 2, dtype=torch.int64)), ["mse", "'y'", "int64", "float32"]),
    "wide y": ((X, torch.randn(ROWS, 3)), ["mse", "'y'", "[3]", "[2]"]),
    "flat y": ((X, torch.randn(ROWS)), ["mse", "'y'", "[]", "[2]"]),
}


@pytest.mark.parametrize("name", BAD_NUMBERS)
def test_bad_numbers_to_compare_with_are_refused_before_the_first_update(name: str) -> None:
    data, facts = BAD_NUMBERS[name]
    trainer = regressor()
    refused(trainer, lambda: trainer.fit(data, epochs=1, progress=False), hr.DataError, *facts, good=GOOD_NUMBERS)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1)])
def test_a_column_and_a_vector_mean_the_same_and_are_never_broadcast(shape: tuple[int, ...]) -> None:
    trainer, y = regressor(outputs=1), PAIRS[:, 0].reshape(shape)
    with torch.no_grad():
        expected = float((trainer.model(X[:BATCH]).squeeze(1) - PAIRS[:BATCH, 0]).square().mean())
    info = next(iter(trainer.steps((X, y), epochs=1)))
    assert info.losses["mse"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("which", "stream", "number"),
    sampled(
        product(["train", "val", "test"], ["x", "y"], [math.nan, math.inf, -math.inf]),
        keep=[("train", "x", math.nan), ("val", "y", math.inf), ("test", "x", -math.inf)],
        of=4,
    ),
)
def test_scan_finds_the_row_that_is_not_finite(which: str, stream: str, number: float) -> None:
    bad = {"x": X, "y": PAIRS}
    bad[stream] = with_number(bad[stream], 31, number)
    data = {"train": GOOD_NUMBERS} | {which: bad}
    trainer = regressor()
    attempt = lambda: trainer.fit(**data, epochs=1, scan=True, progress=False)  # noqa: E731
    refused(trainer, attempt, hr.DataError, which, f"'{stream}'", "row 31", good=GOOD_NUMBERS)


def test_without_scan_the_step_that_meets_the_number_stops_before_it_counts() -> None:
    bad = (with_number(X, 3, float("nan")), PAIRS)
    trainer = regressor()
    attempt = lambda: trainer.fit(bad, epochs=1, progress=False)  # noqa: E731
    refused(trainer, attempt, hr.NonFiniteError, "step 1", "'mse'", "nan", "rate 0.01", "16 rows", good=GOOD_NUMBERS)


def test_a_batch_larger_than_the_data_is_one_short_batch() -> None:
    trainer = regressor()
    trainer.batch_size = 1000
    history = trainer.fit(GOOD_NUMBERS, val=GOOD_NUMBERS, epochs=2, progress=False)
    assert history["step"] == [1, 2]
    assert history.last["samples"] == 2 * ROWS


class Twice(hr.Table):
    """A table that breaks its contract."""

    def __init__(self, streams: list[hr.Stream], rows: Callable[[Tensor], hr.Batch]) -> None:
        self._streams, self._rows = streams, rows

    @property
    def streams(self) -> list[hr.Stream]:
        return self._streams

    def __len__(self) -> int:
        return ROWS

    def take(self, indices: Tensor) -> hr.Batch:
        return self._rows(indices)


x, y = hr.Stream("x", (4,)), hr.Stream("y", (), "int64")
TABLES: dict[str, tuple[hr.Table, list[str]]] = {
    "duplicate": (Twice([x, x, y], lambda i: hr.Batch({"x": X[i], "y": Y[i]})), ["unique", "'x'"]),
    "missing": (Twice([x, y], lambda i: hr.Batch({"x": X[i]})), ["Twice", "'y'", "missing"]),
    "too few": (Twice([x, y], lambda i: hr.Batch({"x": X[:2], "y": Y[:2]})), ["Twice", "40 rows", "gave 2"]),
    "dtype": (Twice([x, y], lambda i: hr.Batch({"x": X[i].half(), "y": Y[i]})), ["x: float32[4]", "x: float16[4]"]),
    "shape": (Twice([x, y], lambda i: hr.Batch({"x": X[i, :3], "y": Y[i]})), ["x: float32[4]", "x: float32[3]"]),
    "uneven": (Twice([x, y], lambda i: hr.Batch({"x": X[i], "y": Y[:1]})), ["'x' has 40", "'y' has 1"]),
    "failure": (Twice([x, y], lambda i: 1 / 0), ["division by zero", "x, y"]),  # type: ignore[arg-type, return-value]
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_breaks_its_contract_is_named(name: str) -> None:
    table, facts = TABLES[name]
    trainer = classifier()
    kind = hr.DataError if name == "uneven" else hr.SourceError
    refused(trainer, lambda: trainer.fit(table, epochs=1, progress=False), kind, *facts, good=GOOD)


def test_after_a_refusal_a_single_step_works_too() -> None:
    trainer = classifier()
    with pytest.raises(hr.DataError):
        trainer.fit(with_label(7, 3), epochs=1, progress=False)
    assert trainer.step((X[:8], Y[:8]))["total_loss"] > 0


@pytest.mark.parametrize("name", ["label too large", "double x", "wide x", "no target"])
@pytest.mark.parametrize("call", ["validate", "step"])
def test_validate_and_step_refuse_bad_data_as_fit_does(call: str, name: str) -> None:
    data, facts = BAD_CLASSES[name]
    trainer = classifier()
    before = snapshot(trainer)
    facts = facts[:1] if name == "no target" else facts
    with pytest.raises(hr.HeadraceError) as caught:
        getattr(trainer, call)(data)
    assert [fact for fact in facts if fact not in str(caught.value)] == [], str(caught.value)
    torch.testing.assert_close(snapshot(trainer)[::2], before[::2], rtol=0, atol=0)


def test_predict_refuses_rows_of_the_wrong_shape_as_fit_does() -> None:
    trainer = classifier()
    with pytest.raises(hr.DataError, match=r"x: float32\[5\]"):
        trainer.predict(torch.randn(9, 5))
    assert trainer.predict(X).shape == (ROWS, 3)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.left(left) - self.right(right)  # type: ignore[no-any-return]


@pytest.mark.parametrize("inputs", [None, ["left", "right"]], ids=["by their order", "by name"])
@pytest.mark.parametrize("use", ["predict", "validate", "step", "fit"])
def test_streams_in_another_order_than_before_are_no_other_arguments_in_silence(use: str, inputs: Any) -> None:
    model = Pair()
    trainer = hr.Trainer(model, hr.CrossEntropy(), momentum(model), batch_size=BATCH, inputs=inputs)
    trainer.fit({"left": X, "right": X + 1, "y": Y}, epochs=1, progress=False)
    other = {"right": X + 1, "y": Y, "left": X}
    if inputs is None:
        with pytest.raises(hr.DataError, match=r"streams left, right, by their order, and .* as right, left"):
            getattr(trainer, use)(other)
    else:
        getattr(trainer, use)(other)
    expected = model(X, X + 1).detach()
    assert torch.allclose(trainer.predict({"left": X, "right": X + 1}), expected)


def test_validation_data_with_streams_in_another_order_are_refused_before_the_first_update() -> None:
    model = Pair()
    trainer = hr.Trainer(model, hr.CrossEntropy() + hr.L2Prior(0.1), momentum(model), batch_size=BATCH)
    train, other = {"left": X, "right": X + 1, "y": Y}, {"right": X + 1, "left": X, "y": Y}
    refused = r"streams left, right, by their order, and the val data have them as right, left"
    for val, error in ((other, refused), ({"clean": train, "other": other}, refused.replace("val", "val/other"))):
        with pytest.raises(hr.DataError, match=error):
            trainer.fit(train, val=val, epochs=1, progress=False)
    assert trainer.updates.count == 0


def test_streams_may_have_another_order_after_one_that_the_model_has_refused() -> None:
    model = Pair()
    model.right = nn.Linear(2, 3)
    trainer = hr.Trainer(model, hr.CrossEntropy(), momentum(model), batch_size=BATCH)
    with pytest.raises(hr.DataError, match="the model failed on its first batch"):
        trainer.fit({"right": PAIRS, "left": X, "y": Y}, epochs=1, progress=False)
    trainer.fit({"left": X, "right": PAIRS, "y": Y}, epochs=1, progress=False)
