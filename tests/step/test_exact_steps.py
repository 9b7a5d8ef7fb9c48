"""A step that takes exactly as many samples as the batch size says, in microbatches of any size."""

from typing import Any

import pytest
import torch
from torch import nn

import headrace as hr

SAMPLES: list[Any] = [{"x": torch.randn(5), "y": k % 3} for k in range(8)]


def trainer(**options: Any) -> hr.Trainer:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    return hr.Trainer(model, hr.CrossEntropy(), torch.optim.SGD(model.parameters(), 0.1), device="cpu", **options)


@pytest.mark.parametrize("count", [1, 7, 9])
def test_an_exact_step_names_the_number_it_takes_and_the_number_it_got(count: int) -> None:
    training = trainer(batch_size=8)
    with pytest.raises(hr.DataError, match=rf"takes exactly batch_size=8 samples, got {count}\."):
        training.step(hr.samples((SAMPLES * 2)[:count]), full_batch=True)


def test_an_exact_step_in_microbatches_is_the_step_of_the_whole_batch() -> None:
    whole, cut = trainer(batch_size=8), trainer(batch_size=8, microbatch=3)
    assert cut.step(hr.samples(SAMPLES), full_batch=True) == pytest.approx(
        whole.step(hr.samples(SAMPLES), full_batch=True), rel=1e-6
    )
    torch.testing.assert_close(cut.model.weight, whole.model.weight, rtol=0, atol=1e-6)
