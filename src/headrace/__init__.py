"""headrace brings data to a PyTorch model: it trains as fast as the loop you would write by hand.

Modules in import order; each imports only from those above it:

    errors  length  batch  order  data  feed  comm  arena  loss  objective  metric  tally  strategy
    precision  guard  step  history  info  callback  evaluate  check  plan  malloc  loop
    trainer  recipe
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "batch": ["Batch", "Stream"],
    "callback": ["Callback"],
    "data.arrays": ["ArrayTable"],
    "data.reader": ["Reader"],
    "data.source": ["Cursor", "Shard", "Source", "Table"],
    "errors": [
        "ConfigError",
        "DataError",
        "HeadraceError",
        "ModelError",
        "NonFiniteError",
        "SourceError",
    ],
    "feed": ["Feed"],
    "history": ["History"],
    "info": ["Info"],
    "length": ["Length"],
    "loss": [
        "L1",
        "MSE",
        "BinaryCrossEntropy",
        "CrossEntropy",
        "Focal",
        "Huber",
        "L2Prior",
        "Loss",
        "RowMean",
        "Term",
    ],
    "objective": ["Objective", "Terms"],
    "order": ["Order"],
    "recipe": ["Recipe"],
    "step": ["Outcome"],
    "trainer": ["Trainer"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)

if TYPE_CHECKING:
    from .batch import Batch as Batch
    from .batch import Stream as Stream
    from .callback import Callback as Callback
    from .data.arrays import ArrayTable as ArrayTable
    from .data.reader import Reader as Reader
    from .data.source import Cursor as Cursor
    from .data.source import Shard as Shard
    from .data.source import Source as Source
    from .data.source import Table as Table
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import HeadraceError as HeadraceError
    from .errors import ModelError as ModelError
    from .errors import NonFiniteError as NonFiniteError
    from .errors import SourceError as SourceError
    from .feed import Feed as Feed
    from .history import History as History
    from .info import Info as Info
    from .length import Length as Length
    from .loss import L1 as L1
    from .loss import MSE as MSE
    from .loss import BinaryCrossEntropy as BinaryCrossEntropy
    from .loss import CrossEntropy as CrossEntropy
    from .loss import Focal as Focal
    from .loss import Huber as Huber
    from .loss import L2Prior as L2Prior
    from .loss import Loss as Loss
    from .loss import RowMean as RowMean
    from .loss import Term as Term
    from .objective import Objective as Objective
    from .objective import Terms as Terms
    from .order import Order as Order
    from .recipe import Recipe as Recipe
    from .step import Outcome as Outcome
    from .trainer import Trainer as Trainer


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
