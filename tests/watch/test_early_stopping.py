"""A training that ends when it gets no better, the model it ends with, and both in a run that is resumed."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from kit import small
from kit.sampled import sampled
from kit.small import in_run, same, state
from safetensors.torch import load_file
from torch import Tensor, nn

import headrace as hr
from headrace.store.checkpoints import Store

ROWS, BATCH = 20, 4  # five batches
X = torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
Y = X[:, :3].argmax(dim=1)
DATA, VAL = (X, Y), (X[:4], Y[:4])
NAN = float("nan")


class Script(hr.Callback):
    """Validations have the losses that it is told, one for each epoch; remembers the weights of every epoch."""

    def __init__(self, losses: Sequence[float]) -> None:
        self.losses, self.epoch, self.weights = losses, 0, dict[int, Any]({0: {}})

    def on_step_end(self, info: hr.Info) -> None:
        self.epoch = info.epoch
        if info.ends_epoch:
            self.weights[self.epoch] = state(info.trainer.model)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(float(self.losses[self.epoch - 1]))


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))


def make(script: Script, seed: int = 0, **options: Any) -> hr.Trainer:
    model = network(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    options = {"batch_size": BATCH, "eval_loss": script.loss, **options}
    return hr.Trainer(model, hr.CrossEntropy(), optimizer, **options)


def fit(losses: Sequence[float], *watching: hr.Callback, run: Any = None, seed: int = 0, **options: Any) -> Any:
    """A training with these validation losses: its trainer, its history, and what the script has seen."""
    script = Script(losses)
    trainer = make(script, seed)
    options = {"epochs": len(losses), "progress": False, "run": run} | options
    history = trainer.fit(DATA, VAL, callbacks=[script, *watching], **options)
    return trainer, history, script


@pytest.fixture(params=[False, True], ids=["in memory", "in a run"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "run" if request.param else None


ENDS: dict[str, tuple[list[float], dict[str, Any], int]] = {
    "after as many as it waits for": ([5, 4, 6, 6, 6, 6], {"patience": 2}, 4),
    "not while it gets better": ([5, 4, 4.5, 3, 3.5, 2], {"patience": 2}, 6),
    "equal is no better": ([5, 5, 5, 5], {"patience": 2}, 3),
    "at the first that is no better": ([5, 6, 7], {"patience": 1}, 2),
    "too little is no better": ([5, 4.9, 4.8, 4.7], {"patience": 2, "min_delta": 0.5}, 3),
    "little by little is better at last": ([5, 4.8, 4.4, 4.2, 4.1, 3.8], {"patience": 3, "min_delta": 0.5}, 6),
    "the larger the better": ([1, 2, 1, 1, 1], {"patience": 2, "mode": "max"}, 4),
    "NaN is no better": ([5, 4, NAN, NAN, NAN], {"patience": 2}, 4),
    "NaN from the start": ([NAN] * 6, {"patience": 3}, 3),
    "after NaN any number is better": ([NAN, 5, 4, 3], {"patience": 2}, 4),
    "from infinity any number is better": ([float("inf"), 5, 4, 4, 4], {"patience": 2}, 5),
    "infinity for ever": ([float("inf")] * 5, {"patience": 2}, 3),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_ends(name: str) -> None:
    losses, options, epochs = ENDS[name]
    _, history, _ = fit(losses, hr.EarlyStopping(**options))
    assert history.last["epoch"] == epochs
    assert history.stopped.startswith("val/loss no better than" if epochs < len(losses) else f"{epochs} epochs")


@pytest.mark.parametrize("restore", [True, False])
def test_the_model_ends_as_the_best_or_as_the_last(restore: bool, run: Path | None) -> None:
    trainer, _, script = fit([5, 3, 4, 6], hr.EarlyStopping(patience=9, restore_best=restore), run=run)
    assert same(trainer.model, script.weights[2 if restore else 4])
    assert not same(script.weights[2], script.weights[4])
    last = Store(run / "checkpoints", None).newest() if run else None
    assert last is None or same(last.tensors["model.safetensors"], script.weights[4])


def test_a_test_is_made_with_the_weights_that_are_kept(run: Path | None) -> None:
    script = Script([5, 3, 4, 6])
    trainer = make(script, eval_loss=None, metrics=["accuracy"])
    watching = [script, hr.EarlyStopping(patience=9)]
    history = trainer.fit(DATA, VAL, test=(X, Y), run=run, epochs=4, callbacks=watching, progress=False)
    kept = 1 + history["val/loss"].index(min(history["val/loss"]))
    assert same(trainer.model, script.weights[kept])
    assert history.last["test/loss"] == trainer.validate((X, Y))["val/loss"]


def test_what_gets_better_by_too_little_to_go_on_is_the_best_all_the_same(run: Path | None) -> None:
    trainer, history, script = fit([5, 4.9, 4.8, 9], hr.EarlyStopping(patience=2, min_delta=1), run=run)
    assert history.last["epoch"] == 3
    assert same(trainer.model, script.weights[3])


@pytest.mark.parametrize(
    ("first", "mode", "k"), sampled(product([True, False], ["min", "max"], [1, 3]), keep=[(True, "max", 3)], of=7)
)
def test_another_who_looks_for_a_best_does_not_change_what_the_model_ends_as(
    first: bool, mode: str, k: int, run: Path | None
) -> None:
    watching = [hr.EarlyStopping(patience=9), hr.BestModel("train/loss", mode=mode, k=k)]
    trainer, _, script = fit([5, 3, 4, 6], *(watching if first else watching[::-1]), run=run)
    assert same(trainer.model, script.weights[2])


@pytest.mark.parametrize("first", [True, False])
def test_two_who_look_at_the_same_number_both_keep_what_they_want(first: bool, tmp_path: Path) -> None:
    watching = [hr.BestModel(k=3), hr.BestModel(k=1)]
    fit([5, 3, 4, 6, 2, 7], *(watching if first else watching[::-1]), run=hr.Run(tmp_path, keep=1))
    assert Store(tmp_path / "checkpoints", None).steps() == [10, 15, 25, 30]
    assert hr.load_weights(network(), tmp_path) == 25


def test_the_losses_and_metrics_of_a_training_can_be_looked_at_by_every_key() -> None:
    loss = hr.CrossEntropy() + hr.L2Prior(0.01)
    trainer = small.trainer(network(), loss=loss, metrics={"acc": "accuracy", "f1": "f1"}, optimizer=small.adam)
    keys = [key for key in small.fit(trainer, DATA, VAL, epochs=1).last if "/" in key]
    watching, expected = [hr.BestModel(key) for key in keys], []
    seen = hr.Lambda(on_fit_start=lambda info: expected.extend(info.expected.keys))
    small.fit(trainer, DATA, VAL, callbacks=[*watching, seen])
    assert [best.mode for best in watching] == ["max" if "loss" not in key else "min" for key in keys]
    assert all(best.best is not None for best in watching)
    assert len(keys) == 9
    assert set(keys) == set(expected)


class Losses(hr.Trainer):
    """Names its losses itself."""

    def evaluate_step(self, batch: hr.Batch) -> Any:
        return {"first": 2.0, "second": 1.0}


def test_a_term_whose_name_is_known_only_later_can_be_looked_at() -> None:
    small.fit(small.trainer(kind=Losses), DATA, VAL, callbacks=[best := hr.BestModel("val/loss/second")])
    assert best.best == 1.0
    with pytest.raises(hr.ConfigError, match=r"'val/loss/third', which is not measured.* There are: .*val/loss/second"):
        small.fit(small.trainer(kind=Losses), DATA, VAL, callbacks=[hr.BestModel("val/loss/third")])
    model = nn.ModuleDict({"a": nn.Linear(6, 3), "b": nn.Linear(3, 3)})
    model.forward = lambda x: model["b"](model["a"](x))
    optimizers = {key: torch.optim.SGD(model[key].parameters(), lr=0.1) for key in model}
    trainer = hr.Trainer(model, {key: hr.CrossEntropy() for key in model}, optimizers, batch_size=BATCH)
    watching = [hr.BestModel("val/loss/a"), hr.BestModel("train/loss/b")]
    small.fit(trainer, DATA, VAL, callbacks=watching)
    assert all(best.best is not None for best in watching), "those of several objectives, too"


class Gap:
    """A metric of which smaller or larger is better; it is less on every pass."""

    def __init__(self, higher: bool) -> None:
        self.higher_is_better, self.passes = higher, 0

    def update(self, outputs: Any, target: Any) -> None: ...

    def compute(self) -> float:
        self.passes += 1
        return -float(self.passes)

    def reset(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("name", ["kappa", "f1_gap", "error"])
@pytest.mark.parametrize("higher", [True, False])
def test_a_metric_of_ones_own_tells_which_side_is_better_whatever_its_name(higher: bool, name: str) -> None:
    trainer = small.trainer(metrics={name: Gap(higher)})
    small.fit(trainer, DATA, VAL, callbacks=[best := hr.BestModel(f"val/{name}")])
    assert best.best == (max if higher else min)(trainer.history[f"val/{name}"])
    assert best.mode == ("max" if higher else "min")


def logs(key: str, hook: str = "on_validation_end") -> hr.Lambda:
    return hr.Lambda(**{hook: lambda info, *_: info.log({key: float(info.step)})})


def test_numbers_of_ones_own_can_be_looked_at() -> None:
    keys = ["bleu", "mine/bleu", "val/bleu", "val_loss", "test_loss", "loss", "kappa/f1"]
    watching = [hr.BestModel(key, mode="max") for key in keys]
    fit([3, 2, 1], *map(logs, keys), *watching)
    assert [best.best for best in watching] == [15.0] * 7
    for info in small.trainer(batch_size=BATCH).steps(DATA, VAL, epochs=2, callbacks=watching[:1]):
        info.log({"bleu": float(info.step)})  # by the driver of the loop
    assert watching[0].best == 10.0
    with pytest.warns(UserWarning, match=r"EarlyStopping looks at 'bleu', which never came.* There were: .*val/loss"):
        fit([1, 1], logs("blue"), hr.EarlyStopping("bleu", mode="max"))


def test_a_number_that_is_logged_between_validations_ends_no_training() -> None:
    _, history, _ = fit([3, 2, 1], logs("val/odd", "on_step_end"), hr.EarlyStopping("val/loss"))
    assert history.last["epoch"] == 3
    with pytest.raises(hr.ConfigError, match=r"'val_loss', which is not measured. Did you mean 'val/loss'\? There are"):
        fit([3, 2, 1], logs("val/odd", "on_step_end"), hr.EarlyStopping("val_loss", mode="min"))


# --- in a run that is resumed ---------------------------------------------------------------------------------

LOSSES = [5, 3, 4, 6, 2.5, 4, 4, 4, 4]


@pytest.mark.parametrize("step", sampled([3, 5, 10, 12, 15, 25, 37, 40], keep=[12, 25], of=6))
def test_a_run_that_is_resumed_waits_on_and_ends_where_it_would_have_ended(step: int, tmp_path: Path) -> None:
    whole, expected, _ = fit(LOSSES, hr.EarlyStopping(patience=3), run=tmp_path / "whole")
    script = Script(LOSSES)
    options = {"epochs": len(LOSSES), "run": tmp_path / "run"}
    for info in make(script).steps(DATA, VAL, callbacks=[script, hr.EarlyStopping(patience=3)], **options):
        if info.step == step:
            break
    watching = hr.EarlyStopping(patience=3)
    trainer, history, _ = fit(LOSSES, watching, run=tmp_path / "run", seed=1)
    assert history.rows == expected.rows
    assert history.last["step"] == 40
    assert (history.stopped, watching.waited, watching.best) == (expected.stopped, 3, 2.5)
    assert same(trainer.model, whole.model)


def test_a_run_that_has_ended_early_ends_at_once_and_goes_on_with_more_patience(tmp_path: Path) -> None:
    first, _, _ = fit(LOSSES, hr.EarlyStopping(patience=2), run=tmp_path / "run")
    again, history, script = fit(LOSSES, hr.EarlyStopping(patience=2), run=tmp_path / "run", seed=1)
    assert (history.last["step"], script.epoch) == (20, 0)
    assert history.stopped == "val/loss no better than 3 for 2 validations"
    assert same(again.model, first.model)
    longer, history, _ = fit(LOSSES, hr.EarlyStopping(patience=3), run=tmp_path / "run", seed=2)
    whole, expected, _ = fit(LOSSES, hr.EarlyStopping(patience=3))
    assert history.rows == expected.rows
    assert same(longer.model, whole.model)


def test_one_that_has_seen_another_training_begins_anew(run: Path | None) -> None:
    watching = hr.EarlyStopping(patience=2)
    fit([1, 1, 1, 1], watching)
    _, history, _ = fit([5, 3, 4, 2, 3, 3], watching, run=run)
    assert history.last["epoch"] == 6
    assert [value for value, _ in watching.ranking] == [2]


@pytest.mark.parametrize("step", [10, 25, 35])
def test_the_best_is_the_best_also_when_its_validation_was_cut_short(step: int, tmp_path: Path) -> None:
    """The checkpoint of that step knows nothing of the score, which is the best."""
    losses = LOSSES[: step // 5]
    losses[-1] = 0.5
    losses += [7, 7] if step < 35 else []
    script = Script(losses)
    trainer = make(script)
    asked = []

    def ask(model: nn.Module, _: Any) -> None:
        if not model.training and script.epoch == step // 5:
            asked.append(step)
            trainer.preempt()

    trainer.model.register_forward_pre_hook(ask)
    options: dict[str, Any] = {"run": tmp_path / "run", "epochs": len(losses), "progress": False}
    with pytest.raises(SystemExit):
        trainer.fit((X, Y), (X, Y), callbacks=[script, hr.EarlyStopping(patience=9)], **options)
    assert asked
    script = Script(losses)
    script.epoch = step // 5
    watching = hr.EarlyStopping(patience=9)
    resumed = make(script, seed=1)
    resumed.fit((X, Y), (X, Y), callbacks=[script, watching], **in_run(keep=1, **options))
    assert watching.ranking == [(0.5, step)]
    kept = Store(tmp_path / "run" / "checkpoints", None).load(step).tensors["model.safetensors"]
    assert same(resumed.model, kept)
    assert json.loads((tmp_path / "run" / "best" / "best.json").read_text()) == {"step": step, "val/loss": 0.5}
    assert same(load_file(tmp_path / "run" / "best" / "model.safetensors"), kept)
    assert hr.load_weights(network(), tmp_path / "run") == step


# --- marked elsewhere than at a report of the loop's own --------------------------------------------------------


@pytest.mark.parametrize("where", ["log", "mark", "hook"])
@pytest.mark.parametrize("kept", ["in a run", "in memory"])
def test_a_best_step_is_kept_wherever_it_is_marked(where: str, kept: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = network()
    trainer = hr.Trainer(model, hr.CrossEntropy(), torch.optim.Adam(model.parameters(), lr=0.02), batch_size=BATCH)
    hook = hr.Lambda(on_step_end=lambda info: info.step == 7 and info.mark_best("s", 0.0, 7, restore=True))
    watching = {"log": hr.EarlyStopping("s", patience=50, mode="min"), "mark": hr.Lambda(), "hook": hook}[where]
    run = tmp_path / "run" if kept == "in a run" else None
    best: dict[str, Tensor] = {}
    for info in trainer.steps(DATA, epochs=3, callbacks=[watching], run=hr.Run(run, keep=1)):
        if where == "log":
            info.log({"s": abs(info.step - 7)})
        elif where == "mark" and info.step == 7:
            info.mark_best("s", 0.0, 7, restore=True)
        best = state(model) if info.step == 7 else best
    assert info.history.best is not None or where != "log"
    assert info.history.marked == 7
    assert same(model, best), "the model ends as it was at its best"
    if run is not None:
        again = network(seed=1)
        hr.load_weights(again, run, which="best")
        assert same(again, best)


def marking(run: Path | None, at: int, **options: Any) -> dict[str, Tensor]:
    """In a worker: a training whose driver marks a step as the best; its weights then."""
    best: dict[str, Tensor] = {}
    trainer = small.trainer(network(), batch_size=BATCH)
    for info in trainer.steps(DATA, epochs=3, run=hr.Run(run, keep=1, every="3 epochs"), **options):
        if info.step == at:
            info.mark_best("s", 0.0, at)
            best = state(trainer.model)
    return best


def test_workers_keep_a_best_step_that_their_drivers_mark_where_they_report_and_say_of_others(tmp_path: Path) -> None:
    best = hr.launch(marking, tmp_path / "run", 10, workers=2)
    again: Any = network(seed=1)
    hr.load_weights(again, tmp_path / "run", which="best")
    assert torch.equal(again[0].weight, best["0.weight"])
    with pytest.warns(UserWarning, match="step 3 was marked as the best, .* are not kept"):
        hr.launch(marking, None, 3, workers=2)


def test_workers_keep_a_best_step_at_which_a_limit_ends_an_epoch_early(tmp_path: Path) -> None:
    """And none says otherwise: pytest makes an error of a warning."""

    def main() -> None:
        options = {"run": hr.Run(tmp_path / "run", logs=False), "log_every": "3 steps", "steps": 3}
        best = hr.BestModel("train/loss", restore=False)
        small.fit(small.trainer(network(), batch_size=BATCH), DATA, callbacks=[best], **options)

    hr.launch(main, workers=2)
    assert hr.load_weights(network(), tmp_path / "run", which="best") == 3


def test_a_metric_of_which_the_other_side_is_better_now_begins_anew_after_a_resume(tmp_path: Path) -> None:
    def run(epochs: int, higher: bool) -> hr.EarlyStopping:
        watching = hr.EarlyStopping("val/gap", patience=9)
        trainer = small.trainer(metrics={"gap": Gap(higher)}, batch_size=BATCH)
        small.fit(trainer, DATA, VAL, epochs=epochs, callbacks=[watching], run=hr.Run(tmp_path, override=True))
        return watching

    run(2, higher=True)
    assert (again := run(3, higher=True)).ranking == [(-1.0, 5)]
    assert again.waited == 2
    other = run(4, higher=False)
    assert (other.mode, other.ranking, other.waited) == ("min", [(-1.0, 20)], 0)
