"""Every error a user can meet.

Each one says what was expected, what came and where, and what to do next; each is also
the builtin that a caller would think of catching.

    HeadraceError
    ├── ConfigError      (ValueError)       an argument or setting that cannot work
    ├── DataError        (ValueError)       rows, streams or targets that do not fit
    │   └── SourceError                     a source or table that broke its contract
    ├── ModelError       (ValueError)       a model or optimizer that cannot be trained as given
    ├── NonFiniteError   (ArithmeticError)  a NaN or an infinity in a loss, a gradient or a buffer
    ├── OutOfMemoryError (MemoryError)      a batch that the memory does not hold
    ├── RunError         (OSError)          a run directory that cannot be used: locked, full, not there
    ├── WorkerError      (RuntimeError)     another worker that failed, was lost or keeps the others waiting
    └── CheckpointError  (ValueError)       a checkpoint that cannot be used here
        └── CorruptError                    one whose bytes are not those that were written
"""

from collections.abc import Iterable
from difflib import get_close_matches

_OUT_OF_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")


class HeadraceError(Exception):
    """The root of the tree; never raised itself."""


class ConfigError(HeadraceError, ValueError):
    """An argument or a setting that cannot work; `argument` is the name of the one that is meant, if it is one."""

    def __init__(self, *said: object, argument: str = "") -> None:
        super().__init__(*said)
        self.argument = argument


class DataError(HeadraceError, ValueError):
    """Rows, streams or targets that do not fit each other or the model."""


class SourceError(DataError):
    """A source or a table that broke its contract."""


class ModelError(HeadraceError, ValueError):
    """A model or an optimizer that cannot be trained as given."""


class NonFiniteError(HeadraceError, ArithmeticError):
    """A NaN or an infinity in a loss, a gradient or a buffer; the weights are as they were before the step.

    Or an optimizer has made a weight NaN or infinite out of finite gradients; such a step cannot be undone.
    """


class OutOfMemoryError(HeadraceError, MemoryError):
    """A batch that the memory does not hold; the model is as it was before the step."""


class RunError(HeadraceError, OSError):
    """A run directory that cannot be used: another trainer is in it, it cannot be written, there is no room."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # an OSError with a number would say that instead


class WorkerError(HeadraceError, RuntimeError):
    """Another worker failed, was lost, or keeps the others waiting; the message says which one, where and why."""


class CheckpointError(HeadraceError, ValueError):
    """A checkpoint that cannot be used here: of another model, other data, another version."""


class CorruptError(CheckpointError):
    """A checkpoint whose bytes are not those that were written."""


def unknown(what: str, got: object, known: Iterable[str]) -> str:
    """One sentence for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    lowered = {name.lower(): name for name in names}
    close = get_close_matches(got.lower(), lowered, n=1) if isinstance(got, str) else []
    hint = f"Did you mean {lowered[close[0]]!r}?" if close else f"Choose one of: {', '.join(names)}."
    return f"unknown {what} {got!r}. {hint}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is how Python or torch says that memory has run out; torch raises a RuntimeError like any other."""
    if not isinstance(error, RuntimeError) or isinstance(error, WorkerError):  # which may speak of another's memory
        return isinstance(error, MemoryError)
    return any(text in str(error).lower() for text in _OUT_OF_MEMORY)
