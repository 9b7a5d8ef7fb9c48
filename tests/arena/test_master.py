"""Parameters in bf16 whose optimizer works on copies in fp32: the bits of the loop that does so by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.small import same as equal
from torch import nn

import headrace as hr

ROWS, BATCH, STEPS = 96, 16, 15
X = torch.randn(ROWS, 9, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-3}),
    "SGD": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.01}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5}),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 33), nn.Tanh(), nn.Linear(33, 7), nn.ReLU(), nn.Linear(7, 3)).bfloat16()


def by_hand(kind: str, steps: int = STEPS) -> nn.Module:
    model, (make, settings) = network(), KINDS[kind]
    masters = [nn.Parameter(param.detach().float()) for param in model.parameters()]
    optimizer = make(masters, **settings)
    for step in range(steps):
        rows = slice(start := step * BATCH % ROWS, start + BATCH)
        model.zero_grad()
        F.cross_entropy(model(X[rows].bfloat16()), Y[rows]).backward()
        for param, master in zip(model.parameters(), masters, strict=True):
            assert param.grad is not None
            master.grad = param.grad.float()
        optimizer.step()
        with torch.no_grad():
            for param, master in zip(model.parameters(), masters, strict=True):
                param.copy_(master)
    return model


def trainer(kind: str, model: nn.Module | None = None, **options: Any) -> hr.Trainer:
    model = network() if model is None else model
    make, settings = KINDS[kind]
    optimizer = hr.MasterWeights(model.parameters(), make, **settings)
    return hr.Trainer(model, nn.CrossEntropyLoss(), optimizer, batch_size=BATCH, order="none", **options)


def fit(made: hr.Trainer, steps: int = STEPS, **options: Any) -> Any:
    made.fit((X.bfloat16(), Y), steps=steps, progress=False, **options)
    return made.model


@pytest.mark.parametrize("how", [{"tape": False}, {"tape": True}, {"arena": False}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_loop_that_keeps_copies(kind: str, how: dict[str, Any]) -> None:
    assert equal(fit(trainer(kind, **how)), by_hand(kind))


def test_a_weight_that_something_else_has_written_is_where_the_next_step_begins() -> None:
    weights = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = hr.MasterWeights([weights], torch.optim.SGD, lr=1e-3)
    for written in (None, 3.0):
        if written:
            weights.data[1] = written
        for _ in range(50):
            weights.grad = torch.ones_like(weights)
            optimizer.step()
    assert optimizer.state[weights]["master"].tolist() == pytest.approx([0.9, 2.95], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_with_its_copies_after_any_update(kind: str, tmp_path: Path) -> None:
    reference = by_hand(kind)
    for stop in range(1, STEPS, 3):
        fit(trainer(kind), stop, run=tmp_path / str(stop))
        assert equal(fit(trainer(kind), run=tmp_path / str(stop)), reference)


def test_what_cannot_work_on_copies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hr.ConfigError, match=r"works with Adam, AdamW, .* got 'Muon'"):
        hr.MasterWeights(network().parameters(), torch.optim.Muon)
    fit(trainer("AdamW"), 2, run=tmp_path / "run")
    with pytest.raises(hr.CheckpointError, match="MasterWeights of AdamW"):
        fit(trainer("SGD"), run=tmp_path / "run")
