"""The statistics of batch normalisation are views of vectors in training, whatever is done to the buffers then."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kit.small import same
from torch import Tensor, nn

import headrace as hr
from headrace.arena.buffers import Buffers

NAN = float("nan")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5))


def memories(model: nn.Module) -> list[int]:
    return [buffer.untyped_storage().data_ptr() for buffer in model.buffers()]


def values(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def passes(model: nn.Module) -> None:
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(1)))


def test_statistics_share_memory_until_they_are_released_and_stay_the_same_tensors() -> None:
    model = network()
    tensors, before = list(model.buffers()), values(model)
    buffers = Buffers(model)
    assert len(set(memories(model))) == 2  # fractions and counters
    assert same(values(model), before)
    passes(model)
    after = values(model)
    buffers.release()
    assert len(set(memories(model))) == len(tensors)
    assert all(a is b for a, b in zip(model.buffers(), tensors, strict=True))
    assert same(values(model), after)
    assert not same(after, before)


def test_a_training_step_keeps_them_together_unless_the_arena_is_switched_off() -> None:
    data = torch.randn(8, 4), torch.randint(5, (8,))
    for arena, count in ((True, 2), (False, 6)):
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = hr.Trainer(model, loss=nn.CrossEntropyLoss(), optimizer=sgd, arena=arena)
        trainer.step(data)
        assert len(set(memories(model))) == count
        trainer.release()
        assert len(set(memories(model))) == 6


CHANGES: dict[str, Callable[[Any], Any]] = {
    "replaced": lambda norm: setattr(norm, "running_mean", torch.full((6,), 2.0)),
    "other memory": lambda norm: setattr(norm.running_mean, "data", torch.full((6,), 2.0)),
    "in double": lambda norm: norm.double().float(),
    "in place": lambda norm: norm.running_mean.fill_(2.0),
    "removed": lambda norm: (setattr(norm, "running_mean", None), setattr(norm, "running_var", None)),
    "loaded": lambda norm: norm.load_state_dict({name: value + 2 for name, value in norm.state_dict().items()}),
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("restore", ["restore", "select"])
@pytest.mark.parametrize("packed", [True, False])
def test_whatever_is_done_between_two_steps_is_what_a_failed_step_goes_back_to(
    how: str, restore: str, packed: bool
) -> None:
    model = network()
    buffers = Buffers(model, packed=packed)
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
    buffers.release()
    assert same(values(model), before)
    assert len(set(memories(model))) == len(before)


def test_a_tensor_that_was_replaced_keeps_its_numbers() -> None:
    model = network()
    buffers = Buffers(model)
    old = model[1].running_var
    model[1].running_var = torch.full((6,), 3.0)
    buffers.save()
    passes(model)
    assert torch.equal(old, torch.ones(6))


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


def test_what_others_may_hold_stays_where_it_is() -> None:
    model, room = network(), torch.zeros(12)
    model[1].running_mean = room[:6]
    model[4].running_mean = model[4].running_var
    before = memories(model)
    buffers = Buffers(model)
    passes(model)
    assert memories(model)[0] == before[0] == room.untyped_storage().data_ptr()
    assert model[4].running_mean is model[4].running_var
    assert bool(room[:6].any())
    buffers.release()
