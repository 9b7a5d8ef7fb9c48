"""Packages that take long to import, imported by the first test that needs them and not when tests are collected."""

import importlib
from types import ModuleType
from typing import Any

_ASKED = {"_mock_name", "pytestmark"}
"""What pytest asks of all that it finds in a module, beside names like __wrapped__."""


class _Late(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name in _ASKED or (name.startswith("__") and name != "__file__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(
            f"what stands in for {name} is set in the module itself: monkeypatch.setattr('{self.__name__}.{name}', ...)"
        )

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


def late(name: str) -> Any:
    """The module of this name, which is imported when somebody asks for something in it."""
    return _Late(name)


pandas, sparse = late("pandas"), late("scipy.sparse")
