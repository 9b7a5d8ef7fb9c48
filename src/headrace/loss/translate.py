"""Makes terms from losses of torch and from functions: standard modules exactly, other functions as declared."""

from collections.abc import Callable
from typing import Any, Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from ..data.batch import Batch
from ..errors import ConfigError
from .base import Check, Loss, Sum, Term, pick, setting
from .classes import CrossEntropy
from .elements import L1, MSE, BinaryCrossEntropy, Huber


def _left_alone(only: str | None) -> Check:
    def check(name: str, value: Any) -> Any:
        if value != only:
            raise ConfigError("RowMean takes neither weight= nor reduce=: the function gives the mean itself.")
        return value

    return check


class RowMean(Loss):
    """Declares that a function `(outputs, target) -> loss` is a mean over the rows.

    The mean over a batch is then the mean over its parts, weighted by their rows, so that microbatches and workers are
    exact. `reads` names the kind of outputs for metrics: one of `headrace.loss.task.READS`.
    """

    row_weight: str | None = setting(_left_alone(None))
    reduce: Literal["mean", "sum"] = setting(_left_alone("mean"))

    def __init__(self, fn: Callable[[Any, Any], Tensor], *, reads: str | None = None, **options: Any) -> None:
        options.setdefault("name", getattr(fn, "__name__", type(fn).__name__).strip("<>"))
        super().__init__(**options)
        self.fn, self.reads = fn, reads

    def weight(self, batch: Batch) -> float:
        return float(batch.rows)

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        return self._mean(outputs, batch) * batch.rows

    def term(self, model: nn.Module, outputs: Any, batch: Batch) -> Term:
        rows = float(batch.rows)
        return Term(self._mean(outputs, batch), rows, self.coefficient, times=rows)

    def _mean(self, outputs: Any, batch: Batch) -> Tensor:
        if not batch.rows:  # sequences without items: nothing has no mean
            picked = pick(outputs, self.output, self.name)
            return cast(Tensor, picked.sum() * 0)
        mean = self.fn(outputs if self.output is None else pick(outputs, self.output, self.name), batch[self.target])
        if not isinstance(mean, Tensor) or mean.numel() != 1:
            came = list(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
            raise ConfigError(f"loss {self.name!r} must return one number, the mean over the rows; it returned {came}.")
        return mean.reshape(())


class WholeBatch(RowMean):
    """A function `(outputs, target) -> loss` of which nothing is known: it needs the batch in one piece."""

    splits = False


class WholeSum(WholeBatch):
    """One that says by its `reduction` that it is a sum over the rows."""

    def sum(self, outputs: Any, batch: Batch) -> Tensor:
        return self._mean(outputs, batch)

    def term(self, model: nn.Module, outputs: Any, batch: Batch) -> Term:
        return Term(self._mean(outputs, batch), float(batch.rows), self.coefficient, summed=True)


def translate(loss: Any, argument: str = "loss") -> Loss | Sum:
    """A term for a term, a standard `nn.*Loss`, its function in `torch.nn.functional`, or any callable."""
    if isinstance(loss, Loss | Sum):
        return loss
    if isinstance(loss, type):
        raise ConfigError(f"{argument}= got the class {loss.__name__}. Pass an instance: {loss.__name__}().")
    loss = next((module() for function, module in _FUNCTIONS.items() if function is loss), loss)
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and type(loss) in _MODULES:
        if reduction not in ("mean", "sum"):
            raise ConfigError(
                f"{type(loss).__name__} has reduction={reduction!r}. "
                "Use 'mean' or 'sum', or a headrace term with weight=."
            )
        return _MODULES[type(loss)](loss, reduce=reduction)
    if reduction == "none":
        raise ConfigError(f"{type(loss).__name__} has reduction='none'; a loss is one number. Use 'mean' or 'sum'.")
    if callable(loss):
        return (WholeSum if reduction == "sum" else WholeBatch)(loss)
    raise ConfigError(f"{argument}= takes a term, an Objective, an nn loss or a function, got a {type(loss).__name__}.")


_MODULES: dict[type[nn.Module], Callable[..., Loss]] = {
    nn.CrossEntropyLoss: lambda module, **options: CrossEntropy(
        class_weights=module.weight,
        ignore_index=module.ignore_index,
        label_smoothing=module.label_smoothing,
        **options,
    ),
    nn.NLLLoss: lambda module, **options: CrossEntropy(
        class_weights=module.weight, ignore_index=module.ignore_index, inputs="log_probs", name="nll", **options
    ),
    nn.BCELoss: lambda module, **options: BinaryCrossEntropy(inputs="probs", element_weight=module.weight, **options),
    nn.BCEWithLogitsLoss: lambda module, **options: BinaryCrossEntropy(
        positive_weight=module.pos_weight, element_weight=module.weight, **options
    ),
    nn.MSELoss: lambda module, **options: MSE(**options),
    nn.L1Loss: lambda module, **options: L1(**options),
    nn.SmoothL1Loss: lambda module, **options: (
        Huber(module.beta, **options) if module.beta > 0 else L1(name="huber", **options)
    ),
    nn.HuberLoss: lambda module, **options: Huber(module.delta, form="classic", **options),
}

_FUNCTIONS: dict[Any, Callable[[], nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
}
