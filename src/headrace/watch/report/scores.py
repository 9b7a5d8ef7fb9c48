"""Scores a model's predictions: a confusion matrix, numbers for each class, residuals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...store import disk
from ...store.document import LARGE_BYTES, parse_document
from ...store.rows import Row

if TYPE_CHECKING:
    import numpy as np

LOOKED_AT = 30  # classes up to which a whole matrix is shown
MISTAKES = 10  # that are listed


@dataclass(slots=True)
class Predictions:
    """A model's predictions for test or validation data, row by row."""

    kind: str
    """ "classes", "labels" (any number of them at once), or "values"."""
    of: str
    """Which data: "test" or "val"."""
    target: np.ndarray
    answer: np.ndarray
    names: list[str]
    """Of the classes, the labels or the columns; numbers where they have no names."""
    step: int | None = None
    """The step whose weights have answered."""


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
    accuracy: float | None = None
    """The share of rows that are right; `None` for labels, several of which may be right."""
    matrix: list[list[int]] = field(default_factory=list)
    """Rows by class (down) and answer (across), where there are few enough classes to be looked at."""
    mistakes: list[tuple[int, str, str]] = field(default_factory=list)
    """The most frequent ones: rows, class, answer."""

    def mean(self, what: str, weighted: bool = False) -> float:
        """A number over all classes: each class counting the same, or each row."""
        weights = [one.support if weighted else 1 for one in self.classes]
        total = sum(weight * getattr(one, what) for weight, one in zip(weights, self.classes, strict=True))
        return float(total) / max(1, sum(weights))


@dataclass(slots=True)
class Residuals:
    """One column of values: what was wanted, what came, and how far apart they are."""

    name: str
    target: np.ndarray
    answer: np.ndarray
    r2: float
    mae: float
    rmse: float


def read_answers(path: Path) -> Predictions:
    """Reads answers.safetensors; raises ValueError on what makes no sense."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    data = disk.read_file(path, LARGE_BYTES)
    try:
        tensors = load(data)
        header = parse_document(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        facts = {key: parse_document(value) for key, value in header.items()}
        target, answer = tensors["target"], tensors["answer"]
        kind, names = str(facts["kind"]), [str(name) for name in facts["classes"]]
        count, step = int(facts["count"]), facts.get("step")
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"it does not hold what it should ({type(error).__name__}: {error})") from None
    if kind not in ("classes", "labels", "values") or target.shape != answer.shape or not len(target):
        raise ValueError(f"it holds {kind!r} of shape {target.shape} and answers of shape {answer.shape}")
    names = names if len(names) == count else [str(k) for k in range(count)]
    both = (target, answer)
    if kind == "classes" and (min(part.min() for part in both) < 0 or max(part.max() for part in both) >= count):
        raise ValueError(f"it holds classes that are not among its {count}")
    return Predictions(kind, str(facts["of"]), target, answer, names, step if isinstance(step, int) else None)


def scores(answers: Predictions | None, rows: Sequence[Row]) -> Scores | None:
    """The scores from predictions of classes; without any, from the last confusion matrix of the rows."""
    import numpy as np

    if answers is not None and answers.kind == "classes":
        pairs, counts = np.unique(
            np.stack([answers.target, answers.answer]).astype(np.int64), axis=1, return_counts=True
        )
        return _of_pairs(pairs, counts, answers.of, answers.names)
    if answers is not None:
        return _of_labels(answers) if answers.kind == "labels" else None
    for of in ("test", "val"):
        for row in reversed(rows):
            matrix = _square(row.get(f"{of}/confusion"))
            if matrix is not None:
                pairs = np.stack(np.nonzero(matrix))
                return _of_pairs(pairs, matrix[pairs[0], pairs[1]], of, [str(k) for k in range(len(matrix))])
    return None


def residuals(answers: Predictions | None, most: int) -> list[Residuals]:
    """The first columns of values that a model has answered."""
    import numpy as np

    if answers is None or answers.kind != "values":
        return []
    target, answer = (part.reshape(len(part), -1).astype(np.float64) for part in (answers.target, answers.answer))
    found = []
    for k in range(min(most, target.shape[1])):
        known = np.isfinite(target[:, k]) & np.isfinite(answer[:, k])
        wanted, came = target[known, k], answer[known, k]
        if len(wanted):
            apart = came - wanted
            spread = float(((wanted - wanted.mean()) ** 2).sum())
            r2 = 1 - float((apart**2).sum()) / spread if spread else float("nan")
            rmse = float(np.sqrt((apart**2).mean()))
            found.append(Residuals(answers.names[k], wanted, came, r2, float(np.abs(apart).mean()), rmse))
    return found


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


def _of_labels(answers: Predictions) -> Scores:
    target, answer = answers.target.astype(bool), answers.answer.astype(bool)
    hits, wanted, came = (target & answer).sum(axis=0), target.sum(axis=0), answer.sum(axis=0)
    classes = [_class(name, hits[k], wanted[k], came[k]) for k, name in enumerate(answers.names)]
    return Scores(answers.of, classes, len(target))


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
