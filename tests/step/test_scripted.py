"""Models of TorchScript, wholly or in part, train as in a plain loop."""

from collections.abc import Callable

import pytest
import torch
from kit.plain_loop import plain_loop
from kit.small import momentum
from torch import nn

import headrace as hr

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 2


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "scripted": lambda: torch.jit.script(network()),
    "traced": lambda: torch.jit.trace(network(), X[:8]),  # type: ignore[no-untyped-call]
    "in part": lambda: nn.Sequential(torch.jit.script(network()), nn.Linear(2, 2)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_of_torchscript_trains_as_in_a_plain_loop(kind: str) -> None:
    wanted, model = MODELS[kind](), MODELS[kind]()
    plain_loop(wanted, momentum(wanted), (X, Y), 8, 2)
    trainer = hr.Trainer(model, hr.CrossEntropy(), momentum(model), batch_size=8, device="cpu")
    trainer.fit((X, Y), epochs=2, progress=False)
    assert all(map(torch.equal, model.state_dict().values(), wanted.state_dict().values()))
    assert trainer.predict(X).shape == (40, 2)
