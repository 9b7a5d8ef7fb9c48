"""What to write instead: a hint for each name once, and a sentence for what is not offered."""

import warnings
from typing import Any

from ...errors import ConfigError

PAGE = "docs/compatibility.md"
_told: set[str] = set()


def hint(name: str, native: str) -> None:
    """Warns once that a name of CNTK's has a native spelling."""
    if name not in _told:
        _told.add(name)
        warnings.warn(f"cntk.{name}: natively {native}. See {PAGE}.", DeprecationWarning, stacklevel=3)


def not_offered(name: str, native: str) -> Any:
    """A function that says, when it is called, that this name of CNTK's is not offered."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError(f"cntk.{name} is not offered here. {native}")

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    refuse.__doc__ = f"Not offered. {native}"
    return refuse
