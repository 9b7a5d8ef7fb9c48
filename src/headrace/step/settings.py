"""How every update of a training is made, in which number formats, and which parts of a model are compiled."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..arena.arena import Arena
from ..arena.sharding import modules_named
from ..data.batch import Batch
from ..errors import ConfigError, DataError, NonFiniteError, unknown

CHANGEABLE = ("microbatch", "clip_norm", "clip_value")
"""The settings that may change from one update to the next."""
LARGEST = 65_536  # elements of a buffer that a pass may change and a repetition must not
_BATCH_NORM = (nn.modules.batchnorm._BatchNorm,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)


@dataclass(frozen=True, slots=True)
class Settings:
    """How every update of a training is made. `microbatch="auto"`: as large as the memory allows."""

    microbatch: int | Literal["auto"] | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    arena: bool = True
    tape: bool | Literal["auto"] = "auto"
    seed: int = 0


FEW = 2  # rows of a stand-in: batch normalisation refuses a single one


class StandIns:
    """Rows for passes of a worker that has none of a batch, or fewer microbatches than others: of an earlier batch.

    What they give counts for nothing, and changes nothing.
    """

    def __init__(self) -> None:
        self._rows: Batch | None = None

    def remember(self, batch: Batch) -> None:
        """A batch of which this worker has rows."""
        if self._rows is None or self._rows.rows < min(FEW, batch.rows):
            self._rows = batch.split(FEW)[0] if batch.rows > FEW else batch

    @property
    def rows(self) -> Batch:
        if self._rows is None:
            raise DataError(
                "a worker has no rows of the first batch, and all workers have to use a sharded model together. Give "
                "the first batch at least one row for each worker."
            )
        return self._rows


def draws_random(module: nn.Module) -> bool:
    """Whether a module draws random numbers in training: dropout, by itself or inside a layer."""
    rate = module.p if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0)
    return isinstance(module, nn.RReLU) or (isinstance(module, _RANDOM) and bool(rate))


def warn_where_splits_differ(model: nn.Module, depth: int = 4) -> None:
    """Warns of layers for which a microbatch is not the same as the same rows in a whole batch."""
    kinds = {
        type(m).__name__ for m in model.modules() if m.training and (isinstance(m, _BATCH_NORM) or draws_random(m))
    }
    if kinds:
        warnings.warn(
            f"the model has {', '.join(sorted(kinds))}: with microbatches its statistics or random numbers are "
            "those of each microbatch, so the update is close to that of the whole batch, not equal to it.",
            stacklevel=depth,
        )


def single_row_error() -> DataError:
    """What to do about batch normalisation of a single row."""
    return DataError(
        "this batch, or the part of it in a microbatch or on a worker, has a single row, and batch normalisation "
        "needs more than one. Choose another batch_size= or microbatch=, drop a row, or fill the last batch up from "
        "the next epoch: hr.Reader(table, cross_epochs=True)."
    )


_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """`"fp32"`, `"bf16"` (autocast) or `"fp16"` (autocast, and gradients scaled so that small ones survive)."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "fp8":
            raise ConfigError(
                "precision='fp8' is made of the model, before its trainer: model = "
                "torchao.float8.convert_to_float8_training(model), with precision='bf16' for its other layers."
            )
        if name == "int8":
            raise ConfigError("precision='int8' is not there: torchao's weights of int8 cannot be saved. Use fp8.")
        if not isinstance(name, str) or name not in _DTYPES:
            raise ConfigError(unknown("precision", name, _DTYPES))
        self._dtype = _DTYPES[name]
        self._device = device.type
        self._scaler = torch.amp.GradScaler(device.type) if name == "fp16" else None
        self._plain: AbstractContextManager[Any] = nullcontext()

    def context(self) -> AbstractContextManager[Any]:
        """What the forward pass runs under."""
        return self._plain if self._dtype is None else torch.autocast(self._device, self._dtype)

    @property
    def halves(self) -> bool:
        """Whether the model is called under autocast, so that outputs come in half precision."""
        return self._dtype is not None

    @property
    def scales(self) -> bool:
        """Whether gradients are scaled; an infinite one is then a sign that the scale is too high."""
        return self._scaler is not None

    def state_dict(self) -> dict[str, Any]:
        """The loss scale and how it came about; nothing where nothing is scaled."""
        return {} if self._scaler is None else self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._scaler is not None and state:
            self._scaler.load_state_dict(state)

    def discard(self) -> None:
        """An update was left half way: the scaler forgets that it has begun to take the scale out."""
        if self._scaler is not None:
            state, self._scaler = self._scaler.state_dict(), torch.amp.GradScaler(self._device)
            self._scaler.load_state_dict(state)

    def scale(self, seed: Tensor) -> Tensor:
        """What a backward pass starts from."""
        return seed if self._scaler is None else self._scaler.scale(seed)

    def unscale(self, arena: Arena, gradients: Sequence[Tensor]) -> None:
        """Takes the scale out of the optimizer's gradients again, if there are any; `step` has to follow."""
        if self._scaler is not None and gradients:
            arena.with_vectors(self._scaler.unscale_, arena.optimizer)

    def step(self, arena: Arena, gradients: Sequence[Tensor]) -> None:
        """The update; a scaled one is left out, and the scale lowered, when its gradients overflowed."""
        if self._scaler is None or not gradients:
            arena.hooks.step()
            return
        skips = vars(arena.optimizer).pop("found_inf", None)  # the guard's; the scaler puts its own there
        if skips is not None and bool(skips):
            self.discard()
            return
        with arena.hooks.ours():
            self._scaler.step(arena.optimizer)
        self._scaler.update()
        if self._scaler.get_scale() < 1.0:
            raise NonFiniteError(
                "the fp16 loss scale fell below 1: the gradients are not finite, whatever the scale. "
                "Lower the rate, use clip_norm=, or precision='bf16'."
            )


