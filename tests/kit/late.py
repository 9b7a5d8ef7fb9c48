"""Modules that take long to import: whoever uses one first imports it, not everybody who looks for tests."""

import importlib
from typing import Any


class Late:
    """A module that is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


pandas, sparse = Late("pandas"), Late("scipy.sparse")
