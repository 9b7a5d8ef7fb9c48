"""Which output and which target metrics compare: the terms of the loss tell, or it is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.imports import imported_after
from torch import Tensor, nn

import headrace as hr

ROWS = 60
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, 6, generator=GENERATOR)
DIGIT = X[:, :3].argmax(1)
INK = torch.randn(ROWS, 3, generator=GENERATOR)
DATA = {"x": X, "digit": DIGIT, "ink": INK}


class Heads(nn.Module):
    """One head for each task, of the same shape: taken for each other, they score badly without an error."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.digit, self.ink = nn.Linear(6, 3), nn.Linear(6, 3)
        with torch.no_grad():
            self.digit.weight.copy_(torch.eye(3, 6))
            self.digit.bias.zero_()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"digit": self.digit(x), "ink": self.ink(x)}


def still(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.0)


def two_tasks(target: str, metrics: Any = "accuracy", **of_digit: Any) -> hr.Trainer:
    loss = hr.MSE(output="ink", target="ink") + hr.CrossEntropy(output="digit", target="digit", **of_digit)
    return hr.Trainer(model := Heads(), loss, still(model), inputs="x", target=target, metrics=metrics, batch_size=16)


def test_a_metric_is_of_the_output_that_is_compared_with_its_target() -> None:
    last = two_tasks("digit").fit(DATA, DATA, epochs=1, progress=False).last
    assert last["train/accuracy"] == last["val/accuracy"] == 1.0
    last = two_tasks("ink", "mse").fit(DATA, DATA, epochs=1, progress=False).last
    assert last["val/mse"] == pytest.approx(last["val/loss/mse"])


def test_what_does_not_count_is_told_by_the_term_of_the_metric() -> None:
    hidden = {**DATA, "digit": DIGIT.where(torch.arange(ROWS) > 5, -1)}
    assert two_tasks("digit", ignore_index=-1).validate(hidden)["val/accuracy"] == 1.0


def test_batches_of_a_loader_may_be_padded_to_different_lengths() -> None:
    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, ids: Tensor) -> Tensor:
            return self.scale * F.one_hot(ids, 3).transpose(1, 2)

    ids = [torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1, 2], [1, 1, 1]])]
    y = [torch.tensor([[0, 1], [2, -1]]), torch.tensor([[0, 1, 0], [1, -1, -1]])]  # 3 of 3 are right, then 3 of 4
    batches = [{"ids": a, "y": b} for a, b in zip(ids, y, strict=True)]
    loss = hr.CrossEntropy(ignore_index=-1)
    trainer = hr.Trainer(model := Echo(), loss, still(model), inputs="ids", metrics="accuracy")
    last = trainer.fit(batches, val=batches, epochs=1, progress=False).last
    assert last["train/accuracy"] == last["val/accuracy"] == pytest.approx(6 / 7)


def test_metrics_may_have_a_target_of_their_own_where_there_is_one_output() -> None:
    """Training goes by soft labels, and accuracy by hard ones."""
    data = {"x": X, "soft": F.one_hot(DIGIT.roll(1), 3).float() / 2 + 1 / 6, "y": DIGIT}
    model = Heads().digit
    loss = hr.CrossEntropy(target="soft")
    trainer = hr.Trainer(model, loss, still(model), inputs="x", metrics="accuracy", batch_size=16)
    last = trainer.fit(data, data, epochs=1, progress=False).last
    assert last["train/accuracy"] == last["val/accuracy"] == 1.0


def test_a_target_that_no_term_compares_with_is_refused_where_there_are_several_outputs() -> None:
    message = r"target='y'.*mse compares output 'ink' with 'ink'.*output 'digit'.*Say target='ink' or 'digit'"
    with pytest.raises(hr.ConfigError, match=message):
        two_tasks("y")


def test_a_target_that_the_data_do_not_have_is_refused() -> None:
    model = Heads().digit
    trainer = hr.Trainer(model, hr.CrossEntropy(target="digit"), still(model), inputs="x", metrics="accuracy")
    with pytest.raises(hr.ConfigError, match="metrics= compare with an unknown stream 'y'"):
        trainer.validate({"x": X, "digit": DIGIT})


