"""Reads the words of a command line as options with their values."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...errors import ConfigError, unknown
from ..parameters import Parameter
from ..values import LIST, Value

Known = Mapping[str, Parameter]


class UsageError(ConfigError):
    """A command line that makes no sense."""


def flag_of(name: str, dash: str = "_") -> str:
    """A parameter as an option: `--batch_size`, or `--batch-size`; a command takes either."""
    return f"--{name.replace('_', dash)}"


def parse_words(words: Sequence[str], known: Known, listed: Iterable[str], dash: str = "_") -> Iterator[Value]:
    """Options with their values, and words that belong to none, without a name but with that of the option before.

    A switch may stand alone, and `--no_` before one turns it off. `listed`: what there is, for the message about an
    option that there is not.
    """
    left, before = list(words), ""
    while left:
        flag, equals, text = left.pop(0).partition("=")
        if not flag.startswith("--"):
            yield Value("", flag + equals + text, before)
            continue
        name = flag[2:].replace("-", "_")
        before, off = name, name.removeprefix("no_")
        if name not in known and off in known and known[off].switch and not equals:
            name, text = off, "false"
        elif name not in known:
            raise ConfigError(unknown("option", flag_of(name, dash), [flag_of(each, dash) for each in listed]))
        elif not equals:
            alone = not left or left[0].startswith("--")
            if known[name].switch and (alone or left[0] not in ("true", "false")):
                text = "true"
            elif alone:
                raise ConfigError(f"{flag}: expected {known[name].type}, got nothing.")
            else:
                text = left.pop(0)
        yield Value(name, text, flag)


def no_option_error(value: Value, known: Known) -> ConfigError:
    """The error for a word that is too much."""
    of_list = value.where in known and known[value.where].type.startswith("list[")
    hint = f" A list is written as in --{value.where} {LIST}." if of_list else ""
    return ConfigError(f"{value.given!r} belongs to no option.{hint}")


def taken(words: list[str], flag: str, what: str) -> str | None:
    """The value of the first word if that is this flag; both are taken out of the words."""
    name, equals, value = words[0].partition("=") if words else ("", "", "")
    if name != flag:
        return None
    del words[0]
    if not equals and words and not words[0].startswith("--"):
        value = words.pop(0)
    if not value:
        raise ConfigError(f"{flag}: expected {what}, got nothing.")
    return value


def check_count(count: int | None, flag: str) -> None:
    """Raises unless a value is greater than 0, or not given."""
    if count is not None and count < 1:
        raise UsageError(f"{flag}: expected a whole number greater than 0, got {str(count)!r}.")


def check_ending(file: Path, endings: Sequence[str], flag: str) -> None:
    """Raises unless a file is of one of these kinds."""
    ending = file.suffix.lower()
    if ending not in endings:
        raise UsageError(f"{flag}: {file}: {unknown('ending', ending, endings)}")
