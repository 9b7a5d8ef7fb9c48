"""The center: what a worker brings is applied once with its rows, or not at all, whoever dies and whatever is lost."""

import math
import pickle
import re
import time
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kit.center_workers import Marks
from kit.toy_workers import through_codec
from torch import Tensor

from headrace.errors import CheckpointError, ConfigError, WorkerError
from headrace.workers.asynchronous import Descent
from headrace.workers.center import Center, Lease, LeaseTerms, NothingYet, Patience, Push, Reply
from headrace.workers.center_state import REMEMBERED, CenterState, LocalCenter
from headrace.workers.comm import Null
from headrace.workers.elastic import Spring

TERMS = LeaseTerms(rows=10, lease=4, end=20)
START = {"w": torch.zeros(3)}
SPRING = Spring(0.5, take_center=False)


class Bounded(Marks):
    """Takes no push that is older than two."""

    def apply(self, center: Any, push: Push, staleness: int) -> Any:
        return super().apply(center, push, staleness) if staleness <= 2 else None


def joined(rule_: Any = None, workers: int = 1, terms: LeaseTerms = TERMS, **options: Any) -> CenterState:
    held = CenterState(**options)
    for worker in range(workers):
        assert isinstance(held.join(worker, 0.0, rule_ or Marks(), terms, START), Reply)
    return held


def lease_of(held: CenterState, worker: int, number: int = 1, now: float = 0.0) -> Lease:
    found = held.lease(worker, now, number)
    assert isinstance(found, Lease)
    return found


def push_of(lease: Lease, sequence: int = 1, base: int = 0, value: float = 1.0) -> Push:
    done = [(lease.id, lease.start, lease.stop)]
    return Push(sequence, base, {"w": torch.full((3,), value)}, lease.stop - lease.start, done)


def counts(held: CenterState) -> list[int]:
    status = held.status(0.0)
    return [status[key] for key in ("applied", "dropped", "lost", "repeated", "samples")]


# --- who begins -------------------------------------------------------------------------------------------


def test_worker_0_gives_the_weights_and_the_others_wait_for_them() -> None:
    held = CenterState()
    assert isinstance(held.join(4, 0.0, Marks(), TERMS, {"w": torch.full((3,), 2.0)}), NothingYet)
    for worker, value in ((0, 1.0), (4, 2.0)):
        reply = held.join(worker, 0.0, Marks(), TERMS, {"w": torch.full((3,), value)})
        assert isinstance(reply, Reply)
        assert (reply.version, reply.samples, reply.taken, reply.stop) == (0, 0, True, "")
        assert reply.vectors["w"].tolist() == [1.0, 1.0, 1.0]


def test_whoever_comes_when_all_is_over_finds_nothing_left_to_read() -> None:
    held = joined(terms=LeaseTerms(4, 4, 4))
    held.exchange(0, 0.0, push_of(lease_of(held, 0)))
    held.leave(0)
    late = held.join(3, 0.0, Marks(), LeaseTerms(4, 4, 4), START)
    assert isinstance(late, Reply)
    assert (late.version, late.samples) == (1, 4)
    assert held.lease(3, 0.0, 1) is None
    held.leave(3)
    assert isinstance(held.join(3, 0.0, Marks(), TERMS, START, training=2), NothingYet), "worker 0 begins the next one"
    assert isinstance(held.join(0, 0.0, Marks(), TERMS, START, training=2), Reply)
    assert held.join(4, 0.0, Marks(), TERMS, START) is None, "the first one is over"
    again = held.join(3, 0.0, Marks(), TERMS, START, training=2)
    assert isinstance(again, Reply)
    assert again.samples == 0


