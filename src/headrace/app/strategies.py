"""Makes strategies from text, as on the command line: "diloco", or "periodic:every=16 steps,weights=equal"."""

from typing import Any

from ..errors import ConfigError, unknown
from ..workers.elastic import Elastic
from ..workers.rounds import BlockMomentum, DiLoCo, Periodic
from ..workers.strategy import Strategy
from ..workers.synchronous import Synchronous
from .parameters import parameters_of, value_of

STRATEGIES: dict[str, type[Strategy]] = {
    "block-momentum": BlockMomentum,
    "diloco": DiLoCo,
    "elastic": Elastic,
    "periodic": Periodic,
    "synchronous": Synchronous,
}


def parse_strategy(text: str) -> Strategy:
    """The strategy of a name, which options may follow: after a colon, with commas between."""
    name, _, given = text.partition(":")
    name = name.strip().lower().replace("_", "-")
    if name not in STRATEGIES:
        raise ConfigError(unknown("strategy", name, STRATEGIES))
    made = parameters_of(STRATEGIES[name].__init__)
    known = {key: each for key, each in made.items() if key not in ("self", "outer")}
    values: dict[str, Any] = {}
    for part in given.split(",") if given.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise ConfigError(f'{text!r}: options are written as in "periodic:every=16 steps,weights=equal".')
        if key not in known:
            raise ConfigError(f"{text!r}: {unknown(f'option of {name}', key, known)}")
        if key in values:
            raise ConfigError(f"{text!r}: {key} is given twice.")
        values[key] = value_of(known[key], None if value.lower() == "none" else value, f"{text!r}: {key}")
    return STRATEGIES[name](**values)
