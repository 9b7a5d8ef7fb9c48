"""log_softmax over a few classes, by columns: the bits of torch's way by rows, or it is not used."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.step.tape import forms
from headrace.step.tape.forms import log_softmax_by_columns

EQUAL = [n for n in forms.CLASSES if log_softmax_by_columns(torch.zeros(128, n), 1, False) is not None]
"""The numbers of classes for which both ways are the same here: up to 15 with AVX-512, up to 7 with AVX2."""
MOST = EQUAL[-1]


def bits(x: Tensor) -> Tensor:
    """The bits of numbers; all NaN are alike."""
    return x.masked_fill(x.isnan(), torch.nan).view(torch.int32)


@pytest.mark.parametrize("classes", EQUAL)
def test_columns_have_the_bits_of_rows(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    rare = (-torch.inf, torch.inf, torch.nan, 1e38, 0.0, -0.0, 1e-40, -1e-40, 88.0)
    for rows in (128, 144, 160, 256, 400, 512):
        found = log_softmax_by_columns(torch.randn(rows, classes), 1, False)
        assert found is not None
        place = torch.empty(rows, classes)
        for k in range(30_000 // rows):
            x = torch.randn(rows, classes, generator=generator) * 10.0 ** (k % 10 - 5)
            x[torch.rand(rows, classes, generator=generator) < 0.01] = rare[k % 9]
            found(x, 1, False, out=place)
            assert torch.equal(bits(place), bits(torch.log_softmax(x, 1)))


def test_what_differs_in_one_number_of_all_draws_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def almost(rows: int, classes: int, make: Any = forms.make) -> Any:
        exact = make(rows, classes)

        def inexact(*args: Any, out: Tensor) -> None:
            nonlocal calls
            exact(*args, out=out)
            calls += 1
            if calls == 20:
                out.view(torch.int32)[5, 3] += 1

        return inexact

    monkeypatch.setattr(forms, "make", almost)
    x, before = torch.randn(128, MOST), torch.get_rng_state()
    assert log_softmax_by_columns(x, 1, False) is None
    assert torch.equal(before, torch.get_rng_state()), "random numbers are as they were"
    assert calls == 20


@pytest.mark.parametrize("rows", [128, 100])
def test_a_training_with_few_classes_has_torchs_bits(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = [], []

    def noting(rows: int, classes: int, make: Any = forms.make) -> Any:
        made.append(make(rows, classes))
        return made[-1]

    monkeypatch.setattr(forms, "make", noting)
    used = False
    for tape in (False, True):
        torch.manual_seed(3)
        x, y = torch.randn(rows * 12, 7), torch.randint(0, MOST, (rows * 12,))
        model = nn.Linear(7, MOST)
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=rows, tape=tape)
        for _ in trainer.steps((x, y), epochs=3):
            known = trainer.updates._each[0].tapes.turns.forms.values()
            used = used or any(form is not None and form.function in made for form in known)
        found.append([value.clone() for value in model.state_dict().values()])
    assert all(map(torch.equal, *found))
    assert used == (rows == 128)
