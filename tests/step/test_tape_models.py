"""Random models of torch's layers: with a tape their weights are those of the loop written by hand, bit for bit."""

import os
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.optimizers import OPTIMIZERS
from kit.plain_loop import plain_loop
from kit.random_models import LAYERS, NOT_RECORDED, WIDTH, Case, classes_of, random_case
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
    torch.manual_seed(7)
    return plain_loop(model, optimizer, data_of(case.rows), case.batch, EPOCHS, loss=case.loss)


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
@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_each_layer_is_replayed_with_the_bits_of_the_raw_loop(number: int) -> None:
    """The control, too: what random models compare is not torch with torch."""
    layers: list[Any] = [lambda: nn.Linear(WIDTH, WIDTH), LAYERS[number], lambda: nn.Linear(WIDTH, WIDTH)]
    case = Case(lambda: nn.Sequential(*[make() for make in layers]), OPTIMIZERS["momentum"], classes_of, 40, 8, "")
    found, note = taped(case, "auto" if number in NOT_RECORDED else True)
    assert ("replayed" in note) == (number not in NOT_RECORDED)
    assert not differing(by_hand(case), found)
