"""Imports a file by its path, and lists the modules that some code imports, in a process of its own."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

from kit.forked import start, tell


def module_at(path: Path) -> ModuleType:
    """A file that is on no import path, as a module which nothing else sees."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module, which a stub does not list again."""
    return list(vars(module)["__all__"])


def imported_after(code: str, at: Path) -> set[str]:
    """The top-level modules of a process that has trained with headrace and then run this code."""
    with start(_after, at, code) as child:
        assert child.ending() == 0, child.output
    return set(json.loads(child.told[-1]))


def _after(code: str) -> None:
    exec(code, {})
    tell(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
