"""FaKnow's trainer, statement by statement."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import headrace as hr
from headrace.compat import faknow as fk

EXAMPLES = Path(__file__).parents[2] / "examples/compat"


class Model(nn.Module):
    def __init__(self, named: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.named = nn.Linear(4, 2), named

    def calculate_loss(self, data: dict[str, Any]) -> Any:
        loss = nn.functional.cross_entropy(self.layer(data["x"]), data["label"])
        return {"total_loss": loss + 0.1, "entropy": loss} if self.named else loss

    def predict(self, data: dict[str, Any]) -> Any:
        return self.layer(data["x"]).softmax(1)


def loader(rows: int = 40) -> DataLoader[Any]:
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))
    return DataLoader([{"x": row, "label": int(row[0] > 0), "text": "words"} for row in x], batch_size=16)  # type: ignore[arg-type]


def trainer(model: Model, **options: Any) -> fk.BaseTrainer:
    return fk.BaseTrainer(model, fk.Evaluator(), torch.optim.SGD(model.parameters(), lr=0.5), **options)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_weights_are_those_of_the_loop_by_hand_with_clipping_and_a_scheduler() -> None:
    model, twin = Model(), Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    fk.BaseTrainer(model, fk.Evaluator(), optimizer, schedule, {"max_norm": 0.1}).fit(loader(), 3)
    by_hand = torch.optim.SGD(twin.parameters(), lr=0.5)
    rates = torch.optim.lr_scheduler.StepLR(by_hand, 1, 0.5)
    for _ in range(3):
        for batch in loader():
            by_hand.zero_grad()
            twin.calculate_loss(batch).backward()
            nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
            by_hand.step()
        rates.step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_model_optimizer_and_clipping_may_be_replaced_between_two_fits() -> None:
    model, twin, other, other_twin = Model(), Model(), Model(True), Model(True)
    training = trainer(model)
    training.fit(loader(), 1)
    training.optimizer, training.clip_grad_norm = torch.optim.Adam(model.parameters(), lr=0.1), {"max_norm": 0.01}
    training.fit(loader(), 1)
    training.model, training.optimizer = other, torch.optim.SGD(other.parameters(), lr=0.2)
    training.fit(loader(), 1)
    for module, optimizer, clip in (
        (twin, torch.optim.SGD(twin.parameters(), lr=0.5), None),
        (twin, torch.optim.Adam(twin.parameters(), lr=0.1), 0.01),
        (other_twin, torch.optim.SGD(other_twin.parameters(), lr=0.2), 0.01),
    ):
        for batch in loader():
            optimizer.zero_grad()
            nn.functional.cross_entropy(module.layer(batch["x"]), batch["label"]).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            optimizer.step()
    for trained, wanted in ((model, twin), (other, other_twin)):
        torch.testing.assert_close(trained.layer.weight.data, wanted.layer.weight.data, rtol=1e-4, atol=1e-6)


def test_files_logs_and_scalars_have_their_names_and_lines(capfd: pytest.CaptureFixture[str]) -> None:
    trainer(Model(named=True)).fit(loader(), 2, loader(20), save_best=True)
    (log,) = Path("logs").iterdir()
    (saved,) = Path("save").iterdir()
    assert re.fullmatch(r"Model-\d{4}-\d\d-\d\d-\d\d_\d\d_\d\d\.log", log.name)
    assert (Path("tb_logs") / log.stem).is_dir()
    assert saved.suffix == ".pth"
    lines = log.read_text()
    assert "training data size=40" in lines
    assert "epoch=[0/1]" in lines
    assert re.search(r" - INFO - training loss : total_loss=\d\.\d{6}    entropy=\d\.\d{6}\n", lines)
    assert re.search(r"validation result : accuracy=\d\.\d{6}    precision=\d\.\d{6}    recall=", lines)
    assert re.search(r"current score : \d\.\d{6}, best score : \d\.\d{6}, {16}best epoch : \d", lines)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(Path("tb_logs") / log.stem))
    events.Reload()
    assert {"Train/total_loss", "Train/entropy", "Validation/accuracy", "Validation/f1"} <= set(
        events.Tags()["scalars"]
    )
    assert [event.step for event in events.Scalars("Validation/accuracy")] == [0, 1]
    assert len(capfd.readouterr().err.splitlines()) == len(lines.splitlines())


def test_the_loss_of_an_epoch_is_the_mean_over_its_rows() -> None:
    model = Model()
    frozen = fk.BaseTrainer(model, fk.Evaluator(), torch.optim.SGD(model.parameters(), lr=0.0))
    found = frozen._train_epoch(loader(), 0)
    wanted = [(float(model.calculate_loss(batch).detach()), len(batch["label"])) for batch in loader()]
    assert found == pytest.approx(sum(loss * rows for loss, rows in wanted) / 40, abs=1e-6)


def test_early_stopping_counts_epochs_without_an_improvement_by_more_than_delta() -> None:
    stop = fk.EarlyStopping(patience=2, delta=0.1)
    assert [stop(score) for score in (0.5, 0.55, 0.7, 0.7, 0.7)] == [True, False, True, False, False]
    assert stop.early_stop
    down = fk.EarlyStopping(mode="min")
    assert [down(score) for score in (0.5, 0.4, 0.45)] == [True, True, False]


def test_early_stopping_ends_the_training_and_the_model_has_the_best_weights() -> None:
    model = Model()
    scores = iter([0.1, 0.9, 0.2, 0.3, 0.4])
    seen: list[Any] = []

    def score(outputs: Tensor, y: Tensor) -> float:
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return next(scores)

    stop = fk.EarlyStopping(patience=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with pytest.warns(UserWarning, match="no accuracy in result"):
        fk.BaseTrainer(model, fk.Evaluator([score]), optimizer, early_stopping=stop).fit(loader(), 5, loader())
    assert len(seen) == 4
    torch.testing.assert_close(dict(model.state_dict()), seen[1])


def test_save_best_false_saves_the_last_weights_and_none_no_file() -> None:
    model = Model()
    trainer(model).fit(loader(), 1)
    assert not Path("save").exists()
    trainer(model).fit(loader(), 1, save_best=False, save_path="kept/last.pth")
    torch.testing.assert_close(torch.load("kept/last.pth", weights_only=True), dict(model.state_dict()))


def test_metrics_are_of_all_predictions_and_by_name() -> None:
    outputs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]])
    y = torch.tensor([0, 1, 0, 1])
    found = fk.Evaluator(["Accuracy", "precision", "recall", "F1", "auc"]).evaluate(outputs, y)
    assert found == pytest.approx({"Accuracy": 0.5, "precision": 0.5, "recall": 0.5, "F1": 0.5, "auc": 0.75})
    for wrong, said in (("acc", "no metric 'acc'"), (3, "got a int")):
        with pytest.raises(RuntimeError, match=said) as caught:
            fk.Evaluator([wrong])  # type: ignore[list-item]
        assert isinstance(caught.value, hr.HeadraceError)


def test_losses_by_name_are_shown_as_the_model_names_them_and_summed_without_a_total() -> None:
    model = Model(named=True)
    assert list(trainer(model)._train_epoch(loader(), 0)) == ["total_loss", "entropy"]  # type: ignore[arg-type]

    class Parts(Model):
        def calculate_loss(self, data: dict[str, Any]) -> Any:
            loss = super().calculate_loss(data)
            return {"first": loss, "second": 2 * loss}

    parts, whole = Parts(), Model()
    with pytest.warns(UserWarning, match="no total_loss in result"):
        found = trainer(parts)._train_epoch(loader(), 0)
    assert list(found) == ["first", "second"]  # type: ignore[arg-type]
    fk.BaseTrainer(whole, fk.Evaluator(), torch.optim.SGD(whole.parameters(), lr=1.5))._train_epoch(loader(), 0)
    torch.testing.assert_close(parts.state_dict(), whole.state_dict())


def test_a_training_without_validation_takes_batches_of_any_form() -> None:
    class Pairs(Model):
        def calculate_loss(self, data: Any) -> Tensor:
            x, y = data
            return nn.functional.cross_entropy(self.layer(x), y)

    model, twin = Pairs(), Model()
    pairs = DataLoader[Any]([(row["x"], row["label"]) for row in loader().dataset], batch_size=16)  # type: ignore[arg-type, attr-defined]
    assert trainer(model)._train_epoch(pairs, 0) == pytest.approx(trainer(twin)._train_epoch(loader(), 0))
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


def test_a_trainer_of_your_own_may_train_an_epoch_itself() -> None:
    class Own(fk.BaseTrainer):
        def _train_epoch(self, loader: Any, epoch: int) -> float:
            self.model.train()
            for batch in loader:
                self.optimizer.zero_grad()
                loss = self.model.calculate_loss(batch)  # type: ignore[operator]
                loss.backward()
                self.optimizer.step()
            return float(loss.detach())

    model = Model()
    own = Own(model, fk.Evaluator(), torch.optim.SGD(model.parameters(), lr=0.5))
    own.fit(loader(), 3, loader(20), save_best=True)
    (saved,) = Path("save").iterdir()
    torch.testing.assert_close(torch.load(saved, weights_only=True), dict(model.state_dict()))
    assert own.best_score == own.evaluate(loader(20))["accuracy"]


def test_what_cannot_work_is_refused_before_the_first_update() -> None:
    with pytest.raises(hr.HeadraceError, match="calculate_loss"):
        fk.BaseTrainer(nn.Linear(2, 2), fk.Evaluator(), None)  # type: ignore[arg-type]
    trainer(Model(), clip_grad_norm={"max_norm": 1, "norm_type": 2, "error_if_nonfinite": False})
    for wrong, said in (({"max_norm": 1.0, "norm_type": "inf"}, "norm_type"), ({"max": 1}, "max_norm")):
        with pytest.raises(hr.HeadraceError, match=said):
            trainer(Model(), clip_grad_norm=wrong)
    with pytest.raises(hr.HeadraceError, match="validate_loader"):
        trainer(Model(), early_stopping=fk.EarlyStopping()).fit(loader(), 1)


def test_the_example_and_its_native_twin_come_to_the_same_weights_and_test() -> None:
    legacy, native = (runpy.run_path(str(EXAMPLES / f"faknow_{name}.py"))["main"]() for name in ("legacy", "native"))
    assert legacy[0] == pytest.approx(native[0], abs=1e-6)
    assert legacy[1] == pytest.approx(native[1], abs=1e-6)
    (log,) = Path("logs").iterdir()
    assert "early stopping at epoch 7!" in log.read_text()


def test_trainings_and_saves_of_one_second_do_not_overwrite_each_other() -> None:
    models = [Model() for _ in range(4)]
    for rate, model in enumerate(models):
        nn.init.constant_(model.layer.weight, rate)
        fk.BaseTrainer(model, fk.Evaluator(), torch.optim.SGD(model.parameters(), lr=0.0)).fit(
            loader(), 1, loader(), save_best=True
        )
        trainer(model).save()
    saved = [torch.load(file, weights_only=True)["layer.weight"][0, 0].item() for file in Path("save").iterdir()]
    assert sorted(saved) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len([*Path("logs").iterdir()]) == len([*Path("tb_logs").iterdir()]) == 4
