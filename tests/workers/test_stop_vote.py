"""The word between updates: what somebody wants is heard by all, once."""

import pytest

from headrace.train.vote import MOST_STEPS, VOTE_S, StopVote
from headrace.workers.comm import Null


class Clock(Null):
    """The voice of a worker whose steps take as long as a test says."""

    now_s = 0.0

    def now(self) -> float:
        return self.now_s


PACES = {"steps of 10 ms": 0.01, "steps of 150 ms": 0.15, "steps of 2 s": 2.0}
STEPS = 200


@pytest.mark.parametrize("due", [1, 50, 64])
@pytest.mark.parametrize("pace_s", PACES.values(), ids=PACES)
def test_a_checkpoint_that_is_due_by_the_clock_is_asked_for_once(pace_s: float, due: int) -> None:
    clock = Clock()
    word, overdue, saved = StopVote(clock), False, []
    for step in range(STEPS):
        clock.now_s += pace_s
        overdue = overdue or step == due
        said = word(False, False, overdue, False)
        if said is not None and said.save:
            overdue = False
            saved.append(step)
    assert len(saved) == 1
    assert 0 < saved[0] - due <= 2 * max(1, 2 * VOTE_S / pace_s)


@pytest.mark.parametrize("want", ["stop", "leave", "save"])
def test_where_all_wait_for_it_a_word_is_heard_at_once(want: str) -> None:
    word = StopVote(Clock())
    assert word(False, False, False, False) is None
    said = word(want == "stop", want == "leave", want == "save", True)
    assert said is not None
    assert (said.stop, said.leave, said.save) == (want == "stop", want == "leave", want == "save")


def test_a_word_is_a_rare_thing_where_steps_are_short_until_they_are_long() -> None:
    clock = Clock()
    word, heard, late = StopVote(clock), 0, []
    for _ in range(20 * MOST_STEPS):
        clock.now_s += 1e-6
        heard += word(False, False, False, False) is not None
    assert 20 <= heard < 40
    for _ in range(4 * MOST_STEPS):
        clock.now_s += 1
        late.append(word(False, False, False, False))
    assert None not in late[-3:]
