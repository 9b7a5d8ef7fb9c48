"""FaKnow's trainer: epochs of training and validation, early stopping, the best model, logs and TensorBoard.

A model computes its own loss and predictions: `calculate_loss(batch)` gives a tensor, or losses by name, and
`predict(batch)` probabilities or scores of shape (rows, classes). Natively, such a model is an `hr.Objective`.
"""

import datetime
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.tensorboard import SummaryWriter

from ..data.batch import Batch
from ..errors import ConfigError, DataError
from ..loss.base import Term
from ..loss.objective import Objective, Terms
from ..train.trainer import Trainer as NativeTrainer

Metric = str | Callable[[Tensor, Tensor], float]


class MetricError(ConfigError, RuntimeError):
    """A metric that there is not."""


class EarlyStopping:
    """Stops after `patience` epochs without a score better than the best by more than `delta`."""

    def __init__(self, patience: int = 10, delta: float = 0.000001, mode: str = "max") -> None:
        if mode not in ("min", "max"):
            raise ConfigError(f"mode= is 'min' or 'max', got {mode!r}.")
        self.patience, self.delta, self.mode = patience, delta, mode
        self.best_score: float | None = None
        self.counter, self.early_stop = 0, False

    def __call__(self, current_score: float) -> bool:
        """Whether this score is the best so far."""
        best = self.best_score
        if best is None:
            improved = True
        else:
            improved = current_score > best + self.delta if self.mode == "max" else current_score < best - self.delta
        if improved:
            self.best_score, self.counter = current_score, 0
        else:
            self.counter += 1
            self.early_stop = self.early_stop or self.counter >= self.patience
        return improved