def test_the_weights_that_were_given_stay_the_workers_own() -> None:
    mine = {"w": torch.zeros(3)}
    held = CenterState()
    held.join(0, 0.0, Marks(), TERMS, mine)
    held.exchange(0, 0.0, push_of(lease_of(held, 0)))
    assert mine["w"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"weights": {"w": torch.zeros(4)}}, CheckpointError, r"'w' is float32\[3\] at the center.*float32\[4\]"),
        ({"weights": {"w": torch.zeros(3, dtype=torch.float64)}}, CheckpointError, r"float64\[3\]"),
        ({"weights": {"w": torch.zeros(3), "b": torch.zeros(1)}}, CheckpointError, "only a worker has 'b'"),
        ({"weights": {}}, CheckpointError, "only the center has 'w'"),
        ({"rule_": SPRING}, ConfigError, "different strategies.*Spring"),
        ({"terms": LeaseTerms(11, 4, 20)}, ConfigError, "10 rows at the center and has 11 here"),
        ({"terms": LeaseTerms(10, 4, 30)}, ConfigError, "20 and 30"),
    ],
)
def test_who_is_not_like_the_others_is_refused(options: dict[str, Any], error: Any, message: str) -> None:
    held = joined()
    given = {"rule_": Marks(), "terms": TERMS, "weights": START, **options}
    with pytest.raises(error, match=message):
        held.join(1, 0.0, given["rule_"], given["terms"], given["weights"])
    held.join(1, 0.0, Marks(), LeaseTerms(10, 5, 20), START)
    assert lease_of(held, 1).stop == 4, "the first worker's word for the size of a lease holds"


def test_nobody_meets_a_center_that_has_not_begun() -> None:
    held = CenterState()
    for call in (lambda: held.lease(0, 0.0, 1), lambda: held.pull(0, 0.0), lambda: held.state_dict()):
        with pytest.raises(WorkerError, match="nobody has joined"):
            call()
    held.leave(0)
    held.leave(0)


# --- once, or not at all ----------------------------------------------------------------------------------


def test_a_push_is_applied_and_its_rows_are_used() -> None:
    held = joined()
    reply = held.exchange(0, 0.0, push_of(lease_of(held, 0)))
    assert (reply.version, reply.taken, reply.samples, reply.epochs) == (1, True, 4, 0)
    assert reply.vectors["w"].tolist() == [1.0, 1.0, 1.0]
    assert counts(held) == [1, 0, 0, 0, 4]


def test_a_push_that_comes_again_is_answered_again_and_not_applied() -> None:
    held = joined(SPRING)
    push = push_of(lease_of(held, 0), value=8.0)
    first, again = held.exchange(0, 0.0, push), held.exchange(0, 0.0, push)
    assert first.vectors["w"].tolist() == again.vectors["w"].tolist() == [4.0, 4.0, 4.0]
    assert (again.taken, again.version) == (True, 1)
    assert held.weights["w"].tolist() == [4.0, 4.0, 4.0]
    assert counts(held) == [1, 0, 0, 1, 4]


def test_when_the_answer_is_forgotten_the_worker_gets_the_centers_weights() -> None:
    held = joined(SPRING, workers=REMEMBERED + 2, terms=LeaseTerms(100, 2))
    first = push_of(lease_of(held, 0), value=8.0)
    held.exchange(0, 0.0, first)
    for worker in range(1, REMEMBERED + 1):
        held.exchange(worker, 0.0, push_of(lease_of(held, worker), value=0.0))
    again = held.exchange(0, 0.0, first)
    assert again.vectors is held.weights
    assert (again.taken, again.version) == (True, REMEMBERED + 1)
    assert counts(held)[3] == 1


def test_a_push_of_rows_that_are_lost_is_not_taken_and_those_that_are_not_become_free() -> None:
    held = joined(workers=2)
    old, other = lease_of(held, 0), lease_of(held, 0, 2)
    held.ledger.free(0, [(old.id, 0, 1)])
    push = Push(1, 0, {"w": torch.ones(3)}, 6, [(old.id, 0, 4), (other.id, 4, 6)])
    reply = held.exchange(0, 0.0, push)
    assert (reply.taken, reply.samples) == (False, 0)
    assert held.weights["w"].tolist() == [0.0, 0.0, 0.0]
    assert counts(held) == [0, 1, 1, 0, 0]
    assert [lease_of(held, 1, n) for n in (1, 2)] == [Lease(3, 0, 4), Lease(4, 4, 6)]
    held.exchange(0, 0.0, push)
    assert counts(held) == [0, 2, 2, 0, 0], "nor when it comes again"
    rest = Push(1, 0, {"w": torch.ones(3)}, 2, [(other.id, 6, 8)])
    assert held.exchange(0, 0.0, rest).taken, "what it has not brought is still its own"


