"""Rounds: means over workers, when they are taken, the outer step that follows, and the state that is saved."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from kit.bare_workers import Worker, through_codec, together
from kit.small import same
from torch import Tensor, nn
from torch.optim import SGD, Adam

from headrace import BlockMomentum, CheckpointError, ConfigError, DiLoCo, Periodic, Strategy
from headrace.workers.comm import Comm, Null, mean
from headrace.workers.strategy import Single

Make = Callable[[], Strategy]
LR, MOMENTUM = 0.05, 0.9
sgd = partial(SGD, lr=LR)
momentum = partial(SGD, lr=LR, momentum=MOMENTUM)
outer_adam: Make = lambda: Periodic("4 steps", outer=partial(Adam, lr=0.1))  # noqa: E731


def seeded(*layers: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*(layer() for layer in layers))


FIRST, LAST = partial(nn.Linear, 5, 7), partial(nn.Linear, 7, 2)
MODEL = seeded(FIRST, nn.Tanh, LAST).double()
NORMED = seeded(FIRST, partial(nn.BatchNorm1d, 7), nn.Tanh, LAST).double()


def rows(count: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.randn(count, n, generator=generator, dtype=torch.float64) for n in (5, 2))  # type: ignore[return-value]


def train(
    count: int, make: Make, steps: int, *, model: nn.Module = MODEL, data: Any = None, **how: Any
) -> list[Worker]:
    """All workers after so many local updates."""

    def work(comm: Comm) -> Worker:
        worker = Worker(comm, make(), model, **{"optimizer": momentum, "data": data or rows(), "batch": 4, **how})
        for _ in worker.run(steps):
            pass
        return worker

    return together(count, work)


# --- means over workers ---------------------------------------------------------------------------------------


def means(weights: list[float], tensors: list[list[Tensor]]) -> list[list[Tensor]]:
    return together(len(weights), lambda c: mean(c, tensors[c.shard.index], weights[c.shard.index]))


def test_a_mean_weighs_workers_and_gives_all_the_same_bits_for_tensors_of_every_kind() -> None:
    kinds = [
        torch.rand(2, 3).t(),
        torch.rand((), dtype=torch.float64),
        torch.rand(3).bfloat16(),
        torch.rand(2, dtype=torch.complex64),
        torch.rand(0),
    ]
    given = [[tensor * factor for tensor in kinds] for factor in (1, 2, 5)]
    before = copy.deepcopy(given)
    first, *others = means([1, 2, 5], given)
    for k, tensor in enumerate(kinds):
        assert (first[k].dtype, first[k].shape) == (tensor.dtype, tensor.shape)
        torch.testing.assert_close(first[k], tensor * (30 / 8))
        assert all(torch.equal(first[k], other[k]) for other in others)
        assert all(torch.equal(mine[k], old[k]) for mine, old in zip(given, before, strict=True)), "nothing is changed"


def test_where_all_weights_are_0_every_worker_keeps_a_copy_and_a_worker_alone_its_own_tensors() -> None:
    tensors = [[torch.randn(5)], [torch.randn(5)]]
    for held, found in zip(tensors, means([0, 0], tensors), strict=True):
        assert torch.equal(held[0], found[0])
        assert held[0] is not found[0]
    assert mean(Null(), tensors[0], 7)[0] is tensors[0][0]  # x * 7 / 7 may round


def test_half_precision_is_added_up_in_single_precision() -> None:
    tensors = [[torch.tensor([2048.0, 60000.0]).half()], [torch.tensor([1.0, 60000.0]).half()]]
    for found in means([1, 1], tensors):
        assert found[0].dtype == torch.float16
        assert found[0].tolist() == [1024.0, 60000.0]  # 1024.5 is rounded to even, once; 120000 would be infinite


# --- rounds ---------------------------------------------------------------------------------------------------


def test_statistics_are_averaged_by_rows_and_counters_take_the_largest() -> None:
    x, y = data = rows(11)  # parts of 4, 4 and 3 rows
    cuts = [(0, 4), (4, 8), (8, 11)]
    parts = [train(1, Single, 1, model=NORMED, data=(x[a:b], y[a:b]))[0].weights for a, b in cuts]
    for make in (lambda: Periodic("1 step"), lambda: DiLoCo("1 step")):
        found = train(3, make, 1, model=NORMED, data=data)
        for name in ("1.running_mean", "1.running_var"):
            expected = (4 * parts[0][name] + 4 * parts[1][name] + 3 * parts[2][name]) / 11
            assert all(torch.allclose(worker.weights[name], expected, rtol=1e-12) for worker in found)
    for every, counts in (("2 steps", [2, 2, 2]), ("end", [2, 1, 1])):  # in the second update, the first has all rows
        found = train(3, lambda every=every: Periodic(every), 2, model=NORMED, data=rows(14))  # type: ignore[misc]
        assert [worker.weights["1.num_batches_tracked"].item() for worker in found] == counts


@pytest.mark.parametrize("make", [lambda: Periodic("4 steps"), lambda: DiLoCo("4 steps"), outer_adam])
def test_a_model_of_vectors_is_averaged_as_one_of_many_tensors(make: Make) -> None:
    class Sums(nn.Module):
        """A parameter of it leaves its vector: it has sparse gradients."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.out = nn.EmbeddingBag(8, 3, sparse=True), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(self.table(x))
            return out

    words = torch.randint(0, 8, (60, 4), generator=torch.Generator().manual_seed(0)), rows()[1].float()
    for model, data in ((MODEL, rows()), (Sums(), words)):
        found, plain = (
            train(2, make, 9, model=model, data=data, optimizer=sgd, arena=arena) for arena in (True, False)
        )
        assert all(same(one.weights, other.weights) for one, other in zip(found, plain, strict=True))


