"""Metrics of several outputs: those of a name look at the term that compares with this target, or at its output."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr

X = torch.randn(90, 5, generator=torch.Generator().manual_seed(0))
DATA = {"x": X, "digit": X[:, :3].argmax(dim=1), "ink": X.sum(dim=1)}
METRICS: dict[str, Any] = {"digit": ["accuracy", "error"], "ink": ["mae"]}
MORE: dict[str, Any] = {"digit": ["accuracy", "auroc", "top-2"], "ink": ["mae", "r2"]}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"amount": self.second(x).flatten(), "class": self.first(x)}


def make(metrics: Any = METRICS, loss: Any = None, **options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = Two()
    terms = hr.MSE(output="amount", target="ink") + hr.CrossEntropy(output="class", target="digit")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"batch_size": 16, "inputs": "x", "metrics": metrics} | options
    return hr.Trainer(model, terms if loss is None else loss, optimizer, **options)


def truth(trainer: hr.Trainer) -> dict[str, float]:
    with torch.no_grad():
        found = trainer.model(X)
    right = (found["class"].argmax(dim=1) == DATA["digit"]).double().mean().item()
    return {
        "digit/accuracy": right,
        "digit/error": 1 - right,
        "ink/mae": (found["amount"] - DATA["ink"]).abs().mean().item(),
    }


@pytest.mark.parametrize("names", [METRICS, {"class": ["accuracy", "error"], "amount": {"mae": "mae"}}])
def test_each_looks_at_its_output(names: dict[str, Any]) -> None:
    trainer = make(names)
    history = trainer.fit(DATA, DATA, epochs=2, progress=False)
    expected = list(truth(trainer).values())
    for row in (trainer.validate(DATA), history.last):
        found = [row[f"val/{of}/{name}"] for of, several in names.items() for name in several]
        assert found == pytest.approx(expected, rel=1e-5)
    assert all(f"train/{of}/{name}" in history.last for of, several in names.items() for name in several)


def test_others_go_on_looking_at_the_target() -> None:
    trainer = make({"mine": "accuracy", "ink": ["mae"]}, target="digit")
    scores = trainer.validate(DATA)
    assert scores["val/mine"] == pytest.approx(truth(trainer)["digit/accuracy"])
    assert scores["val/ink/mae"] == pytest.approx(truth(trainer)["ink/mae"], rel=1e-5)


def test_an_objective_of_ones_own_names_its_outputs_as_its_targets() -> None:
    class Both(hr.Objective):
        def terms(self, model: nn.Module, batch: hr.Batch) -> hr.Terms:
            found = model(batch["x"])
            outputs = {"digit": found["class"], "ink": found["amount"]}
            loss = nn.functional.cross_entropy(outputs["digit"], batch["digit"], reduction="sum")
            terms = hr.Terms({"loss": hr.Term(loss, batch.rows)})
            terms.outputs = outputs
            return terms

    trainer = make(loss=Both())
    history = trainer.fit(DATA, DATA, epochs=1, progress=False)
    assert [history.last[f"val/{key}"] for key in truth(trainer)] == pytest.approx([*truth(trainer).values()], rel=1e-5)


@pytest.mark.parametrize("block_bytes", [1, 16 << 20])
def test_a_run_goes_on_within_an_epoch_with_the_same_numbers(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.loss.tally.BLOCK_BYTES", block_bytes)
    options: dict[str, Any] = {"progress": False, "callbacks": [hr.BestModel("val/digit/accuracy")]}
    whole = make(MORE).fit(DATA, DATA, steps=11, **options)
    make(MORE).fit(DATA, DATA, steps=3, run=tmp_path / "run", **options)
    assert make(MORE).fit(DATA, DATA, steps=11, run=tmp_path / "run", **options).rows[-1] == whole.rows[-1]
    fewer = make({"digit": ["accuracy"]}).fit(DATA, DATA, steps=12, run=tmp_path / "run", **options)
    assert "train/ink/mae" not in fewer.rows[-1]


def test_workers_come_to_the_numbers_of_one() -> None:
    def train() -> dict[str, float]:
        history = make().fit(DATA, DATA, epochs=2, progress=False)
        return {key: value for key, value in history.last.items() if "digit" in key or "ink" in key}

    alone = train()
    found = hr.launch(train, workers=2, engine="local")
    assert found == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({"digt": ["accuracy"]}, "unknown output or target 'digt'. Did you mean 'digit'"),
        ({"digit": ["acuracy"]}, "unknown metric 'acuracy'"),
        ({"loss": ["mae"]}, "'loss', which cannot be the name"),
        ({3: ["mae"]}, "3, which cannot be the name"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(metrics: Any, why: str) -> None:
    with pytest.raises(hr.ConfigError, match=why):
        make(metrics)


class Whole(hr.Objective):
    """A loss of one's own, which shows all outputs."""

    def terms(self, model: nn.Module, batch: hr.Batch) -> hr.Terms:
        found = hr.Terms(amount=hr.Term((outputs := self.call(model, batch))["ink"].sum(), batch.rows))
        found.outputs = outputs
        return found


class Named(Two):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = super().forward(x)
        return {"ink": found["amount"], "digit": found["class"]}


def test_a_trainer_with_metrics_by_name_and_an_objective_can_be_sent_to_workers() -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"inputs": "x", "metrics": METRICS, "batch_size": 16}
    trainer = hr.Trainer(model := Named(), Whole(), torch.optim.SGD(model.parameters(), 0.1), **options)
    again: hr.Trainer = pickle.loads(pickle.dumps(trainer))
    rows = [each.fit(DATA, epochs=2, progress=False).rows for each in (trainer, again)]
    assert rows[0] == rows[1]
    assert "train/digit/accuracy" in rows[0][-1]
