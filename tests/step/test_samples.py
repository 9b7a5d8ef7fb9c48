"""A list is batches, whoever is given it and whatever went before; samples are given as `hr.samples`."""

from collections import deque, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.sums import X, Y, make

import headrace as hr

Row = namedtuple("Row", ["x", "y"])
DICTS = [{"x": x, "y": float(y)} for x, y in zip(X, Y, strict=True)]
LISTS: dict[str, list[Any]] = {
    "dicts": DICTS,
    "tuples": [(each["x"], each["y"]) for each in DICTS],
    "named tuples": [Row(**each) for each in DICTS],
    "arrays": [{"x": each["x"].numpy(), "y": each["y"]} for each in DICTS],
}


def step_by_step(trainer: hr.Trainer, data: Any) -> None:
    for _ in trainer.steps(data, epochs=1, progress=False):
        pass


USES: dict[str, Callable[[hr.Trainer, Any], Any]] = {
    "fit": lambda trainer, data: trainer.fit(data, epochs=1, progress=False),
    "steps": step_by_step,
    "validate": lambda trainer, data: trainer.validate(data),
    "test": lambda trainer, data: trainer.test(data),
    "predict": lambda trainer, data: trainer.predict(data),
}


def fresh() -> hr.Trainer:
    return make(batch_size=None)


def trained() -> hr.Trainer:
    trainer = fresh()
    trainer.fit((X, Y), epochs=1, progress=False)
    return trainer


def stepped() -> hr.Trainer:
    trainer = fresh()
    trainer.step((X, Y))
    trainer.release()
    return trainer


@pytest.mark.parametrize("before", [fresh, trained, stepped])
def test_a_list_is_batches_whatever_went_before(before: Callable[[], hr.Trainer]) -> None:
    expected = before().predict(X)
    for batches in (
        [(X[:8], Y[:8]), (X[8:], Y[8:])],
        [{"x": X[:8], "y": Y[:8]}, {"x": X[8:], "y": Y[8:]}],
        [hr.Batch({"x": X[:8], "y": Y[:8]}), hr.Batch({"x": X[8:], "y": Y[8:]})],
        [[X[:8], Y[:8]], [X[8:], Y[8:]]],  # as a DataLoader gives them
        [{"x": X[:8]}, {"x": X[8:]}],
        [X[:8], X[8:]],
    ):
        assert torch.equal(before().predict(batches), expected)
    assert before().validate([(X[:8], Y[:8]), (X[8:], Y[8:])])["val/loss"] == pytest.approx(
        before().validate((X, Y))["val/loss"]
    )


@pytest.mark.parametrize("kind", LISTS)
def test_samples_are_what_their_rows_are_together(kind: str) -> None:
    ours, other = make(), make()
    assert ours.step(hr.samples(LISTS[kind])) == other.step((X, Y))
    assert torch.equal(ours.predict(hr.samples(LISTS[kind])), other.predict(X))
    assert ours.validate(hr.samples(LISTS[kind])) == other.validate((X, Y))
    assert ours.test(hr.samples(LISTS[kind])) == other.test((X, Y))
    ours.fit(hr.samples(LISTS[kind]), epochs=1, progress=False)
    other.fit((X, Y), epochs=1, progress=False)
    assert torch.equal(ours.predict(X), other.predict(X))


SAMPLES, TUPLE = r"a list is batches.*hr\.samples\(\[\.\.\.\]\)", r"cannot read data from a tuple .*a list of batches"
REFUSED: dict[str, tuple[Any, str]] = {
    **{kind: (each, SAMPLES) for kind, each in LISTS.items()},
    "x and y": ([X, Y], r"item 1 of this one is not like item 0\. Give x and y as a tuple"),
    "a tuple of batches": (({"x": X, "y": Y},) * 2, TUPLE),
    "a tuple of pairs": (((X, Y),) * 3, TUPLE),
    "nothing": ([], "the list is empty: there is nothing to read"),
}


@pytest.mark.parametrize("before", [fresh, trained])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_neither_batches_nor_samples_is_refused_and_the_remedy_is_named(
    kind: str, use: str, before: Callable[[], hr.Trainer]
) -> None:
    given, message = REFUSED[kind]
    with pytest.raises(hr.DataError, match=message):
        USES[use](before(), given)


def test_samples_may_be_x_alone() -> None:
    trainer = make()
    for rows in ([{"x": x} for x in X[:5]], [(x,) for x in X[:5]], [*X[:5]], deque(X[:5])):
        assert torch.equal(trainer.predict(hr.samples(rows)), trainer.predict(X[:5]))


@pytest.mark.parametrize("batch", [[X, Y], [(X, Y)], DICTS, []])
def test_a_step_takes_one_batch_and_no_list(batch: Any) -> None:
    for trainer in (fresh(), trained()):
        with pytest.raises(hr.DataError, match=r"a list is several batches.*\(x, y\).*tuple\(batch\).*hr\.samples"):
            trainer.step(batch)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "at least one sample, got none"),
        ("text", "a list of samples, got a str"),
        (X, "a list of samples, got a Tensor"),
        ({"x": X}, "a list of samples, got a dict"),
        ([DICTS[0], {"x": X[1]}], r"sample 1 of a batch has the parts \['x'\], sample 0 has \['x', 'y'\]"),
        ([DICTS[0], {"x": X[1], "y": "one"}], "stream 'y': sample 1 holds text"),
        ([(X[0], 1.0, 2.0)], r"sample 0 is a tuple of 3 parts\. Give an array, a tuple"),
        ([[X[0], 1.0]], r"sample 0 is a list\. Give an array, a tuple \(x, y\), or a dict"),
    ],
)
def test_samples_that_are_none_are_refused(given: Any, told: str) -> None:
    with pytest.raises(hr.DataError, match=told):
        hr.samples(given)


def test_a_batch_is_its_fields_by_name() -> None:
    batch = hr.Batch({"x": X, "y": Y})
    assert list(batch.fields) == ["x", "y"]
    assert "x" in batch
    for use in (lambda: [y for x, y in [batch]], lambda: [rest for _, *rest in [batch]], lambda: list(batch)):
        with pytest.raises(
            hr.DataError, match=r"a batch is not iterated or unpacked.*x, y = batch\['x'\], batch\['y'\]"
        ):
            use()
