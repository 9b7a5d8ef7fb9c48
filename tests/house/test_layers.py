"""The architecture, from the syntax tree: who may import whom, how long a file is, who knows of workers."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ORDER = " ".join(re.findall(r"^ {4}(\S.*)$", headrace.__doc__ or "", re.MULTILINE)).split()

MAX_LINES = 400
OF_WORKERS = {"rank", "world_size", "is_initialized"}
KNOW_WORKERS = ("workers", "engines", "data.reader", "app.cli")


def module_of(path: Path) -> str:
    """Its name within the package: `feed`, `data.reader`, `data.__init__`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def live(tree: ast.AST) -> Iterator[ast.AST]:
    """The tree without what only a type checker reads."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        left += node.orelse if isinstance(node, ast.If) and for_types(node.test) else ast.iter_child_nodes(node)


def for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name | ast.Attribute) and ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


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


def upward_imports(tree: ast.Module, module: str, order: Sequence[str] = ORDER) -> list[str]:
    """What a module imports from itself or below, or from no layer at all."""
    own, found = module.split(".")[0], []
    if own not in order:
        return [f"{module}: not in the order"]
    for line, name in imports(tree, module):
        root, _, rest = name.partition(".")
        top = rest.partition(".")[0]
        within = top == own and "." in module
        if name == "headrace.__version__":  # a constant, known before anything is imported
            continue
        if root == "headrace" and not within and top not in order[: order.index(own)]:
            found.append(f"{module}, line {line}: imports {name}")
    return found


NAMES: dict[type[ast.AST], Callable[[Any], str]] = {
    ast.Name: lambda n: n.id,
    ast.Attribute: lambda n: n.attr,
    ast.arg: lambda n: n.arg,
    ast.keyword: lambda n: n.arg,
    ast.FunctionDef: lambda n: n.name,
    ast.alias: lambda n: n.asname or n.name,
}


def words_of_workers(tree: ast.Module) -> list[str]:
    """The identifiers that tell one worker from another."""
    names = (NAMES[type(node)](node) for node in ast.walk(tree) if type(node) in NAMES)
    return [name for name in names if name in OF_WORKERS]


def knows_workers(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in KNOW_WORKERS)


class Facts(NamedTuple):
    """What the rules ask of a module."""

    purpose: str | None
    lines: int
    upward: list[str]
    workers: list[str]


@pytest.fixture(scope="module")
def modules() -> dict[str, Facts]:
    """Each is parsed once, and no tree is kept: hundreds of them keep the garbage collector busy."""

    def facts(module: str, text: str) -> Facts:
        tree = ast.parse(text)
        return Facts(
            ast.get_docstring(tree), len(text.splitlines()), upward_imports(tree, module), words_of_workers(tree)
        )

    return {module_of(path): facts(module_of(path), path.read_text()) for path in FILES}


# --- the rules -------------------------------------------------------------------------------------------


def test_the_docstring_of_the_package_lists_every_module_once() -> None:
    there = {module_of(path).split(".")[0] for path in FILES} - {"__init__"}
    assert sorted(ORDER) == sorted(there)


def test_a_module_imports_only_from_those_above_it(modules: dict[str, Facts]) -> None:
    assert [found for module, facts in modules.items() if module != "__init__" for found in facts.upward] == []


def test_the_package_itself_imports_its_public_names_only_when_they_are_used() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    assert {name for _, name in imports(tree, "__init__")} == {"importlib", "typing"}


def test_a_module_opens_with_a_sentence_on_what_it_is_for(modules: dict[str, Facts]) -> None:
    assert [module for module, facts in modules.items() if not facts.purpose] == []


def test_a_module_is_not_too_long(modules: dict[str, Facts]) -> None:
    too_long = {module: facts.lines for module, facts in modules.items() if facts.lines > MAX_LINES}
    assert too_long == {}, "look for the second idea"


def test_only_few_modules_know_of_workers(modules: dict[str, Facts]) -> None:
    others = {module: facts.workers for module, facts in modules.items() if not knows_workers(module)}
    assert {module: words for module, words in others.items() if words} == {}


# --- the checks can fail ---------------------------------------------------------------------------------

LAYERS = ["errors", "batch", "data", "feed", "check", "evaluate", "trainer"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("feed", "from .trainer import Trainer"),
        ("feed", "from . import errors, evaluate"),
        ("feed", "import headrace.train.trainer"),
        ("feed", "from headrace import trainer"),
        ("feed", "from headrace.train.trainer import Trainer"),
        ("feed", "import headrace"),
        ("feed", "from . import Batch"),
        ("feed", "from .feed import Feed"),
        ("feed", "from .nowhere import x"),
        ("feed", "def late():\n    from .trainer import Trainer"),
        ("feed", "if TYPE_CHECKING:\n    pass\nelse:\n    from .trainer import Trainer"),
        ("feed", "try:\n    import headrace.train.trainer as t\nexcept ImportError:\n    pass"),
        ("data.reader", "from ..feed import Feed"),
        ("data.reader", "from .. import feed"),
        ("data.__init__", "from ..feed import Feed"),
        ("unheard", "import torch"),
    ],
)
def test_an_import_from_below_is_seen(module: str, source: str) -> None:
    assert len(upward_imports(ast.parse(source), module, LAYERS)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("feed", "import torch, os.path\nfrom collections import abc"),
        ("feed", "from .data.reader import Reader\nfrom .data import reader\nfrom . import errors, data"),
        ("feed", "if TYPE_CHECKING:\n    from .trainer import Trainer"),
        ("feed", "import typing\nif typing.TYPE_CHECKING:\n    from .trainer import Trainer"),
        ("trainer", "from . import check, evaluate\nimport headrace.data.feed\nfrom headrace.data import reader"),
        ("data.reader", "from ..batch import Batch\nfrom .source import Source\nfrom . import arrays"),
        ("data.__init__", "from .source import Source\nfrom .. import errors"),
    ],
)
def test_an_import_from_above_is_allowed(module: str, source: str) -> None:
    assert upward_imports(ast.parse(source), module, LAYERS) == []


def test_a_word_of_workers_is_seen_and_others_are_not() -> None:
    for bad in ("rank = 0", "x.rank", "f(rank=1)", "def f(world_size): ...", "dist.is_initialized()", "lambda rank: 0"):
        assert len(words_of_workers(ast.parse(bad))) == 1, bad
    assert words_of_workers(ast.parse("from torch.distributed import is_initialized")) == ["is_initialized"]
    assert words_of_workers(ast.parse("ranks = 'rank'  # rank\ndef ranking(world): return world.shard")) == []
