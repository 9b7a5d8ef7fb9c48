"""Trainer(augment=) changes the training rows, and no others, in the same way after any resume."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.small import data, fit, same, stop_and_resume, trainer

import headrace as hr

X, Y = DATA = data(40)


def noisy(fields: Mapping[str, Any], draws: hr.Draws) -> Mapping[str, Any]:
    return {**fields, "x": fields["x"] + 0.5 * draws.normal(6)}


def mixed_up(fields: Mapping[str, Any], draws: hr.Draws) -> Mapping[str, Any]:
    """MixUp: every row is mixed with another, and so are their classes."""
    share, other = draws.uniform(1, low=0.0, high=0.5), torch.arange(len(draws)).flip(0)
    y = torch.nn.functional.one_hot(fields["y"], 3).float()
    return {name: each + share * (each[other] - each) for name, each in (("x", fields["x"]), ("y", y))}


def test_the_training_data_are_augmented_and_no_others() -> None:
    mapped, plain, made = trainer(), trainer(), trainer(augment=noisy)
    fit(mapped, hr.Reader(hr.ArrayTable({"x": X, "y": Y}), augment=noisy))
    fit(plain, DATA)
    history = fit(made, DATA, DATA)
    assert same(made, mapped)
    assert not same(made, plain)
    assert history.last["val/loss"] in made.validate(DATA).values()


@pytest.mark.parametrize("augment", [noisy, mixed_up])
def test_a_run_is_resumed_exactly_and_with_the_same_function(augment: Any, tmp_path: Path) -> None:
    """Also where classes are mixed in the training, and plain ones are validated."""
    make = partial(trainer, metrics="accuracy", augment=augment)
    made = stop_and_resume(make, [4], tmp_path, DATA, DATA)
    expected = torch.nn.functional.cross_entropy(made.model(X), Y).item()
    assert made.history.last["val/loss"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(hr.CheckpointError, match=rf"augment: .*{augment.__name__}' in the run, None now"):
        fit(trainer(), DATA, epochs=4, run=tmp_path / "resumed")


def test_files_that_are_given_later_are_read_without_it(tmp_path: Path) -> None:
    hr.write_table(hr.ArrayTable({f"c{k}": X[:, k] for k in range(6)} | {"y": Y}), tmp_path / "t.parquet")
    made = trainer(augment=noisy)
    table = hr.open_table(tmp_path / "t.parquet", columns={"x": [f"c{k}" for k in range(6)], "y": "y"})
    fit(made, table, tmp_path / "t.parquet", epochs=1)
    assert torch.equal(made.predict(tmp_path / "t.parquet"), made.predict(X))


def test_a_source_that_gives_batches_is_refused() -> None:
    with pytest.raises(hr.ConfigError, match="augment= changes rows that the trainer reads by number"):
        fit(trainer(augment=noisy), [DATA])


@pytest.mark.parametrize(
    "find", [partial(hr.Trainer.find_lr, steps=12), partial(hr.Trainer.find_batch_size, seconds=0.001)]
)
def test_a_finder_trains_with_rows_that_are_changed_once(find: Callable[..., Any]) -> None:
    calls = []

    def change(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        calls.append(float(fields["x"].abs().max()))
        return {**fields, "x": fields["x"] + 100}

    find(trainer(augment=change), DATA)
    assert 0 < max(calls) < 50
