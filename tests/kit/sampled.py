"""Chooses which cases of a long list run every day: a fixed share of them. The nightly run has them all."""

import os
import random
import zlib
from collections.abc import Collection, Iterable
from typing import Any

EVERY = "HEADRACE_TESTS_EVERY"
"""The environment variable that makes every case run; `scripts/test --nightly` sets it."""


def sampled(cases: Iterable[Any], *, keep: Collection[Any] = (), of: int) -> list[Any]:
    """Returns the cases in `keep` and one in `of` of the others, always the same ones. Nightly, all run.

    `keep` holds cases, or the ids of cases that are `pytest.param`s.
    """
    cases = list(cases)
    if EVERY in os.environ:
        return cases
    kept = [n for n, case in enumerate(cases) if case in keep or getattr(case, "id", None) in keep]
    assert len(kept) >= len(keep), f"of {keep}, only {[cases[n] for n in kept]} are cases"
    others = sorted(set(range(len(cases))).difference(kept))
    random.Random(len(cases)).shuffle(others)  # neighbours are alike, and a share should hold some of every kind
    return [cases[n] for n in sorted([*kept, *others[::of]])]


def is_quick(name: str, *, of: int) -> bool:
    """Whether this test is one of the share, one in `of`, that the quick tier runs."""
    return zlib.crc32(name.encode()) % of == 0
