"""Which output and which target metrics compare: the terms of the loss tell, or it is refused."""

import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import fit, same, stop_and_resume
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


def trainer(loss: Any, model: nn.Module | None = None, kind: Any = hr.Trainer, **options: Any) -> hr.Trainer:
    """A trainer of a model that stays as it is, unless there is another optimizer."""
    still = partial(torch.optim.SGD, lr=0.0)
    made: hr.Trainer = kind(model or Heads().digit, loss, **{"optimizer": still, "batch_size": 16, **options})
    return made


def two_tasks(metrics: Any = "accuracy", target: str = "y", model: Any = Heads, **of_digit: Any) -> hr.Trainer:
    loss = hr.MSE(output="ink", target="ink") + hr.CrossEntropy(output="digit", target="digit", **of_digit)
    return trainer(loss, model(), inputs="x", target=target, metrics=metrics)


def last(made: hr.Trainer, data: Any = DATA) -> dict[str, Any]:
    """The last report of a training."""
    return dict(fit(made, data, data, epochs=1).last)


# --- which output -------------------------------------------------------------------------------------------------


def test_a_metric_is_of_the_output_that_is_compared_with_its_target() -> None:
    found = last(two_tasks(target="digit"))
    assert found["train/accuracy"] == found["val/accuracy"] == 1.0
    found = last(two_tasks("mse", "ink"))
    assert found["val/mse"] == pytest.approx(found["val/loss/mse"])
    hidden = {**DATA, "digit": DIGIT.where(torch.arange(ROWS) > 5, -1)}  # what does not count is told by its term
    assert two_tasks(target="digit", ignore_index=-1).validate(hidden)["val/accuracy"] == 1.0


def test_of_several_objectives_metrics_look_at_the_one_that_compares_with_their_target() -> None:
    """And are fed once."""
    model = Heads()
    losses = {"ink": hr.MSE(output="ink", target="ink"), "digit": hr.CrossEntropy(output="digit", target="digit")}
    optimizers = {name: torch.optim.SGD(getattr(model, name).parameters(), 0.0) for name in losses}
    made = trainer(losses, model, optimizer=optimizers, inputs="x", target="digit", metrics=["accuracy", "confusion"])
    found = last(made)
    assert found["train/accuracy"] == found["val/accuracy"] == 1.0
    assert [sum(map(sum, found[f"{data}/confusion"])) for data in ("train", "val")] == [ROWS, ROWS]


def test_metrics_may_have_a_target_of_their_own_where_there_is_one_output() -> None:
    """Training goes by soft labels, and accuracy by hard ones."""
    data = {"x": X, "soft": F.one_hot(DIGIT.roll(1), 3).float() / 2 + 1 / 6, "y": DIGIT}
    found = last(trainer(hr.CrossEntropy(target="soft"), inputs="x", metrics="accuracy"), data)
    assert found["train/accuracy"] == found["val/accuracy"] == 1.0


def test_batches_of_a_loader_may_be_padded_to_different_lengths() -> None:
    class Echo(nn.Linear):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(F.one_hot(ids, 3).float()).transpose(1, 2)

    echo = Echo(3, 3, bias=False)
    nn.init.eye_(echo.weight)
    ids = [torch.tensor([[0, 1], [2, 2]]), torch.tensor([[0, 1, 2], [1, 1, 1]])]
    y = [torch.tensor([[0, 1], [2, -1]]), torch.tensor([[0, 1, 0], [1, -1, -1]])]  # 3 of 3 are right, then 3 of 4
    batches = [{"ids": a, "y": b} for a, b in zip(ids, y, strict=True)]
    made = trainer(hr.CrossEntropy(ignore_index=-1), echo, inputs="ids", metrics=["accuracy"], batch_size=None)
    found = last(made, batches)
    for data in ("train", "val"):
        assert found[f"{data}/accuracy"] == pytest.approx(6 / 7)


