"""A number that is not finite: the error names the module that made it, and nothing else has changed."""

import copy
from typing import Any

import pytest
import torch
from kit.small import Parts
from torch import nn

import headrace as hr


def error_of(model: nn.Module, **options: Any) -> str:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = hr.Trainer(model, hr.CrossEntropy(), optimizer, batch_size=8, **options)
    x, y = torch.randn(8, 4), torch.arange(8) % 2
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    with pytest.raises(hr.NonFiniteError) as caught:
        trainer.step((x, y))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    return str(caught.value)


def with_logarithm() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), Parts(lambda self, x: x.log()), nn.Linear(8, 2)
    )


@pytest.mark.parametrize("options", [{}, {"microbatch": 4}, {"tape": False}, {"precision": "bf16"}], ids=str)
@pytest.mark.filterwarnings("ignore:the model has BatchNorm1d")
def test_the_first_module_whose_output_is_not_finite_is_named_with_its_input(options: dict[str, object]) -> None:
    message = error_of(with_logarithm(), **options)
    assert "the loss term 'cross_entropy' is nan" in message
    assert "The first module whose output is not finite is '3' (Parts): its input lies between -" in message


def test_an_operation_between_modules_is_told_from_a_module() -> None:
    divides = lambda self, x: self.second(self.first(x) / 0.0)  # noqa: E731
    message = error_of(Parts(divides, first=nn.Linear(4, 8), second=nn.Linear(8, 2)))
    assert "'second' (Linear): its input is not finite either, so an operation between modules" in message


def test_a_gradient_that_alone_is_not_finite_blames_no_module() -> None:
    root = Parts(lambda self, x: torch.sqrt(x * 0))  # finite, with an infinite slope
    message = error_of(nn.Sequential(nn.Linear(4, 2), root))
    assert "the gradient of" in message
    assert "module" not in message


def test_an_error_in_the_second_pass_hides_nothing() -> None:
    calls = iter([torch.nan])
    once = Parts(lambda self, x: x * next(calls))  # the second time raises StopIteration
    assert "the loss term 'cross_entropy' is nan" in error_of(nn.Sequential(nn.Linear(4, 2), once), tape=False)