@contextmanager
def mode(models: Sequence[nn.Module], training: bool) -> Iterator[None]:
    """Train or eval mode for a while; every module gets its own mode back.

    A model that is in train mode keeps the modules that its owner has put in eval mode. A `train` or an `eval` of the
    user's own is called, as a loop calls it: it may keep a layer in eval mode, or change weights.
    """
    before = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            if not training:
                model.eval()
            elif not model.training:
                model.train()
            elif any(map(_has_own_mode, model.modules())):
                rests = [module for module in model.modules() if not module.training]
                model.train()
                _put_back((module, False) for module in rests)
        yield
    finally:
        _put_back(before)


def _put_back(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Gives modules these modes, each module before those in it."""
    for module, was in modes:
        if module.training is was:
            continue
        if _has_own_mode(module):
            module.train(was)
        else:
            module.training = was


def _has_own_mode(module: nn.Module) -> bool:
    """Whether its `train` is not torch's."""
    return getattr(module.train, "__func__", None) is not nn.Module.train


Patterns = str | Sequence[str]
"""Names of modules, or patterns such as "blocks.*"."""


def change_in_place(model: nn.Module, compiled: bool | Patterns, recomputed: Patterns) -> None:
    """Compiles the model or the modules that are named, and makes others forget what is between their layers."""
    for _, module in modules_named(model, _listed(recomputed, "recompute"), "recompute"):
        _check_calls(module, recomputed)
        if not is_recomputed(module):
            again: dict[str, Any] = {"use_reentrant": False}
            if not compiled and next(module.buffers(), None) is not None:
                again["context_fn"] = partial(_twice, module)
            module.forward = partial(checkpoint, module.forward, **again)
    if isinstance(compiled, bool):
        parts = [model] if compiled else []
    else:
        parts = [module for _, module in modules_named(model, _listed(compiled, "compile"), "compile")]
    for part in parts:
        _compile(part)


def _twice(module: nn.Module) -> tuple[AbstractContextManager[None], "_Repeated"]:
    """Contexts of a pass and of its repetition, which has the buffers of before the pass and leaves none changed."""
    held = [(part._buffers, *item) for part in module.modules() for item in part._buffers.items()]
    before = [(of, name, b.clone()) for of, name, b in held if b is not None and b.numel() <= LARGEST]
    return nullcontext(), _Repeated(before)


class _Repeated:
    """A repetition of a pass. It may be entered again: a graph is passed twice for a gradient of gradients."""

    def __init__(self, before: list[tuple[dict[str, Any], str, Tensor]]) -> None:
        self._before = before
        self._after: list[Any] = []

    def __enter__(self) -> None:
        self._after = [of[name] for of, name, _ in self._before]
        for of, name, buffer in self._before:
            of[name] = buffer.clone()

    def __exit__(self, *_: object) -> None:
        for (of, name, _buffer), buffer in zip(self._before, self._after, strict=True):
            of[name] = buffer


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` has been applied to a module."""
    return module._compiled_call_impl is not None or "_orig_mod" in module._modules


def is_recomputed(module: nn.Module) -> bool:
    """Whether a module computes what is between its layers again in the backward pass."""
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and forward.func is checkpoint


def _compile(module: nn.Module) -> None:
    """As `module.compile()`, which leaves models made of torch's own containers as they are."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        return module._call_impl(*arguments, **keywords)

    module._compiled_call_impl = torch.compile(call)


def _listed(patterns: Any, argument: str) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, list | tuple) or not all(isinstance(pattern, str) for pattern in listed):
        raise ConfigError(f"{argument}= takes names of modules, as in 'blocks.*', got {patterns!r}.", argument=argument)
    return list(listed)


def _check_calls(module: nn.Module, patterns: Patterns) -> None:
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        raise ConfigError(
            f"recompute={patterns!r} names a list of modules, which is not called. Name what is in it: '....*'.",
            argument="recompute",
        )
