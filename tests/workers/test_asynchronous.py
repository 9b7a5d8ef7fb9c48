"""Asynchronous training: what staleness does to a push, and that one worker trains as if there were no center."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kit.center_workers import Seat, Trainee, in_turn, regression
from kit.sampled import sampled
from kit.toy_workers import apart, same
from torch import Tensor

import headrace as hr
from headrace import Asynchronous, ConfigError, Elastic, Strategy
from headrace.arena.arena import Arena
from headrace.workers.asynchronous import Descent
from headrace.workers.center import LeaseTerms, Push
from headrace.workers.center_state import CenterState, LocalCenter
from headrace.workers.centered import Centered

NO_DATA = LeaseTerms(rows=1, lease=1, end=0)
PLAIN = Descent(lr=1.0, bound=10, down_weight=True, compensate=None)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def center_of(rule: Descent, weights: Tensor, version: int = 0) -> tuple[CenterState, LocalCenter]:
    held = CenterState()
    seat = LocalCenter(held)
    seat.join(rule, NO_DATA, {"w": weights})
    held.version = version
    return held, seat


@pytest.mark.parametrize(
    ("rule", "staleness", "gamma"),
    [
        (PLAIN, 0, 1.0),
        (PLAIN, 1, 1.0),
        (PLAIN, 4, 0.25),
        (replace(PLAIN, lr=0.5), 4, 0.125),
        (replace(PLAIN, down_weight=False), 4, 1.0),
        (replace(PLAIN, bound=4), 4, 0.25),
        (replace(PLAIN, bound=3), 4, 0.0),
    ],
)
def test_a_push_weighs_as_much_as_its_staleness_allows(rule: Descent, staleness: int, gamma: float) -> None:
    start, delta = numbers(6), numbers(6, seed=1)
    held, seat = center_of(rule, start, version=staleness)
    reply = seat.exchange(Push(1, 0, {"w": delta}, rows=0))
    assert float((reply.vectors["w"] - (start - gamma * delta)).abs().max()) < 1e-15
    assert reply.taken == bool(gamma)
    assert held.version == staleness + bool(gamma)
    assert held.counts.staleness == {staleness: 1}


def test_the_compensation_is_that_of_the_paper() -> None:
    start, base, delta = numbers(6), numbers(6, seed=2), numbers(6, seed=1)
    rule = Descent(lr=1.0, bound=10, down_weight=False, compensate=0.04)
    for staleness, moved in ((0, torch.zeros(6)), (2, start - base)):
        _, seat = center_of(rule, start, version=staleness)
        reply = seat.exchange(Push(1, 0, {"w": delta}, rows=0, origin={"w": base}))
        expected = start - (delta + 0.04 * delta * delta * moved)
        assert float((reply.vectors["w"] - expected).abs().max()) < 1e-15


def test_pushes_of_one_moment_commute() -> None:
    """c ← c - Δ/W: whatever the order of arrival, to rounding."""
    rule = Descent(lr=0.25, bound=10, down_weight=False, compensate=None)

    def merged(order: tuple[int, ...]) -> Tensor:
        held, seat = center_of(rule, numbers(8))
        for sequence, index in enumerate(order, 1):
            seat.exchange(Push(sequence, 0, {"w": numbers(8, seed=10 + index)}, rows=0))
        return held.weights["w"]

    results = [merged(order) for order in itertools.permutations(range(4))]
    assert max(float((result - results[0]).abs().max()) for result in results) < 1e-12


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"lr": 0}, "lr="),
        ({"lr": float("inf")}, "lr="),
        ({"staleness": -1}, "staleness="),
        ({"staleness": 1.5}, "staleness="),
        ({"compensate": -1.0}, "compensate="),
        ({"lease": True}, "lease="),
        ({"every": "5 min"}, "every="),
        ({"every": 3}, "every="),
    ],
)
def test_settings_that_cannot_work_are_refused(given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Asynchronous(**given)


# --- one worker -------------------------------------------------------------------------------------------


def bits(weights: dict[str, Tensor]) -> dict[str, bytes]:
    """To the last bit: zeros of different sign are different."""
    flat = {name: value.detach().contiguous().reshape(-1) for name, value in weights.items()}
    return {name: value.view(torch.uint8).numpy().tobytes() for name, value in flat.items()}


class Loop:
    """A raw loop over the same batches, with an optimizer of its own."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer], epochs: int, batch: int) -> None:
        self.model, table = regression()
        optimizer = make(self.model.parameters())
        reader = hr.Reader(table, seed=7, max_epochs=epochs)
        while (rows := reader.next_batch(batch)) is not None:
            optimizer.zero_grad()
            F.mse_loss(self.model(rows["x"]), rows["y"]).backward()
            optimizer.step()


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    lambda params: torch.optim.Adam(params, lr=0.01),
]


