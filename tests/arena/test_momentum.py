"""Momentum with the learning rate inside the velocity, and outside of it, by their recurrences."""

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


def by_hand(inside: bool) -> list[torch.Tensor]:
    """The weights after a few updates: v ← μ v − λ g, w ← w + v, or v ← μ v + g, w ← w − λ v."""
    weights = [param.detach().clone().requires_grad_() for param in model().parameters()]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for rate in RATES:
        loss = ((X @ weights[0].mT + weights[1] - Y) ** 2).mean()
        gradients = [g + DECAY * w for g, w in zip(torch.autograd.grad(loss, weights), weights, strict=True)]
        with torch.no_grad():
            for weight, velocity, gradient in zip(weights, velocities, gradients, strict=True):
                velocity.mul_(MU).add_(gradient, alpha=-rate if inside else 1.0)
                weight.add_(velocity, alpha=1.0 if inside else -rate)
    return weights


def trained(kind: type[torch.optim.Optimizer], arena: bool = True, breaks: bool = False) -> list[torch.Tensor]:
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


@pytest.mark.parametrize("arena", [True, False])
@pytest.mark.parametrize(("kind", "inside"), [(hr.MomentumSGD, True), (torch.optim.SGD, False)])
def test_momentum_follows_its_recurrence(kind: type[torch.optim.Optimizer], inside: bool, arena: bool) -> None:
    for found, expected in zip(trained(kind, arena), by_hand(inside), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_the_two_differ_once_the_rate_has_changed() -> None:
    assert not torch.allclose(by_hand(True)[0], by_hand(False)[0], rtol=1e-3)


def test_the_velocity_is_kept_in_the_state_of_the_optimizer() -> None:
    for found, expected in zip(trained(hr.MomentumSGD, breaks=True), by_hand(True), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_a_negative_momentum_is_refused() -> None:
    with pytest.raises(hr.ConfigError, match=r"momentum= is a number that is not negative, got -0\.5"):
        hr.MomentumSGD(model().parameters(), momentum=-0.5)
