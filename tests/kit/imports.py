"""Imports a file by its path, and lists the public names of a module."""

import importlib.util
from pathlib import Path
from types import ModuleType


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
