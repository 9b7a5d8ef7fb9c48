"""A failed step leaves the buffers of a model as they were, whatever was done to them before or in it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.small import same
from torch import Tensor, nn

from headrace.arena.buffers import Buffers

NAN = float("nan")


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5))


def values(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def passes(model: nn.Module) -> None:
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(1)))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "replaced": lambda norm: setattr(norm, "running_mean", torch.full((6,), 2.0)),
    "other memory": lambda norm: setattr(norm.running_mean, "data", torch.full((6,), 2.0)),
    "in double": lambda norm: norm.double().float(),
    "in place": lambda norm: norm.running_mean.fill_(2.0),
    "removed": lambda norm: vars(norm)["_buffers"].update(running_mean=None, running_var=None),
    "loaded": lambda norm: norm.load_state_dict({name: value + 2 for name, value in norm.state_dict().items()}),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("restore", ["restore", "select"])
def test_whatever_is_done_between_two_steps_is_what_a_failed_step_goes_back_to(how: str, restore: str) -> None:
    model = network()
    buffers = Buffers(model)
    buffers.save()
    passes(model)
    CHANGES[how](model[1])
    for _ in range(2):
        buffers.save()
        before, tensors = values(model), list(model.buffers())
        passes(model)
        assert not same(values(model), before)
        buffers.restore() if restore == "restore" else buffers.select(torch.tensor(True))
        assert same(values(model), before)
        assert all(a is b for a, b in zip(model.buffers(), tensors, strict=True))


@pytest.mark.parametrize("how", ["replaced", "other memory", "in place", "loaded"])
def test_what_a_step_does_to_them_is_undone(how: str) -> None:
    model = network()
    buffers = Buffers(model)
    for _ in range(2):
        buffers.save()
        before, tensors = values(model), list(model.buffers())
        passes(model)
        CHANGES[how](model[1])
        buffers.restore()
        assert same(values(model), before)
        assert all(a is b for a, b in zip(model.buffers(), tensors, strict=True))


@pytest.mark.parametrize("where", [1, 4])
@pytest.mark.parametrize("by", ["in place", "another tensor", "other memory"])
def test_one_that_a_step_makes_not_finite_is_found(where: int, by: str) -> None:
    model = network()
    buffers = Buffers(model)
    buffers.save()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in buffers.moved())
    bad = torch.full_like(model[where].running_var, NAN)
    if by == "in place":
        model[where].running_var.copy_(bad)
    elif by == "another tensor":
        model[where].running_var = bad
    else:
        model[where].running_var.data = bad
    for found in (buffers.moved(), buffers.finite_where_it_was()):
        assert not all(bool(torch.isfinite(tensor).all()) for tensor in found)
    assert buffers.unusual() == [f"{where}.running_var"]
    buffers.restore()
    assert torch.equal(model[where].running_var, torch.ones_like(bad))
    assert buffers.unusual() == []


def test_one_that_was_not_finite_before_hides_no_other_and_is_put_back() -> None:
    model = network()
    model[1].running_mean[2] = NAN
    buffers = Buffers(model)
    buffers.save()
    before = values(model)
    assert not bool(torch.isfinite(buffers.moved()[0]).all())
    passes(model)
    assert buffers.unusual() == []
    buffers.restore()
    assert same([value.nan_to_num(7) for value in values(model)], [value.nan_to_num(7) for value in before])
    buffers.save()
    assert all(bool(torch.isfinite(tensor).all()) for tensor in buffers.moved())  # it is not looked at any more
    model[4].running_mean.fill_(NAN)
    assert buffers.unusual() == ["4.running_mean"]
