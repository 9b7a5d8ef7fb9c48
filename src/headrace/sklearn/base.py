"""What the estimators share: settings, a fit by a Trainer, and outputs for rows."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..errors import ConfigError, unknown
from ..loss.base import Loss
from ..loss.translate import RowMean, translate
from ..store.rng import capture_torch, restore_torch
from ..train.runs import Run
from ..train.trainer import Trainer
from ..watch.callback import Callback
from ..watch.deciding import EarlyStopping

WEIGHT = "weight"  # the stream of sample weights
DTYPES = ("float32", "float64")
Data = dict[str, Any]


class Estimator(BaseEstimator):  # type: ignore[misc]
    """Holds the settings, which `fit` does not change, and fits a module with a Trainer."""

    _remembered: tuple[Any, Data, Data] | None = None  # the optimizer of the last partial_fit: kind, settings, state
    _draws: Any = None  # what seeds the next partial_fit
    _without: tuple[str, ...] = ()  # settings that it does not have

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        settings = inspect.signature(cls.__init__).parameters.values()  # scikit-learn gives a value to every name here
        hidden = ("self", "parts", *cls._without)
        cls.__signature__ = inspect.Signature([each for each in settings if each.name not in hidden])

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return [name for name in super()._get_param_names() if name not in cls._without]

    def __init__(
        self,
        module: Any = None,
        *,
        hidden: Sequence[int] = (100,),
        loss: Any = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
        lr: float = 1e-3,
        batch_size: int = 128,
        epochs: int = 100,
        class_weight: Mapping[Any, float] | str | None = None,
        validation: Any = 0.0,
        patience: int | None = None,
        metrics: Sequence[Any] = (),
        callbacks: Sequence[Callback] = (),
        device: str = "auto",
        dtype: str = "float32",
        random_state: Any = None,
        run: Any = None,
        trainer_options: Mapping[str, Any] | None = None,
        fit_options: Mapping[str, Any] | None = None,
        verbose: int = 0,
        **parts: Any,
    ) -> None:
        self.module, self.hidden, self.loss = module, hidden, loss
        self.optimizer, self.lr = optimizer, lr
        self.batch_size, self.epochs, self.class_weight = batch_size, epochs, class_weight
        self.validation, self.patience = validation, patience
        self.metrics, self.callbacks = metrics, callbacks
        self.device, self.dtype = device, dtype
        self.random_state, self.run = random_state, run
        self.trainer_options, self.fit_options, self.verbose = trainer_options, fit_options, verbose
        hidden_names = {name for name in self._without if getattr(self, name) is not None}
        if wrong := sorted(hidden_names | parts.keys() - _parts(parts).keys()):
            raise TypeError(
                f"{type(self).__name__} has no setting {wrong[0]!r}. "
                "Settings of the module begin with module__, those of the optimizer with optimizer__."
            )
        self.__dict__.update(parts)

    def get_params(self, deep: bool = True) -> Data:
        """The settings by name, also those of the module and of the optimizer."""
        return {**super().get_params(deep), **_parts(vars(self))}

    def set_params(self, **params: Any) -> Any:
        """Changes settings; those of the module and of the optimizer are added to the ones that were given."""
        parts = _parts(params)
        super().set_params(**{name: value for name, value in params.items() if name not in parts})
        self.__dict__.update(parts)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __getstate__(self) -> Any:
        """With the module on the host: whoever reads it may have no such device."""
        state = super().__getstate__()
        if "module_" in state:
            state = {**state, "module_": copy.deepcopy(state["module_"]).to("cpu")}
        return state

    def _checked(self, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
        """Rows and targets, looked at as scikit-learn does; columns are remembered."""
        if self.dtype not in DTYPES:
            raise ConfigError(unknown("dtype", self.dtype, DTYPES))
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=self.dtype, **options)
        return X, y

    def _train(self, X: Any, y: np.ndarray, weights: Any, n_outputs: int, default: Loss, split_by: Any) -> None:
        """Fits a new module to rows that have been looked at; `split_by`: what to have alike in both parts."""
        data, loss = self._data_and_loss(X, y, weights, default)
        asked = dict(self.fit_options or {})
        run, callbacks = asked.pop("run", self.run), [*self._callbacks(), *asked.pop("callbacks", ())]
        if Run.of(run).path is not None and not isinstance(self.random_state, int | np.integer):
            raise ConfigError(
                "run= goes on with the same fit where it was interrupted, which draws the same numbers with a number "
                f"as random_state= alone, got {self.random_state!r}."
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        train, val = self._held_out(data, seed, split_by)
        with _seeded(seed):
            trainer = self._made_trainer(X, loss, seed, n_outputs)
            options = {"epochs": self.epochs, "progress": "auto" if self.verbose else False}
            history = trainer.fit(train, val, run=run, callbacks=callbacks, **{**options, **asked})
        self.run_, self._remembered, self._draws = history.run, None, np.random.RandomState(seed)
        self.module_, self.history_, self.n_iter_ = trainer.model, history, history.rows[-1]["epoch"]

    def _train_on(self, X: Any, y: np.ndarray, weights: Any, n_outputs: int, default: Loss, first: bool) -> None:
        """Trains the module for one more epoch, on these rows; `first`: there is none yet."""
        data, loss = self._data_and_loss(X, y, weights, default)
        asked = {name: value for name, value in (self.fit_options or {}).items() if name not in ("run", "epochs")}
        callbacks = [*self.callbacks, *asked.pop("callbacks", ())]
        if first or self._draws is None:
            self._draws = check_random_state(self.random_state)
        if first:
            self.n_iter_, self._remembered = 0, None
        seed = int(self._draws.randint(2**31 - 1))
        with _seeded(seed):
            trainer = self._made_trainer(X, loss, seed, n_outputs, None if first else self.module_)
            self._recall(trainer.optimizer)
            options = {"progress": "auto" if self.verbose else False, **asked, "epochs": 1}
            val = None if _is_share(self.validation) else self._fixed(WEIGHT in data)
            self.history_ = trainer.fit(data, val, callbacks=callbacks, **options)
        self.module_, self.run_, self.n_iter_ = trainer.model, None, self.n_iter_ + 1
        self._remembered = self.optimizer, self._optimizer_settings, _on_host(trainer.optimizer.state_dict())

    def _data_and_loss(self, X: Any, y: np.ndarray, weights: Any, default: Loss) -> tuple[Data, Any]:
        """Rows by stream, and the loss that is to be minimised."""
        loss = _weighed(default if self.loss is None else copy.deepcopy(self.loss), weights is not None)
        return {"x": X, "y": y} if weights is None else {"x": X, "y": y, WEIGHT: weights}, loss

    def _made_trainer(self, X: Any, loss: Any, seed: int, n_outputs: int, module: nn.Module | None = None) -> Trainer:
        """A trainer of this module, or of a new one, whose outputs for the first rows are checked."""
        new = self._made(X.shape[1], n_outputs).to(getattr(torch, self.dtype)) if module is None else module
        optimizer = self.optimizer(new.parameters(), **self._optimizer_settings)
        trainer = self._trainer(new, loss, optimizer, X, seed=seed, metrics=self.metrics, batch_size=self.batch_size)
        if module is None:
            with _seeded(seed):  # a module may draw even at rest
                self._check_outputs(trainer.predict({"x": X[:2]}), n_outputs)
        return trainer

    @property
    def _optimizer_settings(self) -> Data:
        return {"lr": self.lr, **_parts(vars(self), "optimizer__")}

    def _recall(self, optimizer: torch.optim.Optimizer) -> None:
        """Gives an optimizer what the last one has learned; settings that have been changed since are as they are."""
        if self._remembered is None:
            return
        kind, settings, state = self._remembered
        if kind is not self.optimizer:
            return
        for group in state["param_groups"]:
            group.pop("last_lr", None)  # so that a scheduler goes on from there
        same = settings == self._optimizer_settings  # a scheduler may have moved the rate
        optimizer.load_state_dict(state if same else {**state, "param_groups": optimizer.state_dict()["param_groups"]})

    def _outputs(self, X: Any) -> Tensor:
        """What the module returns for these rows, on the host."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=self.dtype)
        outputs: Tensor = self._trainer(self.module_, None, (), X).predict({"x": X})
        return outputs.detach().to("cpu", torch.float64)

    def _trainer(self, module: nn.Module, loss: Any, optimizer: Any, X: Any, **options: Any) -> Trainer:
        inputs = "x" if isinstance(X, np.ndarray) else "x.to_dense"  # of sparse rows, a batch at a time
        options |= {"inputs": inputs, "device": self.device, **(self.trainer_options or {})}
        return Trainer(module, loss, optimizer, **options)

    def _made(self, n_features: int, n_outputs: int) -> nn.Module:
        settings = _parts(vars(self), "module__")
        if settings and (self.module is None or isinstance(self.module, nn.Module)):
            raise ConfigError(
                f"module__{min(settings)}= is for what makes the module, got module={type(self.module).__name__}. "
                "Give a function or class of (n_features, n_outputs) and the setting."
            )
        if isinstance(self.module, nn.Module):
            return copy.deepcopy(self.module)
        make = partial(perceptron, hidden=self.hidden) if self.module is None else self.module
        made = make(n_features, n_outputs, **settings)
        if not isinstance(made, nn.Module):
            raise ConfigError(f"module= makes an nn.Module of (n_features, n_outputs), got a {type(made).__name__}.")
        return made

    def _check_outputs(self, outputs: Any, n_outputs: int) -> None:
        """Raises unless what a new module returns for the first rows is something to fit to targets."""
        if not isinstance(outputs, Tensor):
            raise ConfigError(f"module= returns a tensor with a row for each row, got a {type(outputs).__name__}.")

    def _callbacks(self) -> list[Callback]:
        if self.patience is None:
            return list(self.callbacks)
        if _is_share(self.validation) and not self.validation:
            raise ConfigError("patience= counts validations, and nothing is held out for one. Say validation=0.1.")
        return [*self.callbacks, EarlyStopping("val/loss", self.patience)]

    def _held_out(self, data: Data, seed: int, split_by: Any) -> tuple[Data, Data | None]:
        """The rows to train on and to validate with."""
        if not _is_share(self.validation):
            return data, self._fixed(WEIGHT in data)
        if not self.validation:
            return data, None
        if not 0 < self.validation < 1:
            raise ConfigError(
                f"validation= is the share of rows to hold out, from 0 to 1, or (X, y), got {self.validation!r}."
            )
        rows = np.arange(len(data["y"]))
        parts = train_test_split(rows, test_size=self.validation, random_state=seed, stratify=split_by)
        train, val = ({name: column[np.sort(part)] for name, column in data.items()} for part in parts)
        return train, val

    def _fixed(self, weighs: bool) -> Data:
        """The rows to validate with that were given as `validation`; each counts alike."""
        if not isinstance(self.validation, tuple | list) or len(self.validation) != 2:
            raise ConfigError(
                "validation= is the share of rows to hold out, or the rows to validate with, (X, y), "
                f"got a {type(self.validation).__name__}."
            )
        X, y = self.validation
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=self.dtype)
        y = self._targets(y)
        if len(y) != X.shape[0]:
            raise ConfigError(f"validation= has {X.shape[0]} rows and {len(y)} targets. Give one for each row.")
        data = {"x": X, "y": y}
        return data | {WEIGHT: np.ones(len(y), self.dtype)} if weighs else data

    def _targets(self, y: Any) -> np.ndarray:
        """Targets of other rows, as those of the training are given to the loss."""
        raise NotImplementedError

    def _kept(self, X: Any, weights: Any) -> tuple[np.ndarray | None, Any]:
        """The weight of each row, and which rows have any: a row without is no row."""
        if weights is None:
            return None, slice(None)
        weights = _check_sample_weight(weights, X, dtype=self.dtype, ensure_non_negative=True)
        return weights, np.flatnonzero(weights)


