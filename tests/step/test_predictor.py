"""A trainer of a model alone predicts; with a loss it validates; what is missing for more is said."""

from typing import Any

import pytest
import torch
from kit.small import Parts
from kit.sums import X, Y, make

import headrace as hr


def test_a_model_alone_predicts() -> None:
    model = make().model
    trainer = hr.Trainer(model, batch_size=7, device="cpu")
    with torch.no_grad():
        assert torch.allclose(trainer.predict(X), model(X))
    assert torch.equal(trainer.predict(hr.samples([{"x": x} for x in X])), trainer.predict(X))
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_a_model_without_parameters_predicts() -> None:
    double = Parts(lambda self, x: 2 * x)
    assert torch.equal(hr.Trainer(double, device="cpu").predict(X), 2 * X)


def test_a_loss_is_enough_to_validate() -> None:
    trainer = make()
    lone = hr.Trainer(trainer.model, hr.MSE(), metrics=["mae"], batch_size=8)
    assert lone.validate((X, Y))["val/loss"] == trainer.validate((X, Y))["val/loss"]
    assert lone.test((X, Y))["test/mae"] > 0


@pytest.mark.parametrize("loss", [None, hr.MSE()])
def test_what_is_missing_is_said(loss: Any) -> None:
    trainer = hr.Trainer(make().model, loss)
    uses: list[Any] = [
        lambda: trainer.fit((X, Y), epochs=1),
        lambda: next(trainer.steps((X, Y), epochs=1)),
        lambda: trainer.step((X, Y)),
        lambda: trainer.find_lr((X, Y)),
        lambda: trainer.optimizer,
    ]
    for use in uses:
        with pytest.raises(hr.ConfigError, match=r"needs an optimizer.*hr.Trainer\(model, loss, optimizer\)"):
            use()
    if loss is None:
        with pytest.raises(hr.ConfigError, match="made without a loss, and can only predict"):
            trainer.validate((X, Y))


def test_outputs_of_another_structure_are_not_taken_for_each_other() -> None:
    turns = iter(["ab", "ba"] * 9)
    model = Parts(lambda self, x: dict.fromkeys(next(turns), x))
    with pytest.raises(hr.DataError, match="keys in another order"):
        hr.Trainer(model, batch_size=7, device="cpu").predict(X)
