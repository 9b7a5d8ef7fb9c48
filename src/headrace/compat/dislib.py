"""dislib's distributed trainings of torch models: eight ways to train in parallel, each by its name.

- `synchronous`: `Periodic("1 epoch", weights="equal")`; `synchronous_every_n_epochs`: `Periodic("n epochs", ...)`;
- `asynchronous`: `Elastic("m steps", alpha=0.5, take_center=True)`, which merges after every block of m batches;
- `asynchronous_n_epochs`: `Elastic("n epochs", ...)`, or `Periodic("end")` for n = 0;
- those with `shuffle` in their names are the same with `order="full"`, and `asynchronous_shuffle` merges every epoch;
  the others shuffle blocks, and rows in each block.

Rows are shared out batch by batch, so that every worker has as many. Workers are virtual ones of this process unless
`engine=` says "processes" or "ray". Data are arrays, or have blocks as a `ds_tensor` has: `tensors`, a list of rows of
blocks.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.arrays import ArrayTable
from ..data.batch import Batch
from ..data.reader import Reader
from ..engines.launch import launch
from ..errors import ConfigError, DataError, unknown
from ..loss.base import Loss
from ..loss.classes import CrossEntropy
from ..loss.elements import MSE, BinaryCrossEntropy
from ..train.trainer import Trainer
from ..workers.elastic import Elastic
from ..workers.rounds import Periodic
from ..workers.strategy import Strategy
from .hints import hint

LOSSES: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("mean_squared_error", "mse"), MSE),
    **dict.fromkeys(("binary_cross_entropy", "bce"), BinaryCrossEntropy),
    **dict.fromkeys(("soft_cross_entropy", "sce", "softmax_cross_entropy"), CrossEntropy),
    **dict.fromkeys(("categorical_cross_entropy", "cce", "cross_entropy", "ce"), CrossEntropy),
    "dice": lambda: _Dice(),
}
"""Losses by their names; classes are told by scores (logits): leave a last softmax out. "dice" takes probabilities."""
METRICS: dict[str, Any] = {
    **{"mse": "mse", "categorical_accuracy": "accuracy", "accuracy": "accuracy"},
    **{"mae": "mae", "mean_absolute_error": "mae"},
    **dict.fromkeys(("mre", "mean_relative_error"), lambda: {"mean_relative_error": _RelativeError()}),
}
OPTIMIZERS: dict[str, Any] = {
    "adam": (torch.optim.Adam, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-6}, {}),
    "sgd": (torch.optim.SGD, {}, {}),
    "rmsprop": (torch.optim.RMSprop, {"rho": 0.9, "epsilon": 1e-5}, {"rho": "alpha"}),
    "adagrad": (torch.optim.Adagrad, {"epsilon": 1e-5}, {}),
    "adamax": (torch.optim.Adamax, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-5}, {}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.9, "epsilon": 1e-5}, {}),
    "nadam": (torch.optim.NAdam, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-5}, {}),
}
"""Optimizers of torch by their names, the settings that they have by default, and what torch calls some of them."""
_CALLED = {"epsilon": "eps", "schedule_decay": "momentum_decay"}
Parameters = list[np.ndarray[Any, Any]]


class EncapsulatedFunctionsDistributedEddl:
    """Trains a model by `num_workers` workers. `build` comes first; a training goes on where the last one ended."""

    def __init__(self, num_workers: int = 10, *, engine: str = "local", seed: int = 0) -> None:
        self.num_workers, self.engine, self.seed = num_workers, engine, seed
        self.history: Any = None
        """Losses and the metric of the last training; with `Elastic`, the metric is that of worker 0's rows."""
        self._net: nn.Module | None = None
        hint("dislib.EncapsulatedFunctionsDistributedEddl", "hr.launch(main, model, workers=...) and a strategy")

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
        settings = {"lr": 0.01, **optimizer}
        name = settings.pop("optimizer", "sgd")
        if name not in OPTIMIZERS:
            raise ConfigError(unknown("optimizer", name, OPTIMIZERS))
        make, defaults, called = OPTIMIZERS[name]
        settings = _as_torch({**defaults, **settings}, called)
        try:
            make(net.parameters(), **settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"optimizer= has settings that {name} does not take: {error}.") from error
        self._net, self._loss, self._metric = net, LOSSES[loss], METRICS[metric]
        self._make = make, settings
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
        order = _order(shuffle_blocks, shuffle_block_data)
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, lambda _: _means(1), order)

    def fit_synchronous_shuffle_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int
    ) -> Parameters:
        """The mean of all workers after every epoch, of data that are shuffled as a whole."""
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, lambda _: _means(1), "full")

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
        order = _order(shuffle_blocks, shuffle_block_data)
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, lambda _: _means(n_epocs_sync), order)

    def fit_synchronous_shuffle_every_n_epochs_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int, n_epocs_sync: int = 1
    ) -> Parameters:
        """The mean of all workers after every n epochs, and at the end, of data that are shuffled as a whole."""
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, lambda _: _means(n_epocs_sync), "full")

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
        order = _order(shuffle_blocks, shuffle_block_data)
        return self._fit(
            x_train, y_train, num_batches_per_worker, num_epochs, lambda steps: _merges(f"{steps} steps"), order
        )

    def fit_asynchronous_shuffle_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int
    ) -> Parameters:
        """Every worker merges with the common model after every epoch, of data that are shuffled as a whole."""
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, lambda _: _merges("1 epoch"), "full")

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
        order = _order(shuffle_blocks, shuffle_block_data)
        return self._fit(
            x_train, y_train, num_batches_per_worker, num_epochs, lambda _: _late_merges(n_epocs_sync), order
        )

    def fit_asynchronous_shuffle_n_epochs_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int, n_epocs_sync: int = 0
    ) -> Parameters:
        """As `fit_asynchronous_n_epochs_with_GPU`, of data that are shuffled as a whole."""
        return self._fit(
            x_train, y_train, num_batches_per_worker, num_epochs, lambda _: _late_merges(n_epocs_sync), "full"
        )

    def _fit(
        self, x: Any, y: Any, batches: int, epochs: int, strategy: Callable[[int], Strategy], order: str
    ) -> Parameters:
        rows, targets = _blocks(x, self.num_workers), _blocks(y, self.num_workers)
        if [len(block) for block in rows] != [len(block) for block in targets]:
            raise DataError("x_train and y_train have blocks of different lengths. Give each block its targets.")
        longest = max(map(len, rows))
        if not 0 < batches <= longest:
            raise ConfigError(f"num_batches_per_worker= is from 1 to the {longest} rows of a block, got {batches}.")
        table = ArrayTable({"x": _joined(rows), "y": _joined(targets)}, block=longest)
        make, settings = self._make
        loss, metric, device, seed = self._loss, self._metric, self._device, self.seed
        strategy(batches)  # raises on one that cannot be, before workers are started

        def main(model: nn.Module) -> Any:
            trainer = Trainer(
                model,
                loss(),
                make(model.parameters(), **settings),
                batch_size=longest // batches,
                metrics=metric if isinstance(metric, str) else metric(),
                strategy=strategy(batches),
                device=device,
            )
            return trainer.fit(Reader(table, order=order, seed=seed), epochs=epochs, progress=False)

        model = self._model()
        self.history = launch(main, model, workers=self.num_workers, engine=self.engine)
        self.seed += 1  # the next call reads in another order
        return self.get_parameters()

    def _model(self) -> nn.Module:
        if self._net is None:
            raise ConfigError("there is no model yet. Call build(net, optimizer, loss, metric) first.")
        return self._net


