"""`headrace new`: a recipe that works, and a test of it."""

import ast
import builtins
import importlib.util
import keyword
import os
import re
import sys
from contextlib import suppress
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
        disk.rename(beside, target)
    except OSError as error:
        with suppress(OSError):
            disk.remove_tree(beside)
        raise disk.failure(error, f"making {target}", target.parent, 8192) from error
    return [target / at for at in texts]


def _check_name(name: str) -> None:
    """Raises unless a module and a function may have this name, and no other has it."""
    if not name:
        raise ConfigError("NAME is empty: name the recipe, as in churn or models/churn.")
    if not name.isidentifier() or not name.isascii():
        good = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "my_recipe"
        good = f"recipe_{good}" if good[0].isdigit() else good
        raise ConfigError(
            f"{name!r} cannot be the name of a Python function: use letters, digits and _, and begin with a letter. "
            f"Try {good!r}."
        )
    if keyword.iskeyword(name) or hasattr(builtins, name):
        taken = "is a word of Python's own"
    elif (where := _module(name)) is not None:
        taken = f"is the name of a module ({where}), which {name}.py would hide"
    elif name in _names(TEMPLATES / FILES["{name}.py"]):
        taken = "is a name that the recipe uses itself"
    else:
        return
    raise ConfigError(f"{name!r} {taken}. Try {name + '_model'!r}.")


def _names(recipe: Path) -> set[str]:
    """Everything that has a name in a program."""
    kinds = {ast.Name: "id", ast.arg: "arg", ast.FunctionDef: "name"}
    tree = list(ast.walk(ast.parse(recipe.read_text(encoding="utf-8"))))
    aliases = {alias.asname or alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    return aliases | {getattr(node, kinds[type(node)]) for node in tree if type(node) in kinds} | {"nn"}


def _module(name: str) -> str | None:
    """Where a module of this name is, if there is one."""
    if name in sys.stdlib_module_names:
        return "of Python's own library"
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return None if found is None else found.origin  # a directory that could be one has none