def test_what_the_rule_does_not_take_is_dropped_and_free() -> None:
    held = joined(Bounded(), workers=2, terms=LeaseTerms(100, 2))
    old = lease_of(held, 0)
    for sequence in range(1, 4):
        held.exchange(1, 0.0, push_of(lease_of(held, 1, sequence), sequence, base=sequence - 1))
    push = push_of(old)
    reply = held.exchange(0, 0.0, push)
    assert not reply.taken
    assert reply.vectors["w"].tolist() == [3.0, 3.0, 3.0]
    again = held.exchange(0, 0.0, push)
    assert not again.taken
    assert counts(held) == [3, 1, 0, 1, 6]
    assert lease_of(held, 1, 9).start == 0
    assert held.counts.staleness == {0: 3, 3: 1}


def test_a_push_from_a_version_that_has_not_been_yet_is_not_taken() -> None:
    """Its center was lost, and this one is an older copy of it."""
    held = joined()
    assert not held.exchange(0, 0.0, push_of(lease_of(held, 0), base=3)).taken
    assert counts(held) == [0, 1, 1, 0, 0]


def test_a_push_of_another_model_changes_nothing() -> None:
    held = joined()
    lease = lease_of(held, 0)
    with pytest.raises(CheckpointError, match="a worker pushes"):
        held.exchange(0, 0.0, Push(1, 0, {"w": torch.ones(4)}, 4, [(lease.id, 0, 4)]))
    assert held.exchange(0, 0.0, push_of(lease)).taken


def test_a_request_that_comes_again_gets_the_same_rows() -> None:
    held = joined()
    assert lease_of(held, 0, 1) == lease_of(held, 0, 1) == Lease(1, 0, 4)
    assert lease_of(held, 0, 2) == Lease(2, 4, 8)


def test_who_joins_anew_has_lost_its_leases_and_counts_from_one_again() -> None:
    held = joined(workers=2)
    old = lease_of(held, 0)
    held.exchange(0, 0.0, Push(1, 0, {"w": torch.ones(3)}, 2, [(old.id, 0, 2)]))
    held.join(0, 0.0, Marks(), TERMS, START)
    late = Push(2, 1, {"w": torch.ones(3)}, 2, [(old.id, 2, 4)])
    assert not held.exchange(0, 0.0, late).taken, "from its life before"
    new = lease_of(held, 0)
    assert (new.start, new.stop) == (2, 4)
    assert held.exchange(0, 0.0, push_of(new, sequence=1, base=1)).samples == 4


def test_the_rows_of_a_silent_worker_are_read_by_others() -> None:
    held = joined(workers=2, timeout_s=5.0)
    old = lease_of(held, 0)
    assert lease_of(held, 1, 1, now=4.0).start == 4
    assert lease_of(held, 1, 2, now=6.0).start == 0
    assert not held.exchange(0, 7.0, push_of(old)).taken
    assert lease_of(held, 0, 2, now=7.0).start == 8, "and it goes on with others"


def test_a_worker_is_silent_after_the_timeout_and_one_that_calls_keeps_its_rows() -> None:
    held = joined(workers=2, timeout_s=5.0)
    lease_of(held, 0)
    lease_of(held, 1, now=3.0)
    assert lease_of(held, 1, 2, now=5.0).start == 8, "5 s are not longer than 5 s"
    assert lease_of(held, 1, 3, now=5.5).start == 0
    assert set(held.ledger.leases) == {1}


def test_nothing_is_leased_once_somebody_has_asked_to_stop() -> None:
    held = joined()
    lease = lease_of(held, 0)
    held.ask_to_stop("the weather")
    held.ask_to_stop("another reason")
    assert held.lease(0, 0.0, 2) is None
    assert held.exchange(0, 0.0, push_of(lease)).stop == "the weather"


# --- trainings one after the other ------------------------------------------------------------------------


def test_the_next_training_begins_when_all_have_ended_this_one() -> None:
    held = joined(workers=2)
    held.exchange(0, 0.0, push_of(lease_of(held, 0)))
    held.leave(0)
    assert held.pull(0, 0.0).vectors["w"].tolist() == [1.0, 1.0, 1.0]
    other = {"w": torch.full((3,), 7.0)}
    waits = held.join(0, 0.0, SPRING, LeaseTerms(5, 1), other, training=2)
    assert isinstance(waits, NothingYet)
    assert (waits.workers, waits.what) == ((1,), "to leave training 1")
    held.leave(1)
    reply = held.join(0, 0.0, SPRING, LeaseTerms(5, 1), other, training=2)
    assert isinstance(reply, Reply)
    assert (reply.vectors["w"].tolist(), reply.version, held.ledger.terms) == ([7.0, 7.0, 7.0], 0, LeaseTerms(5, 1))
    assert counts(held) == [0, 0, 0, 0, 0]


