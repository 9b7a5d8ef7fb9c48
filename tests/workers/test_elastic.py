"""Elastic averaging: springs that conserve, the bound of their stability, and the merge that counts the order."""

import itertools
from typing import Any

import pytest
import torch
from kit.center_workers import Seat, Trainee, in_turn, regression
from kit.sampled import sampled
from kit.toy_workers import apart, same
from torch import Tensor, nn

import headrace as hr
from headrace import Asynchronous, ConfigError, Elastic
from headrace.workers.center import LeaseTerms, Push
from headrace.workers.center_state import CenterState, LocalCenter
from headrace.workers.elastic import Spring

NO_DATA = LeaseTerms(rows=1, lease=1, end=0)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Tied:
    """Workers that are nothing but vectors, tied to a center."""

    def __init__(self, rule: Spring, center: Tensor, workers: list[Tensor]) -> None:
        self.held = CenterState()
        self.seats = [LocalCenter(self.held, index) for index in range(len(workers))]
        for seat in self.seats:
            seat.join(rule, NO_DATA, {"w": center})
        self.workers, self.sequences = workers, [0] * len(workers)

    @property
    def center(self) -> Tensor:
        return self.held.weights["w"]

    def exchange(self, index: int) -> None:
        self.sequences[index] += 1
        push = Push(self.sequences[index], self.held.version, {"w": self.workers[index]}, rows=0)
        self.workers[index] = self.seats[index].exchange(push).vectors["w"]


def test_a_meeting_pulls_both_by_the_same_amount() -> None:
    tied = Tied(Spring(0.25, take_center=False), torch.tensor([0.0, 8.0]), [torch.tensor([4.0, 0.0])])
    tied.exchange(0)
    assert (tied.center.tolist(), tied.workers[0].tolist()) == ([1.0, 6.0], [3.0, 2.0])


def test_meetings_conserve_the_sum_of_center_and_workers() -> None:
    tied = Tied(Spring(0.3, take_center=False), numbers(7), [numbers(7, seed=s) for s in (1, 2, 3)])
    before = tied.center + sum(tied.workers)
    for meeting in range(500):
        tied.exchange((meeting * 7) % 3)
    assert float((tied.center + sum(tied.workers) - before).abs().max()) < 1e-12
    assert max(float((x - tied.center).abs().max()) for x in tied.workers) < 1e-9, "and they have met"


def test_taking_the_center_does_not_conserve_it() -> None:
    """The control: what is conserved is a property of the springs, not of the test."""
    tied = Tied(Spring(0.3, take_center=True), numbers(7), [numbers(7, seed=s) for s in (1, 2, 3)])
    before = tied.center + sum(tied.workers)
    tied.exchange(0)
    assert float((tied.center + sum(tied.workers) - before).abs().max()) > 0.1


def size_after(alpha: float, curvature: float, old: bool, rounds: int = 1500) -> float:
    """Four workers on ½hx², a meeting after every step; `old`: the gradient is of the weights before the meeting."""
    tied = Tied(Spring(alpha, take_center=False), numbers(1), [numbers(1, seed=s) for s in range(1, 5)])
    for _ in range(rounds):
        for index in range(4):
            step = curvature * tied.workers[index]
            if not old:
                tied.workers[index] = tied.workers[index] - step
            tied.exchange(index)
            if old:
                tied.workers[index] = tied.workers[index] - step
    return max(float(x.abs().max()) for x in [tied.center, *tied.workers])


@pytest.mark.takes_turns
@pytest.mark.parametrize("curvature", [0.1, 1.5])  # γh
def test_with_old_gradients_springs_are_stable_below_the_bound_and_not_above_it(curvature: float) -> None:
    bound = (4 - 2 * curvature) / (4 - curvature)
    assert size_after(0.98 * bound, curvature, old=True) < 1e-6
    assert size_after(1.02 * bound, curvature, old=True) > 1e3


@pytest.mark.takes_turns
@pytest.mark.parametrize("curvature", [0.1, 1.5, 1.9])  # γh
def test_meetings_between_updates_are_stable_wherever_the_updates_are(curvature: float) -> None:
    assert size_after(1.0, curvature, old=False) < 1e-6


def test_meetings_do_not_make_updates_stable_that_diverge() -> None:
    """The control."""
    assert size_after(0.05, 2.5, old=False) > 1e3


