"""Scores a classifier by its confusion matrix: numbers for each class, and the most frequent mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...store.document import Row

if TYPE_CHECKING:
    import numpy as np

LOOKED_AT = 30  # classes up to which a whole matrix is shown
MISTAKES = 10  # that are listed

Line = tuple[str, float, float, float, int]
"""A class, or how a mean is taken over all of them; precision, recall, F1, and rows."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a classifier."""

    of: str
    classes: list[Line]
    means: list[Line]
    """Over all classes: each class counting the same ("macro"), or each row ("weighted")."""
    rows: int
    accuracy: float
    """The share of rows that are right."""
    matrix: list[list[int]]
    """Rows by class (down) and answer (across), where there are few enough classes to be looked at."""
    mistakes: list[tuple[int, int, int]]
    """The most frequent ones: class, answer, rows."""


def scores(rows: Sequence[Row]) -> Scores | None:
    """The scores from the last confusion matrix of the rows, of the test if there is one."""
    matrices = ((of, _square(row.get(f"{of}/confusion"))) for of in ("test", "val") for row in reversed(rows))
    return next((_scores(matrix, of) for of, matrix in matrices if matrix is not None), None)


def _scores(matrix: np.ndarray, of: str) -> Scores:
    """Scores from counts of rows by class and answer. A ratio whose denominator is 0 is 0, as in scikit-learn."""
    import numpy as np

    hits, wanted, came, count = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0), int(matrix.sum())
    ratios = [part / np.maximum(1, total) for part, total in ((hits, came), (hits, wanted), (2 * hits, wanted + came))]
    weights = {"macro": np.ones(len(hits)), "weighted": wanted}
    means = {name: [float(weight @ each) / max(1, weight.sum()) for each in ratios] for name, weight in weights.items()}
    was, answer = np.nonzero(matrix - np.diag(hits))
    counts = matrix[was, answer]
    most = np.argsort(-counts, kind="stable")[:MISTAKES]
    return Scores(
        of,
        [*zip(map(str, range(len(hits))), *(each.tolist() for each in ratios), wanted.tolist(), strict=True)],
        [(name, *each, count) for name, each in means.items()],
        count,
        float(hits.sum()) / max(1, count),
        matrix.tolist() if len(matrix) <= LOOKED_AT else [],
        [*zip(was[most].tolist(), answer[most].tolist(), counts[most].tolist(), strict=True)],
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
