"""Several validation or test sets by name: each has numbers of its own, whose keys begin with its name."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from kit.late import pandas as pd
from kit.small import fit, stop_and_resume
from kit.sums import X, Y, make
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headrace as hr

NOISY = X + 0.3 * torch.randn(X.shape, generator=torch.Generator().manual_seed(1))
SETS: dict[str, Any] = {"clean": (X, Y), "noisy": {"x": NOISY, "y": Y}}


def fitted(**options: Any) -> tuple[hr.Trainer, hr.History]:
    trainer = make(metrics=["mae"])
    return trainer, fit(trainer, (X, Y), **options)


def test_every_set_is_scored_as_it_is_alone_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    trainer, history = fitted(val=SETS, test={"first": (X[:9], Y[:9])}, epochs=3, progress="plain")
    for name, data in SETS.items():
        alone = trainer.validate(data)
        assert [history.last[f"val/{name}/{key}"] for key in ("loss", "mae")] == [alone["val/loss"], alone["val/mae"]]
    assert history.last["test/first/loss"] == trainer.test((X[:9], Y[:9]))["test/loss"]
    assert "val/loss" not in history.last
    assert trainer.validate(SETS) == {key: value for key, value in history.last.items() if key.startswith("val/")}
    assert len(history["val/clean/loss"]) == 3
    line = capsys.readouterr().err.splitlines()[0]
    assert "val/clean/loss" in line
    assert "val/noisy/mae" in line
    legend: Any = history.plot().axes[0].get_legend()
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["train", "val/clean", "val/noisy", "test/first"]


@pytest.mark.parametrize(
    "sets",
    [
        {"a": TensorDataset(X, Y), "b": DataLoader(TensorDataset(X, Y), 8)},
        {"a": hr.concat((X, Y)), "b": [{"x": X, "y": Y}]},
        {"a": hr.concat((X, Y))},
    ],
)
def test_sets_are_whatever_data_may_be(sets: dict[str, Any]) -> None:
    _, history = fitted(val=sets)
    assert all(history.last[f"val/{name}/loss"] > 0 for name in sets)


@pytest.mark.parametrize("kind", [lambda columns: pd.DataFrame(columns), pa.table])
def test_frames_are_sets(kind: Any) -> None:
    frame = kind({"x": np.arange(8.0, dtype="float32"), "y": np.ones(8, "float32")})
    trainer = hr.Trainer(nn.Identity(), hr.MSE())
    found = trainer.validate({"clean": frame, "noisy": frame})
    assert found["val/clean/loss"] == found["val/noisy/loss"] == trainer.validate(frame)["val/loss"] == 11.5


def test_streams_and_a_frame_with_the_frame_of_its_target_are_one_set() -> None:
    x, y = pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"b": [1.0, 1.0]})
    assert hr.Trainer(nn.Identity(), hr.MSE()).validate({"x": x, "y": y})["val/loss"] == 0.5
    assert fitted(val={"x": X, "y": Y})[1].last["val/loss"] > 0


def test_a_run_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    def stop() -> list[hr.Callback]:
        return [hr.EarlyStopping("val/noisy/loss", patience=2), hr.BestModel("val/clean/mae")]

    trainer = stop_and_resume(lambda: make(metrics=["mae"]), [10], tmp_path, (X, Y), SETS, callbacks=stop, epochs=4)
    assert trainer.history.best is not None


def test_the_best_is_told_by_the_name_of_a_set() -> None:
    worse = {"up": (X, -1e3 * Y), "down": (X, Y)}  # fits ever less, and ever better
    trainer, history = fitted(val=worse, epochs=6, callbacks=[hr.EarlyStopping("val/up/loss", patience=2)])
    assert history.last["epoch"] == 3
    assert trainer.validate((X, -1e3 * Y))["val/loss"] == min(history["val/up/loss"])
    with pytest.raises(hr.ConfigError, match=r"'val/loss', which is not measured. Did you mean 'val/up/loss' or"):
        fitted(val=worse, callbacks=[hr.EarlyStopping()])
