"""The ledger: whatever workers do, every row is used once, and what nobody will read any more is read by others."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.store.codec import decode, encode
from headrace.workers.center import Lease, LeaseTerms, NothingYet
from headrace.workers.ledger import Ledger, Ranges


def given(ledger: Ledger, worker: int) -> Lease:
    lease = ledger.lease(worker)
    assert isinstance(lease, Lease)
    return lease


def used_up(ledger: Ledger, worker: int) -> list[tuple[int, int]]:
    """Takes and uses leases until there are none; their bounds."""
    found = []
    while isinstance(lease := ledger.lease(worker), Lease):
        assert ledger.use(worker, [(lease.id, lease.start, lease.stop)])
        found.append((lease.start, lease.stop))
    return found


def test_leases_are_cut_at_the_ends_of_epochs_and_of_the_data() -> None:
    ledger = Ledger(LeaseTerms(rows=10, lease=4, end=23))
    assert used_up(ledger, 0) == [(0, 4), (4, 8), (8, 10), (10, 14), (14, 18), (18, 20), (20, 23)]
    assert (ledger.samples, ledger.epochs) == (23, 2)
    assert ledger.lease(0) is None


def test_without_an_end_there_are_always_leases() -> None:
    ledger = Ledger(LeaseTerms(rows=3, lease=2))
    assert [given(ledger, 0) for _ in range(4)][-1] == Lease(4, 5, 6)


def test_nothing_is_used_up_while_a_lease_is_out() -> None:
    ledger = Ledger(LeaseTerms(rows=4, lease=4, end=4))
    lease = given(ledger, 0)
    assert ledger.lease(1) == NothingYet()
    assert ledger.lease(0) == NothingYet(), "its own rows may become free again too"
    assert ledger.use(0, [(lease.id, 0, 4)])
    assert ledger.lease(1) is None


def test_what_a_worker_leaves_is_free_the_earliest_first_and_falls_into_the_same_places() -> None:
    ledger = Ledger(LeaseTerms(rows=100, lease=10))
    first, _, third = given(ledger, 0), given(ledger, 1), given(ledger, 0)
    assert ledger.use(0, [(first.id, 0, 3), (third.id, 24, 26)])
    ledger.leave(0)
    places = [(lease.start, lease.stop) for lease in (given(ledger, 2) for _ in range(4))]
    assert places == [(3, 10), (20, 24), (26, 30), (30, 40)]


def test_runs_that_are_free_next_to_each_other_are_leased_place_by_place() -> None:
    ledger = Ledger(LeaseTerms(rows=100, lease=10))
    lease, _ = given(ledger, 0), given(ledger, 0)
    assert ledger.use(0, [(lease.id, 0, 5)])
    ledger.leave(0)
    assert given(ledger, 1) == Lease(3, 5, 10)


@pytest.mark.parametrize(
    ("worker", "done"),
    [
        (1, [(1, 0, 4)]),  # somebody else's
        (0, [(9, 0, 4)]),  # nobody's
        (0, [(1, 0, 11)]),  # reaches out of it
        (0, [(1, -1, 4)]),
        (0, [(1, 4, 4)]),  # empty
        (0, [(1, 2, 4), (1, 3, 5)]),  # twice
        (0, [(1, 0, 4), (2, 0, 4)]),  # a row of the other lease
    ],
)
def test_what_was_not_leased_to_a_worker_is_not_used_and_nothing_beside_it(
    worker: int, done: list[tuple[int, int, int]]
) -> None:
    ledger = Ledger(LeaseTerms(rows=100, lease=10))
    given(ledger, 0), given(ledger, 0)
    assert not ledger.use(worker, done)
    assert ledger.samples == 0
    assert ledger.use(0, [(1, 0, 4), (2, 10, 12)]), "the control: those who may, can"
    assert not ledger.use(0, [(1, 3, 5)]), "not twice"


def test_a_late_word_about_a_lease_that_was_lost_is_not_believed() -> None:
    ledger = Ledger(LeaseTerms(rows=100, lease=10))
    old = given(ledger, 0)
    ledger.leave(0)
    new = given(ledger, 0)
    assert new == Lease(new.id, old.start, old.stop)
    assert new.id != old.id
    assert not ledger.use(0, [(old.id, 0, 10)])
    assert ledger.use(0, [(new.id, 0, 10)])


def test_ids_of_another_generation_are_others() -> None:
    state = Ledger(LeaseTerms(rows=100, lease=10)).state_dict()
    ledger = Ledger(LeaseTerms(rows=100, lease=10), first=1 << 32)
    ledger.load_state_dict(state)
    assert given(ledger, 0).id > 1 << 32


def test_rows_that_are_given_back_are_free_and_the_rest_of_the_lease_is_not() -> None:
    ledger = Ledger(LeaseTerms(rows=100, lease=10))
    lease = given(ledger, 0)
    ledger.free(0, [(lease.id, 2, 5), (77, 0, 9)])
    ledger.free(1, [(lease.id, 5, 10)])
    assert given(ledger, 1) == Lease(2, 2, 5)
    assert not ledger.use(0, [(lease.id, 2, 5)])
    assert ledger.use(0, [(lease.id, 0, 2), (lease.id, 5, 10)])


def test_only_whole_epochs_count() -> None:
    ledger = Ledger(LeaseTerms(rows=10, lease=10))
    leases = [given(ledger, 0) for _ in range(4)]
    for lease, stop, epochs in ((leases[0], 9, 0), (leases[2], 30, 1), (leases[1], 20, 2), (leases[3], 31, 2)):
        assert ledger.use(0, [(lease.id, lease.start, stop)])
        assert ledger.epochs == epochs
    assert ledger.use(0, [(leases[0].id, 9, 10)])
    assert (ledger.epochs, ledger.samples) == (3, 31)


def test_the_state_is_a_few_integers_however_much_was_used() -> None:
    ledger = Ledger(LeaseTerms(rows=1000, lease=10))
    for _ in range(2000):
        lease = given(ledger, 0)
        assert ledger.use(0, [(lease.id, lease.start, lease.stop)])
    assert ledger.state_dict() == {"used": [[0, 20000]], "next": 2000}


def test_positions_are_a_set() -> None:
    positions = Ranges()
    for run in ((5, 7), (1, 3), (3, 5), (9, 10)):
        positions.add(*run)
    assert (positions.ranges, len(positions)) == ([(1, 7), (9, 10)], 7)
    positions.remove(2, 9)
    assert positions.ranges == [(1, 2), (9, 10)]
    assert positions.covers(9, 10)
    assert not positions.covers(1, 10)


class Interleaved(RuleBasedStateMachine):
    """Workers, faults and saves in any order, beside a list that says of each position who has it."""

    def __init__(self) -> None:
        super().__init__()
        self.terms = LeaseTerms(rows=13, lease=5, end=31)
        self.ledger = Ledger(self.terms)
        self.committed: list[int] = []
        self.leases: dict[int, tuple[int, list[int]]] = {}
        self.lost: list[tuple[int, int, list[int]]] = []
        self.saved: tuple[dict[str, Any], list[int], dict[int, tuple[int, list[int]]]] | None = None

    def drop(self, lease: int) -> None:
        worker, rest = self.leases.pop(lease)
        self.lost.append((worker, lease, rest))

    @rule(worker=st.integers(0, 4))
    def takes(self, worker: int) -> None:
        found = self.ledger.lease(worker)
        taken = {*self.committed, *(p for _, rest in self.leases.values() for p in rest)}
        free = [p for p in range(31) if p not in taken]
        if not free:
            assert found == NothingYet() if self.leases else found is None
            return
        assert isinstance(found, Lease)
        assert found.id not in {*self.leases, *(lease for _, lease, _ in self.lost)}
        rows = list(range(found.start, found.stop))
        assert rows[0] == free[0]
        assert not taken & {*rows}
        assert len(rows) <= 5
        assert rows[0] // 13 == rows[-1] // 13
        self.leases[found.id] = (worker, rows)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), give_back=st.booleans())
    def uses(self, data: st.DataObject, give_back: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.leases)))
        worker, rest = self.leases[lease]
        if not rest:
            return
        start = data.draw(st.sampled_from(rest))
        stop = start + 1
        while stop in rest and data.draw(st.booleans()):
            stop += 1
        if give_back:
            self.ledger.free(worker, [(lease, start, stop)])
        else:
            assert self.ledger.use(worker, [(lease, start, stop)])
            self.committed += range(start, stop)
        self.leases[lease] = (worker, [p for p in rest if not start <= p < stop])
        if not self.leases[lease][1]:
            del self.leases[lease]

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def says_something_late(self, data: st.DataObject) -> None:
        worker, lease, rest = data.draw(st.sampled_from(self.lost))
        if rest:
            assert not self.ledger.use(worker, [(lease, rest[0], rest[0] + 1)])

    @rule(worker=st.integers(0, 4))
    def leaves(self, worker: int) -> None:
        self.ledger.leave(worker)
        for lease in [lease for lease, (owner, _) in self.leases.items() if owner == worker]:
            self.drop(lease)

    @rule()
    def saves(self) -> None:
        tensors: dict[str, Any] = {}
        state = decode(encode(self.ledger.state_dict(), tensors, "ledger", strict=True), tensors)
        self.saved = (state, list(self.committed), dict(self.leases))

    @precondition(lambda self: self.saved)
    @rule()
    def loads(self) -> None:
        assert self.saved is not None
        state, self.committed, held = self.saved[0], list(self.saved[1]), dict(self.saved[2])
        before, self.ledger = self.ledger, Ledger(self.terms, before_id(self.ledger))
        self.ledger.load_state_dict(state)
        assert before is not self.ledger
        for lease in list(self.leases):
            if lease not in held:
                self.drop(lease)
        self.leases = held
        self.lost = [lost for lost in self.lost if lost[1] not in held]
        for lease in list(held):
            self.drop(lease)

    @invariant()
    def counts_what_was_used(self) -> None:
        assert len(set(self.committed)) == len(self.committed) == self.ledger.samples
        whole = [e for e in range(2) if {*range(13 * e, 13 * e + 13)} <= {*self.committed}]
        assert self.ledger.epochs == len(whole)
        held: dict[int, list[int]] = {}
        for worker, rest in self.leases.values():
            held.setdefault(worker, []).extend(rest)
        assert {w: sorted(p for a, b in runs for p in range(a, b)) for w, runs in self.ledger.leases.items()} == {
            worker: sorted(rest) for worker, rest in held.items()
        }

    def teardown(self) -> None:
        """Whatever has happened: when those who hold rows leave, one worker can use up the rest."""
        for worker in range(5):
            self.ledger.leave(worker)
        for start, stop in used_up(self.ledger, 9):
            self.committed += range(start, stop)
        assert sorted(self.committed) == list(range(31))
        assert self.ledger.lease(9) is None


def before_id(ledger: Ledger) -> int:
    return int(ledger.state_dict()["next"])


Interleaved.TestCase.settings = settings(stateful_step_count=40)
TestWhateverHappens = Interleaved.TestCase
