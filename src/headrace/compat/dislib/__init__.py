"""dislib's distributed trainings of torch models: eight ways to train in parallel, each by its name.

- `synchronous`: `Periodic("1 epoch", weights="equal")`; `synchronous_every_n_epochs`: `Periodic("n epochs", ...)`;
- `asynchronous`: `Elastic("m steps", alpha=0.5, take_center=True)`, which merges after every block of m batches;
- `asynchronous_n_epochs`: `Elastic("n epochs", ...)`, or `Periodic("end")` for n = 0;
- those with `shuffle` in their names are the same with the rows of all blocks shuffled together, and
  `asynchronous_shuffle` merges every epoch; the others shuffle blocks, and rows in each block.

Workers read whole blocks: with `Periodic`, worker j of W has blocks j, j + W, and so on; with `Elastic`, each takes the
next block when it is ready. Workers are virtual ones of this process unless `engine=` says "processes" or "ray", or
torchrun has started them. Data are arrays, or have blocks as a `ds_tensor` has: `tensors`, a list of rows of blocks.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from ...data.arrays import ArrayTable
from ...engines.launch import launch
from ...errors import ConfigError, DataError, unknown
from ...length import as_count
from ...train.trainer import Trainer
from ...workers.elastic import Elastic
from ...workers.here import here
from ...workers.rounds import Periodic
from ...workers.strategy import Strategy
from .blocks import BlockReader, Shuffle
from .settings import LOSSES, METRICS, metric_of, optimizer_of

Parameters = list[np.ndarray[Any, Any]]
_TOTAL = Shuffle(blocks=False, rows=False, total=True)


class EncapsulatedFunctionsDistributedEddl:
    """Trains a model by `num_workers` workers. `build` comes first; a training goes on where the last one ended."""

    def __init__(self, num_workers: int = 10, *, engine: str = "local", seed: int = 0) -> None:
        for name, value, least in (("num_workers", num_workers, 1), ("seed", seed, 0)):
            if as_count(value, least) is None:
                raise ConfigError(f"{name}= is a whole number, at least {least}, got {value!r}.")
        self.num_workers, self.engine, self.seed = int(num_workers), engine, seed
        self.history: Any = None
        """Losses and the metric of the last training; with `Elastic`, the metric is that of worker 0's rows."""
        self._net: nn.Module | None = None

    def build(
        self, net: nn.Module, optimizer: dict[str, Any], loss: str, metric: str, num_gpu: int = 0, num_nodes: int = 0
    ) -> None:
        """The model, its optimizer as `{"optimizer": "sgd", "lr": 0.01, ...}`, its loss and metric by name.

        Settings of optimizers are called as they were (`beta_1`, `epsilon`, `rho`) or as torch calls them.
        """
        if not isinstance(net, nn.Module):
            raise ConfigError(f"net is a torch module, got a {type(net).__name__}.")
        if loss not in LOSSES:
            raise ConfigError(unknown("loss", loss, LOSSES))
        if metric not in METRICS:
            raise ConfigError(unknown("metric", metric, METRICS))
        self._optimizer = optimizer_of(net, optimizer)
        self._net, self._loss, self._metric = net, loss, metric
        self._device = "cuda" if num_gpu else "cpu"
        self.num_gpu = num_gpu

    def get_parameters(self) -> Parameters:
        """The model's parameters, as arrays."""
        return [param.detach().cpu().numpy().copy() for param in self._model().parameters()]

    @property
    def model_parameters(self) -> Parameters:
        return self.get_parameters()

    def fit_synchronous_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
    ) -> Parameters:
        """The mean of all workers after every epoch."""
        shuffle = Shuffle(shuffle_blocks, shuffle_block_data)
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, _means("1 epoch"), shuffle)

    def fit_synchronous_shuffle_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int
    ) -> Parameters:
        """The mean of all workers after every epoch, of data that are shuffled as a whole."""
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, _means("1 epoch"), _TOTAL)

    def fit_synchronous_every_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 1,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
    ) -> Parameters:
        """The mean of all workers after every n epochs, and at the end."""
        shuffle, every = Shuffle(shuffle_blocks, shuffle_block_data), _epochs(n_epocs_sync, 1)
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, _means(every), shuffle)

    def fit_synchronous_shuffle_every_n_epochs_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int, n_epocs_sync: int = 1
    ) -> Parameters:
        """The mean of all workers after every n epochs, and at the end, of data that are shuffled as a whole."""
        every = _epochs(n_epocs_sync, 1)
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, _means(every), _TOTAL)

    def fit_asynchronous_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
    ) -> Parameters:
        """Every worker merges with the common model after every block, when it comes."""
        shuffle = Shuffle(shuffle_blocks, shuffle_block_data)
        strategy = _merges(f"{as_count(num_batches_per_worker) or 1} steps")  # a wrong number is refused below
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, strategy, shuffle)

    def fit_asynchronous_shuffle_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int
    ) -> Parameters:
        """Every worker merges with the common model after every epoch, of data that are shuffled as a whole."""
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, _merges("1 epoch"), _TOTAL)

    def fit_asynchronous_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 0,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
    ) -> Parameters:
        """Every worker merges with the common model after every n epochs; 0: all are averaged at the end."""
        shuffle, strategy = Shuffle(shuffle_blocks, shuffle_block_data), _late_merges(n_epocs_sync)
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, strategy, shuffle)

    def fit_asynchronous_shuffle_n_epochs_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int, n_epocs_sync: int = 0
    ) -> Parameters:
        """As `fit_asynchronous_n_epochs_with_GPU`, of data that are shuffled as a whole."""
        strategy = _late_merges(n_epocs_sync)
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, strategy, _TOTAL)

    def _fit(self, x: Any, y: Any, batches: int, epochs: int, strategy: Strategy, shuffle: Shuffle) -> Parameters:
        model, workers = self._model(), self.num_workers
        blocks, targets = _blocks(x, workers), _blocks(y, workers)
        lengths = [len(block) for block in blocks]
        if lengths != [len(block) for block in targets]:
            raise DataError("x_train and y_train have blocks of different lengths. Give each block its targets.")
        if not min(lengths):
            raise DataError(f"block {lengths.index(0)} has no rows. Leave it out, or take fewer workers for an array.")
        if (as_count(batches) or 0) not in range(1, max(lengths) + 1):
            raise ConfigError(
                f"num_batches_per_worker= is from 1 to the {max(lengths)} rows of a block, got {batches}."
            )
        if isinstance(strategy, Elastic):
            if len(set(lengths)) > 1:
                raise DataError(
                    "the asynchronous fits merge after blocks of the same length, got blocks of "
                    f"{', '.join(map(str, sorted(set(lengths))))} rows. Leave rows out, or take a synchronous fit."
                )
            strategy.lease, workers = lengths[0], 1
        elif len(lengths) < workers:
            warnings.warn(
                f"{workers} workers share {len(lengths)} blocks: the others train nothing, and count in the mean with "
                "the weights that they began with. Give as many blocks, or take fewer workers.",
                stacklevel=3,
            )
        fit = _Fit(
            ArrayTable({"x": _joined(blocks), "y": _joined(targets)}),
            lengths=lengths,
            batches=batches,
            workers=workers,
            shuffle=shuffle,
            seed=self.seed,
            epochs=epochs,
            loss=self._loss,
            metric=self._metric,
            optimizer=self._optimizer,
            device=self._device,
        )
        comm = here()
        if comm.count == 1:
            self.history = launch(fit, model, strategy, workers=self.num_workers, engine=self.engine)
        elif comm.count == self.num_workers:  # torchrun, or another starter, has started them
            self.history = fit(model, strategy)
            model.load_state_dict(comm.share(model.state_dict()))
        else:
            problem = f"num_workers={self.num_workers}, and {comm.count} workers have been started. Give their number."
            raise ConfigError(problem, argument="num_workers")
        self.seed += 1  # the next call reads in another order
        return self.get_parameters()

    def _model(self) -> nn.Module:
        if self._net is None:
            raise ConfigError("there is no model yet. Call build(net, optimizer, loss, metric) first.")
        return self._net


