"""Updates made by hand beside the trainer's, several optimizers, and steps of which nothing is left to report."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr

ROWS, BATCH = 48, 16
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(dim=1)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(map(torch.equal, a.state_dict().values(), b.state_dict().values()))


class Double(hr.Trainer):
    """The original update, and another one by hand after it."""

    def train_step(self, batch: hr.Batch) -> Any:
        outcome = super().train_step(batch)
        by_hand(self.model, self.optimizer, self.model(batch["x"]).square().mean())
        return outcome


@pytest.mark.parametrize("arena", [True, False])
def test_a_train_step_may_add_an_update_by_hand_to_the_original(arena: bool) -> None:
    model, raw = network(), network()
    trainer = Double(model, hr.CrossEntropy(), sgd(model), batch_size=BATCH, order="none", arena=arena)
    trainer.fit((X, Y), epochs=2, progress=False)
    optimizer = sgd(raw)
    for _ in range(2):
        for x, y in zip(X.split(BATCH), Y.split(BATCH), strict=True):
            by_hand(raw, optimizer, F.cross_entropy(raw(x), y))
            by_hand(raw, optimizer, raw(x).square().mean())
    assert equal(model, raw)


def test_an_update_by_hand_between_two_steps_counts_or_is_refused_but_is_never_lost() -> None:
    model, raw = network(), network()
    trainer, optimizer = hr.Trainer(model, hr.CrossEntropy(), sgd(model)), sgd(raw)
    try:
        for _ in range(2):
            trainer.step((X, Y))
            by_hand(model, trainer.optimizer, model(X).square().mean())
        trainer.release()
    except hr.HeadraceError as error:
        assert "release" in str(error)  # noqa: PT017 - either way is right
        return
    for _ in range(2):
        by_hand(raw, optimizer, F.cross_entropy(raw(X), Y))
        by_hand(raw, optimizer, raw(X).square().mean())
    assert equal(model, raw)


def test_the_error_of_one_of_several_updates_names_its_key() -> None:
    model = network()
    bad = {"enter": hr.CrossEntropy(), "leave": lambda out, y: out.mean() / 0}
    optimizers = {"enter": sgd(model[0]), "leave": sgd(model[2])}
    trainer = hr.Trainer(model, bad, optimizers, batch_size=BATCH)
    with pytest.raises(hr.NonFiniteError, match="'leave'"):
        trainer.fit((X, Y), epochs=1, progress=False)
    assert equal(model[2], network()[2])
    assert not optimizers["leave"].state


def test_an_epoch_of_which_every_step_was_skipped_has_no_loss_of_zero() -> None:
    model = network()
    trainer = hr.Trainer(model, hr.CrossEntropy(), sgd(model), batch_size=BATCH, nonfinite="skip")
    with pytest.warns(UserWarning, match="none of the 3 updates was made.* not finite"):
        history = trainer.fit((X * float("nan"), Y), epochs=1, progress=False)
    assert equal(model, network())
    assert history.last["step"] == 3
    assert history.last.get("train/loss") != 0.0


def test_a_step_that_is_given_no_batch_says_how_to_make_one() -> None:
    class Pairs(hr.Trainer):
        def train_step(self, batch: hr.Batch) -> Any:
            return super().train_step((batch["x"], batch["y"]))  # type: ignore[arg-type]

        def evaluate_step(self, batch: hr.Batch) -> Any:
            return super().evaluate_step((batch["x"], batch["y"]))  # type: ignore[arg-type]

    trainer = Pairs(model := network(), hr.CrossEntropy(), sgd(model), batch_size=BATCH)
    with pytest.raises(hr.ConfigError, match=r"train_step takes an hr.Batch, got a tuple.*\*\*batch.fields"):
        trainer.fit((X, Y), epochs=1, progress=False)
    with pytest.raises(hr.ConfigError, match=r"evaluate_step takes an hr.Batch, got a tuple"):
        trainer.validate((X, Y))


@pytest.mark.parametrize("loss", [torch.zeros(3), "far", None])
def test_a_loss_by_name_that_is_no_number_is_told_so(loss: Any) -> None:
    class Strange(hr.Trainer):
        def evaluate_step(self, batch: hr.Batch) -> Any:
            return {"far": loss}

    with pytest.raises(hr.ConfigError, match="evaluate_step: the loss 'far' is one number, the mean over the rows"):
        Strange(model := network(), hr.CrossEntropy(), sgd(model)).validate((X, Y))
