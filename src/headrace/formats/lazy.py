"""The modules of Arrow, each imported when something of it is first used: that takes longer than many programs."""

from importlib import import_module
from typing import Any


class _Lazy:
    """A module that is imported once something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._name), name)
        setattr(self, name, found)
        return found


pa, pc, pt, pq = (_Lazy(name) for name in ("pyarrow", "pyarrow.compute", "pyarrow.types", "pyarrow.parquet"))
csv, fs, json = _Lazy("pyarrow.csv"), _Lazy("pyarrow.fs"), _Lazy("pyarrow.json")