def test_who_is_silent_is_not_waited_for() -> None:
    held = joined(workers=2, timeout_s=5.0)
    held.leave(0)
    assert isinstance(held.join(0, 5.0, Marks(), TERMS, START, training=2), NothingYet)
    assert isinstance(held.join(0, 5.5, Marks(), TERMS, START, training=2), Reply)


@pytest.mark.parametrize("others_end", [False, True])
def test_who_was_lost_comes_back_into_the_same_training(others_end: bool) -> None:
    held = joined(workers=2)
    held.exchange(0, 0.0, push_of(lease_of(held, 0)))
    lease_of(held, 1)
    held.leave(1)
    held.leave(1)
    if others_end:
        held.leave(0)
    reply = held.join(1, 0.0, Marks(), TERMS, START)
    assert isinstance(reply, Reply)
    assert (reply.version, reply.samples) == (1, 4)
    assert lease_of(held, 1).start == 4


def test_views_wait_for_the_others_to_end() -> None:
    held, pauses = joined(workers=2), []

    def pause() -> None:
        pauses.append(1)
        if len(pauses) == 3:
            held.leave(1)

    view = LocalCenter(held, 0, lambda: 0.0, pause)
    assert view.join(Marks(), TERMS, START).version == 0
    view.leave()
    assert view.join(Marks(), TERMS, START).version == 0
    assert len(pauses) == 3


def test_a_wait_ends_when_nothing_is_heard_of_those_that_are_waited_for() -> None:
    held, clock = joined(workers=2, terms=LeaseTerms(4, 4, 4), timeout_s=math.inf), [0.0]
    lease, patience = lease_of(held, 0), Patience(1, 5.0, lambda: clock[0])
    message = (
        "worker 1 has waited at the center for worker 0 to train with the rows that they have been given, of whom "
        "nothing was heard for 5 s. If they may take longer, raise timeout_s."
    )
    for clock[0] in (0.0, 4.0, 8.0):
        found = held.lease(1, clock[0], 1)
        assert isinstance(found, NothingYet)
        patience.check(found)
        if clock[0] == 4.0:
            held.exchange(0, clock[0], Push(1, 0, {"w": torch.ones(3)}, 2, [(lease.id, 0, 2)]))
    clock[0] = 12.9
    patience.check(found)
    clock[0] = 13.1
    with pytest.raises(WorkerError, match=re.escape(message)):
        patience.check(found)


def test_who_waits_for_worker_0_to_begin_is_told_so() -> None:
    clock = [0.0]

    def pause() -> None:
        clock[0] += 1.0

    with pytest.raises(WorkerError, match="worker 1 has waited at the center for worker 0 to begin training 1, of"):
        LocalCenter(CenterState(timeout_s=5.0), 1, lambda: clock[0], pause).join(Marks(), TERMS, START)


# --- views and states -------------------------------------------------------------------------------------


def test_what_a_view_gives_does_not_change_when_others_go_on() -> None:
    held = CenterState()
    one, two = LocalCenter(held, 0), LocalCenter(held, 1)
    replies = [one.join(Marks(), TERMS, START), two.join(Marks(), TERMS, START)]
    state = one.state_dict()
    lease = two.lease()
    assert isinstance(lease, Lease)
    replies += [one.pull(), two.exchange(push_of(lease))]
    mine = one.lease()
    assert isinstance(mine, Lease)
    one.exchange(push_of(mine))
    assert [reply.vectors["w"][0].item() for reply in replies] == [0.0, 0.0, 0.0, 1.0]
    assert state["weights"]["w"].tolist() == [0.0, 0.0, 0.0]
    assert one.pull().vectors["w"].tolist() == [2.0, 2.0, 2.0]


def test_a_worker_alone_has_a_center_of_its_own() -> None:
    comm = Null()
    center: Center = comm.center
    assert center is comm.center
    center.join(Marks(), TERMS, START)
    while isinstance(lease := center.lease(), Lease):
        center.exchange(push_of(lease, sequence=lease.id, base=lease.id - 1))
    assert center.status()["samples"] == 20
    center.leave()


