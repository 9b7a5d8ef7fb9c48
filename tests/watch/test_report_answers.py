"""What the kept model answers is written into the run, and nobody notices: not the training, not who watches it."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit.in_run import in_run
from safetensors import safe_open
from torch import Tensor, nn

import headrace as hr
from headrace.watch.answers import Answers

ROWS, WIDTH = 60, 4
X = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
KINDS = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
TRAIN, TEST = slice(0, 40), slice(40, 60)


def read(run: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and what is said of them."""
    with safe_open(run / "answers.safetensors", "pt") as file:
        facts = {key: json.loads(value) for key, value in sorted(file.metadata().items())}
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118


def model(outputs: int) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, outputs))


def fit(net: nn.Module, loss: Any, y: Any, run: Path | None, callbacks: Sequence[hr.Callback], **options: Any) -> Any:
    """A short training: its trainer."""
    trainer = hr.Trainer(net, loss, torch.optim.Adam(net.parameters(), 0.05), batch_size=8)
    data = {name: (X[part], y[part]) for name, part in (("val", TEST), ("test", TEST))} | options.pop("data", {})
    given = {"epochs": 3, "progress": False, **options}
    trainer.fit((X[TRAIN], y[TRAIN]), callbacks=callbacks, **data, **in_run(run, **given))
    return trainer


def test_classes_are_answered_by_the_model_that_is_kept(tmp_path: Path) -> None:
    net = model(3)
    watching = [hr.BestModel("val/loss", mode="max", restore=True), Answers()]
    trainer = fit(net, hr.CrossEntropy(), KINDS, tmp_path / "run", watching)
    tensors, facts = read(tmp_path / "run")
    outputs = trainer.predict(X[TEST])
    likely, answer = outputs.softmax(dim=1).max(dim=1)
    assert tensors["target"].tolist() == KINDS[TEST].tolist()
    assert tensors["answer"].tolist() == answer.tolist()
    torch.testing.assert_close(tensors["probability"], likely)
    assert facts == {"kind": "classes", "of": "test", "classes": [], "count": 3, "step": trainer.history.marked}
    assert trainer.history.marked < trainer.history.last["step"], "otherwise this could pass by accident"


def test_averaged_weights_answer_where_they_are_kept(tmp_path: Path) -> None:
    trainer = fit(model(3), hr.CrossEntropy(), KINDS, tmp_path / "run", [hr.EMA(0.9), Answers()])
    likely = trainer.predict(X[TEST]).softmax(dim=1).amax(dim=1)
    torch.testing.assert_close(read(tmp_path / "run")[0]["probability"], likely)


def test_the_validation_data_are_answered_where_there_are_no_others(tmp_path: Path) -> None:
    fit(model(3), hr.CrossEntropy(), KINDS, tmp_path / "run", [Answers(rows=7)], data={"test": None})
    tensors, facts = read(tmp_path / "run")
    assert facts["of"] == "val"
    assert tensors["target"].tolist() == KINDS[TEST][:7].tolist()


def test_a_source_that_stands_elsewhere_is_asked_from_its_first_row_and_stands_there_again(tmp_path: Path) -> None:
    test = hr.Reader(hr.ArrayTable({"x": X[TEST], "y": KINDS[TEST]}), "none")
    test.next_batch(5)
    fit(model(3), hr.CrossEntropy(), KINDS, tmp_path / "run", [Answers(rows=13)], data={"test": test})
    assert read(tmp_path / "run")[0]["target"].tolist() == KINDS[TEST][:13].tolist()
    assert test.position == 5


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1)])
def test_values_are_answered_as_they_are(tmp_path: Path, shape: tuple[int, ...]) -> None:
    y = (X.sum(dim=1) + 1).reshape(shape)
    net = nn.Sequential(model(1), nn.Flatten(0)) if len(shape) == 1 else model(1)
    trainer = fit(net, hr.MSE(), y, tmp_path / "run", [Answers()])
    tensors, facts = read(tmp_path / "run")
    assert (facts["kind"], facts["count"]) == ("values", 1)
    torch.testing.assert_close(tensors["answer"].flatten(), trainer.predict(X[TEST]).flatten())
    torch.testing.assert_close(tensors["target"].flatten(), y[TEST].flatten())


def test_one_logit_is_a_question_of_two_classes(tmp_path: Path) -> None:
    y = (X[:, :1] > 0).float()
    trainer = fit(model(1), hr.BinaryCrossEntropy(), y, tmp_path / "run", [Answers()])
    tensors, facts = read(tmp_path / "run")
    likely = trainer.predict(X[TEST])[:, 0].sigmoid()
    assert (facts["kind"], facts["count"]) == ("classes", 2)
    assert tensors["answer"].tolist() == (likely > 0.5).int().tolist()
    torch.testing.assert_close(tensors["probability"], torch.maximum(likely, 1 - likely))


def test_several_logits_against_zeros_and_ones_are_labels(tmp_path: Path) -> None:
    y = (X[:, :3] > 0).float()
    trainer = fit(model(3), hr.BinaryCrossEntropy(), y, tmp_path / "run", [Answers()])
    tensors, facts = read(tmp_path / "run")
    assert (facts["kind"], facts["count"]) == ("labels", 3)
    assert torch.equal(tensors["answer"].bool(), trainer.predict(X[TEST]) > 0)


