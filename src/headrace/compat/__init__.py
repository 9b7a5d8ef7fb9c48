"""Names and semantics of older systems, for code that was written for them.

```python
from headrace.compat import install

install("cntk")
import cntk as C  # a program for CNTK follows, as it is
```

Each dialect is a leaf over the public rooms; nothing below knows of it. It calls `store`, `data`,
`formats`, `adapters`, `loss`, `arena`, `workers`, `train`, `engines` and `vision`.
"""

import pkgutil
import sys
from importlib import import_module

from ..errors import ConfigError, unknown

MODULES = {
    "cntk": {"": "cntk"},
    "PuzzleLib": {
        "": "puzzlelib",
        "Cost": "puzzlelib.costs",
        "Handlers": "puzzlelib.handlers",
        "Optimizers": "puzzlelib.optimizers",
    },
    "halcon": {"": "halcon"},
    "dislib": {"": "dislib", "eddl": "dislib"},
    "faknow": {"": "faknow", "train": "faknow", "train.trainer": "faknow", "evaluate.evaluator": "faknow"},
}
"""For each system the modules that programs import, and what stands for them here."""


def install(name: str) -> None:
    """Makes `import cntk` mean the dialect, in this process; so for "PuzzleLib", "halcon", "dislib" and "faknow"."""
    if name not in MODULES:
        raise ConfigError(unknown("system", name, list(MODULES)))
    own = import_module(f"{__name__}.{MODULES[name]['']}")
    if sys.modules.get(name, own) is not own:
        raise ConfigError(
            f"{name} is imported already, from {getattr(sys.modules[name], '__file__', 'elsewhere')}. Call "
            f"install({name!r}) before the first import of {name}."
        )
    for path, here in MODULES[name].items():
        parts = path.split(".") if path else []
        for count in range(len(parts) + 1):
            sys.modules.setdefault(".".join([name, *parts[:count]]), own)
        sys.modules[".".join([name, *parts])] = import_module(f"{__name__}.{here}")
    if name == "cntk":  # its modules have CNTK's names
        for found in pkgutil.walk_packages(own.__path__, f"{own.__name__}."):
            import_module(found.name)
        for path in [path for path in sys.modules if path.startswith(f"{own.__name__}.")]:
            sys.modules[name + path.removeprefix(own.__name__)] = sys.modules[path]
