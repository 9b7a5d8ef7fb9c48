"""Train PyTorch models without writing the training loop.

Its rooms, in import order; each imports only from those before it:

    errors  length  store  data  formats  adapters  loss  arena  workers  step  watch  train  engines  app
    vision  sklearn  optuna  testing  compat  __main__
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "adapters.compose": ["concat", "filter", "map", "mix", "skip", "split", "take", "zip"],
    "adapters.lend": ["as_dataset"],
    "adapters.loaders": ["LoaderSource"],
    "adapters.samples": ["from_dataset"],
    "adapters.stacked": ["samples"],
    "app.recipe": ["Recipe", "load"],
    "arena.momentum": ["MomentumSGD"],
    "data.arrays": ["ArrayTable"],
    "data.batch": ["Batch", "Stream"],
    "data.draws": ["Draws"],
    "data.feed": ["Feed"],
    "data.order": ["Order"],
    "data.ragged": ["Ragged"],
    "data.reader": ["Reader"],
    "data.source": ["Cursor", "Shard", "Source", "Table"],
    "data.sparse": ["Sparse"],
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
    "formats.table": ["open_ctf", "open_table"],
    "formats.write": ["write_ctf", "write_table"],
    "engines.launch": ["launch"],
    "engines.network": ["Network"],
    "length": ["Length"],
    "loss.base": ["Loss", "Term"],
    "loss.classes": ["CrossEntropy"],
    "loss.elements": ["BinaryCrossEntropy", "Huber", "L1", "L2Prior", "MSE"],
    "loss.focal": ["Focal"],
    "loss.objective": ["Objective", "Terms"],
    "loss.outcome": ["Outcome"],
    "loss.translate": ["RowMean"],
    "step.weights": ["load_weights"],
    "train.schedule": ["OneCycle", "Schedule", "WarmupCosine", "WarmupLinear"],
    "train.trainer": ["Trainer"],
    "watch.average": ["EMA", "SWA"],
    "watch.callback": ["Callback"],
    "watch.deciding": ["BestModel", "EarlyStopping", "Freeze"],
    "watch.files": ["CSV", "LogFile"],
    "watch.history": ["History"],
    "watch.info": ["Info"],
    "watch.measuring": ["GradientNorm", "Lambda", "LearningRateMonitor", "Profile", "Timer"],
    "watch.progress": ["Progress"],
    "watch.tensorboard": ["TensorBoard"],
    "watch.trackers": ["MLflow", "WandB"],
    "workers.asynchronous": ["Asynchronous"],
    "workers.block_momentum": ["BlockMomentum"],
    "workers.elastic": ["Elastic"],
    "workers.here": ["here"],
    "workers.rounds": ["DiLoCo", "Periodic"],
    "workers.strategy": ["Strategy"],
    "workers.synchronous": ["Synchronous"],
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)

if TYPE_CHECKING:
    from .adapters.compose import concat as concat
    from .adapters.compose import filter as filter
    from .adapters.compose import map as map
    from .adapters.compose import mix as mix
    from .adapters.compose import skip as skip
    from .adapters.compose import split as split
    from .adapters.compose import take as take
    from .adapters.compose import zip as zip
    from .adapters.lend import as_dataset as as_dataset
    from .adapters.loaders import LoaderSource as LoaderSource
    from .adapters.samples import from_dataset as from_dataset
    from .adapters.stacked import samples as samples
    from .app.recipe import Recipe as Recipe
    from .app.recipe import load as load
    from .arena.momentum import MomentumSGD as MomentumSGD
    from .data.arrays import ArrayTable as ArrayTable
    from .data.batch import Batch as Batch
    from .data.batch import Stream as Stream
    from .data.draws import Draws as Draws
    from .data.feed import Feed as Feed
    from .data.order import Order as Order
    from .data.ragged import Ragged as Ragged
    from .data.reader import Reader as Reader
    from .data.source import Cursor as Cursor
    from .data.source import Shard as Shard
    from .data.source import Source as Source
    from .data.source import Table as Table
    from .data.sparse import Sparse as Sparse
    from .engines.launch import launch as launch
    from .engines.network import Network as Network
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
    from .formats.table import open_ctf as open_ctf
    from .formats.table import open_table as open_table
    from .formats.write import write_ctf as write_ctf
    from .formats.write import write_table as write_table
    from .length import Length as Length
    from .loss.base import Loss as Loss
    from .loss.base import Term as Term
    from .loss.classes import CrossEntropy as CrossEntropy
    from .loss.elements import L1 as L1
    from .loss.elements import MSE as MSE
    from .loss.elements import BinaryCrossEntropy as BinaryCrossEntropy
    from .loss.elements import Huber as Huber
    from .loss.elements import L2Prior as L2Prior
    from .loss.focal import Focal as Focal
    from .loss.objective import Objective as Objective
    from .loss.objective import Terms as Terms
    from .loss.outcome import Outcome as Outcome
    from .loss.translate import RowMean as RowMean
    from .step.weights import load_weights as load_weights
    from .train.schedule import OneCycle as OneCycle
    from .train.schedule import Schedule as Schedule
    from .train.schedule import WarmupCosine as WarmupCosine
    from .train.schedule import WarmupLinear as WarmupLinear
    from .train.trainer import Trainer as Trainer
    from .watch.average import EMA as EMA
    from .watch.average import SWA as SWA
    from .watch.callback import Callback as Callback
    from .watch.deciding import BestModel as BestModel
    from .watch.deciding import EarlyStopping as EarlyStopping
    from .watch.deciding import Freeze as Freeze
    from .watch.files import CSV as CSV
    from .watch.files import LogFile as LogFile
    from .watch.history import History as History
    from .watch.info import Info as Info
    from .watch.measuring import GradientNorm as GradientNorm
    from .watch.measuring import Lambda as Lambda
    from .watch.measuring import LearningRateMonitor as LearningRateMonitor
    from .watch.measuring import Profile as Profile
    from .watch.measuring import Timer as Timer
    from .watch.progress import Progress as Progress
    from .watch.tensorboard import TensorBoard as TensorBoard
    from .watch.trackers import MLflow as MLflow
    from .watch.trackers import WandB as WandB
    from .workers.asynchronous import Asynchronous as Asynchronous
    from .workers.block_momentum import BlockMomentum as BlockMomentum
    from .workers.elastic import Elastic as Elastic
    from .workers.here import here as here
    from .workers.rounds import DiLoCo as DiLoCo
    from .workers.rounds import Periodic as Periodic
    from .workers.strategy import Strategy as Strategy
    from .workers.synchronous import Synchronous as Synchronous


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