def test_probabilities_are_taken_as_they_are(tmp_path: Path) -> None:
    def apart(outputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.nll_loss(outputs.log(), target)

    net = nn.Sequential(model(3), nn.Softmax(dim=1))
    trainer = fit(net, hr.RowMean(apart, reads="class probabilities"), KINDS, tmp_path / "run", [Answers()])
    torch.testing.assert_close(read(tmp_path / "run")[0]["probability"], trainer.predict(X[TEST]).amax(dim=1))


def test_no_probability_is_made_up_where_nobody_says_what_outputs_are(tmp_path: Path) -> None:
    def apart(outputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.nll_loss(outputs.log(), target)

    fit(nn.Sequential(model(3), nn.Softmax(dim=1)), hr.RowMean(apart), KINDS, tmp_path / "run", [Answers()])
    assert read(tmp_path / "run")[0].keys() == {"target", "answer"}


class Own(hr.Objective):
    """Learns without a target, and what it returns is no answer to one."""

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        return {"size": hr.Term(model(batch["x"]).square().sum(), float(batch.rows))}


def test_what_an_objective_of_its_own_returns_is_no_answer_unless_metrics_say_so(tmp_path: Path) -> None:
    fit(model(3), Own(), KINDS, tmp_path / "run", [Answers()])
    assert not (tmp_path / "run" / "answers.safetensors").exists()


@pytest.mark.parametrize("rows", [0, -1, True, "all", 2.5])
def test_a_number_of_rows_that_is_none_is_refused(rows: Any) -> None:
    with pytest.raises(hr.ConfigError, match="rows= is a number of rows, at least 1, got"):
        Answers(rows=rows)


def test_rows_that_do_not_count_are_left_out(tmp_path: Path) -> None:
    y = KINDS.clone()
    y[50:] = -100
    fit(model(3), hr.CrossEntropy(ignore_index=-100), y, tmp_path / "run", [Answers()])
    assert read(tmp_path / "run")[0]["target"].tolist() == y[40:50].tolist()


class Pair(nn.Module):
    """Two outputs, neither of which is said to be the one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), x


def test_what_is_no_answer_to_a_target_is_left_alone(tmp_path: Path) -> None:
    def of_both(outputs: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs[0], target)

    fit(Pair(), hr.RowMean(of_both), KINDS, tmp_path / "pair", [Answers()])
    assert not (tmp_path / "pair" / "answers.safetensors").exists()
    fit(Pair(), hr.CrossEntropy(output=0), KINDS, tmp_path / "picked", [Answers()])
    assert (tmp_path / "picked" / "answers.safetensors").exists()


def test_without_a_run_or_scored_data_there_is_nothing_to_do(tmp_path: Path) -> None:
    fit(model(3), hr.CrossEntropy(), KINDS, None, [Answers()])
    fit(model(3), hr.CrossEntropy(), KINDS, tmp_path / "run", [Answers()], data={"val": None, "test": None})
    assert not list(tmp_path.rglob("answers.safetensors"))


class Drawing(nn.Module):
    """Draws from every generator, in a validation too."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.01 * (torch.randn_like(x) + random.gauss(0, 1) + float(np.random.standard_normal()))


def test_the_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    found = []
    for name, callbacks in (("with", [Answers()]), ("without", [])):
        random.seed(0)
        np.random.seed(0)
        net = nn.Sequential(Drawing(), model(3))
        trainer = fit(net, hr.CrossEntropy(), KINDS, tmp_path / name, callbacks, logs=False)
        assert (tmp_path / name / "answers.safetensors").exists() == bool(callbacks)
        state = {key: value.clone() for key, value in net.state_dict().items()}
        found.append((state, trainer.history.rows, torch.randn(3), random.random(), np.random.random(), net.training))
    (one, *rest), (other, *others) = found
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    assert [str(each) for each in rest] == [str(each) for each in others]


class Breaks(hr.Callback):
    """Takes the model apart at the end of a training, before whoever comes later."""

    def on_fit_end(self, info: hr.Info) -> None:
        info.trainer.model.forward = None  # type: ignore[assignment]


def test_what_goes_wrong_is_told_and_hurts_nothing(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"answers\.safetensors was not written: DataError: .*not callable$"):
        trainer = fit(model(3), hr.CrossEntropy(), KINDS, tmp_path / "run", [Breaks(), Answers()])
    assert trainer.history.last["step"] == 15
    assert trainer.history.stopped == "3 epochs reached"
    assert (tmp_path / "run" / "checkpoints" / "step-000000000015" / "COMMIT").exists()
    assert "test/loss" in trainer.history.last


def test_a_finished_training_that_is_taken_up_again_answers_the_same(tmp_path: Path) -> None:
    first, second = model(3), model(3)
    fit(first, hr.CrossEntropy(), KINDS, tmp_path / "run", [Answers()])
    before = read(tmp_path / "run")
    (tmp_path / "run" / "answers.safetensors").unlink()
    fit(second, hr.CrossEntropy(), KINDS, tmp_path / "run", [Answers()])
    assert str(read(tmp_path / "run")) == str(before)


def test_classes_keep_their_names(tmp_path: Path) -> None:
    named = {"y": ["low", "middle", "high"]}
    train, val = (hr.ArrayTable({"x": X[part], "y": KINDS[part]}, categories=named) for part in (TRAIN, TEST))
    net = model(3)
    trainer = hr.Trainer(net, hr.CrossEntropy(), torch.optim.Adam(net.parameters()), batch_size=8)
    trainer.fit(train, val, epochs=1, run=tmp_path / "run", progress=False, callbacks=[Answers()])
    assert read(tmp_path / "run")[1]["classes"] == ["low", "middle", "high"]