def test_the_commutative_merge_weighs_the_last_to_arrive_most() -> None:
    """A golden trace: after n merges the last weighs 1/2, the one before 1/4, ..., and the first center 2⁻ⁿ."""
    arrivals = [3, 0, 2, 1]
    tied = Tied(
        Spring(0.5, take_center=True),
        torch.tensor([1.0, 0, 0, 0, 0], dtype=torch.float64),
        [torch.eye(5, dtype=torch.float64)[index + 1] for index in range(4)],
    )
    for index in arrivals:
        tied.exchange(index)
    golden = torch.tensor([1 / 16, 1 / 8, 1 / 2, 1 / 4, 1 / 16], dtype=torch.float64)  # center, workers 0 to 3
    assert float((tied.center - golden).abs().max()) < 1e-6
    assert torch.equal(tied.workers[1], tied.center), "the last one goes on with it"
    assert tied.workers[3].tolist() == [0.5, 0, 0, 0, 0.5], "the first went on with what it was then"


def test_a_long_commutative_merge_is_the_legacy_formula() -> None:
    """g ← (g + w)/2 in order of arrival, and w goes on from g, over 40 arrivals of 3 workers that move meanwhile."""
    center, workers = numbers(9), [numbers(9, seed=s) for s in (1, 2, 3)]
    tied = Tied(Spring(0.5, take_center=True), center, [w.clone() for w in workers])
    g = center.clone()
    for meeting in range(40):
        index = (meeting * meeting + 1) % 3
        drift = numbers(9, seed=100 + meeting)
        workers[index] = workers[index] + drift
        tied.workers[index] = tied.workers[index] + drift
        g = (g + workers[index]) / 2
        workers[index] = g.clone()
        tied.exchange(index)
        assert float((tied.center - g).abs().max()) < 1e-6
        assert float((tied.workers[index] - workers[index]).abs().max()) < 1e-6


def test_the_order_of_arrival_matters() -> None:
    """However commutative it is called."""

    def merged(order: tuple[int, ...]) -> Tensor:
        tied = Tied(Spring(0.5, take_center=True), numbers(5), [numbers(5, seed=s) for s in (1, 2, 3)])
        for index in order:
            tied.exchange(index)
        return tied.center.clone()

    results = [merged(order) for order in itertools.permutations(range(3))]
    assert min(float((a - b).abs().max()) for a, b in itertools.combinations(results, 2)) > 1e-3


@pytest.mark.parametrize("alpha", [0, 0.0, -0.1, 1.5, float("nan"), True, "0.5"])
def test_a_spring_that_does_not_pull_or_overshoots_is_refused(alpha: Any) -> None:
    with pytest.raises(ConfigError, match="alpha="):
        Elastic(alpha=alpha)