def test_a_round_in_which_nobody_used_a_row_changes_nothing() -> None:
    def work(comm: Comm) -> bool:
        worker = Worker(comm, Periodic("1 step", weights="equal", reset_inner=True), NORMED, momentum, rows(), 4)
        before = worker.weights
        worker.counters.steps += 1
        assert worker.strategy.after(worker.replica, worker.counters, 0, 0, False)
        return same(before, worker.weights)

    assert together(3, work) == [True] * 3


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        ("1 step", list(range(1, 13))),
        ("5 steps", [5, 10]),
        ("24 samples", [3, 7, 10]),  # 8 a step, and 4 at the end of an epoch of 36
        ("1 epoch", [5, 10]),
        ("2 epochs", [10]),
        ("end", []),
    ],
)
def test_rounds_end_by_counters_that_are_the_same_on_all_workers(every: str, expected: list[int]) -> None:
    def work(comm: Comm) -> list[int]:
        worker = Worker(comm, Periodic(every), MODEL, momentum, rows(36), 4)
        return [worker.counters.steps for agree in worker.run(12) if agree]

    assert together(2, work) == [expected, expected]


# --- the outer step -------------------------------------------------------------------------------------------


class Local:
    """A worker in NumPy: a linear model, the mean squared error, SGD with momentum."""

    def __init__(self, model: nn.Module) -> None:
        self.theta = np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()])
        self.velocity = np.zeros_like(self.theta)

    def update(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        weight, bias = self.theta[:10].reshape(2, 5), self.theta[10:]
        error = 2 * (x @ weight.T + bias - y) / y.size
        self.velocity = MOMENTUM * self.velocity + np.concatenate([(error.T @ x).reshape(-1), error.sum(0)])
        self.theta = self.theta - LR * self.velocity


@pytest.mark.parametrize(("count", "zeta", "eta"), [(1, 0.6, 0.7), (2, 1.0, None), (3, 0.6, None), (3, 1.0, 0.7)])
def test_block_momentum_is_its_equation(count: int, zeta: float, eta: float | None) -> None:
    """v ← ηv + ζΔ̄; θ₀ ← θ₀ − v, with Δ̄ by rows, and momenta of the workers that begin anew; by default η = 1 − 1/W."""
    layer, (x, y), every = seeded(partial(nn.Linear, 5, 2)).double(), rows(43), 4
    workers, used, at = [Local(layer) for _ in range(count)], np.zeros(count), 0
    start = workers[0].theta
    v = np.zeros_like(start)
    for step in range(1, 25):
        for k, worker in enumerate(workers):
            stop = min(at + 4, 43)
            if stop > at:
                worker.update(x[at:stop].numpy(), y[at:stop].numpy())
            used[k] += stop - at
            at = stop
        at %= 43
        if step % every == 0:
            change = sum(n * (start - worker.theta) for n, worker in zip(used, workers, strict=True)) / used.sum()
            v = (1 - 1 / count if eta is None else eta) * v + zeta * change
            start = start - v
            for worker in workers:
                worker.theta, worker.velocity = start, np.zeros_like(start)
            used[:] = 0
    (found, *_) = train(count, lambda: BlockMomentum("4 steps", lr=zeta, momentum=eta), 24, model=layer, data=rows(43))
    assert np.abs(torch.cat([p.reshape(-1) for p in found.weights.values()]).numpy() - start).max() < 1e-12


@pytest.mark.parametrize(
    ("before", "now", "eta", "zeta", "nesterov"),
    [
        (BlockMomentum("2 steps"), BlockMomentum("2 steps"), 0.5, 1.0, False),  # by default that of two workers
        (BlockMomentum("2 steps"), BlockMomentum("2 steps", momentum=0.6, lr=0.4, nesterov=True), 0.6, 0.4, True),
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
    shared, _ = train(4, lambda: copy.deepcopy(before), 4, optimizer=sgd)[0].save()

    def second(comm: Comm, strategy: Strategy) -> dict[str, Tensor]:
        worker = Worker(comm, copy.deepcopy(strategy), MODEL, sgd, rows(), 4)
        worker.replica.write(worker.replica.joined(shared["start"]))
        if strategy is now:
            worker.strategy.load_state_dict(worker.replica, shared, None)
            assert worker.strategy.own_state() == {"rows": 0, "total": 0}, "the round begins anew"
        for _ in worker.run(2):
            pass
        return worker.weights

    ours, _ = together(2, partial(second, strategy=now))
    averaged, _ = together(2, partial(second, strategy=Periodic("2 steps")))
    for name, start in shared["start"].items():
        change = start - averaged[name]
        velocity = eta * shared["outer"]["state"][name]["momentum_buffer"] + change
        step = change + eta * velocity if nesterov else velocity
        assert (ours[name] - (start - zeta * step)).abs().max() < 1e-12


# --- state ----------------------------------------------------------------------------------------------------


def test_the_state_of_an_outer_optimizer_is_by_names_and_that_of_another_is_refused() -> None:
    worker, _ = train(2, outer_adam, 8)
    state, _ = worker.save()
    assert set(state["outer"]["state"]) == set(dict(worker.model.named_parameters()))
    assert state["outer"]["state"]["0.weight"]["exp_avg"].shape == (7, 5)
    Periodic("4 steps").load_state_dict(worker.replica, state, None)  # which has none
    with pytest.raises(CheckpointError, match="was Adam and is SGD"):
        DiLoCo("4 steps").load_state_dict(worker.replica, state, None)
    state, _ = train(1, lambda: Periodic("4 steps"), 8)[0].save()
    with pytest.raises(CheckpointError, match="had no outer optimizer"):
        DiLoCo("4 steps").load_state_dict(worker.replica, state, None)


@pytest.mark.parametrize("make", [lambda: Periodic("4 steps"), outer_adam])
def test_a_state_may_be_loaded_before_or_after_the_training_begins(make: Make) -> None:
    (worker,) = train(1, make, 6)
    shared, own = worker.save()
    before, after = make(), make()
    before.load_state_dict(worker.replica, shared, own)
    before.begin(worker.replica)
    after.begin(worker.replica)
    after.load_state_dict(worker.replica, shared, own)
    for strategy in (before, after):
        assert strategy.own_state() == own == {"rows": 8, "total": 8}
        found = through_codec(strategy.state_dict(worker.replica))
        assert same(found["start"], shared["start"])
        strategy.leave()
        strategy.begin(worker.replica)  # another training, which knows nothing of it
        assert strategy.own_state() == {"rows": 0, "total": 0}


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Periodic("3 min"), "minutes differ from run to run"),
        (lambda: Periodic("often"), r'every= is a number and a unit, as in "1 epoch"'),
        (lambda: Periodic("0 steps"), "every= is greater than 0"),
        (lambda: Periodic(weights="row"), "Did you mean 'rows'"),  # type: ignore[arg-type]
        (lambda: Periodic(outer=SGD([torch.zeros(1)], lr=1.0)), "lambda params: .*got a SGD"),  # type: ignore[arg-type]
        (lambda: train(1, lambda: Periodic("1 step", outer=lambda params: params), 1), "it gave a list"),  # type: ignore[arg-type, return-value]
        (lambda: Periodic("end", outer=partial(SGD, lr=1.0)), 'every="end" has no rounds'),
        (lambda: DiLoCo("end"), r'every="end" has no rounds .*hr.Periodic\("end"\)'),
        (lambda: BlockMomentum("end"), 'every="end" has no rounds'),
        (lambda: DiLoCo(lr=0), "lr= is greater than 0, got 0"),
        (lambda: DiLoCo(lr="0.7"), "lr= is greater than 0, got '0.7'"),  # type: ignore[arg-type]
        (lambda: DiLoCo(momentum=1.0), "momentum= is at least 0 and less than 1, got 1.0"),
        (lambda: BlockMomentum(momentum=-0.1), "momentum= is at least 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
