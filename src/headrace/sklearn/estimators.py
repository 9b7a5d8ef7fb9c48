"""The classifier and the regressor."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import _check_partial_fit_first_call, check_classification_targets
from sklearn.utils.validation import column_or_1d

from ..errors import ConfigError
from ..loss.base import Sum
from ..loss.classes import CrossEntropy
from ..loss.elements import MSE
from .base import Estimator


class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """A neural network as a scikit-learn classifier of two or more classes.

    Afterwards it has `classes_`, in the order of the outputs; `module_`, the trained module; `history_`; `n_iter_`, the
    epochs; `run_`, the directory of its run, if it has one; `n_features_in_` and `feature_names_in_`.

    Args:
        module: a function or class of (n_features, n_outputs) that makes an `nn.Module` with an output for each class,
            or a module, which is copied. It gets the rows as they are, so put a StandardScaler before it. The default
            is linear layers of the widths `hidden` with ReLU between. `module__width=64` sets its argument `width`.
        hidden: widths of the hidden layers of the default module.
        loss: a loss as for `Trainer`; the default is `CrossEntropy()`.
        optimizer: a class or function of (parameters, lr=...). `optimizer__momentum=0.9` sets its argument `momentum`.
        lr: the learning rate.
        batch_size: rows in one update.
        epochs: passes over the training rows.
        class_weight: weights by class, or "balanced". They multiply the sample weights.
        validation: the share of rows that is held out and scored after every epoch, or other rows to score, (X, y).
        patience: the training ends after this many scores without an improvement, with the best module.
        metrics: as for `Trainer`.
        callbacks: as for `fit`.
        device: as for `Trainer`.
        dtype: of the rows. Sparse rows become dense one batch at a time.
        random_state: of weights, order, dropout and the rows that are held out. The global generators are restored.
        run: the directory of the run of one fit, as for `Trainer.fit`: the same fit continues it. It needs a number as
            `random_state`. Leave it out in a search.
        trainer_options: other arguments of `Trainer`.
        fit_options: other arguments of `fit`.
        verbose: 1 shows a progress bar.
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Classifier:
        """Trains a new module on rows and their classes."""
        X, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, target = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"a Classifier needs samples of 2 classes or more, got 1 class: {self.classes_[0]!r}.")
        X, target, weights = self._counted(X, y, target, sample_weight)
        self._train(X, target, weights, len(self.classes_), CrossEntropy(), split_by=target)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Classifier:
        """Trains the module for one more epoch, on these rows; the first call says what `classes` there are.

        The optimizer keeps its state from the calls before; settings that were changed since apply. Nothing is held
        out, though rows given as `validation` are scored; there is no run, and weights of classes have to be numbers.
        """
        first = not hasattr(self, "module_")
        if isinstance(self.class_weight, str):
            raise ValueError(f"class_weight={self.class_weight!r} needs all rows, and partial_fit has some of them.")
        _check_partial_fit_first_call(self, classes)
        X, y = self._checked(X, y, reset=first)
        check_classification_targets(y)
        X, target, weights = self._counted(X, y, self._targets(y), sample_weight)
        self._train_on(X, target, weights, len(self.classes_), CrossEntropy(), first)
        return self

    def _counted(self, X: Any, y: Any, target: np.ndarray, sample_weight: Any) -> tuple[Any, np.ndarray, Any]:
        """The rows that have a weight, their targets, and what each counts by its own weight and that of its class."""
        weights, kept = self._kept(X, sample_weight)
        if self.class_weight is not None:
            factors = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
            weights = (np.ones(len(y)) if weights is None else weights) * factors[target]
        return X[kept], target[kept], None if weights is None else weights[kept].astype(self.dtype)

    def _targets(self, y: Any) -> np.ndarray:
        y = column_or_1d(y)
        if len(strange := np.setdiff1d(y, self.classes_)):
            raise ValueError(f"{strange[0]} is none of the classes: {', '.join(map(str, self.classes_[:10]))}.")
        return np.asarray(np.searchsorted(self.classes_, y))

    def _check_outputs(self, outputs: Any, n_outputs: int) -> None:
        super()._check_outputs(outputs, n_outputs)
        if outputs.shape[1:] != (n_outputs,):
            raise ConfigError(
                f"module= has an output for each class: expected [{n_outputs}] for a row, got {[*outputs.shape[1:]]}. "
                f"The classes are {', '.join(map(str, self.classes_[:10]))}{' ...' * (n_outputs > 10)}."
            )

    def decision_function(self, X: Any) -> np.ndarray:
        """The outputs of the module, one for each class; of two classes, by how much the second is above the first."""
        outputs = self._outputs(X)
        return np.asarray(outputs[:, 1] - outputs[:, 0] if outputs.shape[1] == 2 else outputs)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class."""
        outputs = self._outputs(X)
        terms = self.loss if isinstance(self.loss, Sum) else [self.loss]
        given = any(isinstance(term, CrossEntropy) and term.inputs == "probs" for term in terms)
        return np.asarray(outputs if given else outputs.softmax(dim=1))

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row."""
        best = self._outputs(X).argmax(dim=1)
        return np.asarray(self.classes_[best])


class Regressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A neural network as a scikit-learn regressor of one number or several.

    Settings and attributes are those of `Classifier`, without classes; the loss is `MSE()` if none is given, and the
    module has an output for each number. Neither rows nor numbers are scaled: use a StandardScaler for the rows, and
    for numbers that are far from 0 or far apart a TransformedTargetRegressor.
    """

    _without = ("class_weight",)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Trains a new module on rows and their numbers."""
        X, y = self._checked(X, y, multi_output=True, y_numeric=True)
        y = np.asarray(y, self.dtype)
        self._flat = y.ndim == 1
        weights, kept = self._kept(X, sample_weight)
        target = y.reshape(len(y), -1)[kept]
        self._train(X[kept], target, None if weights is None else weights[kept], target.shape[1], MSE(), split_by=None)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Regressor:
        """Trains the module for one more epoch, on these rows; see `Classifier.partial_fit`."""
        first = not hasattr(self, "module_")
        X, y = self._checked(X, y, multi_output=True, y_numeric=True, reset=first)
        self._flat = y.ndim == 1
        weights, kept = self._kept(X, sample_weight)
        target = self._targets(y)[kept]
        self._train_on(X[kept], target, None if weights is None else weights[kept], target.shape[1], MSE(), first)
        return self

    def _targets(self, y: Any) -> np.ndarray:
        return np.asarray(y, self.dtype).reshape(len(y), -1)

    def predict(self, X: Any) -> np.ndarray:
        """The number, or numbers, of each row."""
        outputs = np.asarray(self._outputs(X))
        return outputs[:, 0] if self._flat and outputs.ndim > 1 else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