def test_a_worker_alone_waits_there_no_longer_than_it_was_told() -> None:
    center = Null(timeout_s=5.0).center
    center.join(Marks(), LeaseTerms(4, 4, 4), START)
    held, silent_since = center.held, time.monotonic() - 10.0
    held.join(1, silent_since, Marks(), held.ledger.terms, START)
    lease_of(held, 1, now=silent_since)
    found = center.lease()
    assert isinstance(found, Lease), "those rows are free"
    assert (found.start, found.stop) == (0, 4)


def test_rules_are_plain_values_that_travel_and_compare() -> None:
    for rule_ in (SPRING, Descent(1.0, 4, True, None)):
        assert pickle.loads(pickle.dumps(rule_)) == rule_


def test_the_state_holds_who_has_pushed_what_and_which_rows_were_used() -> None:
    held = joined(Bounded(), workers=2)
    first, second = lease_of(held, 0), lease_of(held, 1)
    push = Push(1, 0, {"w": torch.ones(3)}, 2, [(first.id, 0, 2)], tally={"loss": [0.5, 3.0, 2.0]})
    held.exchange(0, 0.0, push)
    state = through_codec(held.state_dict())
    again = CenterState(generation=1)
    again.load_state_dict(state)
    again.rule = Bounded()
    assert counts(again) == counts(held) == [1, 0, 0, 0, 2]
    assert again.counts.tally == {"loss": [0.5, 3.0, 2.0]}
    assert again.ledger.terms == TERMS
    assert again.exchange(0, 0.0, push).taken, "it had been applied"
    assert again.weights["w"].tolist() == [1.0, 1.0, 1.0]
    assert not again.exchange(1, 0.0, push_of(second)).taken, "what was leased is free"
    assert lease_of(again, 1) == Lease((1 << 32) + 1, 2, 4)
    tensors = [value for value in state["weights"].values() if isinstance(value, Tensor)]
    assert torch.equal(tensors[0], torch.ones(3)), "the center has its own"


def test_worker_0_brings_the_state_to_go_on_from() -> None:
    held = joined(workers=2)
    first = lease_of(held, 0)
    held.exchange(0, 0.0, Push(1, 0, {"w": torch.ones(3)}, 2, [(first.id, 0, 2)]))
    state = held.state_dict()
    again = CenterState()
    assert isinstance(again.join(1, 0.0, Marks(), LeaseTerms(10, 4, 40), START), NothingYet)
    for worker in (0, 1):
        reply = again.join(worker, 0.0, Marks(), LeaseTerms(10, 4, 40), START, state)
        assert isinstance(reply, Reply)
        assert (reply.version, reply.vectors["w"].tolist()) == (1, [1.0, 1.0, 1.0])
    assert again.exchange(0, 0.0, Push(1, 1, {"w": torch.ones(3)}, 2, [(lease_of(again, 0).id, 2, 4)])).taken
    assert counts(again) == [2, 0, 0, 0, 4]
    assert again.ledger.terms.end == 40, "limits may have grown"
    other = CenterState()
    with pytest.raises(ConfigError, match="10 rows at the center and has 9 here"):
        other.join(0, 0.0, Marks(), LeaseTerms(9, 4, 40), START, state)


def test_the_status_is_for_a_person_to_see() -> None:
    held = joined(workers=2)
    held.exchange(1, 3.0, push_of(lease_of(held, 1, now=2.0)))
    lease_of(held, 0)
    assert held.status(5.0) == {
        "training": 1,
        "version": 1,
        "samples": 4,
        "epochs": 0,
        "applied": 1,
        "dropped": 0,
        "lost": 0,
        "repeated": 0,
        "staleness": {0: 1},
        "tally": {},
        "workers": {
            0: {"pushes": 0, "rows": 0, "leased": 4, "silent_s": 5.0, "inside": True},
            1: {"pushes": 1, "rows": 4, "leased": 0, "silent_s": 2.0, "inside": True},
        },
    }


# --- whatever happens -------------------------------------------------------------------------------------

END = 26
DATA = LeaseTerms(rows=12, lease=5, end=END)


class Worker:
    """What a worker knows: it may be killed, and its words may be lost or come again, late."""

    def __init__(self, number: int) -> None:
        self.number, self.sequence, self.requests, self.base = number, 0, 0, 0
        self.leases: list[Lease] = []
        self.done: list[tuple[int, int, int]] = []


