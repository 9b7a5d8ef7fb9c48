"""Rounds: what workers agree on, when, how exactly, and what is kept of it."""

import copy
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from kit.sampled import sampled
from kit.toy_workers import Meeting, Worker, apart, same, through_codec, together
from torch import Tensor, nn
from torch.optim import SGD, Adam

from headrace import BlockMomentum, ConfigError, DiLoCo, Periodic, Strategy
from headrace.workers.comm import Comm, Null, largest, mean
from headrace.workers.strategy import Single

Make = Callable[[], Strategy]
sgd = partial(SGD, lr=0.05)
momentum = partial(SGD, lr=0.05, momentum=0.9)
adam = partial(Adam, lr=1e-2)
outer_adam = partial(Adam, lr=0.1)

ALL: dict[str, Make] = {
    "mean": lambda: Periodic("4 steps"),
    "equal": lambda: Periodic("4 steps", weights="equal"),
    "reset": lambda: Periodic("4 steps", reset_inner=True),
    "outer SGD": lambda: Periodic("4 steps", outer=partial(SGD, lr=0.7, momentum=0.9)),
    "outer Adam": lambda: Periodic("4 steps", outer=outer_adam),
    "end": lambda: Periodic("end"),
    "block momentum": lambda: BlockMomentum("4 steps"),
    "diloco": lambda: DiLoCo("4 steps"),
}


