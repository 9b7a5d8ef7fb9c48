"""What dialects have in common: hints at native spellings, and names of new files."""

import sys
import warnings
from functools import cache
from itertools import count
from numbers import Integral
from pathlib import Path
from typing import Any

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


def new_file(folder: str, name: str) -> Path:
    """Makes an empty file in a folder of the working directory; a number is added to the name of one that exists."""
    path = first = Path.cwd() / folder / name
    first.parent.mkdir(parents=True, exist_ok=True)
    for number in count(2):
        try:
            path.touch(exist_ok=False)
            break
        except FileExistsError:
            path = first.with_stem(f"{first.stem}-{number}")
    return path


def as_count(value: Any, least: int = 1) -> int | None:
    """A whole number that is no less than this; `None` of anything else."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return int(value) if is_whole and int(value) >= least else None
