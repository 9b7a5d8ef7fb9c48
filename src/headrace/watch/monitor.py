"""Numbers that callbacks watch: whether one will be measured, what a row says of it, and whether less is better."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import ConfigError
from ..store.document import Row

_SMALL = re.compile(r"loss(/.*)?|(error|mae|mse|perplexity)(:.*)?")
_LARGE = re.compile(r"(accuracy|precision|recall|f1|auroc|iou|r2|top-\d+)(:.*)?")
_OF_A_FAMILY = re.compile(r"(train|val|test)[/_.:-](.+)")


@dataclass(frozen=True)
class Expected:
    """The keys that a training will measure, as far as they are known before it."""

    families: tuple[str, ...] = ()
    """The data: "train", and "val" where there are such."""
    keys: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """Prefixes of keys whose names are known only later."""
    logged: bool = False
    """Whether somebody's own callbacks may log others."""

    @classmethod
    def of(cls, terms: Mapping[str, Iterable[str] | None], metrics: Iterable[str], logged: bool) -> Expected:
        """From the names of loss terms by family (`None` if they are not known) and those of metrics."""
        metrics = list(metrics)
        keys = [
            f"{family}/{name}"
            for family, names in terms.items()
            for name in ["loss", *(f"loss/{term}" for term in names or ()), *metrics]
        ]
        unknown = (f"{family}/loss/" for family, names in terms.items() if names is None)
        families = dict.fromkeys(family.partition("/")[0] for family in terms)
        return cls(tuple(families), tuple(keys), tuple(unknown), logged)


def side_of(key: str) -> str:
    """Whether a number should be small ("min") or large ("max"), where its name tells; else nothing."""
    name = key.partition("/")[2] or key
    names = (name, name.partition("/")[2])  # that of a data set, or of an output, may stand before it
    return "min" if any(map(_SMALL.fullmatch, names)) else "max" if any(map(_LARGE.fullmatch, names)) else ""


def mode_of(key: str, mode: str = "auto", side: str = "", there: Collection[str] = ()) -> str:
    """The given mode, "min" or "max"; with "auto" the `side` that the metric declares, or what the name tells."""
    check_mode(mode)
    if known := mode if mode != "auto" else side or side_of(key):
        return known
    others = _others(key, there)
    raise ConfigError(f"whether {key!r} should be small or large is not known: say mode='min' or mode='max'.{others}")


def check_mode(mode: str) -> None:
    """Raises unless this is a mode."""
    if mode not in ("min", "max", "auto"):
        raise ConfigError(f"mode= is 'min', 'max' or 'auto', got {mode!r}.")


def check_watched(who: str, key: str, expected: Expected, own: bool = True) -> None:
    """Raises unless this number will be measured or, where one's `own` will do, may be logged by a callback."""
    if key in expected.keys or key.startswith(expected.open):
        return
    whose, name = _parts(key)
    alike = [each for each in expected.keys if _parts(each)[1] == name]
    own_name = key != f"{whose}/{name}" and (expected.logged or not alike)
    family = None if own_name else whose or None
    if family == "test":
        raise ConfigError(
            f"{who} looks at {key!r}, and the test data are scored once, at the end. Look at a number of "
            f"{' or '.join(expected.families)}."
        )
    if family and family not in expected.families:
        raise ConfigError(
            f"{who} looks at {key!r}, and there are no {family} data. Pass them, or look at a number of "
            f"{' or '.join(expected.families)}."
        )
    if not own or (not expected.logged and (family or alike)):
        raise _not_measured(who, key, expected.keys)


def number_of(who: str, key: str, row: Row) -> float | None:
    """The number in a report, if it is there; raises if others of its family were measured and it was not."""
    if key in row:
        try:
            return float(row[key])
        except (TypeError, ValueError):
            kind = type(row[key]).__name__
            raise ConfigError(f"{who} looks at {key!r}, which is a {kind}. Look at a number.") from None
    family, name = _parts(key)
    if (f"{family}/loss" if key == f"{family}/{name}" else f"{family}/{name}") in row:
        raise _not_measured(who, key, [each for each in row if _parts(each)[0]])
    return None


def _parts(key: str) -> tuple[str, str]:
    """The family and the name in a key, also if written as "val_loss"; no family where a callback logs it."""
    match = _OF_A_FAMILY.fullmatch(key)
    return (match[1], match[2]) if match else ("", key)


def _not_measured(who: str, key: str, there: Collection[str]) -> ConfigError:
    others = _others(key, there)
    return ConfigError(f"{who} looks at {key!r}, which is not measured.{others}")


def _others(key: str, there: Collection[str]) -> str:
    """A hint at what a key may mean that is not there, and the keys that are."""
    if not there:
        return ""
    family, name = _parts(key)
    names = {each: _parts(each)[1] for each in there if not family or _parts(each)[0] == family}
    starts = [each for each in names.values() if each.startswith(name)]
    of_sets = [each for each in names.values() if each.endswith(f"/{name}")]
    close = [name] if name in starts else starts[:1] or of_sets or get_close_matches(name, names.values(), n=1)
    near = [each for each, other in names.items() if other in close]
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near and key not in there else ""
    return f"{hint} There are: {', '.join(there)}."