def seeded(*layers: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(*(layer() for layer in layers))


FIRST, LAST = partial(nn.Linear, 5, 7), partial(nn.Linear, 7, 2)
LINEAR = seeded(FIRST, nn.Tanh, LAST).double()
SINGLE = seeded(FIRST, nn.Tanh, LAST)
NORMED = seeded(FIRST, partial(nn.BatchNorm1d, 7), nn.Tanh, LAST)


def rows(count: int = 60, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def train(
    count: int,
    make: Make,
    steps: int,
    *,
    model: nn.Module | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] = momentum,
    data: tuple[Tensor, Tensor] | None = None,
    batch: int = 4,
    meeting: Meeting | None = None,
    arena: bool = True,
) -> list[Worker]:
    """All workers after so many local updates."""

    def work(comm: Comm) -> Worker:
        worker = Worker(comm, make(), model or LINEAR, optimizer, data or rows(), batch, arena)
        for _ in worker.run(steps):
            pass
        return worker

    return together(count, work, meeting)


# --- the mean --------------------------------------------------------------------------------------------


def means(weights: list[float], tensors: list[list[Tensor]], meeting: Meeting | None = None) -> list[list[Tensor]]:
    return together(len(weights), lambda c: mean(c, tensors[c.shard.index], weights[c.shard.index]), meeting)


def test_the_mean_weighs_every_worker_by_its_weight() -> None:
    tensors = [[torch.full((2, 3), float(10**k), dtype=torch.float64), torch.tensor(float(k))] for k in range(3)]
    for found in means([1, 2, 5], tensors):
        torch.testing.assert_close(found[0], torch.full((2, 3), 521 / 8, dtype=torch.float64), rtol=1e-15, atol=0)
        assert found[1].item() == 12 / 8
        assert found[1].shape == ()


def test_the_mean_is_the_same_on_all_workers_to_the_bit_and_changes_nothing_that_came() -> None:
    tensors = [[torch.randn(50, generator=torch.Generator().manual_seed(k))] for k in range(5)]
    before = [held[0].clone() for held in tensors]
    first, *others = means([3, 1, 4, 1, 5], tensors)
    assert all(torch.equal(first[0], other[0]) for other in others)
    assert all(torch.equal(held[0], old) for held, old in zip(tensors, before, strict=True))


def test_where_all_weights_are_0_every_worker_keeps_a_copy_of_what_it_has() -> None:
    tensors = [[torch.randn(5)], [torch.randn(5)]]
    for held, found in zip(tensors, means([0, 0], tensors), strict=True):
        assert torch.equal(held[0], found[0])
        assert held[0] is not found[0]


def test_a_worker_alone_is_given_its_own_to_the_bit() -> None:
    tensors = [torch.rand(1000), torch.rand(3).half()]
    assert all(a is b for a, b in zip(mean(Null(), tensors, 7), tensors, strict=True))
    assert not torch.equal(tensors[0] * 7 / 7, tensors[0])  # what a mean that is computed would give


def test_half_precision_is_added_up_in_single_precision() -> None:
    tensors = [[torch.tensor([2048.0, 60000.0]).half()], [torch.tensor([1.0, 60000.0]).half()]]
    for found in means([1, 1], tensors):
        assert found[0].dtype == torch.float16
        assert found[0].tolist() == [1024.0, 60000.0]  # 1024.5 is rounded to even, once; 120000 would be infinite
    assert (tensors[0][0] + tensors[1][0]).tolist() == [2048.0, float("inf")]


def test_tensors_of_all_kinds_come_back_as_they_are() -> None:
    kinds = [
        torch.rand(2, 3).t(),
        torch.rand(4, dtype=torch.float64),
        torch.rand(3).bfloat16(),
        torch.rand(2, dtype=torch.complex64),
        torch.rand(0),
    ]
    (one, other) = means([1, 3], [kinds, [tensor * 2 for tensor in kinds]])
    for tensor, found, again in zip(kinds, one, other, strict=True):
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        torch.testing.assert_close(found, tensor * 1.75)
        assert torch.equal(found, again)


def test_a_mean_is_one_message_for_each_precision() -> None:
    tensors = [[torch.rand(5), torch.rand(2, 2).half(), torch.rand(3)] for _ in range(2)]
    means([1, 1], tensors, meeting := Meeting(2))
    assert meeting.sizes == [13]
    means([1, 1], [[*held, torch.rand(3).double()] for held in tensors], meeting := Meeting(2))
    assert meeting.sizes == [13, 4]


def test_of_counters_all_take_the_largest() -> None:
    def work(comm: Comm) -> list[Tensor]:
        k = comm.shard.index
        held = [torch.tensor(k * 2**40), torch.tensor([k == 1, False]), torch.tensor([[5 - k, k]], dtype=torch.int32)]
        largest(comm, held)
        return held

    for held in together(3, work):
        assert [t.tolist() for t in held] == [2**41, [True, False], [[5, 2]]]
        assert [t.dtype for t in held] == [torch.int64, torch.bool, torch.int32]


# --- averaging -------------------------------------------------------------------------------------------


def test_a_worker_alone_trains_to_the_bit_as_without_a_strategy() -> None:
    data = rows(50, torch.float32)
    for every in ("1 step", "3 steps", "1 epoch"):
        (worker,) = train(1, lambda every=every: Periodic(every), 20, model=NORMED, data=data)  # type: ignore[misc]
        (alone,) = train(1, Single, 20, model=NORMED, data=data)
        assert same(worker.weights, alone.weights)
    (other,) = train(1, lambda: DiLoCo("3 steps"), 20, model=NORMED, data=data)
    assert not same(other.weights, alone.weights)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("left", [0, 1, 5, 7])
def test_averaging_after_every_update_is_synchronous(count: int, left: int) -> None:
    data = rows(4 * count * 3 + left)  # the last batch is short, and empty for some workers
    steps = 3 * (3 + bool(left))
    workers = train(count, lambda: Periodic("1 step"), steps, data=data, optimizer=sgd)
    (one,) = train(1, Single, steps, data=data, batch=4 * count, optimizer=sgd)
    assert all(apart(worker.weights, one.weights) < 1e-12 for worker in workers)
    assert all(same(worker.weights, workers[0].weights) for worker in workers)


@pytest.mark.parametrize("count", [2, 3])
def test_averaging_after_every_update_is_synchronous_with_momentum_where_shares_stay_alike(count: int) -> None:
    data = rows(4 * count * 3)
    workers = train(count, lambda: Periodic("1 step"), 20, data=data)
    (one,) = train(1, Single, 20, data=data, batch=4 * count)
    assert all(apart(worker.weights, one.weights) < 1e-12 for worker in workers)


def test_weighing_all_alike_is_not_synchronous_where_a_batch_is_short() -> None:
    data = rows(4 * 2 * 3 + 5)
    (one,) = train(1, Single, 8, data=data, batch=8, optimizer=sgd)
    by_rows, alike = (
        train(2, lambda weights=weights: Periodic("1 step", weights=weights), 8, data=data, optimizer=sgd)  # type: ignore[misc]
        for weights in ("rows", "equal")
    )
    assert apart(by_rows[0].weights, one.weights) < 1e-12
    assert apart(alike[0].weights, one.weights) > 1e-4


def test_averaging_after_every_update_is_not_synchronous_for_adam() -> None:
    workers = train(2, lambda: Periodic("1 step"), 20, optimizer=adam)
    (one,) = train(1, Single, 20, optimizer=adam, batch=8)
    assert apart(workers[0].weights, one.weights) > 1e-3


@pytest.mark.slow
def test_averaging_is_block_momentum_without_momentum_and_diloco_without_momentum() -> None:
    for every in ("1 step", "5 steps", "1 epoch"):
        makes: list[Make] = [
            lambda: Periodic(every),  # noqa: B023
            lambda: Periodic(every, outer=partial(SGD, lr=1.0)),  # noqa: B023
            lambda: BlockMomentum(every, momentum=0, reset_inner=False),  # noqa: B023
            lambda: DiLoCo(every, lr=1, momentum=0),  # noqa: B023
        ]
        found = [train(3, make, 15)[0].weights for make in makes]
        assert all(apart(found[0], other) < 1e-12 for other in found[1:])
        assert apart(found[0], train(3, lambda: BlockMomentum(every), 15)[0].weights) > 1e-3  # noqa: B023


def test_statistics_are_averaged_by_rows_and_counters_take_the_largest() -> None:
    data, batch = rows(11, torch.float32), 4  # parts of 4, 4 and 3 rows

    def alone(start: int, stop: int) -> dict[str, Tensor]:
        (worker,) = train(1, Single, 1, model=NORMED, data=(data[0][start:stop], data[1][start:stop]), batch=batch)
        return worker.weights

    parts = [alone(0, 4), alone(4, 8), alone(8, 11)]
    for make in (lambda: Periodic("1 step"), lambda: DiLoCo("1 step")):
        found = train(3, make, 1, model=NORMED, data=data, batch=batch)
        for name in ("1.running_mean", "1.running_var"):
            expected = (4 * parts[0][name] + 4 * parts[1][name] + 3 * parts[2][name]) / 11
            for worker in found:
                torch.testing.assert_close(worker.weights[name], expected)
            assert not torch.allclose(expected, sum(part[name] for part in parts) / 3)  # type: ignore[arg-type]
    found = train(3, lambda: Periodic("2 steps"), 2, model=NORMED, data=rows(14, torch.float32), batch=4)
    assert [worker.weights["1.num_batches_tracked"].item() for worker in found] == [2, 2, 2]
    found = train(3, lambda: Periodic("end"), 2, model=NORMED, data=rows(14, torch.float32), batch=4)
    assert [worker.weights["1.num_batches_tracked"].item() for worker in found] == [2, 1, 1]  # only the first had rows


@pytest.mark.parametrize("name", sampled([name for name in ALL if name != "end"], keep=["reset", "diloco"], of=3))
def test_all_agree_when_a_round_ends_and_not_before(name: str) -> None:
    def work(comm: Comm) -> list[tuple[bool, dict[str, Tensor]]]:
        worker = Worker(comm, ALL[name](), NORMED, momentum, rows(300, torch.float32), 4)
        return [(agree, worker.weights) for agree in worker.run(8)]

    for found in zip(*together(3, work), strict=True):
        (agree, first), *others = found
        assert all(told == agree and same(first, weights) == agree for told, weights in others)
    assert [agree for agree, _ in together(3, work)[0]] == [False, False, False, True] * 2


@pytest.mark.parametrize(
    ("name", "arena"), sampled(product(ALL, [True, False]), keep=[("mean", True), ("outer Adam", False)], of=4)
)
def test_a_model_of_one_vector_is_averaged_as_one_of_many_tensors(name: str, arena: bool) -> None:
    found = train(2, ALL[name], 9, arena=arena)
    assert same(found[1].weights, train(2, ALL[name], 9)[1].weights)


def test_a_round_is_one_message_and_one_more_for_counters() -> None:
    for make in (ALL["mean"], ALL["outer Adam"]):
        train(2, make, 8, model=NORMED, data=rows(dtype=torch.float32), meeting=(meeting := Meeting(2)))
        vector, statistics = 9 * 16, 14  # what the arena rounds up to whole cache lines; means and variances
        assert len(meeting.sizes) == 4
        assert meeting.sizes[1::2] == [1, 1]
        assert meeting.sizes[0] == meeting.sizes[2] <= vector + statistics + 1


def test_a_round_in_which_nobody_used_a_row_changes_nothing() -> None:
    def work(comm: Comm) -> bool:
        worker = Worker(comm, Periodic("1 step", weights="equal", reset_inner=True), NORMED, momentum, rows(), 4)
        before = worker.weights
        worker.counters.steps += 1
        assert worker.strategy.after(worker.replica, worker.counters, 0, 0, False)
        return same(before, worker.weights)

    assert together(3, work) == [True] * 3


def test_a_parameter_that_leaves_its_vector_is_still_agreed_on() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.out = nn.EmbeddingBag(8, 3, sparse=True), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(self.table(x))
            return out

    x = torch.randint(0, 8, (60, 4), generator=torch.Generator().manual_seed(0))
    data = (x, rows(60, torch.float32)[1])
    for make in (ALL["mean"], ALL["diloco"], ALL["outer Adam"]):
        in_arena, plain = (
            train(2, make, 9, model=Sums(), data=data, optimizer=sgd, arena=arena) for arena in (True, False)
        )
        assert same(in_arena[0].weights, plain[0].weights)
        assert same(in_arena[1].weights, plain[1].weights)


# --- when ------------------------------------------------------------------------------------------------


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
        worker = Worker(comm, Periodic(every), LINEAR, momentum, rows(36), 4)
        return [worker.counters.steps for agree in worker.run(12) if agree]

    assert together(2, work) == [expected, expected]


def test_what_all_agree_on_is_the_mean_and_changes_nothing() -> None:
    def work(comm: Comm) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
        worker = Worker(comm, Periodic("end"), LINEAR, momentum, rows(36), 4)
        for _ in worker.run(5):
            pass
        before, agreed = worker.weights, worker.consensus
        assert same(before, worker.weights)
        assert same(agreed, worker.consensus)
        return before, agreed, 20 if comm.leader else 16

    (one, agreed, used), (other, again, unused) = together(2, work)
    expected = {name: (one[name] * used + other[name] * unused) / (used + unused) for name in one}
    assert apart(agreed, expected) < 1e-15
    assert same(agreed, again)
    assert apart(agreed, {name: (one[name] + other[name]) / 2 for name in one}) > 1e-4


@pytest.mark.parametrize("name", sampled(ALL, keep=["mean", "end", "outer SGD"], of=3))
def test_all_agree_on_their_weights_to_the_bit_before_anything_and_after_a_round(name: str) -> None:
    def work(comm: Comm) -> bool:
        data = rows(600, torch.float32)
        worker = Worker(comm, ALL[name](), SINGLE, momentum, data, 4)
        found = same(worker.consensus, worker.weights)
        for agree in worker.run(8):
            found &= not agree or same(worker.consensus, worker.weights)
        return found

    assert together(3, work) == [True] * 3


# --- dislib's synchronous trainings, as settings ---------------------------------------------------------


@pytest.mark.parametrize(("every", "merges"), [("1 epoch", [1, 2, 3, 4]), ("2 epochs", [2, 4]), ("end", [])])
def test_dislib_averages_all_workers_alike_after_epochs(every: str, merges: list[int]) -> None:
    data, epochs, batch = rows(36), 4, 4

    def own_epoch(model: nn.Module, index: int) -> None:
        optimizer = SGD(model.parameters(), lr=0.05)
        for k in range(5):
            start = min(8 * k + 4 * index, 36)
            stop = min(start + 4, 36)
            if stop > start:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(data[0][start:stop]), data[1][start:stop]).backward()
                optimizer.step()

    models = [copy.deepcopy(LINEAR) for _ in range(2)]
    for epoch in range(1, epochs + 1):
        for index, model in enumerate(models):
            own_epoch(model, index)
        if epoch in [*merges, epochs]:
            average(models)
    found = train(
        2,
        lambda: Periodic(every, weights="equal"),
        5 * epochs,
        data=data,
        batch=batch,
        optimizer=sgd,
    )
    agreed = together_agreed(found)
    assert apart(agreed, dict(models[0].state_dict())) < 1e-12


