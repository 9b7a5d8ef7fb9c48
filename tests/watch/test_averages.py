"""Averages of the weights: what is validated, kept, tested and left, while the training goes on with its own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.sampled import sampled
from kit.small import same, stop_and_resume
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import headrace as hr

torch.manual_seed(0)
X, Y = torch.randn(200, 6), torch.randint(0, 3, (200,))


def made(**options: Any) -> hr.Trainer:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=20, metrics=["accuracy"], **options)


def fitted(*callbacks: hr.Callback, epochs: int = 3, **options: Any) -> hr.Trainer:
    trainer = made()
    trainer.fit((X, Y), (X, Y), epochs=epochs, progress=False, callbacks=callbacks, **options)
    return trainer


def tensors(model: nn.Module) -> list[Tensor]:
    """Parameters and statistics, copied."""
    return [tensor.detach().clone() for tensor in model.state_dict().values() if tensor.is_floating_point()]


def by_hand(decay: float, epochs: int) -> tuple[list[Tensor], list[Tensor]]:
    """The exponential average, and the weights."""
    trainer, average = made(), list[Tensor]()
    for info in trainer.steps((X, Y), epochs=epochs):
        now = tensors(trainer.model)
        share = max(1 - decay, 1 / info.step)
        average = [a.lerp(b, share) for a, b in zip(average, now, strict=True)] if average else now
    return average, tensors(trainer.model)


def test_the_model_ends_as_its_exponential_average_and_the_training_goes_on_with_its_own_weights() -> None:
    average, weights = by_hand(0.8, 3)
    trainer = fitted(hr.EMA(0.8))
    assert same(tensors(trainer.model), average)
    assert not same(average, weights)


def test_the_average_of_a_weight_that_is_used_twice_is_saved_under_both_names(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model: Any = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    model[2].weight = model[0].weight
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=20)
    trainer.fit((X, Y), epochs=2, progress=False, callbacks=[hr.EMA(0.9)], run=tmp_path / "run")
    [file] = (tmp_path / "run" / "checkpoints").glob("step-000000000020-*/model.safetensors")
    saved = load_file(file)
    assert torch.equal(saved["0.weight"], model[0].weight)
    assert torch.equal(saved["2.weight"], model[0].weight)


@pytest.mark.parametrize("kind", ["EMA", "SWA"])
def test_averages_have_the_bits_of_those_of_torch(kind: str, tmp_path: Path) -> None:
    """Of `AveragedModel` in a loop, also after a resume. Its EMA leaves statistics to the model."""
    multi = get_ema_multi_avg_fn(0.8) if kind == "EMA" else get_swa_multi_avg_fn()

    def ours() -> hr.Callback:
        return hr.EMA(0.8, like="torch") if kind == "EMA" else hr.EMA(1, every="1 epoch")

    trainer = made()
    torchs = AveragedModel(trainer.model, multi_avg_fn=multi)
    for info in trainer.steps((X, Y), epochs=3):
        if kind == "EMA" or info.ends_epoch:
            torchs.update_parameters(trainer.model)
    for stop in (None, 13, 25):
        if stop:
            made().fit((X, Y), steps=stop, run=tmp_path / str(stop), progress=False, callbacks=[ours()])
        resumed = made()
        resumed.fit((X, Y), epochs=3, progress=False, callbacks=[ours()], run=tmp_path / str(stop))
        assert same([*resumed.model.parameters()], [*torchs.module.parameters()])
        if kind == "EMA":
            assert same(tensors(resumed.model), tensors(torchs.module))


def test_validations_see_the_average() -> None:
    trainer = fitted(hr.EMA(0.8))
    assert trainer.validate((X, Y))["val/loss"] == trainer.history.last["val/loss"]
    assert fitted().history["train/loss"] == trainer.history["train/loss"], "updates are those without it"


def test_checkpoints_and_the_best_model_have_the_average(tmp_path: Path) -> None:
    trainer = fitted(hr.EMA(0.8), hr.BestModel("val/loss"), run=tmp_path / "run")
    values = trainer.history["val/loss"]
    best = made()
    hr.load_weights(best.model, tmp_path / "run", which="best")
    assert best.validate((X, Y))["val/loss"] == min(values)
    saved = load_file(tmp_path / "run" / "best" / "model.safetensors")
    state = best.model.state_dict()
    assert saved.keys() == state.keys()
    assert all(torch.equal(saved[name], value) for name, value in state.items())
    hr.load_weights(best.model, tmp_path / "run", which="last")
    assert same(tensors(best.model), tensors(trainer.model))


AVERAGES = {"EMA": lambda: hr.EMA(0.9), "mean": lambda: hr.EMA(1, every="3 steps", after="1 epoch")}


@pytest.mark.parametrize("name", AVERAGES)
def test_a_training_that_was_left_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    def watching() -> list[hr.Callback]:
        return [AVERAGES[name](), hr.EarlyStopping(patience=2)]

    stop_and_resume(made, [1, 9, 10, 17, 30], tmp_path, (X, Y), (X, Y), callbacks=watching, epochs=3)


def test_the_mean_begins_after_some_epochs_and_is_one_of_their_ends() -> None:
    trainer, ends = made(), []
    for info in trainer.steps((X, Y), epochs=4):
        if info.ends_epoch and info.epoch >= 2:
            ends.append(tensors(trainer.model))
    mean = [torch.stack(each).mean(dim=0) for each in zip(*ends, strict=True)]
    found = fitted(hr.EMA(1, every="1 epoch", after="2 epochs"), epochs=4)
    for one, other in zip(tensors(found.model), mean, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_workers_that_average_their_statistics_go_on_bit_for_bit(tmp_path: Path) -> None:
    def main(run: Path | None, stop: int) -> list[Tensor]:
        trainer = made()
        for info in trainer.steps((X, Y), (X, Y), epochs=2, callbacks=[hr.EMA(0.8)], run=run):
            if info.step == stop:
                break
        return tensors(trainer.model)

    whole = hr.launch(main, None, 0, workers=2)
    hr.launch(main, tmp_path / "run", 7, workers=2)
    assert same(hr.launch(main, tmp_path / "run", 0, workers=2), whole)


@pytest.mark.parametrize(("before", "after"), sampled([(3, 1), (2, 3), (1, 2)], keep=[(2, 3)], of=2))
def test_another_number_of_workers_goes_on_with_the_average_and_its_metrics(
    before: int, after: int, tmp_path: Path
) -> None:
    def main(run: Path | None, stop: int) -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=20, metrics=["accuracy"])
        for info in trainer.steps((X, Y), (X, Y), epochs=2, callbacks=[hr.EMA(0.8)], run=run):
            if info.step == stop:
                break
        return tensors(model)

    run = tmp_path / "run"
    hr.launch(main, run, 7, workers=before)
    rest = hr.launch(main, run, 0, workers=after)
    for one, other in zip(rest, hr.launch(main, None, 0, workers=1), strict=True):
        torch.testing.assert_close(one, other)
    assert same(hr.launch(main, run, 0, workers=before), rest), "nothing was left to train"


@pytest.mark.parametrize(
    ("average", "said"),
    [
        (lambda: hr.EMA(0.9, every="1 epoch"), "EMA had nothing to average: no interval of 1 epoch ended.$"),
        (lambda: hr.EMA(every="5 epochs", after="1 step"), "average: no interval of 5 epochs ended after 1 step.$"),
        (lambda: hr.EMA(after="4 steps"), "average: it begins after 4 steps.$"),
    ],
)
def test_an_average_that_is_never_made_says_why(average: Any, said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        made().fit((X, Y), steps=3, progress=False, callbacks=[average()])
