"""Train PyTorch models without writing the training loop.

Its rooms, in import order; each imports only from those before it:

    errors  length  store  data  formats  adapters  loss  arena  workers  step  watch  train  engines  record  app
    vision  sklearn  optuna  testing  compat  __main__
"""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.3.0"

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {name: module for module, name in re.findall(r"^from \.(\S+) import (\w+)", _STUB, re.MULTILINE)}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
