"""Trainer(augment=) changes the training rows, and no others, in the same way after any resume."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace as hr

ROWS = 40
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


def noisy(fields: Mapping[str, Any], draws: hr.Draws) -> Mapping[str, Any]:
    return {**fields, "x": fields["x"] + 0.5 * draws.normal(3)}


def trainer(**options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    return hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.05), batch_size=8, **options)


def weights(made: hr.Trainer) -> torch.Tensor:
    return made.model.weight.detach().clone()  # type: ignore[operator]


def test_the_training_data_are_augmented_and_no_others() -> None:
    mapped, plain, made = trainer(), trainer(), trainer(augment=noisy)
    mapped.fit(hr.Reader(hr.ArrayTable({"x": X, "y": Y}), augment=noisy), epochs=3, progress=False)
    plain.fit((X, Y), epochs=3, progress=False)
    history = made.fit((X, Y), val=(X, Y), epochs=3, progress=False)
    assert torch.equal(weights(made), weights(mapped))
    assert not torch.equal(weights(made), weights(plain))
    assert history.last["val/loss"] in made.validate((X, Y)).values()


def test_a_run_is_resumed_exactly_and_with_the_same_function(tmp_path: Path) -> None:
    whole = trainer(augment=noisy)
    whole.fit((X, Y), epochs=3, progress=False)
    for steps in (7, None):
        again = trainer(augment=noisy)
        again.fit((X, Y), epochs=3, steps=steps, progress=False, run=tmp_path / "run")
    assert torch.equal(weights(again), weights(whole))
    with pytest.raises(hr.CheckpointError, match="augment"):
        trainer().fit((X, Y), epochs=4, progress=False, run=tmp_path / "run")


def test_files_that_are_given_later_are_read_without_it(tmp_path: Path) -> None:
    columns = {f"c{k}": X[:, k] for k in range(3)} | {"y": Y[:, 0]}
    hr.write_table(hr.ArrayTable(columns), tmp_path / "t.parquet")
    made = trainer(augment=noisy)
    table = hr.open_table(tmp_path / "t.parquet", columns={"x": ["c0", "c1", "c2"], "y": ["y"]})
    made.fit(table, val=tmp_path / "t.parquet", epochs=1, progress=False)
    assert torch.equal(made.predict(tmp_path / "t.parquet"), made.predict(X))


def mixed_up(fields: Mapping[str, Any], draws: hr.Draws) -> Mapping[str, Any]:
    """MixUp: every row is mixed with another, and so are their classes."""
    share, other = draws.uniform(1, low=0.0, high=0.5), torch.arange(len(draws)).flip(0)
    y = torch.nn.functional.one_hot(fields["y"], 2).float()
    return {name: each + share * (each[other] - each) for name, each in (("x", fields["x"]), ("y", y))}


def test_mixed_classes_in_training_and_plain_ones_in_validation(tmp_path: Path) -> None:
    data = {"x": X, "y": (Y[:, 0] > 0).long()}

    def made() -> hr.Trainer:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        return hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=8, metrics="accuracy", augment=mixed_up)

    whole, resumed = made(), made()
    history = whole.fit(data, val=data, epochs=3, progress=False)
    expected = torch.nn.functional.cross_entropy(whole.model(X), data["y"]).item()
    assert history.last["val/loss"] == pytest.approx(expected, rel=1e-5)
    made().fit(data, val=data, epochs=3, steps=7, run=tmp_path / "run", progress=False)
    resumed.fit(data, val=data, epochs=3, run=tmp_path / "run", progress=False)
    assert torch.equal(weights(resumed), weights(whole))


def test_a_source_that_gives_batches_is_refused() -> None:
    with pytest.raises(hr.ConfigError, match="augment= changes rows that the trainer reads by number"):
        trainer(augment=noisy).fit([(X, Y)], epochs=1, progress=False)


@pytest.mark.parametrize(
    "find", [partial(hr.Trainer.find_lr, steps=12), partial(hr.Trainer.find_batch_size, seconds=0.001)]
)
def test_a_finder_trains_with_rows_that_are_changed_once(find: Callable[..., Any]) -> None:
    calls = []

    def change(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        calls.append(float(fields["x"].abs().max()))
        return {**fields, "x": fields["x"] + 100}

    find(trainer(augment=change), (X, Y))
    assert 0 < max(calls) < 50


def test_a_run_remembers_the_function_that_was_set_last(tmp_path: Path) -> None:
    made = trainer()
    made.augment = noisy
    made.fit((X, Y), epochs=1, progress=False, run=tmp_path / "run")
    with pytest.raises(hr.CheckpointError, match=r"augment: .*noisy' in the run, None now"):
        trainer().fit((X, Y), epochs=2, progress=False, run=tmp_path / "run")
    trainer(augment=noisy).fit((X, Y), epochs=2, progress=False, run=tmp_path / "run")
