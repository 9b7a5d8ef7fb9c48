"""Scores a classifier by its confusion matrix: numbers for each class, and the most frequent mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...store.document import Row

if TYPE_CHECKING:
    import numpy as np

LOOKED_AT = 30  # classes up to which a whole matrix is shown
MISTAKES = 10  # that are listed


@dataclass(slots=True)
class PerClass:
    """The scores of one class."""

    name: str
    support: int
    precision: float
    recall: float
    f1: float


@dataclass(slots=True)
class Scores:
    """The scores of a classifier."""

    of: str
    classes: list[PerClass]
    rows: int
    accuracy: float
    """The share of rows that are right."""
    matrix: list[list[int]] = field(default_factory=list)
    """Rows by class (down) and answer (across), where there are few enough classes to be looked at."""
    mistakes: list[tuple[int, str, str]] = field(default_factory=list)
    """The most frequent ones: rows, class, answer."""

    def mean(self, what: str, weighted: bool = False) -> float:
        """A number over all classes: each class counting the same, or each row."""
        weights = [one.support if weighted else 1 for one in self.classes]
        total = sum(weight * getattr(one, what) for weight, one in zip(weights, self.classes, strict=True))
        return float(total) / max(1, sum(weights))


def scores(rows: Sequence[Row]) -> Scores | None:
    """The scores from the last confusion matrix of the rows, of the test if there is one."""
    import numpy as np

    for of in ("test", "val"):
        for row in reversed(rows):
            matrix = _square(row.get(f"{of}/confusion"))
            if matrix is not None:
                pairs = np.stack(np.nonzero(matrix))
                return _of_pairs(pairs, matrix[pairs[0], pairs[1]], of, [str(k) for k in range(len(matrix))])
    return None


def _of_pairs(pairs: np.ndarray, counts: np.ndarray, of: str, names: Sequence[str]) -> Scores:
    """Scores from the pairs of class and answer that there are, and how often each comes."""
    import numpy as np

    size, rows, right = len(names), int(counts.sum()), pairs[0] == pairs[1]
    hits, wanted, came = (
        np.bincount(which, weights, minlength=size)
        for which, weights in ((pairs[0, right], counts[right]), (pairs[0], counts), (pairs[1], counts))
    )
    classes = [_class(name, hits[k], wanted[k], came[k]) for k, name in enumerate(names)]
    matrix = np.zeros((size, size) if size <= LOOKED_AT else (0, 0), dtype=np.int64)
    if matrix.size:
        matrix[pairs[0], pairs[1]] = counts
    wrong = [(int(n), names[i], names[j]) for i, j, n in zip(*pairs, counts, strict=True) if i != j]
    mistakes = sorted(wrong, key=lambda mistake: -mistake[0])[:MISTAKES]
    return Scores(of, classes, rows, float(hits.sum()) / max(1, rows), matrix.tolist(), mistakes)


def _class(name: str, hits: Any, wanted: Any, came: Any) -> PerClass:
    """A ratio whose denominator is 0 is 0, as scikit-learn has it."""
    both = int(wanted) + int(came)
    precision, recall = int(hits) / max(1, int(came)), int(hits) / max(1, int(wanted))
    return PerClass(name, int(wanted), precision, recall, 2 * int(hits) / max(1, both))


def _square(value: Any) -> np.ndarray | None:
    """A matrix of counts, if it is one; shares of rows, as a normalized one has, are not."""
    import numpy as np

    try:
        matrix = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not (matrix == np.floor(matrix)).all():
        return None
    return matrix.astype(np.int64) if (matrix >= 0).all() else None
