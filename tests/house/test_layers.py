"""The house holds: who imports whom, how long a file is, what has which name."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from kit.imports import names_of

import headrace as hr

ROOT = Path(hr.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ORDER = " ".join(re.findall(r"^ {4}(\S.*)$", hr.__doc__ or "", re.MULTILINE)).split()

MAX_LINES = 400
OF_WORKERS = {"rank", "world_size", "is_initialized"}
KNOW_WORKERS = ("workers", "engines", "data.reader", "app.cli", "compat")  # a dialect keeps the names of its system


def module_of(path: Path) -> str:
    """Its name within the package: `length`, `data.reader`, `data.__init__`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports(tree: ast.Module, module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module of headrace imports, wherever in it and be it for types alone."""
    package = ["headrace", *module.split(".")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *filter(None, [node.module])])
            ours = origin.partition(".")[0] == "headrace"  # what is imported from may be a module of ours
            yield from ((node.lineno, f"{origin}.{alias.name}" if ours else origin) for alias in node.names)


def of_types_alone(tree: ast.Module) -> ast.Module:
    """What a module imports for its annotations alone."""
    return ast.Module([n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"], [])


def upward_imports(imported: Iterable[tuple[int, str]], module: str, order: Sequence[str] = ORDER) -> list[str]:
    """Imports of a module from a later room, from the package itself, or from no room that is known."""
    own, found = module.split(".")[0], []
    if own not in order:
        return [f"{module}: not in the order"]
    for line, name in imported:
        root, _, rest = name.partition(".")
        top = rest.partition(".")[0]
        within = top == own and "." in module
        if name == "headrace.__version__":  # a constant, known before anything is imported
            continue
        if root == "headrace" and not within and top not in order[: order.index(own)]:
            found.append(f"{module}, line {line}: imports {name}")
    return found


def circle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Modules that import each other, the first after the last; none if there is no such circle."""
    done: set[str] = set()

    def follow(module: str, way: list[str]) -> list[str]:
        if module in way:
            return way[way.index(module) :]
        if module in done:
            return []
        found = next((c for other in edges.get(module, ()) if (c := follow(other, [*way, module]))), [])
        done.add(module)
        return found

    return next((c for module in edges if (c := follow(module, []))), [])


def words_of_workers(tree: ast.Module) -> list[str]:
    """The identifiers that tell one worker from another."""
    nodes = (node for node in ast.walk(tree) if not isinstance(node, ast.Constant))
    return [value for node in nodes for value in vars(node).values() if isinstance(value, str) and value in OF_WORKERS]


def knows_workers(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in KNOW_WORKERS)


class Facts(NamedTuple):
    """What the rules ask of a module."""

    purpose: str
    lines: int
    imports: list[str]
    """Modules of the library."""
    needed: list[str]
    """Those of them that it imports for more than annotations."""
    upward: list[str]
    """Imports of later rooms, also for annotations."""
    workers: list[str]
    classes: list[str]


def _ours(found: Iterable[tuple[int, str]]) -> list[str]:
    return [name.removeprefix("headrace.") for _, name in found if name.startswith("headrace.")]


def facts_of(path: Path) -> Facts:
    module, text = module_of(path), path.read_text()
    tree = ast.parse(text)
    imported = [*imports(tree, module)]
    for_types = {*imports(of_types_alone(tree), module)}
    return Facts(
        ast.get_docstring(tree) or "",
        len(text.splitlines()),
        _ours(imported),
        _ours(each for each in imported if each not in for_types),
        upward_imports(imported, module),
        words_of_workers(tree),
        [node.name for node in tree.body if isinstance(node, ast.ClassDef)],
    )


@pytest.fixture(scope="module")
def modules() -> dict[str, Facts]:
    """Each is parsed once, and no tree is kept: hundreds of them keep the garbage collector busy."""
    return {module_of(path): facts_of(path) for path in FILES}


# --- the rules -------------------------------------------------------------------------------------------


def test_the_docstring_of_the_package_lists_every_room_once() -> None:
    there = {module_of(path).split(".")[0] for path in FILES} - {"__init__"}
    assert sorted(ORDER) == sorted(there)


def test_a_module_imports_only_from_the_rooms_before_its_own(modules: dict[str, Facts]) -> None:
    assert [found for module, facts in modules.items() if module != "__init__" for found in facts.upward] == []


def test_no_modules_import_each_other(modules: dict[str, Facts]) -> None:
    """Within a room, the parts of a class may name it in annotations."""
    names = {module.removesuffix(".__init__"): facts for module, facts in modules.items()}

    def module(name: str) -> str:
        return name if name in names else name.rpartition(".")[0]

    edges = {name: [m for i in facts.needed if (m := module(i)) not in ("", name)] for name, facts in names.items()}
    assert circle(edges) == []


def test_a_module_opens_with_a_sentence_on_what_it_is_for(modules: dict[str, Facts]) -> None:
    first = {module: facts.purpose.partition("\n\n")[0] for module, facts in modules.items()}
    assert [module for module, sentence in first.items() if not sentence.endswith(".")] == []


def rooms_called(purpose: str) -> list[str]:
    """The rooms that a docstring names in its sentence "It calls `store` and `data`."."""
    found = re.search(r"\bIt\s+calls\s+([^.]*)\.", purpose)
    assert found, f'a sentence "It calls ..." is missing: {purpose}'
    return re.findall(r"`(\w+)`", found[1])


def test_a_room_names_the_rooms_that_it_imports(modules: dict[str, Facts]) -> None:
    for room in (room for room in ORDER if f"{room}.__init__" in modules):
        imported = {
            name.partition(".")[0] for m, facts in modules.items() if m.split(".")[0] == room for name in facts.imports
        }
        called = [other for other in ORDER if other in imported - {room, "errors", "length"}]
        assert rooms_called(modules[f"{room}.__init__"].purpose) == called, room


def test_a_public_name_says_in_a_sentence_what_it_is() -> None:
    said = {name: (getattr(hr, name).__doc__ or "").partition("\n\n")[0] for name in names_of(hr)}
    assert [name for name, sentence in said.items() if not sentence.rstrip().endswith((".", ":"))] == []


def test_a_module_is_not_too_long(modules: dict[str, Facts]) -> None:
    too_long = {module: facts.lines for module, facts in modules.items() if facts.lines > MAX_LINES}
    assert too_long == {}, "look for the second idea"


def test_no_two_classes_have_one_name(modules: dict[str, Facts]) -> None:
    homes = defaultdict(list)
    for module, facts in modules.items():
        for name in () if module.startswith("compat.") else facts.classes:  # a dialect keeps the names of its system
            homes[name].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1 and name[0] != "_"} == {}


