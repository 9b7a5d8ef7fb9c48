"""Settings as plain values: what is compared when a run is resumed, and what a person reads."""

import argparse
import enum
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import headrace as hr
from headrace.step import config


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True, slots=True)
class Slotted:
    width: int
    _hidden: int = 0


class Plain:
    def __init__(self, rate: float) -> None:
        self.rate, self._cache = rate, object()

    def method(self) -> None: ...


def function(x: float, factor: float = 1.0) -> float:
    return x * factor


def power(exponent: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, target: Tensor) -> Tensor:
        return (outputs - target).abs().pow(exponent).mean()

    return loss


def with_default(exponent: float) -> Callable[..., Tensor]:
    def loss(outputs: Tensor, target: Tensor, by: float = exponent, *, far: float = exponent) -> Tensor:
        return (outputs - target).abs().pow(by + far).mean()

    return loss


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, outputs: Tensor, target: Tensor) -> Tensor:
        return self.scale * (outputs - target).square().mean()

    def mean(self, outputs: Tensor, target: Tensor) -> Tensor:
        return self(outputs, target)


class Within(nn.Module):
    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.loss = nn.CrossEntropyLoss(label_smoothing=smoothing)

    def forward(self, outputs: Tensor, target: Tensor) -> Any:
        return self.loss(outputs, target)


def lambdas() -> list[Callable[[float], float]]:
    return [lambda x: x + 1, lambda x: x - 1, lambda x: x * sum((1, 2)), lambda x: x * sum((1, 3))]


VALUES: list[tuple[Any, Any]] = [
    *((value, value) for value in (None, True, 0.1, "α")),
    ((1, 2.5), [1, 2.5]),
    ({1: (2,)}, {"1": [2]}),
    ({"b", "a", "c"}, ["a", "b", "c"]),
    (np.float64(0.1), 0.1),
    (np.float32(0.5), 0.5),
    (np.int64(3), 3),
    (np.array([[1, 2]]), [[1, 2]]),
    (torch.tensor([1.5, 2.0]), [1.5, 2.0]),
    (torch.tensor(0.5), 0.5),
    (torch.bfloat16, "torch.bfloat16"),
    (torch.device("cpu"), "cpu"),
    (hr.Length(2, "epochs"), "2 epochs"),
    (Colour.RED, "Colour.RED"),
    (Plain(0.5), {"kind": "Plain", "rate": 0.5}),
    (Slotted(3), {"kind": "Slotted", "width": 3}),
    (hr.Cosine(0.1), {"kind": "Cosine", "warmup": 0.1, "floor": 0.0}),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_a_value_is_shown_as_json_and_yaml_can_hold_it(value: Any, expected: Any) -> None:
    shown = config.plain(value)
    assert shown == expected
    assert json.loads(json.dumps(shown)) == shown
    assert yaml.safe_load(yaml.safe_dump(shown)) == shown


def test_functions_classes_and_methods_are_shown_by_their_names_without_the_bytecode_of_a_version() -> None:
    shown = [config.plain(value) for value in (function, Plain, Plain(1.0).method, len, lambda: 0)]
    names = ["function", "Plain", "Plain.method", "len", "<lambda>"]
    assert all(name in text for text, name in zip(shown, names, strict=True))
    assert config.plain(lambdas()[2]).endswith("<lambda> lambda x: x * sum((1, 2))")
    assert config.plain(power(0.25)).endswith("power.<locals>.loss(exponent=0.25)")


OF_POWER: list[tuple[Any, Any]] = [
    *((0.25, 75.0), ((1, 2), (1, 3)), ([1.0], [2.0]), (power(1.0), power(2.0)), (b"a", b"b"), (1j, 2j)),
    *((torch.tensor([1.0]), torch.tensor([2.0])), (list(range(100)), list(range(101))), (range(3), range(9))),
    *((Fraction(1, 3), Fraction(2, 3)), (deque([1]), deque([2]))),
]
"""What a loss may find around it."""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(100), torch.ones(100)),
        (torch.zeros(100), torch.zeros(10, 10)),
        (torch.zeros(100), torch.zeros(100, dtype=torch.float64)),
        (torch.zeros(100).index_fill(0, torch.tensor(99), 1), torch.zeros(100)),
        (np.float32(0.1), np.float32(0.2)),
        (partial(function, factor=1.0), partial(function, factor=2.0)),
        (hr.CrossEntropy(target="a"), hr.CrossEntropy(target="b")),
        (hr.CrossEntropy(), 2 * hr.CrossEntropy()),
        (hr.CrossEntropy() + hr.L2Prior(0.1), hr.CrossEntropy() + hr.L2Prior(0.2)),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))),
        (nn.HuberLoss(delta=1.0), nn.HuberLoss(delta=2.0)),
        (Within(0.1), Within(0.2)),
        (nn.Sequential(nn.Sequential(nn.Softmax(0))), nn.Sequential(nn.Sequential(nn.Softmax(1)))),
        *((power(one), power(other)) for one, other in OF_POWER),
        (with_default(1.0), with_default(2.0)),
        (hr.RowMean(power(1.0)), hr.RowMean(power(2.0))),
        (hr.RowMean(Scaled(1.0)), hr.RowMean(Scaled(2.0))),
        ({"a": hr.MSE() + hr.RowMean(power([{"b": [1]}]))}, {"a": hr.MSE() + hr.RowMean(power([{"b": [2]}]))}),
        (hr.RowMean(Scaled(1.0).mean), hr.RowMean(Scaled(2.0).mean)),
        (lambdas()[0], lambdas()[1]),
        (lambdas()[2], lambdas()[3]),
        (eval("lambda x: x * sum((1, 2))"), eval("lambda x: x * sum((1, 3))")),
        (hr.Schedule(function, every="1 step"), hr.Schedule(function, every="2 steps")),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_settings_that_differ_are_shown_differently(one: Any, other: Any) -> None:
    assert config.differences({"a": config.plain(one)}, {"a": config.plain(other)})
    assert config.plain(one) == config.plain(one)