def average(models: list[nn.Module]) -> None:
    """w = (1/W) Σ w_j."""
    with torch.no_grad():
        for params in zip(*(model.parameters() for model in models), strict=True):
            one = sum(params) / len(params)
            for param in params:
                param.copy_(one)


def together_agreed(workers: list[Worker]) -> dict[str, Tensor]:
    """What workers whose threads have ended would agree on."""
    meeting = Meeting(len(workers))

    def work(comm: Comm) -> dict[str, Tensor]:
        worker = workers[comm.shard.index]
        worker.strategy.comm = comm
        return worker.consensus

    found: list[dict[str, Tensor]] = together(len(workers), work, meeting)
    return found[0]


# --- the workers' own optimizers -------------------------------------------------------------------------


@pytest.mark.parametrize("resets", [False, True])
def test_what_the_optimizers_remember_is_forgotten_only_if_wanted(resets: bool) -> None:
    def work(comm: Comm) -> list[bool]:
        worker = Worker(comm, Periodic("3 steps", reset_inner=resets), LINEAR, momentum, rows(), 4)
        return [bool(worker.optimizer.state) for _ in worker.run(6)]

    assert together(2, work)[1] == [True, True, not resets] * 2


# --- state -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(ALL, keep=["mean", "outer Adam"], of=4))
def test_saved_after_any_update_it_goes_on_as_if_nothing_had_been(name: str) -> None:
    steps, data = 14, rows(100, torch.float32)

    def whole(comm: Comm) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
        worker = Worker(comm, ALL[name](), NORMED, adam, data, 4)
        return [(worker.save(), worker.weights) for _ in worker.run(steps)]

    saved = together(2, whole)
    (untouched, _) = train(2, ALL[name], steps, model=NORMED, data=data, optimizer=adam)
    assert same(saved[0][-1][1], untouched.weights), "saving changed what came after"

    for k in sampled(range(1, 10), keep=[4], of=8):

        def rest(comm: Comm, k: int = k) -> bool:
            worker = Worker(comm, ALL[name](), NORMED, adam, data, 4)
            for _ in worker.run(3):  # what it has learnt so far is to be forgotten
                pass
            worker.load(saved[comm.shard.index][k - 1][0])
            return all(
                same(worker.weights, saved[comm.shard.index][k + j][1]) for j, _ in enumerate(worker.run(steps - k))
            )

        assert together(2, rest) == [True, True], f"after {k} updates"


