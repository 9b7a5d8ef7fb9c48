"""What callbacks and a `train_step` of one's own see of the training that is under way."""

from typing import Any

import pytest
import torch
from kit.sums import X, Y
from torch import Tensor, nn

import headrace as hr


def make(kind: type[hr.Trainer] = hr.Trainer, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    return kind(model, hr.MSE(), optimizer, batch_size=8, **options)


class Looks(hr.Callback):
    """Applies the model in the middle of a training, and draws random numbers there."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.seen = fails, list[Any]()
        self.modes: set[bool] = set()

    def on_step_end(self, info: hr.Info) -> None:
        try:
            with info.evaluating() as model:
                torch.rand(3)
                self.modes |= {module.training for module in model.modules()}
                self.seen.append(model(X))
                assert not self.seen[-1].requires_grad
                if self.fails:
                    raise KeyError
        except KeyError:
            pass
        assert info.trainer.model.training
        assert torch.is_grad_enabled()


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_look_at_the_model_changes_nothing(average: bool, fails: bool) -> None:
    def trained(*callbacks: hr.Callback) -> tuple[list[Any], dict[str, Tensor]]:
        trainer = make()
        others = [hr.EMA(0.9)] if average else []
        history = trainer.fit((X, Y), (X, Y), epochs=3, progress=False, callbacks=[*others, *callbacks])
        return history.rows, trainer.model.state_dict()

    looks = Looks(fails)
    (rows, state), (same_rows, same_state) = trained(), trained(looks)
    assert rows == same_rows
    assert all(map(torch.equal, state.values(), same_state.values()))
    assert looks.modes == {False}


def test_it_is_the_model_that_is_validated() -> None:
    seen: list[float] = []

    class Compares(hr.Callback):
        def on_validation_end(self, info: hr.Info, scores: dict[str, Any]) -> None:
            with info.evaluating() as model:
                seen.append(nn.functional.mse_loss(model(X), Y).item() - scores["val/loss"])
            seen.append(nn.functional.mse_loss(info.trainer.model(X), Y).item() - scores["val/loss"])

    make().fit((X, Y), (X, Y), epochs=2, progress=False, callbacks=[hr.EMA(0.9), Compares()])
    assert [abs(each) < 1e-5 for each in seen] == [True, False] * 2


def test_a_train_step_knows_its_batch() -> None:
    class Counts(hr.Trainer):
        def train_step(self, batch: hr.Batch) -> hr.Outcome:
            assert self.info is not None
            places.append((self.info.epoch, self.info.batch, self.info.step))
            return super().train_step(batch)

    places: list[tuple[int, int, int]] = []
    trainer = make(Counts)
    trainer.fit((X, Y), epochs=2, progress=False)
    assert places == [(k // 5, k % 5, k) for k in range(10)]
    assert trainer.info is None
    with pytest.raises(ZeroDivisionError):
        trainer.fit((X, Y), epochs=1, progress=False, callbacks=[hr.Lambda(on_step_end=lambda info: 1 / 0)])
    assert trainer.info is None
