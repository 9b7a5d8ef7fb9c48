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
    mistakes: list[tuple[int, int, int]] = field(default_factory=list)
    """The most frequent ones: rows, class, answer."""

    def mean(self, what: str, weighted: bool = False) -> float:
        """A number over all classes: each class counting the same, or each row."""
        weights = [one.support if weighted else 1 for one in self.classes]
        total = sum(weight * getattr(one, what) for weight, one in zip(weights, self.classes, strict=True))
        return float(total) / max(1, sum(weights))


def scores(rows: Sequence[Row]) -> Scores | None:
    """The scores from the last confusion matrix of the rows, of the test if there is one."""
    matrices = ((of, _square(row.get(f"{of}/confusion"))) for of in ("test", "val") for row in reversed(rows))
    return next((_scores(matrix, of) for of, matrix in matrices if matrix is not None), None)


def _scores(matrix: np.ndarray, of: str) -> Scores:
    """Scores from counts of rows by class and answer. A ratio whose denominator is 0 is 0, as in scikit-learn."""
    import numpy as np

    hits, wanted, came = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    ratios = [(part / np.maximum(1, of_all)).tolist() for part, of_all in ((hits, came), (hits, wanted))]
    f1 = (2 * hits / np.maximum(1, wanted + came)).tolist()
    numbers = zip(wanted.tolist(), *ratios, f1, strict=True)
    places = np.stack(np.nonzero(matrix - np.diag(hits)))
    counts = matrix[places[0], places[1]]
    most = np.argsort(-counts, kind="stable")[:MISTAKES]
    return Scores(
        of,
        [PerClass(str(k), *each) for k, each in enumerate(numbers)],
        int(matrix.sum()),
        float(hits.sum()) / max(1, int(matrix.sum())),
        matrix.tolist() if len(matrix) <= LOOKED_AT else [],
        list(zip(counts[most].tolist(), *places[:, most].tolist(), strict=True)),
    )


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