@pytest.mark.parametrize("name", sampled(ALL, keep=["mean", "outer Adam"], of=3))
def test_another_number_of_workers_begins_the_round_anew(name: str) -> None:
    data = rows(100, torch.float32)

    def first(comm: Comm) -> dict[str, Any]:
        worker = Worker(comm, ALL[name](), NORMED, momentum, data, 4)
        for _ in worker.run(6):
            pass
        return worker.save()

    saved, _ = together(2, first)
    start = saved["shared"]["start"]
    begun = {"end": 0}.get(name, 4)
    (at_start,) = [train(2, ALL[name], begun, model=NORMED, data=data)[0].weights]
    assert same(start, {n: v for n, v in at_start.items() if n in start})
    assert start.keys() == at_start.keys() - {"1.num_batches_tracked"}

    def after(comm: Comm) -> tuple[dict[str, Tensor], dict[str, Any]]:
        worker = Worker(comm, ALL[name](), NORMED, momentum, data, 4)
        worker.replica.write(worker.replica.joined(start))
        worker.strategy.load_state_dict(worker.replica, saved["shared"], None)
        assert worker.strategy.own_state() == {"rows": 0, "total": 0}
        assert same(worker.consensus, start)
        outer = through_codec(worker.strategy.state_dict(worker.replica)["outer"])
        for _ in worker.run(4):
            pass
        return worker.weights, outer

    for count in (1, 3):
        found = together(count, after)
        if name != "end":
            assert all(same(found[0][0], weights) for weights, _ in found)
        for _, outer in found:
            for param, state in saved["shared"]["outer"].get("state", {}).items():
                assert all(
                    torch.equal(torch.as_tensor(v), torch.as_tensor(outer["state"][param][k])) for k, v in state.items()
                )


