"""Block momentum: the equation beside a reference written out in NumPy, and torch's SGD."""

import copy
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from kit.sampled import sampled
from kit.toy_workers import Worker, together
from torch import Tensor, nn
from torch.optim import SGD

from headrace import BlockMomentum, DiLoCo, Periodic, Strategy
from headrace.workers.comm import Comm

LR, MOMENTUM = 0.05, 0.9
ROWS, STEPS = 48, 24


def model() -> nn.Module:
    layer = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        for k, param in enumerate(layer.parameters()):
            param.copy_(torch.sin(torch.arange(param.numel()) + 7.0 * k).view(param.shape))
    return layer


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    at = torch.arange(rows, dtype=torch.float64)[:, None]
    return torch.sin(at * torch.tensor([0.7, 1.3, 2.1])), torch.cos(at * torch.tensor([0.4, 1.9]))


def trace(count: int, strategy: Strategy, batch: int = 4, steps: int = STEPS, rows: int = ROWS) -> np.ndarray[Any, Any]:
    """Worker 0's weights after every update."""

    def work(comm: Comm) -> list[list[float]]:
        inner = partial(SGD, lr=LR, momentum=MOMENTUM)
        worker = Worker(comm, copy.deepcopy(strategy), model(), inner, data(rows), batch)
        return [torch.cat([p.reshape(-1) for p in worker.weights.values()]).tolist() for _ in worker.run(steps)]

    return np.array(together(count, work)[0])


class Local:
    """One worker in NumPy: a linear model, the mean squared error, SGD with momentum."""

    def __init__(self) -> None:
        self.theta = np.concatenate([p.detach().numpy().reshape(-1) for p in model().parameters()])
        self.velocity = np.zeros_like(self.theta)

    def update(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        weight, bias = self.theta[:6].reshape(2, 3), self.theta[6:]
        error = 2 * (x @ weight.T + bias - y) / y.size
        gradient = np.concatenate([(error.T @ x).reshape(-1), error.sum(0)])
        self.velocity = MOMENTUM * self.velocity + gradient
        self.theta = self.theta - LR * self.velocity


def reference(count: int, ends: Any, batch: int = 4, steps: int = STEPS, rows: int = ROWS) -> np.ndarray[Any, Any]:
    """Worker 0's weights after every update; `ends(workers, used)` is asked after each, and may change the workers."""
    x, y = (held.numpy() for held in data(rows))
    workers, used, found, at = [Local() for _ in range(count)], np.zeros(count), [], 0
    for _ in range(steps):
        for k, worker in enumerate(workers):
            start, stop = at, min(at + batch, rows)
            if stop > start:
                worker.update(x[start:stop], y[start:stop])
            used[k] += stop - start
            at = stop
        at %= rows
        ends(workers, used)
        found.append(workers[0].theta)
    return np.array(found)


class Filtered:
    """v ← ηv + ζΔ̄; θ₀ ← θ₀ − v, with Δ̄ by rows; one round is so many updates."""

    def __init__(self, every: int, eta: float, zeta: float) -> None:
        self.every, self.eta, self.zeta = every, eta, zeta
        self.start = Local().theta
        self.velocity, self.updates = np.zeros_like(self.start), 0

    def __call__(self, workers: list[Local], used: np.ndarray[Any, Any]) -> None:
        self.updates += 1
        if self.updates % self.every:
            return
        change = sum(n * (self.start - worker.theta) for n, worker in zip(used, workers, strict=True)) / used.sum()
        self.velocity = self.eta * self.velocity + self.zeta * change
        self.start = self.start - self.velocity
        for worker in workers:
            worker.theta, worker.velocity = self.start, np.zeros_like(self.start)
        used[:] = 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("zeta", "rows", "count"), sampled(product([1.0, 0.6], [48, 43], [1, 2, 3]), keep=[(0.6, 43, 3)], of=4)
)
def test_the_mean_change_is_filtered(count: int, rows: int, zeta: float) -> None:
    for settings, eta in (({}, 1 - 1 / count), ({"momentum": 0.7}, 0.7)):
        ours = trace(count, BlockMomentum("4 steps", lr=zeta, **settings), rows=rows)
        assert np.abs(ours - reference(count, Filtered(4, eta, zeta), rows=rows)).max() < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
def test_it_is_torch_s_sgd_on_the_mean_changes_to_the_bit(nesterov: bool) -> None:
    outer = partial(SGD, lr=0.8, momentum=0.6, nesterov=nesterov)
    ours = trace(3, BlockMomentum("2 steps", momentum=0.6, lr=0.8, nesterov=nesterov))
    assert (ours == trace(3, Periodic("2 steps", outer=outer, reset_inner=True))).all()
    if nesterov:
        assert (trace(3, DiLoCo("2 steps", lr=0.8, momentum=0.6)) == trace(3, Periodic("2 steps", outer=outer))).all()


def test_torch_s_sgd_on_a_series_of_changes_is_the_equation_to_the_bit() -> None:
    changes = torch.randn(50, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    point = nn.Parameter(torch.ones(40, dtype=torch.float64))
    theta, velocity = point.detach().clone(), torch.zeros(40, dtype=torch.float64)
    optimizer = SGD([point], lr=1.0, momentum=0.875)
    for change in changes:
        point.grad = change.clone()
        optimizer.step()
        velocity = 0.875 * velocity + change  # the first buffer is the gradient itself: v was 0
        theta = theta - velocity
        assert torch.equal(point, theta)


@pytest.mark.parametrize(
    ("before", "now", "eta", "zeta", "nesterov"),
    [
        (BlockMomentum("2 steps"), BlockMomentum("2 steps"), 0.5, 1.0, False),  # by default that of two workers
        (BlockMomentum("2 steps"), BlockMomentum("2 steps", momentum=0.6, lr=0.4), 0.6, 0.4, False),
        (DiLoCo("2 steps"), DiLoCo("2 steps", momentum=0.3, lr=0.2), 0.3, 0.2, True),
        (
            Periodic("2 steps", outer=partial(SGD, lr=1.0, momentum=0.9)),
            Periodic("2 steps", outer=partial(SGD, lr=0.5, momentum=0.2)),
            *(0.2, 0.5, False),
        ),
    ],
)
def test_the_outer_step_goes_on_with_its_velocity_and_the_settings_and_workers_that_there_are_now(
    before: Strategy, now: Strategy, eta: float, zeta: float, nesterov: bool
) -> None:
    def first(comm: Comm) -> dict[str, Any]:
        worker = Worker(comm, copy.deepcopy(before), model(), partial(SGD, lr=LR), data(), 4)
        for _ in worker.run(4):
            pass
        return worker.save()

    saved = together(4, first)[0]["shared"]

    def second(comm: Comm, strategy: Strategy) -> dict[str, Tensor]:
        worker = Worker(comm, copy.deepcopy(strategy), model(), partial(SGD, lr=LR), data(), 4)
        worker.replica.write(worker.replica.joined(saved["start"]))
        if strategy is now:
            worker.strategy.load_state_dict(worker.replica, saved, None)
        for _ in worker.run(2):
            pass
        return worker.weights

    ours, _ = together(2, partial(second, strategy=now))
    means, _ = together(2, partial(second, strategy=Periodic("2 steps")))
    for name, start in saved["start"].items():
        change = start - means[name]
        velocity = eta * saved["outer"]["state"][name]["momentum_buffer"] + change
        step = change + eta * velocity if nesterov else velocity
        assert (ours[name] - (start - zeta * step)).abs().max() < 1e-12
