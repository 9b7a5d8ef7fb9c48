"""Checkpoints of what is trained: the frozen base is not in them, and has to be the same where they are used."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kit.forked import start
from kit.sharded_models import Layers, adam, by_workers, data, distance, full
from kit.small import saved_weights
from torch import nn

import headrace as hr
from headrace.app.cli import main
from headrace.errors import CheckpointError, ConfigError

TRAINED = {f"blocks.{k}.{name}.weight" for k in range(2) for name in ("down", "up")} | {"last.weight", "last.bias"}


def model(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return Layers(adapted=True)


def trains(run: Path, epochs: int, seed: int = 1, strategy: hr.Strategy | None = None, **how: Any) -> Any:
    how = {"checkpoint": "trainable", **how}
    trainer = hr.Trainer(model(seed), hr.CrossEntropy(), adam, batch_size=16, strategy=strategy)
    trainer.fit(data("adapted"), epochs=epochs, progress=False, run=hr.Run(run, **how))
    return trainer.model


def test_what_is_frozen_is_not_saved_and_a_run_goes_on_to_the_bit(tmp_path: Path) -> None:
    trains(tmp_path / "a", 1)
    assert set(saved_weights(tmp_path / "a")) == TRAINED
    found = trains(tmp_path / "a", 3)
    assert distance(full(found), full(trains(tmp_path / "b", 3, checkpoint="complete"))) == 0
    assert set(saved_weights(tmp_path / "b")) > TRAINED
    read = model()
    hr.load_weights(read, tmp_path / "a")
    assert distance(full(read), full(found)) == 0
    complete = trains(tmp_path / "a", 4, checkpoint="complete")
    assert set(saved_weights(tmp_path / "a")) == set(complete.state_dict())


def test_another_base_is_refused(tmp_path: Path) -> None:
    trains(tmp_path / "a", 1)
    with pytest.raises(CheckpointError, match="another base than the one that was trained on: its values differ"):
        trains(tmp_path / "a", 2, seed=2)
    with pytest.raises(CheckpointError, match="its values differ"):
        hr.load_weights(model(2), tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"it has no blocks.0.layer.bias"):
        hr.load_weights(Layers(), tmp_path / "a")


def test_what_cannot_be_saved_so_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="unknown checkpoint 'trained'"):
        hr.Run(tmp_path / "a", checkpoint="trained")

    class Thaws(hr.Callback):
        def on_epoch_end(self, info: hr.Info, row: dict[str, Any]) -> None:
            info.trainer.model.requires_grad_(True)

    trainer = hr.Trainer(model(), hr.CrossEntropy(), adam, batch_size=16)
    run = hr.Run(tmp_path / "a", checkpoint="trainable")
    with pytest.raises(CheckpointError, match="was frozen when the run began and is trained now"):
        trainer.fit(data("adapted"), epochs=2, progress=False, callbacks=[Thaws()], run=run)
    assert main(["checkpoint", "export", str(tmp_path / "a")]) == 1
    assert "without the frozen base" in capsys.readouterr().err


STRATEGIES: dict[str, Any] = {
    "synchronous": hr.Synchronous,
    "block momentum": lambda: hr.BlockMomentum("3 steps"),
    "diloco": lambda: hr.DiLoCo("3 steps"),
    "elastic": lambda: hr.Elastic("2 steps"),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_saves_what_is_trained_and_goes_on_to_the_bit(strategy: str, tmp_path: Path) -> None:
    def on_workers(run: str, epochs: int, checkpoint: str) -> dict[str, torch.Tensor]:
        made = STRATEGIES[strategy]()
        call = partial(trains, tmp_path / run, epochs, strategy=made, checkpoint=checkpoint)
        return full(hr.launch(call, workers=2))

    on_workers("left", 1, "trainable")
    assert set(saved_weights(tmp_path / "left")) == TRAINED
    on_workers("complete", 1, "complete")
    assert distance(on_workers("left", 3, "trainable"), on_workers("complete", 3, "complete")) == 0
    assert distance(full(model()), on_workers("left", 3, "trainable")) > 0


def by_shards(run: str, epochs: int, seed: int = 1) -> dict[str, torch.Tensor]:
    return full(trains(Path(run), epochs, seed, hr.Sharded("blocks.*")))


def goes_on_sharded(run: str) -> None:
    by_workers(by_shards, run, 1)
    by_workers(by_shards, run, 2, workers=3)
    with pytest.raises(CheckpointError, match="its values differ"):
        by_workers(by_shards, run, 3, 2)


def test_the_base_of_a_sharded_model_is_that_of_a_complete_one(tmp_path: Path) -> None:
    run = tmp_path / "sharded"
    with start(goes_on_sharded, tmp_path, str(run)) as child:
        assert child.ending() == 0, child.output
    assert set(saved_weights(run)) == TRAINED
    assert distance(full(trains(run, 3)), full(trains(tmp_path / "b", 3))) <= 1e-5