@pytest.mark.parametrize("name", ["mean", "outer Adam"])
def test_a_state_may_be_loaded_before_or_after_the_training_begins(name: str) -> None:
    (worker,) = train(1, ALL[name], 6)
    saved = worker.save()
    before, after = ALL[name](), ALL[name]()
    before.load_state_dict(worker.replica, saved["shared"], saved["own"])
    before.begin(worker.replica)
    after.begin(worker.replica)
    after.load_state_dict(worker.replica, saved["shared"], saved["own"])
    for strategy in (before, after):
        assert strategy.own_state() == saved["own"] == {"rows": 8, "total": 8}
        found = through_codec(strategy.state_dict(worker.replica))
        assert same(found["start"], saved["shared"]["start"])
        strategy.leave()
        strategy.begin(worker.replica)  # another training, which knows nothing of it
        assert strategy.own_state() == {"rows": 0, "total": 0}


def test_the_state_of_an_outer_optimizer_is_plain_and_by_names() -> None:
    worker, _ = train(2, ALL["outer Adam"], 8)
    state = through_codec(worker.strategy.state_dict(worker.replica))
    assert state.keys() == {"start", "outer"}
    assert set(state["outer"]["state"]) == set(dict(worker.model.named_parameters()))
    assert state["outer"]["state"]["0.weight"]["exp_avg"].shape == (7, 5)
    assert through_codec(worker.strategy.own_state()) == {"rows": 0, "total": 0}


