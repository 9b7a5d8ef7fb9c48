"""The commands. Each is a typed function: what it takes by place, then its options, which its docstring describes.

Only the module of the command that is asked for is imported, and nothing heavy for help. A command is declared by a
line of `COMMANDS`. The parsing, the help and the completion are those of cyclopts.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_origin

from cyclopts import UNSET, App, Group, Parameter, Token

from ... import __version__
from ..parameters import converted

if TYPE_CHECKING:
    from .of_recipe import OfRecipe

TRAIN, USE, LOOK = (Group(name, sort_key=k) for k, name in enumerate(["Train", "Use what was trained", "Look"]))
OF_A_RECIPE = ("fit", "sweep", "resume", "fork")
"""Commands that take the parameters of a recipe as options, too: see `of_recipe`."""

COMMANDS = {
    "fit": (TRAIN, "fit:fit", "Train a recipe, with one worker or several."),
    "sweep": (TRAIN, "sweep:sweep", "Train a recipe with each combination of some values."),
    "resume": (TRAIN, "fit:resume", "Continue a run from its last checkpoint."),
    "fork": (TRAIN, "fit:fork", "Begin a run with a step of another, and train on with other options."),
    "without": (TRAIN, "record:without", "Train a run again as if some rows had never counted."),
    "rehearse": (TRAIN, "rehearse:rehearse", "Train a recipe on virtual workers, with one strategy after the other."),
    "new": (TRAIN, "new:new", "Make a directory with a recipe that works, and a test of it."),
    "validate": (USE, "inference:validate", "Score the weights of a run, on the recipe's data or on a file."),
    "predict": (USE, "inference:predict", "Write the model's predictions for every row of a file."),
    "checkpoint": (USE, "", "List or export what a run has saved."),
    "checkpoint list": (USE, "checkpoints:list_checkpoints", "List the checkpoints of a run."),
    "checkpoint export": (USE, "checkpoints:export", "Write the weights of one for other programs."),
    "when": (LOOK, "record:when", "Show the rows of an update of a run, or the updates that used a row."),
    "why": (LOOK, "record:why", "Make an update again, and show what its loss was made of."),
    "diff": (LOOK, "record:diff", "Show the first difference of two runs."),
    "verify": (LOOK, "record:verify", "Check that a run is as it was written, and train parts of it again."),
    "runs": (LOOK, "runs:runs", "List the runs in a directory."),
    "report": (LOOK, "runs:report", "Write a run as one page, report.html."),
    "doctor": (LOOK, "doctor:doctor", "Show versions, devices and space, and what is missing."),
}
"""By its words: the group that help shows it in, the module and the name of its function, and what it does."""


def make_app(words: list[str]) -> App:
    """The command line; the command that the words begin with has the parameters of the recipe that they name, too."""
    app = new_app("headrace", "Train PyTorch models.", version=__version__, group_commands="Other")
    app.register_install_completion_command(group="Other")
    groups = {"": app}
    for name, (group, place, text) in COMMANDS.items():
        first, _, last = name.rpartition(" ")
        if not place:
            groups[name] = new_app(last, text, group=group)
            app.command(groups[name])
        elif name in OF_A_RECIPE:
            module, _, function = place.partition(":")
            declared: OfRecipe = getattr(import_module(f".{module}", __package__), function)
            app.command(declared.app(words[1:] if words[:1] == [name] else (), name=name, text=text, group=group))
        else:
            groups[first].command(f"{__package__}.{place}", name=last, help=text, group=None if first else group)
    return app


def new_app(name: str, text: str = "", **options: Any) -> App:
    """A command, or the group of some."""
    return App(
        name=name,
        help=text,
        help_format="plaintext",
        default_parameter=Parameter(converter=convert, negative=(), allow_repeating=True),
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        **options,
    )


def convert(kind: Any, tokens: Sequence[Token]) -> Any:
    """The value of an option, of the text that is given for it; cyclopts has conversions of its own, which round."""
    several = get_origin(kind) is tuple  # an option that may be given several times
    return converted(kind, [token.value for token in tokens] if several else value_in(tokens[-1]))


def value_in(token: Token) -> Any:
    """The text that an option is given; true or false for a switch that is given without a value."""
    return token.value if token.implicit_value is UNSET else token.implicit_value