@pytest.mark.parametrize(("given", "named"), [({"lease": 0}, "lease="), ({"every": "5 min"}, "every=")])
def test_other_settings_that_cannot_work_are_refused(given: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Elastic(**given)


def workers(strategy: Any, count: int, held: CenterState | None = None, **options: Any) -> list[Trainee]:
    model, table = regression()
    held = held or CenterState()
    return [Trainee(held, index, count, strategy(), model, table, **options) for index in range(count)]


def test_the_default_pull_is_shared_by_all_workers() -> None:
    (first, *_) = workers(lambda: Elastic("2 steps"), 3)
    assert first.strategy.rule == Spring(0.3, take_center=False)


@pytest.mark.parametrize(
    ("every", "given", "lease"),
    [
        ("16 steps", {}, 160),  # the rows of a round
        ("1 step", {}, 80),  # but a few batches at least
        ("200 samples", {}, 200),
        ("205 samples", {}, 210),  # whole batches
        ("1 epoch", {}, 40),  # a fair share of an epoch, in a few parts: 1000 / 8 / 4 rows
        ("end", {}, 40),
        ("100 steps", {}, 250),  # no more than a fair share
        ("16 steps", {"block": 100}, 200),  # whole blocks
        ("16 steps", {"rows": 60}, 20),
        ("16 steps", {"rows": 6}, 6),
    ],
)
def test_leases_suit_rounds_batches_and_blocks(every: str, given: dict[str, int], lease: int) -> None:
    strategy = Elastic(every)
    strategy.join(Seat(CenterState(), 0, 4))
    assert strategy.plan_leases(**{"rows": 1000, "batch": 10, **given}).lease == lease


def test_a_lease_that_is_given_is_kept() -> None:
    strategy = Elastic("16 steps", lease=7)
    assert strategy.plan_leases(rows=1000, batch=10, end=500) == LeaseTerms(1000, 7, 500)
    assert strategy.plan_leases(rows=5, batch=10) == LeaseTerms(5, 5, None)


def test_a_worker_hears_at_its_next_meeting_that_all_are_to_stop() -> None:
    held = CenterState()
    trainees = workers(lambda: Elastic("2 steps", lease=20), 2, held, epochs=4)
    in_turn(trainees, updates=1)
    trainees[1].strategy.comm.center.ask_to_stop("it is late")
    assert [t.strategy.center_progress.stop for t in trainees if t.strategy.center_progress] == ["", ""]
    in_turn(trainees, updates=3)
    assert [t.strategy.center_progress.stop for t in trainees if t.strategy.center_progress] == [
        "it is late",
        "it is late",
    ]
    in_turn(trainees)
    assert held.status(0.0)["samples"] < 200, "nothing is leased any more"


def test_what_was_not_brought_yet_is_brought_at_the_end_and_once() -> None:
    held = CenterState()
    trainees = workers(lambda: Elastic("1000 steps", lease=20), 2, held, epochs=4)
    in_turn(trainees, updates=3)
    assert held.status(0.0)["samples"] == 0
    for trainee in 2 * trainees:
        trainee.strategy.finish(trainee.replica)
    assert held.status(0.0)["samples"] == sum(len(trainee.rows) for trainee in trainees) == 24
    assert held.version == 2
    for trainee in 2 * trainees:
        trainee.strategy.leave()
    assert trainees[0].strategy.agreed(trainees[0].replica)


def test_workers_without_a_meeting_are_independent_and_one_meeting_changes_them() -> None:
    """What would be alpha=0: nothing passes between them but at meetings."""
    never = workers(lambda: Elastic("1000 steps", lease=20), 2, epochs=4)
    alone = workers(lambda: Elastic("1000 steps", lease=20), 2, epochs=4)
    for trainee in never[:1]:
        in_turn([trainee], updates=4)
    in_turn(alone, updates=4)
    assert same(never[0].weights, alone[0].weights), "the other made no difference"
    alone[1].strategy.finish(alone[1].replica)
    alone[0].strategy.finish(alone[0].replica)
    assert not same(never[0].weights, alone[0].weights), "the control"


@pytest.mark.parametrize("kind", [Elastic, Asynchronous])
def test_every_end_is_one_meeting_of_each_worker_when_all_is_done(kind: Any) -> None:
    meetings: list[tuple[int, int]] = []

    def train() -> list[Any]:
        class Counted(kind):  # type: ignore[misc]
            def exchange(self, replica: Any) -> None:
                meetings.append((self.comm.shard.index, self._counters.steps))
                super().exchange(replica)

        model = torch.nn.Linear(4, 1)
        x = torch.randn(90, 4, generator=torch.Generator().manual_seed(0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = hr.Trainer(model, hr.MSE(), optimizer, batch_size=5, strategy=Counted("end"))
        return trainer.fit({"x": x, "y": x[:, :1]}, epochs=3, progress=False)["train/loss"]

    assert hr.launch(train, workers=3)
    assert [worker for worker, _ in sorted(meetings)] == [0, 1, 2]
    assert sum(step for _, step in meetings) == 3 * 90 / 5


TAKES: dict[str, Any] = {"alpha": 0.5, "take_center": True}


@pytest.mark.parametrize(
    ("every", "merge"),
    sampled(
        itertools.product(["3 steps", "10 samples", "1 epoch", "2 epochs", "end"], [{}, TAKES]),
        keep=[("10 samples", {}), ("3 steps", TAKES), ("end", {})],
        of=3,
    ),
    ids=str,
)
def test_every_row_is_used_once_and_the_center_learns(every: str, merge: dict[str, Any]) -> None:
    held = CenterState()
    before, _ = regression()
    trainees = workers(lambda: Elastic(every, **merge), 3, held, epochs=4)
    in_turn(trainees)
    rows = sorted(row for trainee in trainees for row in trainee.rows)
    assert rows == sorted(4 * [*range(50)])
    status = held.status(0.0)
    assert (status["samples"], status["epochs"], status["dropped"]) == (200, 4, 0)
    assert status["applied"] == status["version"] == sum(w["pushes"] for w in status["workers"].values())
    assert [w["rows"] for w in status["workers"].values()] == [len(t.rows) for t in trainees]
    assert status["tally"] == {"loss": [1.0, 200.0, 200.0]}
    assert all(
        torch.equal(a, held.weights[n])
        for n, a in trainees[0].replica.by_name(trainees[0].strategy.agreed(trainees[0].replica)).items()
    )
    assert held.weights["1.running_mean"].abs().sum() > 0, "buffers are tied too"
    assert apart(before.state_dict() | dict(held.weights), before.state_dict()) > 0.01


def loss_of(weights: dict[str, Tensor], model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.load_state_dict({**model.state_dict(), **weights})
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(x), y))


def test_the_center_gets_better() -> None:
    model, table = regression()
    batch = table.take(torch.arange(50))
    held = CenterState()
    before = loss_of({}, model, batch["x"], batch["y"])
    in_turn(workers(lambda: Elastic("4 steps"), 4, held, epochs=30, rate=0.2))
    assert loss_of(held.weights, model, batch["x"], batch["y"]) < 0.3 * before