def test_a_state_of_another_outer_optimizer_is_refused() -> None:
    from headrace import CheckpointError

    (worker,) = train(1, ALL["outer Adam"], 8)
    state = worker.strategy.state_dict(worker.replica)
    for make, message in ((ALL["diloco"], "was Adam and is SGD"), (ALL["mean"], None)):
        strategy = make()
        if message is None:
            strategy.load_state_dict(worker.replica, state, None)
            continue
        with pytest.raises(CheckpointError, match=message):
            strategy.load_state_dict(worker.replica, state, None)
    (worker,) = train(1, ALL["mean"], 8)
    with pytest.raises(CheckpointError, match="had no outer optimizer"):
        ALL["diloco"]().load_state_dict(worker.replica, worker.strategy.state_dict(worker.replica), None)


def test_the_last_point_agreed_on_is_kept_in_the_same_memory() -> None:
    def work(comm: Comm) -> set[int]:
        worker = Worker(comm, Periodic("2 steps"), LINEAR, momentum, rows(), 4)
        return {worker.strategy.state_dict(worker.replica)["start"]["0.weight"].data_ptr() for _ in worker.run(6)}

    assert [len(found) for found in together(2, work)] == [1, 1]


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Periodic("3 min"), "minutes differ from run to run"),
        (lambda: Periodic("often"), r'every= is a number and a unit, as in "1 epoch"'),
        (lambda: Periodic("0 steps"), "every= is greater than 0"),
        (lambda: Periodic(weights="row"), "Did you mean 'rows'"),
        (lambda: Periodic(outer=SGD([torch.zeros(1)], lr=1.0)), "lambda params: .*got a SGD"),
        (lambda: Periodic("end", outer=partial(SGD, lr=1.0)), 'every="end" has no rounds'),
        (lambda: DiLoCo("end"), r'every="end" has no rounds .*hr.Periodic\("end"\)'),
        (lambda: BlockMomentum("end"), 'every="end" has no rounds'),
        (lambda: DiLoCo(lr=0), "lr= is greater than 0, got 0"),
        (lambda: DiLoCo(lr="0.7"), "lr= is greater than 0, got '0.7'"),
        (lambda: DiLoCo(momentum=1.0), "momentum= is at least 0 and less than 1, got 1.0"),
        (lambda: BlockMomentum(momentum=-0.1), "momentum= is at least 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_outer_that_makes_no_optimizer_is_refused_when_training_begins() -> None:
    with pytest.raises(ConfigError, match="it gave a list"):
        train(1, lambda: Periodic("1 step", outer=lambda params: params), 1)  # type: ignore[arg-type, return-value]