def alone(every: str, make: Callable[[Any], torch.optim.Optimizer], held: CenterState, **options: Any) -> Trainee:
    model, table = regression()
    trainee = Trainee(held, 0, 1, Asynchronous(every, lease=13, **options), model, table, batch=13, epochs=6)
    trainee.arena.release()
    trainee.optimizer = make(trainee.model.parameters())
    trainee.arena = Arena(trainee.model, trainee.optimizer)
    return trainee


@pytest.mark.parametrize(
    ("every", "make"),
    sampled(
        itertools.product(["1 step", "3 steps", "20 samples", "1 epoch", "4 epochs"], OPTIMIZERS),
        keep=[("1 step", OPTIMIZERS[0]), ("20 samples", OPTIMIZERS[1])],
        of=4,
    ),
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_one_worker_trains_as_if_alone_to_the_bit(every: str, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    raw, held = Loop(make, epochs=6, batch=13), CenterState()
    trainee = alone(every, make, held)
    in_turn([trainee])
    assert bits(trainee.weights) == bits(dict(raw.model.state_dict()))
    floats = {name: value for name, value in trainee.weights.items() if value.is_floating_point()}
    assert bits(held.weights) == bits(floats)
    assert held.counts.staleness == {0: held.version}
    assert held.status(0.0)["epochs"] == 6


def test_without_what_rounding_loses_it_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    forget = Asynchronous.fill

    def fill(self: Asynchronous, push: Push, weights: Any) -> None:
        forget(self, push, weights)
        assert push.exact or self.center_progress is None or push.sequence > 0
        push.exact = {}

    monkeypatch.setattr(Asynchronous, "fill", fill)
    raw = Loop(OPTIMIZERS[0], epochs=6, batch=13)
    trainee = alone("1 step", OPTIMIZERS[0], CenterState())
    in_turn([trainee])
    weights = dict(raw.model.state_dict())
    assert bits(trainee.weights) != bits(weights)
    assert apart(trainee.weights, weights) < 1e-5


ODD = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-7, 3.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_any_values_reach_the_center_to_the_bit(dtype: torch.dtype) -> None:
    """Signed zeros, NaN, infinities, numbers far apart, in any memory format: what Δ loses travels beside it."""
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(4, 3, 5, 2, dtype=dtype, generator=generator)
    x = (base + torch.randn_like(base) * 10.0 ** torch.randint(-6, 6, base.shape, generator=generator)).to(dtype)
    for place, (before, after) in enumerate(itertools.product(ODD, ODD)):
        base.view(-1)[place], x.view(-1)[place] = before, after
    for shaped in (lambda t: t, lambda t: t.to(memory_format=torch.channels_last), lambda t: t[1, 1, 1, 1]):
        strategy = Asynchronous()
        strategy.join(Seat(held := CenterState(), 0, 1))
        strategy.take(strategy.comm.center.join(strategy.rule, NO_DATA, {"w": shaped(base)}))
        push = Push(1, 0, {}, rows=0)
        strategy.fill(push, {"w": shaped(x)})
        strategy.comm.center.exchange(push)
        assert bits(held.weights) == bits({"w": shaped(x)})


# --- several ----------------------------------------------------------------------------------------------


def workers(strategy: Callable[[], Centered], count: int, held: CenterState, **options: Any) -> list[Trainee]:
    model, table = regression()
    return [Trainee(held, index, count, strategy(), model, table, **options) for index in range(count)]


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_at_equal_speed_staleness_is_one_less_than_there_are_workers(count: int) -> None:
    """0, 1, ..., W - 1, and then W - 1 for ever."""
    held, seen = CenterState(), []
    trainees = workers(lambda: Asynchronous("1 step"), count, held, epochs=4)
    inner = trainees[0].strategy.rule
    assert isinstance(inner, Descent)

    class Watching(Descent):
        def apply(self, center: Any, push: Push, staleness: int) -> Any:
            seen.append(staleness)
            return super().apply(center, push, staleness)

    held.rule = Watching(inner.lr, inner.bound, inner.down_weight, inner.compensate)
    in_turn(trainees, updates=200 // 4 // count - 1)
    assert seen == [*range(count - 1), *[count - 1] * (len(seen) - count + 1)]
    assert len(seen) >= 2 * count
    status = held.status(0.0)
    assert status["applied"] == status["version"] == len(seen)
    assert status["dropped"] == 0


def test_what_is_too_stale_is_dropped_and_its_rows_are_read_again() -> None:
    """One worker sleeps while the others push: its push is not taken, and still every row counts once."""
    held = CenterState()
    trainees = workers(lambda: Asynchronous("2 steps"), 3, held, epochs=3)
    runs = [trainee.run() for trainee in trainees]
    next(runs[0])  # half a round
    for _ in range(8):
        next(runs[1])
        next(runs[2])
    next(runs[0])
    status = held.status(0.0)
    assert (status["dropped"], status["lost"]) == (1, 0)
    assert max(status["staleness"]) == 8 > 2 * 3
    assert trainees[0].strategy.center_progress is not None
    assert not trainees[0].strategy.center_progress.taken
    floats = {name: value for name, value in trainees[0].weights.items() if value.is_floating_point()}
    assert same(floats, dict(held.weights)), "it goes on with the center's weights"
    before = len(trainees[0].rows)
    for _ in range(1000):
        if {next(run, "ended") for run in runs} == {"ended"}:
            break
    status = held.status(0.0)
    pushed = sum(trainee.strategy._pending.sequence - 1 for trainee in trainees)
    assert pushed == status["applied"] + status["dropped"]
    assert status["samples"] == sum(w["rows"] for w in status["workers"].values()) == 150
    assert sorted(row for t in trainees for row in t.rows) != sorted(3 * [*range(50)]), "some were read in vain"
    assert sum(len(t.rows) for t in trainees) == 150 + before


def test_the_bound_grows_with_the_workers_unless_it_is_given() -> None:
    held = CenterState()
    assert workers(lambda: Asynchronous(), 5, held)[0].strategy.rule == replace(PLAIN, bound=10)
    assert workers(lambda: Asynchronous(staleness=0), 5, CenterState())[0].strategy.rule == replace(PLAIN, bound=0)


# --- stop and go on ---------------------------------------------------------------------------------------


def turns(trainees: list[Trainee], start: int, stop: int) -> None:
    """Turn t is that of worker t % W."""
    runs = [trainee.run() for trainee in trainees]
    for turn in range(start, stop):
        next(runs[turn % len(runs)], None)


STRATEGIES: list[Callable[[], Centered]] = [
    lambda: Asynchronous("1 step"),
    lambda: Asynchronous("3 steps", compensate=0.1),
    lambda: Asynchronous("1 epoch", lr=0.5),
    lambda: Elastic("2 steps"),
    lambda: Elastic("10 samples", alpha=0.5, take_center=True),
]


@pytest.mark.parametrize("strategy", [STRATEGIES[1], STRATEGIES[3]])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_another_number_of_workers_goes_on_from_the_center_with_every_row_once(
    strategy: Callable[[], Centered], count: int
) -> None:
    first_held = CenterState()
    first = workers(strategy, 3, first_held, epochs=2)
    turns(first, 0, 16)
    state = first[0].save()
    used = first_held.status(0.0)["samples"]
    assert 0 < used < sum(len(t.rows) for t in first), "some have been used, some not yet pushed"
    model, table = regression()
    held = CenterState()
    second = [
        Trainee(held, index, count, strategy(), model, table, epochs=2, resume=state, anew=True)
        for index in range(count)
    ]
    floats = {name: value for name, value in second[-1].weights.items() if value.is_floating_point()}
    assert same(floats, dict(first_held.weights)), "they begin with the center's weights"
    in_turn(second)
    assert held.status(0.0)["samples"] == 100
    assert sum(len(t.rows) for t in second) == 100 - used


def test_a_strategy_with_a_center_shares_no_updates() -> None:
    strategy: Strategy = Asynchronous()
    strategy.join(Seat(CenterState(), 1, 2))
    assert strategy.centered
    assert not strategy.joint
    assert not strategy.shares_updates