class Evaluator:
    """Metrics of all predictions together: accuracy, precision, recall, f1 and auc by name, or functions.

    A function gets outputs and labels. Of two classes, the second is the positive one; of more, the mean over classes.
    """

    def __init__(self, metrics: Sequence[Metric] | None = None) -> None:
        self.metrics: dict[str, Callable[[Tensor, Tensor], float]] = {}
        for metric in ("accuracy", "precision", "recall", "f1") if metrics is None else metrics:
            if isinstance(metric, str):
                self.metrics[metric] = _metric(metric)
            elif callable(metric):
                self.metrics[metric.__name__] = metric
            else:
                raise MetricError(f"metrics= are names and functions, got a {type(metric).__name__}.")

    def evaluate(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        return {name: float(metric(outputs, y)) for name, metric in self.metrics.items()}


class BaseTrainer:
    """Trains a model that knows its loss. The best score is that of the validation, accuracy if it is measured."""

    def __init__(
        self,
        model: nn.Module,
        evaluator: Evaluator,
        optimizer: Optimizer,
        scheduler: Any = None,
        clip_grad_norm: Mapping[str, Any] | None = None,
        device: str | torch.device = "cpu",
        early_stopping: EarlyStopping | None = None,
    ) -> None:
        for name in ("calculate_loss", "predict"):
            if not callable(getattr(model, name, None)):
                raise ConfigError(f"the model, a {type(model).__name__}, has no {name}(batch). Give it one.")
        _max_norm(clip_grad_norm)  # raises on what cannot be
        self.model, self.evaluator, self.optimizer, self.scheduler = model, evaluator, optimizer, scheduler
        self.clip_grad_norm, self.early_stopping = clip_grad_norm, early_stopping
        self.best_score, self.best_epoch = 0.0, 0
        self.writer: Any = None
        self.logger = logging.getLogger(__name__)
        self.logger.setLevel(logging.DEBUG)
        self._handlers: list[logging.Handler] = []
        self._native: Any = None
        self.to(device)

    def to(self, device: str | torch.device, **options: Any) -> None:
        self.device = torch.device(device)
        self._release()
        self.model.to(self.device, **options)
        self._native = None

    def cuda(self, device: str = "cuda:0", **options: Any) -> None:
        self.to(device, **options)

    def cpu(self, **options: Any) -> None:
        self.to("cpu", **options)

    def fit(
        self,
        train_loader: Iterable[Any],
        num_epochs: int,
        validate_loader: Iterable[Any] | None = None,
        save_best: bool | None = None,
        save_path: str | None = None,
    ) -> None:
        """Trains for so many epochs. `save_best`: None keeps no file, False the last weights, True the best ones.

        The model ends with the weights that were kept. Early stopping keeps the best, and needs a validation.
        """
        if validate_loader is None and (save_best or self.early_stopping is not None):
            raise ConfigError("save_best=True and early stopping go by the validation. Give validate_loader=.")
        log = _new_file("logs", f"{_named(self.model)}.log")
        name, path = log.stem, None if save_path is None else Path(save_path)
        best: dict[str, Any] | None = None
        self.best_score, self.best_epoch = (-float("inf") if self.early_stopping is None else 0.0), 0
        if self.early_stopping is not None:
            save_best = True
            self.early_stopping.best_score, self.early_stopping.counter = None, 0
            self.early_stopping.early_stop = False
        self.writer = SummaryWriter(f"tb_logs/{name}")
        self._open_log(log)
        try:
            self.logger.info(f"Tensorboard log is saved in tb_logs/{name}")
            self.logger.info(f"log file is saved in logs/{name}.log\n")
            self.logger.info(f"training data size={_size(train_loader)}")
            if validate_loader is not None:
                self.logger.info(f"validation data size={_size(validate_loader)}")
            self.logger.info("----start training-----\n")
            for epoch in range(num_epochs):
                self.logger.info(f"epoch=[{epoch}/{num_epochs - 1}]")
                begun = time.monotonic()
                losses = self._train_epoch(train_loader, epoch)
                self._show_train_result(losses, _span(time.monotonic() - begun), epoch)
                score = None
                if validate_loader is not None:
                    score, result = self._validate_epoch(validate_loader, epoch)
                    if self._is_best(score, epoch) and save_best:
                        best = deepcopy(self.model.state_dict())
                        path = path or _new_file("save", f"{name}.pth")
                        self.save(str(path))
                    self._show_validation_result(result, score, epoch, save_best)
                    if self.early_stopping is not None and self.early_stopping.early_stop:
                        break
                if isinstance(self.scheduler, ReduceLROnPlateau):
                    if score is None:
                        raise ConfigError("ReduceLROnPlateau goes by the validation. Give validate_loader=.")
                    self.scheduler.step(score)
                elif self.scheduler is not None:
                    self.scheduler.step()
            if save_best is False:
                self.save(str(path or _new_file("save", f"{name}.pth")))
            elif best is not None:
                self.logger.info(f"load best model in epoch {self.best_epoch}")
                self._release()
                self.model.load_state_dict(best)
        finally:
            self._release()
            self.writer.close()
            self._close_log()

    @torch.no_grad()
    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        self.model.eval()
        outputs, labels = [], []
        for batch in loader:
            moved = self._move_data_to_device(batch)
            outputs.append(self.model.predict(moved))  # type: ignore[operator]
            labels.append(_label(moved))
        if not outputs:
            raise DataError("the loader gave no batch.")
        return self.evaluator.evaluate(torch.concat(outputs), torch.concat(labels))

    def save(self, save_path: str | None = None) -> None:
        """Writes the model's `state_dict`, by default into save/ under the model's name and the time."""
        path = Path(save_path or _new_file("save", f"{_named(self.model)}.pth"))
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({name: value.clone() for name, value in self.model.state_dict().items()}, path)
        self.logger.info(f"\nmodel is saved in {path}")

    def _train_epoch(self, loader: Iterable[Any], epoch: int) -> float | dict[str, float]:
        """One epoch; the mean loss over its rows, or each of several losses."""
        native = self._trainer()
        self.model.train()
        totals: dict[str, float] = {}
        rows = 0
        for batch in loader:
            self._objective.batch = moved = self._move_data_to_device(batch)
            count = _rows(moved) or 1
            found = native.step(Batch({}, count))
            rows += count
            for name, term in self._objective.shown.items():
                totals[name] = totals.get(name, 0.0) + float(found[term]) * count
        if not rows:
            raise DataError("the train loader gave no batch.")
        means = {name: total / rows for name, total in totals.items()}
        return means if self._objective.named else means["loss"]

    def _validate_epoch(self, loader: Iterable[Any], epoch: int) -> tuple[float, dict[str, float]]:
        result = self.evaluate(loader)
        if "accuracy" in result:
            return result["accuracy"], result
        warnings.warn("no accuracy in result, use the first metric as the validation score", stacklevel=3)
        return next(iter(result.values())), result

    def _is_best(self, score: float, epoch: int) -> bool:
        best = score > self.best_score if self.early_stopping is None else self.early_stopping(score)
        if best:
            self.best_score, self.best_epoch = score, epoch
        return best

    def _show_train_result(self, losses: float | dict[str, float], took: str, epoch: int) -> None:
        self.logger.info(f"training time={took}")
        named = losses if isinstance(losses, dict) else {"loss": losses}
        for name, value in named.items():
            self.writer.add_scalar(f"Train/{name}", value, epoch)
        self.logger.info(f"training loss : {_listed(named)}")

    def _show_validation_result(
        self, result: dict[str, float], score: float, epoch: int, save_best: bool | None
    ) -> None:
        for name, value in result.items():
            self.writer.add_scalar(f"Validation/{name}", value, epoch)
        self.logger.info(f"validation result : {_listed(result)}")
        line = f"current score : {score:.6f}"
        if save_best:
            line += f", best score : {self.best_score:.6f},{' ' * 16}best epoch : {self.best_epoch}"  # so it was
        if self.early_stopping is not None and self.early_stopping.early_stop:
            line += f"\nearly stopping at epoch {epoch}!"
        self.logger.info(line)

    def _trainer(self) -> NativeTrainer:
        """The trainer behind this one; another one where model or optimizer have been replaced."""
        native = self._native
        if native is None or (native.model, native.optimizer) != (self.model, self.optimizer):
            self._release()
            objective = self._objective = _OwnLoss()
            # a batch reaches the model beside the trainer, which a tape could not notice
            native = self._native = NativeTrainer(self.model, objective, self.optimizer, device=self.device, tape=False)
        native.clip_norm = _max_norm(self.clip_grad_norm)
        return native  # type: ignore[no-any-return]

    def _release(self) -> None:
        """Model and optimizer are ordinary again, if a training has used them."""
        if self._native is not None:
            self._native.release()

    def _move_data_to_device(self, batch: Any) -> Any:
        """A batch on the trainer's device: its tensors, however nested; everything else as it is."""
        return tree_map_only(Tensor, lambda tensor: tensor.to(self.device), batch)

    def _open_log(self, path: Path) -> None:
        self._handlers = [logging.StreamHandler(), logging.FileHandler(path)]
        for handler in self._handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))
            self.logger.addHandler(handler)

    def _close_log(self) -> None:
        for handler in self._handlers:
            self.logger.removeHandler(handler)
            handler.close()
        self._handlers = []