def test_only_few_modules_know_of_workers(modules: dict[str, Facts]) -> None:
    others = {module: facts.workers for module, facts in modules.items() if not knows_workers(module)}
    assert {module: words for module, words in others.items() if words} == {}


# --- the checks can fail ---------------------------------------------------------------------------------

LAYERS = ["errors", "batch", "data", "feed", "check", "evaluate", "trainer"]


BELOW = {
    "feed": [
        "from .trainer import Trainer",
        "from . import errors, evaluate",
        "import headrace.trainer",
        "from headrace import trainer",
        "from headrace.trainer import Trainer",
        "import headrace",
        "from . import Batch",
        "from .feed import Feed",
        "from .nowhere import x",
        "def late():\n    from .trainer import Trainer",
        "if TYPE_CHECKING:\n    from .trainer import Trainer",
        "try:\n    import headrace.trainer as t\nexcept ImportError:\n    pass",
    ],
    "data.reader": ["from ..feed import Feed", "from .. import feed"],
    "data.__init__": ["from ..feed import Feed"],
    "unheard": ["import torch"],
}
ABOVE = {
    "feed": [
        "import torch, os.path\nfrom collections import abc",
        "from .data.reader import Reader\nfrom .data import reader\nfrom . import errors, data",
    ],
    "trainer": ["from . import check, evaluate\nimport headrace.feed\nfrom headrace.data import reader"],
    "data.reader": ["from ..batch import Batch\nfrom .source import Source\nfrom . import arrays"],
    "data.__init__": ["from .source import Source\nfrom .. import errors"],
}


def test_an_import_from_below_is_seen_and_one_from_above_is_allowed() -> None:
    for cases, count in ((BELOW, 1), (ABOVE, 0)):
        for module, source in ((name, each) for name, sources in cases.items() for each in sources):
            imported = imports(ast.parse(source), module)
            assert len(upward_imports(imported, module, LAYERS)) == count, (module, source)


def test_a_circle_is_seen() -> None:
    assert circle({"a": ["b"], "b": ["c", "d"], "c": [], "d": ["b"]}) == ["b", "d"]
    assert circle({"a": ["b", "c"], "b": ["c"], "c": []}) == []


def test_the_rooms_that_a_docstring_names_are_read_and_a_missing_sentence_is_seen() -> None:
    assert rooms_called("Keeps bytes, and more. It calls `store`,\n`data` and `step`. It ends `here`.") == [
        "store",
        "data",
        "step",
    ]
    assert rooms_called("It calls no other room.") == []
    with pytest.raises(AssertionError, match="is missing"):
        rooms_called("Calls `store`.")


def test_a_word_of_workers_is_seen_and_others_are_not() -> None:
    for bad in ("rank = 0", "x.rank", "f(rank=1)", "def f(world_size): ...", "dist.is_initialized()", "lambda rank: 0"):
        assert len(words_of_workers(ast.parse(bad))) == 1, bad
    assert words_of_workers(ast.parse("from torch.distributed import is_initialized")) == ["is_initialized"]
    assert words_of_workers(ast.parse("ranks = 'rank'  # rank\ndef ranking(world): return world.shard")) == []
