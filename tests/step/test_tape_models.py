"""Random models of torch's layers: with a tape their weights are those of the loop written by hand, bit for bit."""

import os
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.random_models import WIDTH, Case, classes_of, random_case
from kit.sampled import EVERY
from torch import nn

import headrace as hr

EPOCHS = 3


def data_of(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, WIDTH, generator=generator), torch.randint(0, WIDTH, (rows,), generator=generator)


def start(case: Case) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = case.make()
    return model, case.optimizer([p for p in model.parameters() if p.requires_grad])


def by_hand(case: Case) -> nn.Module:
    model, optimizer = start(case)
    order, (x, y) = hr.Order(case.rows, seed=0), data_of(case.rows)
    torch.manual_seed(7)
    model.train()
    for epoch in range(EPOCHS):
        rows = torch.from_numpy(order.indices(epoch, 0, case.rows))
        for some in rows.split(case.batch):
            optimizer.zero_grad()
            case.loss(model(x[some]), y[some]).backward()
            optimizer.step()
    return model


def taped(case: Case, tape: Any, **options: Any) -> tuple[nn.Module, str]:
    model, optimizer = start(case)
    trainer = hr.Trainer(model, hr.RowMean(case.loss), optimizer, batch_size=case.batch, tape=tape, **options)
    torch.manual_seed(7)
    trainer.fit(data_of(case.rows), epochs=EPOCHS, progress=False)
    return model, trainer.tape_note


def differing(a: nn.Module, b: nn.Module) -> list[str]:
    pairs = zip(a.state_dict().items(), b.state_dict().values(), strict=True)
    return [name for (name, p), q in pairs if not torch.equal(p.nan_to_num(), q.nan_to_num())]


@pytest.mark.slow
@settings(
    max_examples=200 if EVERY in os.environ else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
@given(st.integers(0, 2**32))
def test_a_random_model_gives_the_bits_of_the_raw_loop(seed: int) -> None:
    case = random_case(Random(seed))
    expected = by_hand(case)
    try:
        found, note = taped(case, True)
    except hr.ModelError:
        found, note = taped(case, "auto")
    assert not differing(expected, found), f"{case.text}: {note}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the model has .* with microbatches:UserWarning")
@given(st.integers(0, 2**32))
@settings(max_examples=40 if EVERY in os.environ else 4, deadline=None)
def test_a_random_model_in_microbatches_gives_the_bits_of_torch(seed: int) -> None:
    case = random_case(Random(seed))
    expected, _ = taped(case, False, microbatch=4)
    found, note = taped(case, "auto", microbatch=4)
    assert not differing(expected, found), f"{case.text}: {note}"


@pytest.mark.slow
def test_random_models_are_replayed() -> None:
    """The control: most are not left to torch."""
    found = [taped_or_not(random_case(Random(seed))) for seed in range(8)]
    assert found.count(True) >= 5


def taped_or_not(case: Case) -> bool:
    try:
        return "replayed" in taped(case, True)[1]
    except hr.ModelError:
        return False


def test_an_operation_that_makes_a_tensor_a_view_of_itself_is_replayed() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            turned = (self.enter(x) * 2).unsqueeze_(1).transpose_(0, 1).squeeze_(0).t_()
            return self.leave(torch.tanh(turned.t()))

    case = Case(Turned, lambda p: torch.optim.SGD(p, lr=0.1), classes_of, 35, 4, "")
    found, note = taped(case, True)
    assert "replayed" in note
    assert not differing(by_hand(case), found)
