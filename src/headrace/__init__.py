"""headrace brings data to a PyTorch model: it trains as fast as the loop you would write by hand.

Modules in import order; each imports only from those above it:

    errors  length  disk  codec  rng  machine  kept  snapshot  checkpoint  field  batch  order  data  sizes
    malloc  staging  feed  comm  leased  arena  frozen  loss  memory  objective  outcome  metric  tally
    strategy  precision  guard  together  update  step  history  info  callback  config  maker  schedule
    evaluate  check  plan  preempt  run  weights  use  standing  keeper  crew  leaving  passes  loop  finders
    trainer  recipe  engine  rehearse  picture  export  report  optuna  sklearn  testing  cli  __main__
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "batch": ["Batch", "Stream"],
    "callback": [
        "BestModel",
        "CSV",
        "Callback",
        "EMA",
        "EarlyStopping",
        "Freeze",
        "Lambda",
        "LearningRateMonitor",
        "LogFile",
        "MLflow",
        "Profile",
        "Progress",
        "SWA",
        "TensorBoard",
        "Timer",
        "WandB",
    ],
    "data.arrays": ["ArrayTable"],
    "data.compose": ["concat", "filter", "map", "mix", "skip", "split", "take", "zip"],
    "data.ctf": ["open_ctf", "write_ctf"],
    "data.draws": ["Draws"],
    "data.files": ["open_table", "write_table"],
    "data.reader": ["Reader"],
    "data.source": ["Cursor", "Shard", "Source", "Table"],
    "data.torch": ["LoaderSource", "as_dataset", "from_dataset"],
    "engine": ["Network", "launch"],
    "errors": [
        "CheckpointError",
        "ConfigError",
        "CorruptError",
        "DataError",
        "HeadraceError",
        "ModelError",
        "NonFiniteError",
        "OutOfMemoryError",
        "RunError",
        "SourceError",
        "WorkerError",
    ],
    "feed": ["Feed"],
    "field": ["Ragged", "Sparse"],
    "history": ["History"],
    "info": ["Info"],
    "length": ["Length"],
    "loss": ["BinaryCrossEntropy", "CrossEntropy", "Focal", "Huber", "L1", "L2Prior", "Loss", "MSE", "RowMean", "Term"],
    "objective": ["Objective", "Terms"],
    "order": ["Order"],
    "outcome": ["Outcome"],
    "recipe": ["Recipe"],
    "schedule": ["OneCycle", "Schedule", "WarmupCosine", "WarmupLinear"],
    "strategy": ["Asynchronous", "BlockMomentum", "DiLoCo", "Elastic", "Periodic", "Strategy", "Synchronous"],
    "trainer": ["Trainer"],
    "weights": ["load_weights"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)

if TYPE_CHECKING:
    from .batch import Batch as Batch
    from .batch import Stream as Stream
    from .callback import CSV as CSV
    from .callback import EMA as EMA
    from .callback import SWA as SWA
    from .callback import BestModel as BestModel
    from .callback import Callback as Callback
    from .callback import EarlyStopping as EarlyStopping
    from .callback import Freeze as Freeze
    from .callback import Lambda as Lambda
    from .callback import LearningRateMonitor as LearningRateMonitor
    from .callback import LogFile as LogFile
    from .callback import MLflow as MLflow
    from .callback import Profile as Profile
    from .callback import Progress as Progress
    from .callback import TensorBoard as TensorBoard
    from .callback import Timer as Timer
    from .callback import WandB as WandB
    from .data.arrays import ArrayTable as ArrayTable
    from .data.compose import concat as concat
    from .data.compose import filter as filter
    from .data.compose import map as map
    from .data.compose import mix as mix
    from .data.compose import skip as skip
    from .data.compose import split as split
    from .data.compose import take as take
    from .data.compose import zip as zip
    from .data.ctf import open_ctf as open_ctf
    from .data.ctf import write_ctf as write_ctf
    from .data.draws import Draws as Draws
    from .data.files import open_table as open_table
    from .data.files import write_table as write_table
    from .data.reader import Reader as Reader
    from .data.source import Cursor as Cursor
    from .data.source import Shard as Shard
    from .data.source import Source as Source
    from .data.source import Table as Table
    from .data.torch import LoaderSource as LoaderSource
    from .data.torch import as_dataset as as_dataset
    from .data.torch import from_dataset as from_dataset
    from .engine import Network as Network
    from .engine import launch as launch
    from .errors import CheckpointError as CheckpointError
    from .errors import ConfigError as ConfigError
    from .errors import CorruptError as CorruptError
    from .errors import DataError as DataError
    from .errors import HeadraceError as HeadraceError
    from .errors import ModelError as ModelError
    from .errors import NonFiniteError as NonFiniteError
    from .errors import OutOfMemoryError as OutOfMemoryError
    from .errors import RunError as RunError
    from .errors import SourceError as SourceError
    from .errors import WorkerError as WorkerError
    from .feed import Feed as Feed
    from .field import Ragged as Ragged
    from .field import Sparse as Sparse
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
    from .outcome import Outcome as Outcome
    from .recipe import Recipe as Recipe
    from .schedule import OneCycle as OneCycle
    from .schedule import Schedule as Schedule
    from .schedule import WarmupCosine as WarmupCosine
    from .schedule import WarmupLinear as WarmupLinear
    from .strategy import Asynchronous as Asynchronous
    from .strategy import BlockMomentum as BlockMomentum
    from .strategy import DiLoCo as DiLoCo
    from .strategy import Elastic as Elastic
    from .strategy import Periodic as Periodic
    from .strategy import Strategy as Strategy
    from .strategy import Synchronous as Synchronous
    from .trainer import Trainer as Trainer
    from .weights import load_weights as load_weights


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
