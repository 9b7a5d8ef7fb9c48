"""A number that somebody watches: whether it is measured at all, and whether it should be small or large."""

from collections.abc import Collection

from ..errors import ConfigError
from .rows import Row

_SMALL = ("loss", "error", "mae", "mse")
_LARGE = ("accuracy", "precision", "recall", "f1", "auroc", "r2", "top-")


def mode_of(key: str, mode: str = "auto", unknown: str | None = None) -> str:
    """Whether a number should be small ("min") or large ("max"); with "auto" its name tells, or it is `unknown`."""
    if mode in ("min", "max"):
        return mode
    if mode != "auto":
        raise ConfigError(f"mode= is 'min', 'max' or 'auto', got {mode!r}.")
    name = key.partition("/")[2] or key
    if name.startswith(_SMALL):
        return "min"
    if name.startswith(_LARGE):
        return "max"
    if unknown is not None:
        return unknown
    raise ConfigError(f"whether {key!r} should be small or large is not known: say mode='min' or mode='max'.")


def check_family(who: str, key: str, measured: Collection[str]) -> None:
    """Raises unless there are data of the family whose number `who` looks at."""
    if (family := _family(key)) not in measured:
        raise ConfigError(
            f"{who} looks at {key!r}, and there are no {family} data. Pass them, or look at a number of "
            f"{' or '.join(measured)}."
        )


def check_measured(who: str, key: str, row: Row) -> None:
    """Raises if others of its family were measured, and this number was not."""
    keys = [each for each in row if "/" in each]
    if key not in row and _family(key) in map(_family, keys):
        raise ConfigError(f"{who} looks at {key!r}, which is not measured. There are: {', '.join(keys)}.")


def _family(key: str) -> str:
    return key.partition("/")[0]
