"""What code of the user's asks for in the middle of an update is done, and what it replaces is used from then on."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headrace as hr

X = torch.randn(320, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Asking(nn.Module):
    """A model that does something in its forward pass of this number."""

    def __init__(self, at: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.at, self.calls = nn.Linear(4, 2), at, 0
        self.ask: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.ask is not None:
            self.calls += 1
            if self.calls == self.at:
                self.ask()
        found: Tensor = self.inner(x)
        return found


def made(model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 2) if model is None else model
    return hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1), batch_size=16, **options)


def train(trainer: hr.Trainer, how: str, **options: Any) -> list[dict[str, Any]]:
    if how == "fit":
        trainer.fit((X, Y), epochs=1, progress=False, **options)
    else:
        for _ in trainer.steps((X, Y), epochs=1, **options):
            pass
    return trainer.history.rows


def asked(what: str, how: str) -> list[dict[str, Any]]:
    model = Asking(at=7)
    trainer = made(model, macrobatch=320)
    asks = {
        "stop": lambda: trainer.info.stop("enough"),  # type: ignore[union-attr]
        "log": lambda: trainer.info.log({"seen": 7}),  # type: ignore[union-attr]
        "rate": lambda: trainer.info.set_rate(0.001),  # type: ignore[union-attr]
        "freeze": lambda: trainer.info.freeze("inner.bias"),  # type: ignore[union-attr]
    }
    model.ask = asks[what]
    return train(trainer, how)


@pytest.mark.parametrize("what", ["stop", "log", "rate", "freeze"])
def test_what_a_model_asks_for_within_an_update_is_done_after_it(what: str) -> None:
    assert asked(what, "fit") == asked(what, "steps") != []


def test_a_train_step_that_is_replaced_as_a_resumed_epoch_goes_on_makes_every_update(tmp_path: Path) -> None:
    made().fit((X, Y), steps=5, progress=False, run=hr.Run(tmp_path / "run", every="5 steps"))
    calls: list[int] = []

    class Replaces(hr.Callback):
        each_step = False

        def on_fit_start(self, info: hr.Info) -> None:
            original = info.trainer.train_step
            info.trainer.train_step = lambda batch: [calls.append(info.step), original(batch)][1]

    made().fit((X, Y), steps=9, progress=False, run=tmp_path / "run", callbacks=[Replaces()])
    assert calls == [5, 6, 7, 8]


def test_steps_that_are_replaced_in_trainer_itself_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    train_step, evaluate_step = hr.Trainer.train_step, hr.Trainer.evaluate_step
    monkeypatch.setattr(
        hr.Trainer, "train_step", lambda self, batch: [calls.append("train"), train_step(self, batch)][1]
    )
    monkeypatch.setattr(
        hr.Trainer, "evaluate_step", lambda self, batch: [calls.append("evaluate"), evaluate_step(self, batch)][1]
    )
    made().fit((X, Y), (X[:32], Y[:32]), epochs=1, progress=False)
    assert calls == ["train"] * 20 + ["evaluate"] * 2


def test_an_evaluate_step_that_is_replaced_on_a_trainer_is_used() -> None:
    trainer, calls = made(), list[int]()
    original = trainer.evaluate_step
    trainer.evaluate_step = lambda batch: [calls.append(batch.rows), original(batch)][1]  # type: ignore[assignment]
    trainer.validate((X[:40], Y[:40]))
    assert calls == [16, 16, 8]


class ByOutputs(hr.Objective):
    """A mean whose weight the outputs tell, and which the update before has changed."""

    splits = True

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        outputs = model(batch["x"])
        each = outputs.detach()[:, 0].abs() + 0.1
        return {"loss": hr.Term((each * F.cross_entropy(outputs, batch["y"], reduction="none")).sum(), each.sum())}


class Twice(hr.Trainer):
    def train_step(self, batch: hr.Batch) -> Any:
        super().train_step(batch)
        return super().train_step(batch)


def twice() -> list[Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    trainer = Twice(model, ByOutputs(), torch.optim.SGD(model.parameters(), 0.5), batch_size=16, inputs="x")
    trainer.fit((X.double(), Y), epochs=1, progress=False)
    return [*trainer.history["train/loss"], *model.weight.flatten().tolist()]


def test_workers_divide_a_second_update_of_a_batch_by_its_weights() -> None:
    one, shared = hr.launch(twice), hr.launch(twice, workers=2)
    assert shared == pytest.approx(one, rel=1e-9)


# --- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["updates", "workers", "use", "all_modules", "batch_sizes", "resume_settings"])
def test_a_subclass_cannot_give_a_part_of_the_trainer_another_meaning(name: str) -> None:
    with pytest.raises(hr.ConfigError, match=f"'{name}' is a part of every trainer"):
        type("Other", (hr.Trainer,), {name: 4})

    class Sets(hr.Trainer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            setattr(self, name, [])

    with pytest.raises(hr.ConfigError, match=f"'{name}' is a part of every trainer"):
        Sets(nn.Linear(2, 2))
