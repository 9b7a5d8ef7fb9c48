"""Says once, for each name of an older system, how it is written natively."""

import sys
import warnings
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent


def hint(name: str, native: str) -> None:
    """Warns once that a name has a native spelling."""
    warn_once(f"{name}: natively, {native}.")


@cache
def warn_once(sentence: str) -> None:
    """Warns once of each sentence, at the line outside of the dialects from which they were called."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _HERE in Path(frame.f_code.co_filename).parents:
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, DeprecationWarning, stacklevel=level)
