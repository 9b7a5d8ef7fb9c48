"""Updates made by hand beside the trainer's, several optimizers, and steps of which nothing is left to report."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import BATCH, data, same, saved_steps, stop_and_resume
from kit.small import model as network
from kit.small import momentum as sgd
from torch import Tensor, nn

import headrace as hr

ROWS = 48
X, Y = data(ROWS)  # three batches


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


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
    assert same(model, raw)


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


# --- what a train_step of one's own is told ------------------------------------------------------------------


class Own(hr.Trainer):
    """Updates that never come to the original; the one with a factor that is not 1 is ruined by it."""

    factor = 1.0

    def train_step(self, batch: hr.Batch) -> Any:
        loss = F.cross_entropy(self.model(batch["x"]), batch["y"])
        by_hand(self.model, self.optimizer, self.factor * loss)
        return {"loss": loss}


class Passing(hr.Trainer):
    """Comes to the original, and may make an update by hand after it."""

    factor = 0.0

    def train_step(self, batch: hr.Batch) -> Any:
        return self.pass_on(batch)

    def pass_on(self, batch: hr.Batch) -> Any:
        outcome = super().train_step(batch)
        if self.factor:
            by_hand(self.model, self.optimizer, self.factor * self.model(batch["x"]).square().mean())
        return outcome


def ruined(trainer: Any, **options: Any) -> None:
    """A training whose third update by hand makes the weights infinite."""
    for info in trainer.steps((X, Y), **options):
        trainer.factor = float("inf") if info.step == 2 else type(trainer).factor


def made(kind: type[hr.Trainer], **options: Any) -> hr.Trainer:
    usual: dict[str, Any] = {"batch_size": BATCH, "order": "none", "arena": kind is not Own, "optimizer": sgd}
    return kind(network(), hr.CrossEntropy(), **usual | options)


SETTINGS = [
    {"clip_norm": 0.1},
    {"clip_value": 0.01},
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"microbatch": 4},
    {"microbatch": "auto"},
    {"nonfinite": "skip"},
]


@pytest.mark.parametrize("options", [*SETTINGS, {"arena": True}], ids=str)
def test_settings_that_an_update_of_ones_own_cannot_have_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    ((name, value),) = options.items()
    message = r"did not call super\(\).* arena=False" if name == "arena" else rf"train_step .*{name}={value!r}.*super"
    trainer = made(Own, **options)
    with pytest.raises(hr.ConfigError, match=message):
        trainer.fit((X, Y), epochs=1, progress=False, run=hr.Run(tmp_path / "run", every="1 step"))
    assert trainer.history.rows == []
    assert saved_steps(tmp_path / "run") == [0]
    with pytest.raises(hr.ConfigError, match=message):
        trainer.step((X, Y))


@pytest.mark.parametrize("options", [{}, *SETTINGS], ids=str)
def test_a_train_step_that_comes_to_the_original_keeps_every_setting(options: dict[str, Any]) -> None:
    x = X.clone()
    if options == {"nonfinite": "skip"}:
        x[20] = float("nan")
    found = [made(kind, **options) for kind in (Passing, hr.Trainer)]
    histories = [trainer.fit((x, Y), epochs=2, progress=False) for trainer in found]
    assert same(found[0].model, found[1].model)
    assert histories[0].rows == histories[1].rows
    assert found[0].skipped == found[1].skipped == (2 if options == {"nonfinite": "skip"} else 0)


@pytest.mark.parametrize("macrobatch", [BATCH, ROWS])
@pytest.mark.parametrize("kind", [Own, Passing])
def test_what_an_update_by_hand_has_left_is_looked_at(kind: Any, macrobatch: int, tmp_path: Path) -> None:
    trainer = made(kind, macrobatch=macrobatch)
    with pytest.raises(hr.NonFiniteError, match=r"^step [34]: .*train_step.*'0.weight'"):
        ruined(trainer, epochs=5, run=hr.Run(tmp_path / "run", every="1 step"))
    assert saved_steps(tmp_path / "run") == [0, 1, 2]
    trainer = made(kind)
    with pytest.raises(hr.NonFiniteError, match=r"^step 1 to 3: "):
        ruined(trainer, epochs=1)
    trainer = made(kind)
    trainer.factor = float("inf")
    with pytest.raises(hr.NonFiniteError, match=r"^step 1: "):
        trainer.step((X, Y))


@pytest.mark.parametrize("how", ["fit", "step"])
def test_workers_that_share_updates_cannot_make_their_own(how: str) -> None:
    def main() -> None:
        trainer = made(Own, strategy=hr.Synchronous())
        trainer.step((X, Y)) if how == "step" else trainer.fit((X, Y), epochs=1, progress=False)

    with pytest.raises(hr.ConfigError, match="update of its own, which the other workers know nothing of"):
        hr.launch(main, workers=2)


class Searches(hr.Trainer):
    """Asks for the loss several times in an update."""

    def train_step(self, batch: hr.Batch) -> Any:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(batch["x"]), batch["y"])
            loss.backward()
            return loss

        step: Any = self.optimizer.step
        return {"loss": step(closure)}


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_steps_by_hand_as_in_a_plain_loop_and_resumes(search: str | None, tmp_path: Path) -> None:
    def lbfgs(params: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(params, lr=0.1, max_iter=3, history_size=2, line_search_fn=search)

    def searching() -> hr.Trainer:
        return made(Searches, optimizer=lbfgs, arena=False)

    parts = stop_and_resume(searching, [3, 7], tmp_path, (X, Y), epochs=3)
    optimizer: Any = lbfgs((raw := network()).parameters())
    for x, y in [*zip(X.split(BATCH), Y.split(BATCH), strict=True)] * 3:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(raw(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert same(parts.model, raw)


# --- several optimizers, and those that the trainer does not have ----------------------------------------------


class Halves(hr.Trainer):
    """Steps several optimizers by itself: the trainer's, and one of `others`, which it does not have."""

    others: tuple[torch.optim.Optimizer, ...] = ()

    def train_step(self, batch: hr.Batch) -> Any:
        outputs = self.model(batch["x"])
        loss = F.cross_entropy(outputs, batch["y"])
        optimizers = [*self.optimizers.values(), *self.others]
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return hr.Outcome({"loss": loss}, outputs)