def test_outputs_that_are_no_tensor_are_refused_before_the_first_update() -> None:
    def both(outputs: Mapping[str, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(outputs["digit"], target) + outputs["ink"].square().mean()

    model = Heads()
    trainer = hr.Trainer(model, hr.RowMean(both), torch.optim.SGD(model.parameters(), 0.1), metrics="accuracy")
    with pytest.raises(hr.ConfigError, match="one tensor per batch, the model returned a dict"):
        trainer.fit((X, DIGIT), epochs=1, progress=False)
    assert torch.equal(model.ink.weight, Heads().ink.weight)


def test_several_objectives_feed_the_metrics_once() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    optimizers = {"body": still(model[0]), "head": still(model[1])}
    losses = {"body": hr.CrossEntropy(), "head": hr.CrossEntropy(label_smoothing=0.1)}
    trainer = hr.Trainer(model, losses, optimizers, metrics=["confusion"], batch_size=16)
    last = trainer.fit((X, DIGIT), (X, DIGIT), epochs=1, progress=False).last
    for family in ("train", "val"):
        assert sum(map(sum, last[f"{family}/confusion"])) == ROWS


def test_of_several_objectives_metrics_look_at_the_one_that_compares_with_their_target() -> None:
    model = Heads()
    losses = {"ink": hr.MSE(output="ink", target="ink"), "digit": hr.CrossEntropy(output="digit", target="digit")}
    optimizers = {"ink": still(model.ink), "digit": still(model.digit)}
    trainer = hr.Trainer(model, losses, optimizers, inputs="x", target="digit", metrics="accuracy")
    last = trainer.fit(DATA, DATA, epochs=1, progress=False).last
    assert last["train/accuracy"] == last["val/accuracy"] == 1.0


class Plain(hr.Objective):
    """Gives no outputs."""

    reads = "classes"

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        return {"ce": hr.Term(F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), float(batch.rows))}


def test_training_metrics_that_cannot_be_measured_are_told_of() -> None:
    trainer = hr.Trainer(model := Heads().digit, Plain(), still(model), metrics="accuracy")
    with pytest.warns(UserWarning, match=r"train/accuracy: not measured.*hr\.Terms"):
        last = trainer.fit((X, DIGIT), (X, DIGIT), epochs=1, progress=False).last
    assert last["val/accuracy"] == 1.0


class Named(hr.Trainer):
    """Gives losses by name."""

    def evaluate_step(self, batch: hr.Batch) -> Any:
        return {"far": F.mse_loss(self.model(batch["x"]), batch["y"])}


class Shown(Named):
    """Gives the outputs, too."""

    def evaluate_step(self, batch: hr.Batch) -> Any:
        out = self.model(batch["x"])
        return hr.Outcome({"total_loss": F.mse_loss(out, batch["y"])}, outputs=out)


LINE = torch.arange(10.0).unsqueeze(1)


@pytest.mark.parametrize("kind", [Named, Shown])
def test_losses_by_name_are_means_over_rows_also_where_the_last_batch_is_short(kind: type[hr.Trainer]) -> None:
    trainer = kind(model := nn.Linear(1, 1), hr.MSE(), still(model), batch_size=9)
    expected = F.mse_loss(model(LINE), LINE**2).item()
    assert trainer.validate((LINE, LINE**2))["val/loss"] == pytest.approx(expected)


def test_a_train_step_may_give_losses_by_name_and_outputs() -> None:
    class Trains(hr.Trainer):
        def train_step(self, batch: hr.Batch) -> Any:
            out = self.model(batch["x"])
            return hr.Outcome({"far": F.mse_loss(out, batch["y"])}, out)

    model = nn.Linear(1, 1)
    trainer = Trains(model, hr.MSE(), still(model), batch_size=9, metrics="mse", arena=False)
    last = trainer.fit((LINE, LINE**2), epochs=1, progress=False).last
    expected = F.mse_loss(model(LINE), LINE**2).item()
    assert last["train/mse"] == pytest.approx(expected)
    assert last["train/loss"] == last["train/loss/far"] == pytest.approx(expected)


def test_validation_metrics_that_cannot_be_measured_are_told_of() -> None:
    trainer = Named(model := nn.Linear(1, 1), hr.MSE(), still(model), metrics="mse")
    with pytest.warns(UserWarning, match=r"val/mse: not measured.*hr\.Outcome"):
        trainer.validate((LINE, LINE**2))
    shown = Shown(model, hr.MSE(), still(model), metrics="mse")
    scores = shown.validate((LINE, LINE**2))
    assert scores["val/mse"] == pytest.approx(scores["val/loss"])


def test_a_metric_that_fails_is_named() -> None:
    class Fails:
        def update(self, outputs: Tensor, target: Tensor) -> None:
            raise KeyError("digit")

        def compute(self) -> float:
            return 0.0

        def reset(self) -> None:
            pass

    trainer = hr.Trainer(model := Heads().digit, hr.CrossEntropy(), still(model), metrics={"mine": Fails()})
    with pytest.raises(hr.DataError, match="metric 'mine'"):
        trainer.validate((X, DIGIT))


NAMED = """
import sys, torch, headrace as hr
sys.modules["torchmetrics"] = None
model, data = torch.nn.Linear(1, 1), (torch.zeros(4, 1), torch.zeros(4, 1))
trainer = hr.Trainer(model, hr.MSE(), torch.optim.SGD(model.parameters(), 0.1), metrics=["mae", "accuracy", "auroc"])
trainer.fit(data, epochs=1, progress=False)
"""


def test_metrics_by_name_need_no_torchmetrics(tmp_path: Path) -> None:
    """Importing it takes a second, and here it cannot be imported."""
    imported_after(NAMED, tmp_path)


def test_loss_beside_other_losses_is_the_whole_of_which_they_are_parts() -> None:
    class Own(hr.Trainer):
        def evaluate_step(self, batch: hr.Batch) -> Any:
            near = F.cross_entropy(self.model(batch["x"]), batch["y"])
            return {"near": near, "loss": near + 0.5 * 7, "far": 7}

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x, y = torch.randn(20, 3), torch.randint(0, 2, (20,))
    found = Own(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1)).validate((x, y), batch_size=8)
    near = F.cross_entropy(model(x), y).item()
    assert found == pytest.approx({"val/loss": near + 3.5, "val/loss/near": near, "val/loss/far": 7})