def test_weights_that_a_function_holds_are_no_setting() -> None:
    """They are made anew, and loaded, when a run goes on."""
    assert config.plain(power(nn.Parameter(torch.zeros(2)))) == config.plain(power(nn.Parameter(torch.ones(2))))
    assert config.plain(power(nn.Linear(2, 2))) == config.plain(power(nn.Linear(2, 2)))
    assert config.plain(power([*nn.Linear(2, 2).parameters()])) == config.plain(power([*nn.Linear(2, 2).parameters()]))


def test_what_refers_to_itself_is_cut_off() -> None:
    loop: dict[str, Any] = {"a": 1}
    loop["self"] = loop
    assert json.dumps(config.plain(loop)).count('"a": 1') < 10
    thing = Plain(1.0)
    thing.other = thing  # type: ignore[attr-defined]
    json.dumps(config.plain(thing))


def test_differences_name_every_setting_with_both_values() -> None:
    saved = {"a": 1, "b": {"c": 2, "d": [1, 2]}, "longer": [1], "only then": 5, "same": None}
    now = {"a": 3, "b": {"c": 2, "d": [1, 3]}, "longer": [1, 2], "only now": {"x": 6}, "same": None}
    assert config.differences(saved, now) == [
        "a: 1 in the run, 3 now",
        "b.d.1: 2 in the run, 3 now",
        "longer: [1] in the run, [1, 2] now",
        "only then: 5 in the run, None now",
        "only now: None in the run, {'x': 6} now",
    ]
    assert config.differences(saved, saved) == []
    empty = config.differences({"strategy": {"said": {}}}, {"strategy": {}})
    assert empty == ["strategy.said: {} in the run, None now"]


def test_an_optimizer_is_shown_by_kind_and_groups_and_without_what_a_scheduler_adds() -> None:
    model = nn.Linear(2, 2)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": torch.tensor(0.5)}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    before = config.of_optimizers({"": optimizer})
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.5)
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert config.of_optimizers({"": optimizer}) == before
    assert (before["kind"], [group["lr"] for group in before["groups"]]) == ("SGD", [0.1, 0.5])
    assert before["groups"][0]["momentum"] == 0.9
    assert "params" not in before["groups"][0]
    assert list(config.of_optimizers({"a": optimizer, "b": optimizer})) == ["a", "b"]
    json.dumps(before)


def test_of_the_arguments_of_a_script_those_that_a_function_reads_are_its_settings() -> None:
    def loss_of(arguments: argparse.Namespace) -> Any:
        return lambda outputs, targets: ((outputs - targets) * arguments.alpha).square().mean()

    first = config.plain(loss_of(argparse.Namespace(alpha=1.0, epochs=10)))
    assert first == config.plain(loss_of(argparse.Namespace(alpha=1.0, epochs=20)))
    assert first != config.plain(loss_of(argparse.Namespace(alpha=2.0, epochs=10)))
