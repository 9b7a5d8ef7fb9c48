"""Commands that take the parameters of a recipe as options, beside those of every training."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Token
from cyclopts import Parameter as Option

from ...errors import ConfigError
from ..parameters import Parameter, check_default, check_parameters, converted, described, parameters_of, plain
from .commands import given, new_app
from .options import Options, strategy_of
from .sources import of_environment, of_files

if TYPE_CHECKING:
    from ..recipe import Training

RECIPE, TRAINING, COMMAND = (
    Group(name, sort_key=k) for k, name in enumerate(["The recipe", "The training", "The command"])
)
ORDER = (
    "The first of these counts: the option, the files that --config names, the last one first, the environment "
    "(HEADRACE_LR=0.1), the default. Of two options with one name, the recipe's counts."
)
RESERVED = (
    *("config", "print_config", "help", "recipe", "arguments", "fit"),
    *("run", "resume", "trust", "override", "progress", "report", "json"),
)
"""Names that a parameter of a recipe may not have."""
Files = Annotated[tuple[str, ...], Option(show_default=False)]
Convert = Callable[[Parameter, Token], Any]


@dataclass(frozen=True)
class Given:
    """What a command is given: a recipe, and the values for it and for the training."""

    recipe: str = ""
    function: Callable[..., Any] | None = None
    files: tuple[str, ...] = ()
    """Files of options that a run has."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)

    def training(self) -> "Training":
        """What is to be trained."""
        from ..find import located
        from ..recipe import Training

        arguments, name = {name: plain(value) for name, value in self.arguments.items()}, located(self.recipe)
        document = {"recipe": name, "arguments": arguments, "fit": self.options.to_repeat()}
        of_fit, text = self.options.of_fit(), self.options.strategy
        strategy = None if text is None else strategy_of(text)
        needs_run, device = self.options.needs_run(), self.options.device
        return Training(name, arguments, of_fit, strategy, document, needs_run, device)


@dataclass(frozen=True)
class OfRecipe:
    """A command: `run` takes what the command takes by place, then `Given`, then options of its own."""

    run: Callable[..., int]
    find: Callable[[str, Sequence[str]], Given]
    """Finds the recipe that the first word of a command names; the other words are its options."""
    without: tuple[str, ...] = ()
    """Options of the training that it does not have."""
    convert: Convert | None = None
    """How values of the recipe's parameters are read, if not as their types."""

    def app(self, words: Sequence[str], **options: Any) -> App:
        """The command, as words that begin like these need it."""
        words = [word for word in words if word not in ("--help", "-h")]
        found = self.find(words[0], words[1:]) if words and not words[0].startswith("-") else Given()
        recipe = None if found.function is None else self._parameters(found.function)
        app = new_app(**options, config=[of_files(found.files, recipe), of_environment], help_epilogue=ORDER)
        app.default(self._function(found, recipe or {}))
        return app

    def _function(self, found: Given, recipe: Mapping[str, Parameter]) -> Callable[..., int]:
        """A function of all options, which calls `run`."""
        places, own = self._given_by("POSITIONAL_ONLY"), self._given_by("KEYWORD_ONLY")
        taken = {*recipe, *own, *self.without}
        training = {name: each for name, each in parameters_of(Options).items() if name not in taken}

        def call(*first: str, **values: Any) -> int:
            arguments = {name: values.pop(name, each.default) for name, each in recipe.items()}
            options = Options(**{name: values.pop(name) for name in training if name in values})
            options.check()
            return self.run(*first, replace(found, arguments=arguments, options=options), **values)

        about = {} if found.function is None else described(found.function)
        options = [
            *(_option(each, about, RECIPE, self.convert) for each in recipe.values()),
            *(_option(each, described(Options), TRAINING) for each in training.values()),
            *(each.replace(annotation=Annotated[each.annotation, Option(group=COMMAND)]) for each in own.values()),
        ]
        call.__doc__ = self.run.__doc__
        vars(call)["__signature__"] = inspect.Signature([*places.values(), *options])
        return call

    def _given_by(self, kind: str) -> dict[str, inspect.Parameter]:
        """What the command itself takes, by place or as options."""
        return {name: each for name, each in inspect.signature(self.run).parameters.items() if each.kind.name == kind}

    def _parameters(self, function: Callable[..., Any]) -> dict[str, Parameter]:
        """The parameters of a recipe by name."""
        check_parameters(function)
        found = parameters_of(function)
        names = *RESERVED, *self._given_by("POSITIONAL_ONLY"), *self._given_by("KEYWORD_ONLY")
        if reserved := next((name for name in names if name in found), None):
            raise ConfigError(f"the recipe has a parameter {reserved!r}, which the command line has itself. Rename it.")
        for each in found.values():
            check_default(each)
        return found


def _option(
    each: Parameter, about: Mapping[str, str], group: Group, convert: Convert | None = None
) -> inspect.Parameter:
    """A parameter as an option, of which cyclopts knows only whether it is a switch: `Parameter.value` converts it."""
    from rich.markup import escape

    read = convert or (lambda parameter, token: converted(parameter.kind, given(token), parameter.name))
    switch = each.kind is bool and convert is None
    how = Option(
        help=about.get(each.name, "").rstrip("."),
        group=group,
        converter=lambda _, tokens: read(each, tokens[-1]),
        negative=None if switch and group is RECIPE else (),
        metavar=escape(each.type),
        show_default=each.default is not None and each.default is not False,
        accepts_keys=False,
    )
    kind = inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if each.required else each.default
    return inspect.Parameter(each.name, kind, default=default, annotation=Annotated[bool if switch else object, how])
