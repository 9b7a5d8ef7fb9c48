"""Models that compute in fp8, as torchao makes them: the bits of the plain loop, and exact resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from kit.plain_loop import plain_loop
from kit.small import data, fit, momentum, same, stop_and_resume
from torch import nn

import headrace as hr
from headrace.step.check import fp8_hardware

X, Y = data(96, features=32)
BATCH = 32
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def network(kind: str) -> nn.Module:
    pytest.importorskip("torchao")
    from torchao.float8 import convert_to_float8_training

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    return convert_to_float8_training(model) if kind == "fp8" else model


def trainer(kind: str) -> hr.Trainer:
    model = network(kind)
    return hr.Trainer(model, hr.CrossEntropy(), momentum(model), batch_size=BATCH)


def test_the_weights_are_those_of_the_plain_loop_and_not_those_of_fp32() -> None:
    ours, plain = trainer("fp8"), trainer("fp32")
    fit(ours, (X, Y))
    fit(plain, (X, Y))
    model = network("fp8")
    expected = plain_loop(model, momentum(model), (X, Y), BATCH, 2)
    assert same(expected, ours.model)
    assert not same(expected, plain.model), "the control"


def test_a_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    stop_and_resume(lambda: trainer("fp8"), [1, 4], tmp_path, lambda: (X, Y))


@pytest.mark.parametrize(
    ("precision", "message"),
    [("fp8", "torchao.float8.convert_to_float8_training"), ("int8", "weights of int8 cannot be saved")],
)
def test_a_precision_that_torchao_makes_is_refused_with_what_to_do(precision: Any, message: str) -> None:
    with pytest.raises(hr.ConfigError, match=message):
        hr.Trainer(nn.Linear(2, 2), precision=precision)


def test_a_device_that_cannot_compute_in_fp8_is_refused() -> None:
    fp8_hardware(network("fp8"), None)  # a CPU can
    fp8_hardware(network("fp8"), (8, 9))
    fp8_hardware(nn.Linear(2, 2), (8, 0))
    with pytest.raises(hr.ConfigError, match=r"8\.9 or higher.*this one has 8\.0"):
        fp8_hardware(network("fp8"), (8, 0))
