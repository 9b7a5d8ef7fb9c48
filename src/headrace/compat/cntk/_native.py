"""What to write instead: a hint for each name once, and a sentence for what is not offered."""

from typing import Any

from ...errors import ConfigError
from ..hints import warn_once

PAGE = "docs/compatibility.md"


def hint(name: str, native: str) -> None:
    """Warns once that a name of CNTK's has a native spelling."""
    warn_once(f"cntk.{name}: natively {native}. See {PAGE}.")


def not_offered(name: str, native: str) -> Any:
    """A function that says, when it is called, that this name of CNTK's is not offered."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConfigError(f"cntk.{name} is not offered here. {native}")

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    refuse.__doc__ = f"Not offered. {native}"
    return refuse