def _on_host(state: Any) -> Any:
    """A copy of an optimizer's state without memory of a device: whoever reads it may have no such device."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)


def _is_share(validation: Any) -> bool:
    """Whether it is the share of rows to hold out, rather than rows."""
    return isinstance(validation, float | int | np.number)


def _parts(settings: Mapping[str, Any], of: str = "") -> Data:
    """Those for the module or for the optimizer; those that begin with `of`, without it."""
    whose = of or ("module__", "optimizer__")
    return {name.removeprefix(of): value for name, value in settings.items() if name.startswith(whose)}


def perceptron(n_features: int, n_outputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Linear layers of these widths, with ReLU between."""
    pairs = pairwise([n_features, *hidden, n_outputs])
    return nn.Sequential(*[each for pair in pairs for each in (nn.Linear(*pair), nn.ReLU())][:-1])


def _weighed(loss: Any, weighs: bool) -> Any:
    """The loss, in which each row counts as its weight says, if it has one."""
    if not weighs:
        return loss
    loss = translate(loss)
    for term in [loss] if isinstance(loss, Loss) else loss:
        if isinstance(term, RowMean):
            raise ConfigError(
                f"the loss {term.name!r} gives the mean over rows itself, so that rows cannot have weights. "
                "Use a term that knows its rows, as hr.CrossEntropy() or hr.MSE()."
            )
        if not term.training_only:
            term.row_weight = WEIGHT
    return loss


_GENERATORS = threading.RLock()


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds torch's generators for a while, and restores their state afterwards.

    The threads of a process share these generators, so estimators in several threads are fitted one after the other.
    """
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    with _GENERATORS:
        before = capture_torch(device)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            restore_torch(before, device)


_ROUNDED = "in float32 the last digit of a sum depends on which rows are computed together; in float64 the check passes"
_OF_WEIGHTS = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
EXPECTED_FAILED_CHECKS = dict.fromkeys(["check_methods_subset_invariance", *_OF_WEIGHTS], _ROUNDED)
"""Checks of scikit-learn's that estimators of float32 do not pass, and why; with `dtype="float64"` they pass all."""