class _Dice(Loss):
    """1 - 2 Σ t·y / (Σ t + Σ y) of every row, with probabilities y and targets t of 0 and 1; the mean over rows."""

    reads = "probabilities"
    joins = True

    def weight(self, batch: Batch) -> float:
        return float(len(batch[self.target]))

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        output, target = self.read(outputs, batch)
        found = output.flatten(1)
        wanted = target.to(output.dtype).reshape(found.shape)
        return (1 - 2 * (found * wanted).sum(1) / (found.sum(1) + wanted.sum(1))).sum()


class _RelativeError:
    """The mean of |t - y| / (|t| + 0.001)."""

    higher_is_better = False

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._total, self._count = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        wanted = targets.reshape(outputs.shape)
        self._total += float(((wanted - outputs).abs() / (wanted.abs() + 1e-3)).sum())
        self._count += outputs.numel()

    def compute(self) -> float:
        return self._total / self._count


def _as_torch(settings: Mapping[str, Any], called: Mapping[str, str]) -> dict[str, Any]:
    """Settings of an optimizer by the names that torch has for them."""
    found = {called.get(name, _CALLED.get(name, name)): value for name, value in settings.items()}
    betas = tuple(found.pop(name) for name in ("beta_1", "beta_2") if name in found)
    return {"betas": betas, **found} if betas else found


def _means(epochs: int) -> Strategy:
    if epochs < 1:
        raise ConfigError(f"n_epocs_sync= is 1 or more, got {epochs}.")
    return Periodic(f"{epochs} epochs", weights="equal")


def _merges(every: str) -> Strategy:
    return Elastic(every, alpha=0.5, take_center=True)


def _late_merges(epochs: int) -> Strategy:
    if epochs < 0:
        raise ConfigError(f"n_epocs_sync= is 0 or more, got {epochs}.")
    return _merges(f"{epochs} epochs") if epochs else Periodic("end", weights="equal")


def _order(blocks: bool, rows: bool) -> str:
    return {(True, True): "blocks", (True, False): "blocks-only", (False, True): "rows-only"}.get(
        (blocks, rows), "none"
    )


def _blocks(data: Any, count: int) -> list[Any]:
    """The blocks of a `ds_tensor`, or of nested lists, in their order; an array is cut into `count`."""
    nested = getattr(data, "tensors", data)
    if isinstance(nested, list | tuple):
        return [block for row in nested for block in (row if isinstance(row, list | tuple) else [row])]
    return np.array_split(np.asarray(nested), count)


def _joined(blocks: list[Any]) -> np.ndarray[Any, Any]:
    found = np.concatenate([np.asarray(block) for block in blocks])
    return found.astype(np.float32) if found.dtype == np.float64 else found
