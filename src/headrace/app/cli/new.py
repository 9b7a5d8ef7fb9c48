"""`headrace new`: a recipe that works, and a test of it."""

import builtins
import keyword
import os
import re
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from ...errors import ConfigError, RunError
from ...store import disk
from .output import print_result

TEMPLATES = Path(__file__).parent / "templates"
FILES = {"{name}.py": "recipe.py.in", "test_{name}.py": "test.py.in", "README.md": "README.md.in"}
"""What is made, and of which template; `NAME` in a template stands for the name."""


def new(name: str, /, *, json: bool = False) -> int:
    """Makes a directory with a recipe that works and a test of it.

    Args:
        name: of the recipe and its directory, as in churn or models/churn
        json: print JSON, for a program to read
    """
    target = Path(name)
    files = make(target)
    commands = [f"cd {target}", f"headrace fit {target.name}.py --run runs/first", "python -m pytest"]
    document = {"directory": str(target), "files": [str(file) for file in files], "next": commands}
    lines = ["made", *(f"  {file}" for file in files), "next", *(f"  {command}" for command in commands)]
    print_result(json, document, "\n".join(lines))
    return 0


def make(target: Path) -> list[Path]:
    """The directory with all its files, or nothing; the files."""
    name = target.name
    texts = {at.format(name=name): (TEMPLATES / source).read_text() for at, source in FILES.items()}
    _check_name(name)
    if os.path.lexists(target):
        raise RunError(f"{target} is there already, and is left as it is. Remove it, or choose another name.")
    beside = target.with_name(f".{name}.{os.getpid()}")
    try:
        disk.make_dirs(beside)
        for at, text in texts.items():
            disk.write_file(beside / at, re.sub(r"\bNAME\b|(?<=_)NAME\b", name, text).encode())
        disk.replace(beside, target)
    except OSError as error:
        with suppress(OSError):
            disk.remove_tree(beside)
        raise disk.failure(error, f"making {target}", target.parent, 8192) from error
    return [target / at for at in texts]


def _check_name(name: str) -> None:
    """Raises unless a module and a function may have this name, and no installed module has it."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or hasattr(builtins, name):
        raise ConfigError(
            f"{name!r} cannot be the name of a recipe: use letters, digits and _, begin with a letter, and take no "
            "word of Python, as in churn or models/churn."
        )
    if name in sys.stdlib_module_names or PathFinder.find_spec(name) is not None:
        raise ConfigError(f"{name!r} is the name of a module, which {name}.py would hide. Try {name + '_model'!r}.")
    if re.search(rf"\b{name}\b", (TEMPLATES / FILES["{name}.py"]).read_text(encoding="utf-8")):
        raise ConfigError(f"{name!r} is a name that the recipe uses itself. Try {name + '_model'!r}.")
