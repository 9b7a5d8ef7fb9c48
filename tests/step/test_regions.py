"""Modules by pattern: compiled by themselves, or computed again in the backward pass."""

import functools
from typing import Any

import pytest
import torch
from kit.sharded_models import BATCH, MODELS, adam, data, distance, full
from kit.small import Parts
from torch import nn

import headrace as hr
from headrace.errors import ConfigError, ModelError


def train(model: nn.Module, limit: Any = None, **settings: Any) -> hr.Trainer:
    trainer = hr.Trainer(model, hr.CrossEntropy(), adam, batch_size=BATCH, **settings)
    trainer.fit(data("tied"), **(limit or {"epochs": 2}), progress=False)
    return trainer


def tied() -> Any:
    torch.manual_seed(1)
    model: Any = MODELS["tied"]()
    for block in model.blocks:
        block.layers.append(nn.Dropout(0.2))
    return model


def calls_in_an_update(**settings: Any) -> int:
    """How often the blocks are called for 3 updates of one epoch."""
    model = tied()
    calls: list[int] = []

    def count(module: nn.Module, given: Any) -> None:
        calls.append(1)

    for block in model.blocks:
        block.layers.register_forward_pre_hook(count)
    trainer = hr.Trainer(model, hr.CrossEntropy(), adam, batch_size=BATCH, tape=False, **settings)
    trainer.fit(data("tied"), epochs=1, progress=False)
    return len(calls)


def test_what_is_computed_again_gives_the_same_bits() -> None:
    torch.manual_seed(5)
    plain = train(tied(), tape=False)
    torch.manual_seed(5)
    again = train(tied(), recompute="blocks.*")
    assert distance(full(plain.model), full(again.model)) == 0
    assert "computed again" in again.tape_note
    assert calls_in_an_update(recompute="blocks.*") == 2 * calls_in_an_update() == 2 * 6
    assert calls_in_an_update(recompute=["blocks.1"]) == 6 + 3


def steep(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Adds the gradient of its outputs to them: the backward pass goes through the graph a second time."""
    with torch.enable_grad():
        x = x.clone().requires_grad_(True)
        found: torch.Tensor = self.part(x)
        (slope,) = torch.autograd.grad(found.sum(), x, create_graph=True)
    return found + slope.square().sum()


@pytest.mark.parametrize("call", [lambda self, x: self.part(x), steep], ids=["once", "twice"])
def test_what_is_computed_again_changes_no_buffer_once_more(call: Any) -> None:
    """As running statistics, and the vectors of a spectral norm, on which the outputs depend."""
    weights = []
    settings: dict[str, Any]
    for settings in ({"tape": False}, {"recompute": "part"}):
        torch.manual_seed(1)
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        model = Parts(call, part=nn.Sequential(layer, nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)))
        made = hr.Trainer(model, hr.CrossEntropy(), adam, batch_size=8, **settings)
        x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
        made.fit((x, y), (x, y), epochs=2, progress=False)
        weights.append(model.state_dict())
    assert distance(*weights) == 0


def test_a_second_trainer_does_not_compute_twice_as_often() -> None:
    model = tied()
    train(model, recompute="blocks.*")
    forward = model.blocks[0].forward
    train(model, recompute="blocks.*")
    assert model.blocks[0].forward is forward


def test_what_does_not_go_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"recompute: no module is called so"):
        train(tied(), recompute="block.*")
    with pytest.raises(ConfigError, match=r"names a list of modules, which is not called"):
        train(tied(), recompute="blocks")
    with pytest.raises(ConfigError, match=r"compile= takes names of modules, as in 'blocks\.\*', got 3"):
        train(tied(), compile=3)
    with pytest.raises(ModelError, match=r"a pass cannot be recorded: parts of the model are computed again"):
        train(tied(), recompute="blocks.*", tape=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of dynamo
def test_the_modules_that_are_named_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the backend of torch that needs no compiler; test_precision.py compiles a model with one."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.manual_seed(5)
    plain = train(MODELS["tied"](), {"steps": 3}, tape=False)
    torch.manual_seed(5)
    compiled = train(MODELS["tied"](), {"steps": 3}, compile=["blocks.1.layers"])
    made = [name for name, module in compiled.model.named_modules() if module._compiled_call_impl is not None]
    assert made == ["blocks.1.layers"]
    assert distance(full(plain.model), full(compiled.model)) <= 1e-4
