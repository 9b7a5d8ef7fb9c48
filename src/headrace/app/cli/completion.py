"""`headrace completion bash|zsh|fish`: what makes a shell complete the commands, their options, recipes and runs."""

import argparse
from pathlib import Path

from ...errors import ConfigError
from .say import put

TEMPLATES = Path(__file__).parent / "templates"
SHELLS = ("bash", "zsh", "fish")


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=SHELLS, metavar="bash|zsh|fish", help="the shell that is to do it")
    parser.add_argument("--line", help=argparse.SUPPRESS)  # what the script asks: a command line up to the cursor
    parser.add_argument("--breaks", default="", help=argparse.SUPPRESS)  # where the shell itself parts words


def run(options: argparse.Namespace) -> int:
    if options.line is not None:
        from .candidates import candidates

        put("".join(f"{word}\n" for word in candidates(options.line, options.breaks)))
        return 0
    if options.shell is None:
        raise ConfigError('say which shell, as in eval "$(headrace completion bash)". There are bash, zsh and fish.')
    put((TEMPLATES / f"completion.{options.shell}").read_text())
    return 0
