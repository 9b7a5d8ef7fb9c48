"""Commands that take the parameters of a recipe as options, beside those of every training."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Annotated, Any, NamedTuple, get_type_hints

from cyclopts import App, Group
from cyclopts import Parameter as Option

from ...errors import ConfigError
from ..parameters import check_parameters, converted, described, flag_of, plain, spelled
from .commands import new_app, value_in
from .options import Options, UsageError
from .sources import given_elsewhere

RECIPE, TRAINING, COMMAND = (
    Group(name, sort_key=k) for k, name in enumerate(["The recipe", "The training", "The command"])
)
ORDER = (
    "The first of these counts: the option, the files that --config names, the last one first, the environment "
    "(HEADRACE_LR=0.1), the default. Of two options with one name, the recipe's counts."
)
RESERVED = (
    *("config", "print_config", "help", "recipe", "arguments", "fit"),
    *("run", "resume", "trust", "override", "progress", "json"),
)
"""Names that a parameter of a recipe may not have."""
Convert = Callable[[Parameter, Any], Any]


class Found(NamedTuple):
    """The recipe that a command names."""

    name: str
    function: Callable[..., Any]
    files: tuple[str, ...] = ()
    """Files of options that a run has."""


@dataclass(frozen=True)
class OfRecipe:
    """A command. `run` is called with the words that stand before options, a `Training`, and options of the command."""

    run: Callable[..., int]
    find: Callable[[str, Sequence[str]], Found]
    """Finds the recipe that the first word of a command names; the other words are its options."""
    without: tuple[str, ...] = ()
    """Options of the training that it does not have."""
    convert: Convert | None = None
    """How plain values of the recipe's parameters are read, if not as their types."""

    def app(self, words: Sequence[str], **options: Any) -> App:
        """The command, as words that begin like these need it."""
        words = [word for word in words if word not in ("--help", "-h")]
        found = self.find(words[0], words[1:]) if words and not words[0].startswith("-") else None
        if words and found is None:
            name, first = f"headrace {options['name']}", next(iter(self._given_by(Parameter.POSITIONAL_ONLY))).upper()
            why = ": a file gives values and names no code, since it may come from anybody"
            why = why if words[0].startswith("--config") else ""
            raise UsageError(f"{first} comes first, as in {name} {first} {' '.join(words[:2])}{why}.")
        app = new_app(**options, help_epilogue=ORDER)
        app.default(self._function(found, self._parameters(found.function) if found else {}))
        return app

    def _function(self, found: Found | None, recipe: Mapping[str, Parameter]) -> Callable[..., int]:
        """A function of all options, which calls `run`."""
        places, own = self._given_by(Parameter.POSITIONAL_ONLY), self._given_by(Parameter.KEYWORD_ONLY)
        training = {
            name: Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in get_type_hints(Options, include_extras=True).items()
            if name not in {*recipe, *own, *self.without}
        }

        def call(*first: str, **values: Any) -> int:
            from ..find import located
            from ..recipe import Training

            assert found is not None, "a command without words ends before this"
            given = {name: values.pop(name) for name in (*recipe, *training) if name in values}
            given |= given_elsewhere(recipe, training, given, found.files, values.get("config", ()))
            if missing := [name for name, each in recipe.items() if each.default is each.empty and name not in given]:
                raise UsageError(f"{flag_of(missing[0])} requires an argument.")
            arguments = {n: given[n] if n in given else plain(each.default) for n, each in recipe.items()}
            asked = {
                n: value for n, value in given.items() if n in training and value is not None and value is not False
            }
            return self.run(*first, Training(located(found.name), arguments, asked), **values)

        about = {} if found is None else described(found.function)
        shown = [
            *(_option(each, about, RECIPE, self.convert) for each in recipe.values()),
            *(_option(each, described(Options), TRAINING) for each in training.values()),
            *(each.replace(annotation=Annotated[each.annotation, Option(group=COMMAND)]) for each in own.values()),
        ]
        call.__doc__ = self.run.__doc__
        vars(call)["__signature__"] = inspect.Signature([*places.values(), *shown])
        return call

    def _given_by(self, kind: Any) -> dict[str, Parameter]:
        """The parameters of `run` of this kind, by name."""
        return {name: each for name, each in inspect.signature(self.run).parameters.items() if each.kind is kind}

    def _parameters(self, function: Callable[..., Any]) -> dict[str, Parameter]:
        """The parameters of a recipe by name."""
        known = check_parameters(function)
        names = *RESERVED, *self._given_by(Parameter.POSITIONAL_ONLY), *self._given_by(Parameter.KEYWORD_ONLY)
        if reserved := next((name for name in names if name in known), None):
            raise ConfigError(f"the recipe has a parameter {reserved!r}, which the command line has itself. Rename it.")
        return known


def _option(each: Parameter, about: Mapping[str, str], group: Group, convert: Convert | None = None) -> Parameter:
    """A parameter as an option, of which cyclopts knows only whether it is a switch: `converted` makes its value."""
    from rich.markup import escape

    read = convert or (lambda _, text: plain(converted(each.annotation, text, each.name)))
    switch, checks = each.annotation is bool and convert is None, getattr(each.annotation, "__metadata__", ())
    default = None if each.default is each.empty else each.default
    how = Option(
        help=about.get(each.name, "").rstrip("."),
        group=group,
        converter=lambda _, tokens: read(each, value_in(tokens[-1])),
        negative=None if switch and group is RECIPE else (),
        metavar=escape(spelled(each.annotation)),
        show_default=default is not None and default is not False,
        accepts_keys=False,
    )
    annotation: Any = Annotated[bool | None if switch else object, *checks, how]
    return Parameter(each.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
