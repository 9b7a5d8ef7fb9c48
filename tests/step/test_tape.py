"""The tape beside everything else that an update does: the bits are torch's, whatever is asked for."""

import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from kit.optimizers import OPTIMIZERS
from kit.sampled import sampled
from kit.small import data, same
from torch import Tensor, nn

import headrace as hr
from headrace.arena import flat
from headrace.step.tape import tapes

ROWS, BATCH, EPOCHS = 103, 10, 4
X, Y = data(ROWS)

Make = Callable[[], nn.Module]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def simple() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def trainer_of(make: Make, tape: Any, loss: Any = None, **options: Any) -> hr.Trainer:
    torch.manual_seed(3)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return hr.Trainer(model, loss or nn.CrossEntropyLoss(), optimizer, **{"batch_size": BATCH, **options}, tape=tape)


def fit(trainer: hr.Trainer, data: Any = (X, Y), **options: Any) -> list[Tensor]:
    torch.manual_seed(7)
    trainer.fit(data, epochs=EPOCHS, progress=False, **options)
    return [value.clone() for value in trainer.model.state_dict().values()]


def test_a_pass_whose_replay_is_not_quicker_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "GAIN", 0.0)
    trainer = trainer_of(simple, "auto")
    assert same(fit(trainer), fit(trainer_of(simple, False)))
    assert "passes are left to torch: a replay takes" in trainer.tape_note
    insisting = trainer_of(simple, True)
    fit(insisting)
    assert "replayed from a tape" in insisting.tape_note


def test_single_steps_have_torchs_bits() -> None:
    found = []
    for tape in (False, True):
        trainer = trainer_of(mlp, tape)
        torch.manual_seed(7)
        for step in range(20):
            rows = slice(step * 5, step * 5 + 5)
            trainer.step((X[rows], Y[rows]))
        found.append([value.clone() for value in trainer.model.state_dict().values()])
    assert same(*found)


def test_predictions_and_validations_are_torchs_and_are_kept() -> None:
    plain, taped = trainer_of(mlp, False), trainer_of(mlp, "auto")
    assert same(fit(plain), fit(taped))
    kept = taped.predict({"x": X})
    before = kept.clone()
    taped.predict({"x": X + 1})
    assert torch.equal(kept, before)
    assert torch.equal(kept, plain.predict({"x": X}))
    assert taped.validate((X, Y)) == plain.validate((X, Y))


class Meddles(hr.Callback):
    """Does to the gradients, after every update, what a user's code may do."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_step_end(self, info: hr.Info) -> None:
        for param in info.trainer.model.parameters():
            if self.how == "dropped":
                param.grad = None
            elif self.how == "replaced":
                param.grad = torch.full_like(param, 7.0)
            else:
                assert param.grad is not None
                param.grad.fill_(torch.nan)


@pytest.mark.parametrize("how", ["dropped", "replaced", "filled"])
def test_gradients_of_the_last_update_do_not_matter(how: str) -> None:
    plain, taped = trainer_of(simple, False), trainer_of(simple, True)
    assert same(fit(plain), fit(taped, callbacks=[Meddles(how)]))


FLAT = ["sgd", "nesterov", "dampened", "adam", "amsgrad", "adamw"]


@pytest.mark.parametrize(
    ("name", "foreach", "dtype"),
    sampled(
        product(FLAT, [None, True, False], [torch.float32, torch.float64, torch.bfloat16]),
        keep=[(name, None, torch.float32) for name in FLAT],
        of=4,
    ),
)
def test_flat_optimizers_have_the_bits_of_their_own_steps(name: str, foreach: bool | None, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    params = [nn.Parameter(torch.linspace(-1, 1, 37).to(dtype)) for _ in range(2)]
    torchs, ours = (OPTIMIZERS[name]([param], foreach=foreach) for param in params)
    made = 0
    for step in range(12):
        gradient = torch.randn(37, generator=generator).to(dtype)
        params[0].grad, params[1].grad = gradient, gradient.clone()
        torchs.step()
        with torch.no_grad():
            flatly = flat.prepare(ours)
            made += flatly is not None
            (flatly or ours.step)()
        for group in (torchs.param_groups[0], ours.param_groups[0]):
            group["lr"] = 0.1 / (step + 1)
    assert torch.equal(*params)
    assert made == (0 if ours.defaults.get("foreach") else 12 if name == "sgd" else 11)
    expected, found = torchs.state_dict()["state"], ours.state_dict()["state"]
    assert expected.keys() == found.keys()
    for name, value in expected.get(0, {}).items():
        assert value is found[0][name] is None or torch.equal(value, found[0][name])


class Scaled(nn.Module):
    """A layer and a single number, which no vector holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(8, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


@pytest.mark.parametrize("options", [{}, {"arena": False}])
def test_parameters_outside_of_vectors_are_trained_by_torch(options: dict[str, bool]) -> None:
    found = []
    for tape in ("auto", False):
        torch.manual_seed(0)
        model = Scaled()
        trainer = hr.Trainer(
            model, nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1), batch_size=10, tape=tape, **options
        )  # type: ignore[arg-type]
        trainer.fit({"x": torch.ones(200, 8), "y": torch.zeros(200, 3)}, epochs=2, progress=False)
        found.append(model.state_dict())
        assert ("stored in a vector" in trainer.tape_note) == (tape == "auto")
    assert all(map(torch.equal, found[0].values(), found[1].values()))


def test_a_training_under_a_profiler_is_left_to_torch() -> None:
    trainer = trainer_of(simple, "auto")
    sys.setprofile(lambda *_: None)
    try:
        fit(trainer)
    finally:
        sys.setprofile(None)
    assert trainer.tape_note == "passes are left to torch: a profiler looks on"


@pytest.mark.parametrize(("small", "note"), [(tapes.SMALL, "eager pass"), (0, "so large")])
def test_a_pass_of_many_small_operations_is_not_too_large(small: int, note: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(tapes, "LARGEST", 64 << 10)
    monkeypatch.setattr(tapes, "SMALL", small)
    model = nn.Sequential(*[layer for _ in range(40) for layer in (nn.Linear(8, 8), nn.ReLU())])
    x, y = torch.randn(16 * 128, 8), torch.randint(0, 8, (16 * 128,))
    trainer = hr.Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=128)
    trainer.fit((x, y), epochs=1, progress=False)
    assert note in trainer.tape_note


@pytest.mark.parametrize(("rows", "note"), [(128, "eager pass"), (127, "so large")])
def test_a_pass_that_is_mostly_arithmetic_is_not_recorded(rows: int, note: str, monkeypatch: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    monkeypatch.setattr(tapes, "PRODUCTS", rows * 2 * (8 + 1) * 8)  # of weights and biases
    x, y = torch.randn(16 * 128, 8), torch.randint(0, 8, (16 * 128,))
    trainer = hr.Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), batch_size=128)
    trainer.fit((x, y), epochs=1, progress=False)
    assert note in trainer.tape_note
