"""Some of the cases of a long list, others each day: those that must always run, and a share that the day chooses."""

import os
import random
import time
import zlib
from collections.abc import Collection, Iterable
from typing import Any

DAY = "HEADRACE_TESTS_DAY"
"""The variable that says which share is run; set by the first process of a run, for all that follow."""
EVERY = "HEADRACE_TESTS_EVERY"
"""The variable that, set to anything, has every case run: `scripts/test --nightly` sets it."""

os.environ.setdefault(DAY, str(int(time.time() // 86400)))


def sampled(cases: Iterable[Any], *, keep: Collection[Any] = (), of: int) -> list[Any]:
    """The cases in `keep`, and one in `of` of the others: after `of` days each has had its turn. All of them nightly.

    A case is named in `keep` by itself, or by its id where it is a `pytest.param`.
    """
    cases = list(cases)
    if EVERY in os.environ:
        return cases
    kept = [n for n, case in enumerate(cases) if case in keep or getattr(case, "id", None) in keep]
    assert len(kept) >= len(keep), f"of {keep}, only {[cases[n] for n in kept]} are cases"
    others = sorted(set(range(len(cases))).difference(kept))
    random.Random(len(cases)).shuffle(others)  # neighbours are alike: a share has to hold some of every kind
    share = others[int(os.environ[DAY]) % of :: of]
    return [cases[n] for n in sorted([*kept, *share])]


def has_its_turn(name: str, *, of: int) -> bool:
    """Whether the day has chosen this one: one in `of`, and each once in `of` days."""
    return (zlib.crc32(name.encode()) + int(os.environ[DAY])) % of == 0


def told() -> str:
    """What a run says about it."""
    if EVERY in os.environ:
        return "samples: every case of every list"
    return f"samples: those of day {os.environ[DAY]}; {DAY}={os.environ[DAY]} runs the same again"
