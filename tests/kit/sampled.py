"""Chooses which cases of long lists run every day: always the same ones. The nightly run has them all, and new ones."""

import os
import random
from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

EVERY = "HEADRACE_TESTS_EVERY"
"""The environment variable that makes every case run; its value is the date that new cases belong to.

`scripts/test --nightly` sets it to today's, and `scripts/test --nightly 20260131` repeats the cases of that night.
"""


def sampled(cases: Iterable[Any], *, keep: Collection[Any] = (), of: int | None = None) -> list[Any]:
    """Returns the cases in `keep` and one in `of` of the others (or none), always the same ones. Nightly, all run.

    `keep` holds cases, or the ids of cases that are `pytest.param`s.
    """
    cases = list(cases)
    if EVERY in os.environ:
        return cases
    kept = [n for n, case in enumerate(cases) if case in keep or getattr(case, "id", None) in keep]
    assert len(kept) >= len(keep), f"of {keep}, only {[cases[n] for n in kept]} are cases"
    others = sorted(set(range(len(cases))).difference(kept))
    random.Random(len(cases)).shuffle(others)  # neighbours are alike, and a share should hold some of every kind
    return [cases[n] for n in sorted([*kept, *(others[::of] if of else ())])]


def each(*lists: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Returns a few combinations that have every value of every list, always the same ones. Nightly, all run."""
    columns = [list(values) for values in lists]
    if EVERY in os.environ:
        return list(product(*columns))
    return [tuple(column[k % len(column)] for column in columns) for k in range(max(map(len, columns)))]


def nightly(*cases: Any) -> list[Any]:
    """Cases that run nightly alone: each differs from one that runs every day in what tests of its own hold."""
    return [*cases] if EVERY in os.environ else []


def seeds(count: int, *, nightly: int) -> range:
    """Returns numbers that cases are drawn with: the first `count`; nightly, as many as that of the date's own."""
    first = 10_000 * int(os.environ.get(EVERY, "0"))
    return range(first, first + (nightly if first else count))
