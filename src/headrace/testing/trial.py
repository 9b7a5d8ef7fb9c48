"""A trial holds something to its promises, counts what was compared, and names the promise that is broken."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..data.batch import Batch
from ..data.fields import has_rows
from .watch import Watch


@dataclass
class Report:
    """What was compared of each promise, and which ones did not apply."""

    subject: str
    checked: dict[str, int] = field(default_factory=dict)
    """How often each promise was found kept."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Promises that did not apply, and streams that could not be compared, and why."""

    def __str__(self) -> str:
        kept = ", ".join(f"{promise} ({times:,})" for promise, times in self.checked.items())
        lines = [f"{self.subject} keeps its promises: {kept}."]
        return "\n".join([*lines, *(f"  not checked: {promise}: {why}." for promise, why in self.skipped.items())])


class Trial:
    """Compares; an AssertionError says which promise was broken, where, what was expected and what came."""

    def __init__(self, promises: Mapping[str, str], limit_s: float) -> None:
        self.report = Report("what the factory makes")
        self._promises, self._watch = promises, Watch(limit_s)

    def run(self, work: Callable[[], None]) -> Report:
        """Does the checks, each call to what is tried under the time limit."""
        self._watch.run(work, lambda sentence: self._broken("calls", sentence))
        return self.report

    def that(self, promise: str, holds: bool, where: str, expected: object, got: object) -> None:
        """Raises unless it holds."""
        if not holds:
            raise self._broken(promise, f"{where}: expected {expected}, got {got}")
        self.report.checked[promise] = self.report.checked.get(promise, 0) + 1

    def equal(self, promise: str, expected: Any, got: Any, where: str) -> None:
        """Raises unless both are equal."""
        self.that(promise, bool(expected == got), where, expected, got)

    def skip(self, promise: str, why: str) -> None:
        """Notes that a promise does not apply."""
        self.report.skipped.setdefault(promise, why)

    def uncompared(self, batch: Batch) -> None:
        """Notes the streams of a batch whose values nobody can compare."""
        for name, held in batch.fields.items():
            if not has_rows(held):
                self.skip(f"stream {name!r}", f"it holds a {type(held).__name__}, whose values cannot be compared")

    def call(self, promise: str, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """What a call to the code that is tried gives; an error there breaks the promise."""
        try:
            with self._watch.during(what):
                return function(*args)
        except Exception as error:
            raise self._broken(promise, f"{what} raised {type(error).__name__}: {error}") from error

    def _broken(self, promise: str, sentence: str) -> AssertionError:
        rule = self._promises[promise]
        return AssertionError(
            f"{self.report.subject} broke the promise {promise!r}: {rule}.\n  {sentence.rstrip('.')}."
        )
