"""The architecture, from the syntax tree: who may import whom, how long a file is, who knows of workers."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ORDER = " ".join(re.findall(r"^ {4}(\S.*)$", headrace.__doc__ or "", re.MULTILINE)).split()

MAX_LINES = 400
OF_WORKERS = {"rank", "world_size", "is_initialized"}
KNOW_WORKERS = ("comm", "strategy", "engine", "data.reader", "cli")


def module_of(path: Path) -> str:
    """Its name within the package: `feed`, `data.reader`, `data.__init__`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def live(node: ast.AST) -> Iterator[ast.AST]:
    """The tree without what only a type checker reads."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in child.orelse:
                yield from live(other)
        else:
            yield from live(child)


def imports(tree: ast.Module, module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module of headrace imports, wherever in it."""
    package = ["headrace", *module.split(".")[:-1]]
    for node in live(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *filter(None, [node.module])])
            if origin == "headrace":
                yield from ((node.lineno, f"headrace.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, origin


def upward_imports(source: str, module: str, order: Sequence[str] = ORDER) -> list[str]:
    """What a module imports from itself or below, or from no layer at all."""
    own, found = module.split(".")[0], []
    if own not in order:
        return [f"{module}: not in the order"]
    for line, name in imports(ast.parse(source), module):
        root, _, rest = name.partition(".")
        top = rest.partition(".")[0]
        within = top == own and "." in module
        if name == "headrace.__version__":  # a constant, known before anything is imported
            continue
        if root == "headrace" and not within and top not in order[: order.index(own)]:
            found.append(f"{module}, line {line}: imports {name}")
    return found


def words_of_workers(source: str) -> list[str]:
    """The identifiers that tell one worker from another."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = {
            ast.Name: lambda n: n.id,
            ast.Attribute: lambda n: n.attr,
            ast.arg: lambda n: n.arg,
            ast.keyword: lambda n: n.arg,
            ast.FunctionDef: lambda n: n.name,
            ast.alias: lambda n: n.asname or n.name,
        }
        name = names[type(node)](node) if type(node) in names else None
        if name in OF_WORKERS:
            found.append(name)
    return found


# --- the rules -------------------------------------------------------------------------------------------


def test_the_docstring_of_the_package_lists_every_module_once() -> None:
    there = {module_of(path).split(".")[0] for path in FILES} - {"__init__"}
    assert sorted(ORDER) == sorted(there)


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_module_imports_only_from_those_above_it(path: Path) -> None:
    if module_of(path) == "__init__":  # the public names: imported when they are used, from anywhere
        assert {name for _, name in imports(ast.parse(path.read_text()), "__init__")} == {"importlib", "typing"}
    else:
        assert upward_imports(path.read_text(), module_of(path)) == []


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_module_says_what_it_is_for_and_is_not_too_long(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "opens with a sentence"
    assert len(text.splitlines()) <= MAX_LINES, "look for the second idea"


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_only_few_modules_know_of_workers(path: Path) -> None:
    if not any(module_of(path) == name or module_of(path).startswith(f"{name}.") for name in KNOW_WORKERS):
        assert words_of_workers(path.read_text()) == []


# --- the checks can fail ---------------------------------------------------------------------------------

LAYERS = ["errors", "batch", "data", "feed", "check", "evaluate", "trainer"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("feed", "from .trainer import Trainer"),
        ("feed", "from . import errors, evaluate"),
        ("feed", "import headrace.trainer"),
        ("feed", "from headrace import trainer"),
        ("feed", "from headrace.trainer import Trainer"),
        ("feed", "import headrace"),
        ("feed", "from . import Batch"),
        ("feed", "from .feed import Feed"),
        ("feed", "from .nowhere import x"),
        ("feed", "def late():\n    from .trainer import Trainer"),
        ("feed", "if TYPE_CHECKING:\n    pass\nelse:\n    from .trainer import Trainer"),
        ("feed", "try:\n    import headrace.trainer as t\nexcept ImportError:\n    pass"),
        ("data.reader", "from ..feed import Feed"),
        ("data.reader", "from .. import feed"),
        ("data.__init__", "from ..feed import Feed"),
        ("unheard", "import torch"),
    ],
)
def test_an_import_from_below_is_seen(module: str, source: str) -> None:
    assert len(upward_imports(source, module, LAYERS)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("feed", "import torch, os.path\nfrom collections import abc"),
        ("feed", "from .data.reader import Reader\nfrom .data import reader\nfrom . import errors, data"),
        ("feed", "if TYPE_CHECKING:\n    from .trainer import Trainer"),
        ("feed", "import typing\nif typing.TYPE_CHECKING:\n    from .trainer import Trainer"),
        ("trainer", "from . import check, evaluate\nimport headrace.feed\nfrom headrace.data import reader"),
        ("data.reader", "from ..batch import Batch\nfrom .source import Source\nfrom . import arrays"),
        ("data.__init__", "from .source import Source\nfrom .. import errors"),
    ],
)
def test_an_import_from_above_is_allowed(module: str, source: str) -> None:
    assert upward_imports(source, module, LAYERS) == []


def test_a_word_of_workers_is_seen_and_others_are_not() -> None:
    for bad in ("rank = 0", "x.rank", "f(rank=1)", "def f(world_size): ...", "dist.is_initialized()", "lambda rank: 0"):
        assert len(words_of_workers(bad)) == 1, bad
    assert words_of_workers("from torch.distributed import is_initialized") == ["is_initialized"]
    assert words_of_workers("ranks = 'rank'  # rank\ndef ranking(world): return world.shard") == []
