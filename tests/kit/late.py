"""Stand-ins for packages that are slow to import: the first use of an attribute imports the package."""

import importlib
from types import ModuleType
from typing import Any

_ASKED = {"_mock_name", "pytestmark"}
"""Attributes that pytest looks up on every object of a test module, beside names like __wrapped__."""


class _Late(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name in _ASKED or (name.startswith("__") and name != "__file__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(
            f"an attribute of {name} is set in the module itself: monkeypatch.setattr('{self.__name__}.{name}', ...)"
        )

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


def late(name: str) -> Any:
    """A stand-in for the module of this name."""
    return _Late(name)


pandas, sparse = late("pandas"), late("scipy.sparse")
peft, transformers = late("peft"), late("transformers")