def with_a_stranger(make: Any) -> hr.Trainer:
    model = network()
    trainer = Halves(model, hr.CrossEntropy(), sgd(model[0]), batch_size=BATCH, arena=False)
    trainer.others = (make(model[2]),)
    return trainer


def with_both(kind: type[hr.Trainer] = Halves, every: str = "1 step", **options: Any) -> hr.Trainer:
    model = network()
    adam = torch.optim.Adam(model[2].parameters(), lr=0.05)
    optimizers = {"a": sgd(model[0]), "b": adam if every == "1 step" else (adam, every)}
    return kind(model, optimizer=optimizers, batch_size=BATCH, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda layer: torch.optim.Adam(layer.parameters()), r"Adam of '2.weight' and 1 more.*optimizer=\{'a'"),
        (lambda _: sgd(nn.Linear(1, 1)), r"2 parameters that are not in the model.* Make them part of the model"),
    ],
)
def test_an_optimizer_that_is_not_saved_with_the_run_is_noticed_at_the_first_update(
    make: Any, message: str, tmp_path: Path
) -> None:
    trainer = with_a_stranger(make)
    for param in trainer.others[0].param_groups[0]["params"]:  # type: ignore[attr-defined]
        param.grad = torch.ones_like(param)
    with pytest.warns(UserWarning, match=message) as warned:
        trainer.fit((X, Y), steps=1, progress=False, run=tmp_path / "run")
    assert len(warned) == 1
    assert "not exactly" in (tmp_path / "run" / "log.txt").read_text()


def test_an_optimizer_that_remembers_nothing_is_none_to_warn_of(tmp_path: Path) -> None:
    def plain() -> hr.Trainer:
        return with_a_stranger(lambda layer: torch.optim.SGD(layer.parameters(), lr=0.1))

    stop_and_resume(plain, [5], tmp_path, (X, Y), epochs=4)


def test_several_optimizers_that_train_step_steps_go_without_losses_and_resume_exactly(tmp_path: Path) -> None:
    parts = stop_and_resume(with_both, [5], tmp_path, (X, Y), epochs=4)
    assert parts.predict(X).shape == (ROWS, 3)
    trainer = with_both(loss=hr.CrossEntropy(), metrics=["accuracy"])
    last = trainer.fit((X, Y), (X, Y), epochs=1, progress=False).last
    assert last["val/loss"] == pytest.approx(F.cross_entropy(trainer.model(X), Y).item())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "eval_loss=, or override evaluate_step"),
        ({"kind": Passing}, "original train_step or evaluate_step needs one|eval_loss="),
        ({"every": "5 steps"}, "train_step decides when it is used"),
    ],
)
def test_what_several_optimizers_without_losses_cannot_do_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hr.ConfigError, match=message):
        with_both(**options).fit((X, Y), (X, Y), epochs=1, progress=False)
