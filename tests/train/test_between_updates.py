"""What code of the user's asks for in the middle of an update is done, and what it replaces is used from then on."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import data, drive, fit, model, same, state, trainer
from torch import Tensor, nn

import headrace as hr
from headrace.workers.here import here

X, Y = DATA = data(320)


class Asking(nn.Module):
    """A model that does something in its forward pass of this number."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.inner, self.at, self.calls = model(), at, 0
        self.ask: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.ask is not None:
            self.calls += 1
            if self.calls == self.at:
                self.ask()
        found: Tensor = self.inner(x)
        return found


@pytest.mark.parametrize("what", ["stop", "log", "rate", "freeze"])
def test_what_a_model_asks_for_within_an_update_is_done_after_it(what: str) -> None:
    rows = []
    for train in (fit, drive):
        asking = Asking(at=7)
        made = trainer(asking, macrobatch=320)
        asks = {
            "stop": lambda info: info.stop("enough"),
            "log": lambda info: info.log({"seen": 7}),
            "rate": lambda info: info.set_rate(0.001),
            "freeze": lambda info: info.freeze("inner.0.bias"),
        }
        asking.ask = lambda made=made, ask=asks[what]: ask(made.info)
        train(made, DATA, epochs=1)
        rows.append(made.history.rows)
    assert rows[0] == rows[1] != []


def test_a_train_step_that_is_replaced_as_a_resumed_epoch_goes_on_makes_every_update(tmp_path: Path) -> None:
    fit(trainer(), DATA, steps=5, run=tmp_path / "run", every="5 steps")
    calls: list[int] = []

    class Replaces(hr.Callback):
        each_step = False

        def on_fit_start(self, info: hr.Info) -> None:
            original = info.trainer.train_step
            info.trainer.train_step = lambda batch: [calls.append(info.step), original(batch)][1]  # type: ignore[func-returns-value]

    fit(trainer(), DATA, steps=9, run=tmp_path / "run", callbacks=[Replaces()])
    assert calls == [5, 6, 7, 8]


@pytest.mark.parametrize("of_class", [True, False])
def test_steps_that_are_replaced_in_trainer_or_on_a_trainer_are_used(
    of_class: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    made = trainer()
    for name in ("train_step", "evaluate_step"):
        original = getattr(hr.Trainer if of_class else made, name)

        def step(*given: Any, original: Any = original, name: str = name) -> Any:
            calls.append(name)
            return original(*given)

        monkeypatch.setattr(hr.Trainer if of_class else made, name, step)
    fit(made, DATA, (X[:32], Y[:32]), epochs=1)
    assert calls == ["train_step"] * 20 + ["evaluate_step"] * 2


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
    made = trainer(model().double(), Twice, loss=ByOutputs(), inputs="x")
    fit(made, (X.double(), Y), epochs=1)
    return [*made.history["train/loss"], *torch.cat([p.flatten() for p in made.model.parameters()]).tolist()]


def test_workers_divide_a_second_update_of_a_batch_by_its_weights() -> None:
    one, shared = hr.launch(twice), hr.launch(twice, workers=2)
    assert shared == pytest.approx(one, rel=1e-9)


class Scaled(nn.Module):
    """Multiplies by a number of the class, which virtual workers have in common."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.scale * self.inner(x)
        return found


class Scales(hr.Callback):
    """Worker 1, which is ahead, changes the number while worker 0 is within a macrobatch, and waits for a vote."""

    each_step = False

    def on_macrobatch_end(self, info: hr.Info) -> None:
        if here().shard.index == 1 and info.step == 15:
            Scaled.scale = 3.0


def scaled(tape: bool) -> Any:
    Scaled.scale = 1.0
    rows = 48 if here().shard.index == 1 else 64
    made = trainer(Scaled(), batch_size=8, macrobatch=rows, strategy=hr.Periodic("end"), tape=tape)
    fit(made, DATA, epochs=1, callbacks=[Scales()])
    return state(made.model)


def test_what_a_virtual_worker_changes_for_all_is_noticed_by_those_that_are_within_a_macrobatch() -> None:
    plain, recorded = (
        hr.launch(scaled, tape, workers=2, network=hr.Network(rows_per_s=10, speeds=[1, 4])) for tape in (False, True)
    )
    assert same(plain, recorded)


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