@dataclass(frozen=True)
class _Fit:
    """What each worker does, given a model and a strategy of its own."""

    table: ArrayTable
    lengths: list[int]
    batches: int
    workers: int
    """How many workers take blocks at the same time, in turn."""
    shuffle: Shuffle
    seed: int
    epochs: int
    loss: str
    metric: str
    optimizer: tuple[Any, dict[str, Any]]
    device: str

    def __deepcopy__(self, memo: Any) -> "_Fit":
        return self  # virtual workers share the data

    def __call__(self, model: nn.Module, strategy: Strategy) -> Any:
        make, settings = self.optimizer
        trainer = Trainer(
            model,
            LOSSES[self.loss](),
            make(model.parameters(), **settings),
            batch_size=-(-max(self.lengths) // self.batches),
            metrics=metric_of(self.metric, self.loss),
            strategy=strategy,
            device=self.device,
        )
        reader = BlockReader(self.table, self.lengths, self.batches, self.workers, self.shuffle, self.seed)
        return trainer.fit(reader, epochs=self.epochs, progress=False)


def _means(every: str) -> Strategy:
    return Periodic(every, weights="equal")


def _merges(every: str) -> Strategy:
    return Elastic(every, alpha=0.5, take_center=True)


def _late_merges(epochs: int) -> Strategy:
    return _means("end") if epochs == 0 else _merges(_epochs(epochs, 0))


def _epochs(count: int, least: int) -> str:
    if as_count(count, least) is None:
        raise ConfigError(f"n_epocs_sync= is {least} or more, got {count}.")
    return f"{count} epochs"


def _blocks(data: Any, count: int) -> list[Any]:
    """The blocks of a `ds_tensor`, or of nested lists, in their order; an array is cut into `count`."""
    nested = getattr(data, "tensors", data)
    if isinstance(nested, list | tuple):
        return [block for row in nested for block in (row if isinstance(row, list | tuple) else [row])]
    return np.array_split(np.asarray(nested), count)


def _joined(blocks: list[Any]) -> np.ndarray[Any, Any]:
    found = np.concatenate([np.asarray(block) for block in blocks])
    return found.astype(np.float32) if found.dtype == np.float64 else found