class Anything(RuleBasedStateMachine):
    """Rows are marked in the weights when a push is applied: at the end each is marked once."""

    def __init__(self) -> None:
        super().__init__()
        self.held = CenterState(timeout_s=10.0)
        self.generation, self.now = 0, 0.0
        self.workers: dict[int, Worker] = {}
        self.said: list[tuple[int, Push]] = []
        self.saved: dict[str, Any] | None = None
        self.joins(0)

    @rule(number=st.integers(0, 3))
    def joins(self, number: int) -> None:
        """For the first time, or again after it was killed."""
        reply = self.held.join(number, self.now, Bounded(), DATA, {"w": torch.zeros(END)})
        assert isinstance(reply, Reply)
        worker = self.workers[number] = Worker(number)
        worker.base = reply.version

    @rule(number=st.integers(0, 3), lost=st.booleans())
    def asks_for_rows(self, number: int, lost: bool) -> None:
        if (worker := self.workers.get(number)) is None:
            return
        worker.requests += 1
        found = self.held.lease(number, self.now, worker.requests)
        if lost:
            repeated = self.held.lease(number, self.now, worker.requests)
            assert repeated == found
        if isinstance(found, Lease):
            worker.leases.append(found)

    @rule(number=st.integers(0, 3), rows=st.integers(1, 5))
    def reads(self, number: int, rows: int) -> None:
        worker = self.workers.get(number)
        if worker is None or not worker.leases:
            return
        lease = worker.leases.pop(0)
        stop = min(lease.stop, lease.start + rows)
        worker.done.append((lease.id, lease.start, stop))
        if stop < lease.stop:
            worker.leases.insert(0, Lease(lease.id, stop, lease.stop))

    @rule(number=st.integers(0, 3), fate=st.sampled_from(["arrives", "twice", "no answer", "late"]))
    def pushes(self, number: int, fate: str) -> None:
        worker = self.workers.get(number)
        if worker is None or not worker.done:
            return
        marks = torch.zeros(END)
        for _, start, stop in worker.done:
            marks[start:stop] += 1
        push = Push(worker.sequence + 1, worker.base, {"w": marks}, int(marks.sum()), list(worker.done))
        self.said.append((number, push))
        if fate == "late":  # the worker is killed before it arrives
            del self.workers[number]
            return
        reply = self.held.exchange(number, self.now, push)
        if fate != "arrives":  # the answer was lost, or the push came twice: an answer is given again
            again = self.held.exchange(number, self.now, push)
            assert again.taken == reply.taken
            reply = again
        if fate == "no answer":
            del self.workers[number]
            return
        worker.sequence, worker.base, worker.done = push.sequence, reply.version, []

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def hears_something_again(self, data: st.DataObject) -> None:
        number, push = data.draw(st.sampled_from(self.said))
        self.held.exchange(number, self.now, push)

    @rule(number=st.integers(0, 3))
    def is_lost(self, number: int) -> None:
        self.held.leave(number)
        self.workers.pop(number, None)

    @rule(seconds=st.sampled_from([2.0, 8.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def saves(self) -> None:
        self.saved = through_codec(self.held.state_dict())

    @precondition(lambda self: self.saved is not None)
    @rule()
    def is_lost_itself(self) -> None:
        """The center begins anew from what was saved, while the workers go on."""
        assert self.saved is not None
        self.generation += 1
        self.held = CenterState(self.generation, timeout_s=10.0)
        self.held.load_state_dict(self.saved)
        self.held.rule = Bounded()

    @invariant()
    def the_weights_have_learnt_from_the_rows_that_are_recorded(self) -> None:
        marks = self.held.weights["w"]
        runs = self.held.state_dict()["ledger"]["used"]
        expected = torch.zeros(END)
        for start, stop in runs:
            expected[start:stop] = 1
        assert torch.equal(marks, expected)
        status = self.held.status(self.now)
        assert status["samples"] == sum(worker["rows"] for worker in status["workers"].values())
        assert status["applied"] == status["version"]

    def teardown(self) -> None:
        """All but one are lost: that one uses up the rest."""
        for number in range(4):
            self.held.leave(number)
        self.joins(9)
        worker = self.workers[9]
        for _ in range(100):
            self.asks_for_rows(9, lost=False)
            if not worker.leases:
                break
            self.reads(9, rows=5)
            self.pushes(9, "arrives")
        assert torch.equal(self.held.weights["w"], torch.ones(END))
        assert self.held.lease(9, self.now, 999) is None


Anything.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestWhateverHappens = Anything.TestCase
