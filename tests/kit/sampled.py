"""Chooses which cases of a long list run today: some always run, of the others a different share runs each day."""

import os
import random
import time
import zlib
from collections.abc import Collection, Iterable
from typing import Any

DAY = "HEADRACE_TESTS_DAY"
"""The environment variable with the day that chooses the share; child processes inherit it."""
EVERY = "HEADRACE_TESTS_EVERY"
"""The environment variable that makes every case run, whatever its value; `scripts/test --nightly` sets it."""

os.environ.setdefault(DAY, str(int(time.time() // 86400)))


def sampled(cases: Iterable[Any], *, keep: Collection[Any] = (), of: int) -> list[Any]:
    """Returns the cases in `keep` and one in `of` of the others; after `of` days every case has run. Nightly, all run.

    `keep` holds cases, or the ids of cases that are `pytest.param`s.
    """
    cases = list(cases)
    if EVERY in os.environ:
        return cases
    kept = [n for n, case in enumerate(cases) if case in keep or getattr(case, "id", None) in keep]
    assert len(kept) >= len(keep), f"of {keep}, only {[cases[n] for n in kept]} are cases"
    others = sorted(set(range(len(cases))).difference(kept))
    random.Random(len(cases)).shuffle(others)  # neighbours are alike, and a share should hold some of every kind
    share = others[int(os.environ[DAY]) % of :: of]
    return [cases[n] for n in sorted([*kept, *share])]


def has_its_turn(name: str, *, of: int) -> bool:
    """Whether this test runs today: each runs once in `of` days."""
    return (zlib.crc32(name.encode()) + int(os.environ[DAY])) % of == 0


def report_header() -> str:
    """The line at the head of a run that says which cases are run, and how to repeat them."""
    if EVERY in os.environ:
        return "samples: every case of every list"
    return f"samples: those of day {os.environ[DAY]}; {DAY}={os.environ[DAY]} runs the same again"