class _OwnLoss(Objective):
    """The loss that the model computes of the batch as its loader gave it."""

    splits = False

    def __init__(self) -> None:
        self.batch: Any = None
        self.shown: dict[str, str] = {}
        """The term of each loss, by the model's name for it."""

    @property
    def named(self) -> bool:
        return self.shown.keys() != {"loss"}

    def terms(self, model: nn.Module, batch: Batch) -> Terms:
        found = model.calculate_loss(self.batch)  # type: ignore[operator]
        if isinstance(found, Tensor):
            found = {"loss": found}
        elif not isinstance(found, dict):
            raise ConfigError(f"calculate_loss gives a tensor or losses by name, got a {type(found).__name__}.")
        elif "total_loss" not in found:
            warnings.warn(f"no total_loss in result: {found}, use sum of all losses as total_loss", stacklevel=2)
        trained = {"total_loss"} if "total_loss" in found else found.keys()
        self.shown = {name: f"{name}_term" if name == "total_loss" else name for name in found}
        return Terms((self.shown[name], Term(loss, 1.0, float(name in trained))) for name, loss in found.items())


def _max_norm(settings: Mapping[str, Any] | None) -> float | None:
    """The norm to clip to, if any, of the arguments of `torch.nn.utils.clip_grad_norm_`."""
    if settings is None:
        return None
    unknown = settings.keys() - {"max_norm", "norm_type", "error_if_nonfinite", "foreach"}
    if "max_norm" not in settings or float(settings.get("norm_type", 2.0)) != 2.0 or unknown:
        raise ConfigError(f"clip_grad_norm= is {{'max_norm': number}}, of all gradients' 2-norm; got {dict(settings)}.")
    return float(settings["max_norm"])


def _metric(name: str) -> Callable[[Tensor, Tensor], float]:
    from sklearn import metrics

    known = ("accuracy", "precision", "recall", "f1", "auc")
    key = name.lower()
    if key not in known:
        raise MetricError(f"there is no metric {name!r}. Known: {', '.join(known)}, or give a function.")
    score: Any = getattr(metrics, "roc_auc_score" if key == "auc" else f"{key}_score")

    def measure(outputs: Tensor, y: Tensor) -> float:
        options: dict[str, Any] = {}
        if key in ("precision", "recall", "f1"):
            options = {"average": "binary" if outputs.shape[1] <= 2 else "macro", "zero_division": 0}
        found = outputs.softmax(1)[:, 1] if key == "auc" else outputs.argmax(1)
        return float(score(y.cpu().numpy(), found.cpu().numpy(), **options))

    return measure


def _label(batch: Any) -> Tensor:
    label = batch.get("label") if isinstance(batch, dict) else None
    if isinstance(label, Tensor):
        return label
    raise DataError(f"a batch is a dict with a tensor 'label', got a {type(batch).__name__}.")


def _rows(batch: Any) -> int:
    """How many rows a batch has: as many as its label, or as the first tensor in it."""
    first = batch["label"] if isinstance(batch, dict) and "label" in batch else batch
    return next((len(each) for each in tree_leaves(first) if isinstance(each, Tensor) and each.dim()), 0)


def _size(loader: Any) -> int:
    return len(getattr(loader, "dataset", loader))


def _named(model: nn.Module) -> str:
    return f"{type(model).__name__}-{datetime.datetime.now():%Y-%m-%d-%H_%M_%S}"


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.6f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"


def _listed(result: Mapping[str, float]) -> str:
    return "    ".join(f"{name}={value:.6f}" for name, value in result.items())


def _new_file(folder: str, name: str) -> Path:
    """Makes an empty file in a folder of the working directory; a number is added to the name of one that exists."""
    first = Path.cwd() / folder / name
    first.parent.mkdir(parents=True, exist_ok=True)
    names = (first.with_stem(f"{first.stem}-{number}") if number > 1 else first for number in count(1))
    while True:
        with suppress(FileExistsError):
            (path := next(names)).touch(exist_ok=False)
            return path
