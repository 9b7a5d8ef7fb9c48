"""Momentum with the learning rate inside the velocity, by its recurrence."""

import pytest
import torch
from torch import nn

import headrace as hr

RATES = [0.1, 0.1, 0.02, 0.3]
X, Y = torch.randn(12, 3, dtype=torch.float64), torch.randn(12, 2, dtype=torch.float64)
MU, DECAY = 0.9, 0.01


def model() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(3, 2).double()


def by_hand() -> list[torch.Tensor]:
    """The weights after a few updates: v ← μ v − λ g, w ← w + v."""
    weights = [param.detach().clone().requires_grad_() for param in model().parameters()]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for rate in RATES:
        loss = ((X @ weights[0].mT + weights[1] - Y) ** 2).mean()
        gradients = [g + DECAY * w for g, w in zip(torch.autograd.grad(loss, weights), weights, strict=True)]
        with torch.no_grad():
            for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
                weight.add_(velocity.mul_(MU).add_(gradient, alpha=-rate))
    return weights


def trained(kind: type[torch.optim.Optimizer], arena: bool = True, breaks: bool = False) -> list[torch.Tensor]:
    """The weights after the same updates; `breaks` takes what is in the optimizer's state out and in again."""
    net = model()
    optimizer = kind(net.parameters(), lr=RATES[0], momentum=MU, weight_decay=DECAY)  # type: ignore[call-arg]
    trainer = hr.Trainer(net, hr.MSE(), optimizer, device="cpu", arena=arena)
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        trainer.step((X, Y))
        if breaks:
            trainer.release()
            optimizer.load_state_dict(optimizer.state_dict())
    trainer.release()
    return list(net.parameters())


@pytest.mark.parametrize(("arena", "breaks"), [(True, False), (False, False), (True, True)])
def test_momentum_follows_its_recurrence(arena: bool, breaks: bool) -> None:
    torch.testing.assert_close(trained(hr.MomentumSGD, arena, breaks), by_hand(), rtol=1e-12, atol=0)
    other = trained(torch.optim.SGD, arena, breaks)
    assert not torch.allclose(other[0], by_hand()[0], rtol=1e-3), "the control: torch multiplies by the rate afterwards"


def test_a_negative_momentum_is_refused() -> None:
    with pytest.raises(hr.ConfigError, match=r"momentum= is a number that is not negative, got -0\.5"):
        hr.MomentumSGD(model().parameters(), momentum=-0.5)