@pytest.mark.filterwarnings("ignore:cross_entropy. the model's outputs:UserWarning")
@pytest.mark.parametrize(
    ("places", "masked"),
    [
        ((), ()),
        ((5, 2), (5, 2)),
        ((5, 3), (5,)),
        ((3, 3), (3,)),
        ((3, 3), (3, 1)),
        ((3, 3), (1, 3)),
        ((5, 1), (5, 1)),
        ((5,), (5, 1)),
        ((3,), (3,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("probabilities", [False, True])
def test_a_mask_of_some_dimensions_leaves_out_all_that_is_in_its_places(
    probabilities: bool, places: tuple[int, ...], masked: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    scores, labels, mask = (
        torch.randn(20, 3, *places),
        torch.randint(0, 3, (20, *places)),
        torch.rand(20, *masked) > 0.4,
    )
    y = nn.functional.one_hot(labels, 3).movedim(-1, 1).float() if probabilities else labels
    trainer = hr.Trainer(nn.Identity(), hr.CrossEntropy(weight="m"), inputs="x", metrics=["accuracy", "confusion"])
    found = trainer.validate({"x": scores, "y": y, "m": mask}, batch_size=6)
    counts = mask.reshape(20, *masked[: len(places)], *[1] * (len(places) - len(masked))).expand_as(labels)
    right = scores.argmax(dim=1) == labels
    assert found["val/accuracy"] == pytest.approx(float(right[counts].double().mean()))
    assert sum(map(sum, found["val/confusion"])) == int(counts.sum())
    weighed = trainer.validate({"x": scores, "y": y, "m": mask.float()}, batch_size=6)
    assert weighed["val/accuracy"] == pytest.approx(float(right.double().mean())), "numbers leave nothing out"


def test_masks_of_sequences_and_of_numbers_leave_out_places() -> None:
    torch.manual_seed(0)
    lengths = [2, 0, 1, 3, 1, 2]  # as many items as rows in some batches
    scores, labels, items = torch.randn(9, 3), torch.randint(0, 3, (9,)), torch.rand(9) > 0.4
    rows, right = torch.tensor([1, 0, 1, 0, 1, 1]).bool(), scores.argmax(dim=1) == labels
    of_sequences = hr.Trainer(nn.Identity(), hr.CrossEntropy(weight="m"), inputs="x", metrics=["accuracy"])
    x, y, m = (hr.Ragged.of([*field.split(lengths)]) for field in (scores, labels, items))
    for mask, counts in (m, items), (rows, rows.repeat_interleave(torch.tensor(lengths))):
        found = of_sequences.validate({"x": x, "y": y, "m": mask}, batch_size=3)
        assert found["val/accuracy"] == pytest.approx(float(right[counts].double().mean()))
    of_numbers = hr.Trainer(nn.Identity(), hr.MSE(weight="m"), inputs="x", metrics=["mae"])
    gaps = torch.randn(20, 2, 3, 4)
    for shape in (1, 3, 4), (2,), (2, 1, 1), (2, 3, 4):
        mask = torch.rand(20, *shape) > 0.4
        found = of_numbers.validate({"x": gaps, "y": torch.zeros_like(gaps), "m": mask}, batch_size=6)
        counts = mask.reshape(20, *shape, *[1] * (3 - len(shape))).expand_as(gaps)
        assert found["val/mae"] == pytest.approx(float(gaps[counts].abs().double().mean()))


def test_what_cannot_be_compared_is_refused_before_the_first_update() -> None:
    def both(outputs: Mapping[str, Tensor], target: Tensor) -> Tensor:
        return F.cross_entropy(outputs["digit"], target) + outputs["ink"].square().mean()

    message = r"target='y'.*mse compares output 'ink' with 'ink'.*output 'digit'.*Say target='ink' or 'digit'"
    with pytest.raises(hr.ConfigError, match=message):
        two_tasks()
    with pytest.raises(hr.ConfigError, match="metrics= compare with an unknown stream 'y'"):
        trainer(hr.CrossEntropy(target="digit"), inputs="x", metrics="accuracy").validate({"x": X, "digit": DIGIT})
    made = trainer(hr.RowMean(both), Heads(), metrics="accuracy", optimizer=partial(torch.optim.SGD, lr=0.1))
    with pytest.raises(hr.ConfigError, match="one tensor per batch, the model returned a dict"):
        fit(made, (X, DIGIT))
    assert same(made.model, Heads())


# --- metrics of several outputs -------------------------------------------------------------------------------------

METRICS: dict[str, Any] = {"digit": ["accuracy", "error"], "ink": ["mae"]}


class Swapped(Heads):
    """Heads whose outputs are called otherwise than the targets, and which do not fit."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"amount": self.ink(x), "class": 2 * self.digit(x.roll(1, dims=1))}


def swapped(metrics: Any = METRICS, loss: Any = None, model: Any = Swapped, **options: Any) -> hr.Trainer:
    terms = hr.MSE(output="amount", target="ink") + hr.CrossEntropy(output="class", target="digit")
    moving = {"optimizer": partial(torch.optim.SGD, lr=0.1), "inputs": "x", "metrics": metrics}
    return trainer(terms if loss is None else loss, model(), **moving | options)


def truth(made: hr.Trainer) -> dict[str, Any]:
    with torch.no_grad():
        found = made.model(X)
    right = (found["class"].argmax(dim=1) == DIGIT).double().mean().item()
    mae = (found["amount"] - INK).abs().mean().item()
    return {"digit/accuracy": right, "digit/error": 1 - right, "ink/mae": mae}


def test_each_looks_at_its_output_by_the_name_of_the_output_or_of_the_target() -> None:
    by_target = swapped(batch_size=ROWS)
    by_output = swapped({"class": ["accuracy", "error"], "amount": {"mae": "mae"}}, batch_size=ROWS)
    some = swapped({"mine": "accuracy", "ink": ["mae"]}, target="digit", batch_size=ROWS)
    for made, names in (
        (by_target, ["digit/accuracy", "digit/error", "ink/mae"]),
        (by_output, ["class/accuracy", "class/error", "amount/mae"]),
        (some, ["mine", None, "ink/mae"]),  # others go on looking at the target
    ):
        report = last(made)
        for row in (made.validate(DATA), report):
            for name, value in zip(names, truth(made).values(), strict=True):
                assert name is None or row[f"val/{name}"] == pytest.approx(value, rel=1e-5)
        assert all(f"train/{name}" in report for name in names if name)


class Shows(hr.Objective):
    """A loss of one's own, which shows all outputs, called as its targets."""

    def terms(self, model: nn.Module, batch: hr.Batch) -> hr.Terms:
        found = self.call(model, batch)
        outputs = {"digit": found["class"], "ink": found["amount"]}
        terms = hr.Terms(amount=hr.Term(F.cross_entropy(found["class"], batch["digit"], reduction="sum"), batch.rows))
        terms.outputs = outputs
        return terms


def test_an_objective_of_ones_own_names_its_outputs_and_can_be_sent_to_workers() -> None:
    made = swapped(loss=Shows(), batch_size=ROWS)
    again: hr.Trainer = pickle.loads(pickle.dumps(made))
    rows = [fit(each, DATA, DATA).rows for each in (made, again)]
    assert rows[0] == rows[1]
    assert "train/digit/accuracy" in rows[0][-1]
    for name, value in truth(made).items():
        assert rows[0][-1][f"val/{name}"] == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("block_bytes", [1, 16 << 20])
def test_a_run_goes_on_within_an_epoch_with_the_same_numbers(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.loss.tally.BLOCK_BYTES", block_bytes)
    more = {"digit": ["accuracy", "auroc", "top-2"], "ink": ["mae", "r2"]}
    how: dict[str, Any] = {"callbacks": lambda: [hr.BestModel("val/digit/accuracy")]}
    stop_and_resume(lambda: swapped(more), [3], tmp_path, DATA, DATA, steps=11, **how)
    fewer = fit(
        swapped({"digit": ["accuracy"]}), DATA, DATA, steps=12, run=tmp_path / "resumed", callbacks=how["callbacks"]()
    )
    assert "train/ink/mae" not in fewer.rows[-1]


def test_workers_come_to_the_numbers_of_one() -> None:
    def train() -> dict[str, float]:
        found = fit(swapped(), DATA, DATA).last
        return {key: value for key, value in found.items() if "digit" in key or "ink" in key}

    assert hr.launch(train, workers=2, engine="local") == pytest.approx(train(), rel=1e-5)


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
        swapped(metrics)


# --- what a step of one's own gives ---------------------------------------------------------------------------------

LINE = torch.arange(10.0).unsqueeze(1)
SQUARES = LINE, LINE**2


class Plain(hr.Objective):
    """Gives no outputs."""

    reads = "classes"

    def terms(self, model: nn.Module, batch: hr.Batch) -> dict[str, hr.Term]:
        return {"ce": hr.Term(F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), float(batch.rows))}


class Named(hr.Trainer):
    """Gives losses by name; the one called "loss" is the whole of which the others are parts."""

    def evaluate_step(self, batch: hr.Batch) -> Any:
        far = F.mse_loss(self.model(batch["x"]), batch["y"])
        return {"far": far, "loss": far + 3.5, "seven": 7}


class Shown(hr.Trainer):
    """Gives the outputs, too."""

    def evaluate_step(self, batch: hr.Batch) -> Any:
        out = self.model(batch["x"])
        return hr.Outcome({"total_loss": F.mse_loss(out, batch["y"])}, outputs=out)

    def train_step(self, batch: hr.Batch) -> Any:
        out = self.model(batch["x"])
        return hr.Outcome({"far": F.mse_loss(out, batch["y"])}, out)


def test_losses_by_name_are_means_over_rows_also_where_the_last_batch_is_short() -> None:
    model = nn.Linear(1, 1)
    far = F.mse_loss(model(LINE), LINE**2).item()
    named = trainer(hr.MSE(), model, Named, batch_size=9).validate(SQUARES)
    assert named == pytest.approx({"val/loss": far + 3.5, "val/loss/far": far, "val/loss/seven": 7})
    found = last(trainer(hr.MSE(), model, Shown, batch_size=9, metrics="mse", arena=False), SQUARES)
    keys = ["train/mse", "train/loss", "train/loss/far", "val/loss", "val/mse"]
    assert [found[key] for key in keys] == pytest.approx([far] * 5)


def test_metrics_that_cannot_be_measured_are_told_of() -> None:
    with pytest.warns(UserWarning, match=r"train/accuracy: not measured.*hr\.Terms"):
        assert last(trainer(Plain(), metrics="accuracy"), (X, DIGIT))["val/accuracy"] == 1.0
    with pytest.warns(UserWarning, match=r"val/mse: not measured.*hr\.Outcome"):
        trainer(hr.MSE(), nn.Linear(1, 1), Named, metrics="mse").validate(SQUARES)


def test_a_metric_that_fails_is_named() -> None:
    class Fails:
        def update(self, outputs: Tensor, target: Tensor) -> None:
            raise KeyError("digit")

        def compute(self) -> float:
            return 0.0

        def reset(self) -> None:
            pass

    with pytest.raises(hr.DataError, match="metric 'mine'"):
        trainer(hr.CrossEntropy(), metrics={"mine": Fails()}).validate((X, DIGIT))
