"""What comes before a training: `new`, a recipe that works with a test of it, and `convert`, of data files."""

import ast
import builtins
import importlib.util
import keyword
import os
import re
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, RunError
from ...store import disk
from .output import print_result

if TYPE_CHECKING:
    from ...data.batch import Stream

TEMPLATES = Path(__file__).parent / "templates"
FILES = {"{name}.py": "recipe.py.in", "test_{name}.py": "test.py.in", "README.md": "README.md.in"}
"""What is made, and of which template; `NAME` in a template stands for the name."""


def new(name: str, *, json: bool = False) -> int:
    """Makes a directory with a recipe that works and a test of it.

    Args:
        name: of the recipe and its directory, as in churn or models/churn
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


# --- convert -----------------------------------------------------------------------------------------------


def convert(
    data: tuple[str, ...], out: Path, *, stream: tuple[str, ...] = (), skip_bad_rows: bool = False, json: bool = False
) -> int:
    """Writes data files into a file of another kind.

    Args:
        data: files, globs or URLs: .npy .npz .arrow .parquet .csv .ctf
        out: the file to write: .arrow .parquet .npz
        stream: a stream of a .ctf file, as in "words 1000 sparse sequence" or "image 28x28 uint8"; for each of them
        skip_bad_rows: leave out what cannot be read of a .ctf file
    """
    from ...formats.paths import find
    from ...formats.table import open_table
    from ...formats.write import check_target, write_table

    check_target(out)
    streams = [_stream(text) for text in stream] or None
    files = list(data) if len(data) > 1 else data[0]
    bad_rows: Any = "skip" if skip_bad_rows else "stop"
    with ExitStack() as stack:
        cache = None
        if find(files)[0].kind == "ctf":  # its rows are in the new file: nobody needs a copy of them beside the old one
            where = out.parent if out.parent.is_dir() else None
            cache = stack.enter_context(TemporaryDirectory(prefix=".headrace-", dir=where))
        table = open_table(files, streams=streams, bad_rows=bad_rows, cache=cache)
        write_table(table, out)
    document = {"file": str(out), "rows": len(table), "streams": list(map(str, table.streams))}
    print_result(json, document, f"{out}: {len(table)} rows of {', '.join(map(str, table.streams))}")
    return 0


def _stream(text: str) -> "Stream":
    """A stream as the command line has it: its name, then its shape, dtype, "sparse", "sequence" in any order."""
    from ...data.batch import Stream

    name, *words = text.split() or [""]
    if not name:
        raise ConfigError('--stream "": name the stream, as in "words 1000 sparse sequence".')
    try:
        shape = tuple(int(size) for word in words if word[0].isdigit() for size in word.split("x"))
    except ValueError:
        raise ConfigError(f"--stream {text!r}: a shape is written as 100 or 28x28.") from None
    kinds = [word for word in words if not word[0].isdigit() and word not in ("sparse", "sequence")]
    if len(kinds) > 1:
        raise ConfigError(f"--stream {text!r}: expected one dtype at most, got {' and '.join(kinds)}.")
    layout: Any = "sparse" if "sparse" in words else "dense"
    return Stream(name, shape, kinds[0] if kinds else "float32", layout, "sequence" in words)
